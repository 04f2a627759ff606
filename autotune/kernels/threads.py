"""How many threads of torch's own pool a call may use."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import torch

    from autotune.ops import Kernel


def limited(call: Kernel, threads: int) -> Kernel:
    """`call` with torch's intra-op thread count set to `threads` around it, and put back after it, errors included.

    0 means the count as it is: `call` itself comes back. Where the count already is `threads`, one read of it
    (well under a microsecond) is all that is added; otherwise two writes, of the same order. The count is
    compared at each call, since the application may change it. It belongs to the process: another thread that
    starts work meanwhile sees the limit.
    """
    if not threads:
        return call

    import torch

    get, put = torch.get_num_threads, torch.set_num_threads

    def with_limit(*operands: Any) -> torch.Tensor:
        before = get()
        if before == threads:
            return call(*operands)
        put(threads)
        try:
            return call(*operands)
        finally:
            put(before)

    return with_limit
