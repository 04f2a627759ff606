// A parallel loop whose cores keep to their own part of the tasks from call to call.
#pragma once

#include "tile.hpp"

#ifdef __linux__
#include <sched.h>
#endif

namespace {

constexpr i64 MOST_SHARES = 64;  // threads beyond so many take tasks from one counter

inline i64 this_core() {
#ifdef __linux__
  return max(0, sched_getcpu());
#else
  return 0;
#endif
}

// Like parallel(), but each core begins with a share of its own, the same at every call, and takes from others' when done: what it
// wrote or read of them the last time may still be in its cache.
template <class Body>
void parallel_near(ParallelFn pool, i64 threads, i64 tasks, const Body &body) {
  threads = min(threads, tasks);
  if (threads <= 1 || !pool || threads > MOST_SHARES) return parallel(pool, threads, tasks, body);
  struct alignas(64) Share {
    i64 next, end;
  } shares[MOST_SHARES];
  for (i64 i = 0; i < threads; ++i) shares[i] = {share(tasks, i, threads).begin, share(tasks, i, threads).end};
  parallel(pool, threads, threads, [&](i64) {
    const i64 own = this_core();
    for (i64 i = 0; i < threads; ++i) {
      Share &from = shares[(own + i) % threads];
      for (i64 t; (t = __atomic_fetch_add(&from.next, 1, __ATOMIC_RELAXED)) < from.end;) body(t);
    }
  });
}

}  // namespace
