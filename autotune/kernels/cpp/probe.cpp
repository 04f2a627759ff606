// Measures what this machine can reach: multiply-add throughput per element type, and memory bandwidth.
//
// Multiply-add peak: every thread keeps CHAINS independent accumulators in registers and updates each with
// acc = acc * m + b. A chain's next step waits for its last, 4 to 5 cycles; with two FMA units that needs at
// least 10 chains in flight. 16 registers hold 12 chains and the two constants, 32 hold 24. Neither loads nor
// stores take part. A multiply-add counts as two operations.
//
// Bandwidth: a buffer much larger than the caches is cut into one part per thread, which that thread also
// touches first, so that its pages lie in its own NUMA node. Each round goes through one eighth of every part:
// "read" sums it, "triad" computes a[i] = b[i] + s * c[i] over the three thirds of another and counts the three
// streams, not the line fetched to be overwritten. An eighth comes up again after traffic of a whole buffer.
//
// Every figure is taken in many short rounds that all threads begin together. A round's figure is the work of all
// threads divided by the time from the first one's begin to the last one's end, and the best round counts: other
// users of the machine can only make a round slower, and a round shorter than a scheduler slice is likely to be
// left alone. Threads are plain pthreads and live for one call.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <pthread.h>
#include <sched.h>
#include <time.h>

namespace {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, CHAINS = 24;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32, CHAINS = 12;
#elif defined(__aarch64__)
constexpr int VECTOR_BYTES = 16, CHAINS = 24;
#else
constexpr int VECTOR_BYTES = 16, CHAINS = 12;
#endif

template <typename T> struct Vec {
    typedef T type __attribute__((vector_size(VECTOR_BYTES), may_alias));
};

double now_s() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// A meeting point for all threads of a call. Who waits keeps its CPU for a while, since threads that begin a round
// apart spoil it; then yields, since the one that is missing may need that CPU.
struct Meeting {
    int threads;
    double deadline_s;
    std::atomic<int> waiting{0};
    std::atomic<int> generation{0};
    std::atomic<bool> late{false};

    // True while there is time for another round; the same answer for all threads.
    bool wait() {
        const int mine = generation.load();
        if (waiting.fetch_add(1) + 1 == threads) {
            waiting.store(0);
            late.store(now_s() > deadline_s);
            generation.fetch_add(1);
        } else {
            const double patience_s = now_s() + 1e-3;
            while (generation.load() == mine)
                if (now_s() > patience_s) sched_yield();
        }
        return !late.load();
    }
};

enum Kind { FMA_F32, FMA_F64, BANDWIDTH };

struct Job {
    Kind kind;
    int rounds;
    double round_s, most_s;  // of one round (FMA), and of all
    double *memory;          // BANDWIDTH: the whole buffer
    std::size_t per_thread;  // doubles in each thread's part
    Meeting meeting;
    std::atomic<int> go{0};  // 1: all threads exist, begin; -1: some do not, give up
};

constexpr int MAX_ROUNDS = 128, LEAST_ROUNDS = 3, SEGMENTS = 8;

// What one thread did in one round: flops or bytes, and when.
struct Span {
    double work, begin_s, end_s;
};

struct Worker {
    Job *job;
    int index;
    Span spans[2][MAX_ROUNDS];  // flops; or reading, and triad
    double sink;                // results go somewhere, so that the compiler cannot drop the work
};

template <typename T> Span multiply_adds(double round_s, double *sink) {
    typedef typename Vec<T>::type V;
    constexpr int STEPS = 1024, LANES = VECTOR_BYTES / int(sizeof(T));
    V acc[CHAINS];
    for (int i = 0; i < CHAINS; ++i) acc[i] = V{} + T(1 + i);
    V m = V{} + T(0.999), b = V{} + T(0.001);  // tends to 1: neither overflow nor subnormal numbers
    // Unknown to the compiler, else it could see that the values converge.
#if defined(__x86_64__) && defined(__AVX512F__)
    asm volatile("" : "+v"(m), "+v"(b));
#elif defined(__x86_64__)
    asm volatile("" : "+x"(m), "+x"(b));
#elif defined(__aarch64__)
    asm volatile("" : "+w"(m), "+w"(b));
#endif
    double flops = 0;
    const double begin = now_s();
    double end;
    do {
        for (int step = 0; step < STEPS; ++step) {
#pragma GCC unroll 24
            for (int i = 0; i < CHAINS; ++i) acc[i] = acc[i] * m + b;
        }
        flops += 2.0 * STEPS * CHAINS * LANES;
        end = now_s();
    } while (end - begin < round_s);
    V sum = acc[0];
    for (int i = 1; i < CHAINS; ++i) sum += acc[i];
    for (int i = 0; i < LANES; ++i) *sink += double(sum[i]);
    return {flops, begin, end};
}

constexpr std::size_t LANES_F64 = VECTOR_BYTES / sizeof(double);
constexpr std::size_t BLOCK = 8 * LANES_F64;  // eight independent sums hide the latency of the addition

double read_all(const double *memory, std::size_t count) {
    typedef Vec<double>::type V;
    V acc[8] = {};
    for (std::size_t i = 0; i + BLOCK <= count; i += BLOCK) {
#pragma GCC unroll 8
        for (std::size_t j = 0; j < 8; ++j) acc[j] += *reinterpret_cast<const V *>(memory + i + j * LANES_F64);
    }
    double total = 0;
    for (const V &part : acc)
        for (std::size_t i = 0; i < LANES_F64; ++i) total += part[i];
    return total;
}

void triad(double *memory, std::size_t third) {
    typedef Vec<double>::type V;
    double *a = memory;
    const double *b = memory + third, *c = memory + 2 * third;
    const V scale = V{} + 3.0;
    for (std::size_t i = 0; i + BLOCK <= third; i += BLOCK) {
#pragma GCC unroll 8
        for (std::size_t j = i; j < i + BLOCK; j += LANES_F64)
            *reinterpret_cast<V *>(a + j) =
                *reinterpret_cast<const V *>(b + j) + scale * *reinterpret_cast<const V *>(c + j);
    }
}

void *work(void *argument) {
    Worker &worker = *static_cast<Worker *>(argument);
    Job &job = *worker.job;
    while (job.go.load() == 0) sched_yield();
    if (job.go.load() < 0) return nullptr;
    double *mine = job.kind == BANDWIDTH ? job.memory + std::size_t(worker.index) * job.per_thread : nullptr;
    if (mine)
        for (std::size_t i = 0; i < job.per_thread; ++i) mine[i] = 1.0;  // zero pages would be one page in cache
    for (int round = 0; round < job.rounds; ++round) {
        if (!job.meeting.wait() && round >= LEAST_ROUNDS) break;
        if (job.kind == FMA_F32) worker.spans[0][round] = multiply_adds<float>(job.round_s, &worker.sink);
        if (job.kind == FMA_F64) worker.spans[0][round] = multiply_adds<double>(job.round_s, &worker.sink);
        if (!mine) continue;
        const std::size_t count = job.per_thread / SEGMENTS, third = count / 3;
        const double *read = mine + std::size_t(round % SEGMENTS) * count;
        double *written = mine + std::size_t((round + SEGMENTS / 2) % SEGMENTS) * count;
        double begin = now_s();
        worker.sink += read_all(read, count);
        worker.spans[0][round] = {double(count) * sizeof(double), begin, now_s()};
        job.meeting.wait();
        begin = now_s();
        triad(written, third);
        worker.spans[1][round] = {3.0 * double(third) * sizeof(double), begin, now_s()};
    }
    return nullptr;
}

// Work of all threads over the time that the round took.
double rate(const Worker *workers, int threads, int figure, int round) {
    Span all = workers[0].spans[figure][round];
    for (int i = 1; i < threads; ++i) {
        const Span &one = workers[i].spans[figure][round];
        all.work += one.work;
        if (one.begin_s < all.begin_s) all.begin_s = one.begin_s;
        if (one.end_s > all.end_s) all.end_s = one.end_s;
    }
    return all.end_s > all.begin_s ? all.work / (all.end_s - all.begin_s) : 0;
}

// Runs the job on `threads` threads; best[0..1] = best round of each figure, per second. Returns 0, or -1 when
// memory or threads are refused.
int run(Job &job, int threads, double *best) {
    if (threads < 1 || job.rounds < 1 || job.rounds > MAX_ROUNDS) return -1;
    Worker *workers = static_cast<Worker *>(std::calloc(std::size_t(threads), sizeof(Worker)));
    pthread_t *handles = static_cast<pthread_t *>(std::calloc(std::size_t(threads), sizeof(pthread_t)));
    if (!workers || !handles) {
        std::free(workers);
        std::free(handles);
        return -1;
    }
    int started = 0;
    job.meeting.threads = threads;
    job.meeting.deadline_s = now_s() + job.most_s;
    for (; started < threads; ++started) {
        workers[started].job = &job;
        workers[started].index = started;
        if (pthread_create(&handles[started], nullptr, work, &workers[started]) != 0) break;
    }
    job.go.store(started == threads ? 1 : -1);
    for (int i = 0; i < started; ++i) pthread_join(handles[i], nullptr);
    best[0] = best[1] = 0;
    for (int round = 0; started == threads && round < job.rounds; ++round)
        for (int figure = 0; figure < 2; ++figure) {
            const double found = rate(workers, threads, figure, round);
            if (found > best[figure]) best[figure] = found;
        }
    std::free(workers);
    std::free(handles);
    return started == threads ? 0 : -1;
}

}  // namespace

extern "C" {

// All: at most `rounds` rounds and `most_s` seconds, but three rounds at least.

// Multiply-add rate in operations per second; `bits` is 32 or 64. Negative when threads are refused.
double autotune_probe_flops(int bits, int threads, int rounds, double round_s, double most_s) {
    Job job{bits == 64 ? FMA_F64 : FMA_F32, rounds, round_s, most_s, nullptr, 0, {}, {}};
    double best[2];
    return run(job, threads, best) == 0 ? best[0] : -1.0;
}

// Bytes per second of reading (out[0]) and of triad (out[1]) over a buffer of `bytes`. 0, or -1 when refused.
int autotune_probe_bandwidth(std::int64_t bytes, int threads, int rounds, double most_s, double *out) {
    if (bytes < 1 || threads < 1) return -1;
    const std::size_t blocks = std::size_t(bytes) / sizeof(double) / std::size_t(threads) / (3 * SEGMENTS * BLOCK);
    const std::size_t per_thread = blocks * 3 * SEGMENTS * BLOCK;
    void *memory = nullptr;
    if (blocks == 0) return -1;
    if (posix_memalign(&memory, 4096, per_thread * sizeof(double) * std::size_t(threads)) != 0) return -1;
    Job job{BANDWIDTH, rounds, 0, most_s, static_cast<double *>(memory), per_thread, {}, {}};
    const int status = run(job, threads, out);
    std::free(memory);
    return status;
}
}
