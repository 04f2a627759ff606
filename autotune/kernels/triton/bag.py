"""triton_bag: embedding bags on GPUs; see bag_kernel.py for the algorithm."""

from __future__ import annotations

import math

from autotune import paths
from autotune.dtypes import ITEMSIZE_BYTES
from autotune.hardware.gpu_limits import limits_of
from autotune.kernels import Built, Constants
from autotune.kernels.native import number
from autotune.kernels.triton import ELEMENTS, Launch, Needs, TritonAlgorithm
from autotune.ops.embedding_bag import EmbeddingBag, embedding_bag
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.ops import Kernel
    from autotune.space import Params
    from autotune.types import HardwareProfile, ParamValue, Workload

KERNELS = "autotune.kernels.triton.bag_kernel"
WIDTHS = (16, 32, 64, 128, 256, 512)
LENGTHS = (1, 2, 4, 8, 16, 32)
WARPS = (1, 2, 4, 8)
MOST_ELEMENTS = 8192
"""Of a program's rows at once: more do not fit the registers of a few warps."""


class TritonBag(TritonAlgorithm):
    """Sums, means and maxima, weighted or not, fixed or ragged, either type of index; a bad index makes its bag NaN.

    `width`: elements of a result that a program computes. `together`: rows that it reads at once. `warps`: Triton's.
    """

    name = "triton_bag"
    ops = ("embedding_bag",)
    sources = (paths.package_file("kernels", "triton", "bag_kernel.py"),)

    def workload_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = embedding_bag(workload)
        if w.dtype not in ELEMENTS:
            return f"the Triton embedding bag computes {', '.join(ELEMENTS)}, not {w.dtype}"
        return ""

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        w = embedding_bag(workload)
        parameters: dict[str, tuple[ParamValue, ...]] = {
            "width": tuple(d for d in WIDTHS if d < 2 * w.dim) or WIDTHS[:1],
            "together": tuple(n for n in LENGTHS if n < 2 * w.pooling) or LENGTHS[:1],
            "warps": WARPS,
        }
        limits = limits_of(hardware.arch)
        assert limits is not None

        def threads_have_work(p: Params) -> bool:
            width, together, warps = _numbers(p)
            return width * together <= MOST_ELEMENTS and (warps == 1 or warps * limits.warp_size <= width * together)

        constraints = (threads_have_work, self.fits(workload, hardware.arch))
        bare = SearchSpace(parameters, constraints)
        seeds: list[dict[str, ParamValue]] = []
        for together in (8, 4, 16, 2, 1):
            for warps in (1, 4):
                seed: dict[str, ParamValue] = {
                    "width": bare.parameters["width"][-1], "together": together, "warps": warps,
                }  # fmt: skip
                if bare.contains(seed):
                    seeds.append(seed)
        return SearchSpace(parameters, constraints, tuple(seeds))

    def needs(self, workload: Workload, params: Params, arch: str) -> Needs:
        limits = limits_of(arch)
        assert limits is not None
        return Needs(0, _numbers(params)[2] * limits.warp_size, 0)

    def launches(self, workload: Workload, params: Params) -> tuple[Launch, ...]:
        w = embedding_bag(workload)
        width, together, warps = _numbers(params)
        element = ELEMENTS[w.dtype]
        return (
            Launch(
                f"{KERNELS}:bag",
                {"table": element, "indices": w.index, "offsets": w.index, "weights": element, "y": element},
                {
                    "rows": w.rows, "dim": w.dim, "bags": w.bags, "lookups": w.lookups, "pooling": w.pooling,
                    "stride": w.dim,
                },
                {
                    "BLOCK_D": width, "BLOCK_L": together, "MODE": w.mode, "RAGGED": w.lengths == "ragged",
                    "WEIGHTED": w.weighted,
                },
                w.bags * math.ceil(w.dim / width),
                warps,
            ),
        )  # fmt: skip

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        w, given = embedding_bag(workload), constants["weight"]
        assert given is not None
        table = given.detach().resolve_neg()
        if table.stride(1) != 1:
            table = table.contiguous()
        held = 0 if table.data_ptr() == given.data_ptr() else table.numel() * ITEMSIZE_BYTES[w.dtype]
        (launch,) = self.launches(workload, params)
        return Built(_kernel(w, launch, _numbers(params)[0], table), held)


def _numbers(params: Params) -> tuple[int, int, int]:
    """(width, together, warps)."""
    return number(params, "width"), number(params, "together"), number(params, "warps")


def _kernel(w: EmbeddingBag, launch: Launch, width: int, table: torch.Tensor) -> Kernel:
    """(indices, offsets if ragged, weights if weighted) → a fresh [bags, dim]."""
    from autotune.kernels.triton.running import bind

    run, ragged, weighted, dim = bind(launch), w.lengths == "ragged", w.weighted, w.dim
    pieces = math.ceil(dim / width)

    def call(indices: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        indices = indices.contiguous()
        offsets = rest[0].contiguous() if ragged else indices
        weights = rest[-1].detach().resolve_neg().contiguous() if weighted else table
        bags = len(offsets) if ragged else indices.shape[0]
        y = table.new_empty((bags, dim))
        run(
            bags * pieces, table=table, indices=indices, offsets=offsets, weights=weights, y=y, rows=w.rows, dim=dim,
            bags=bags, lookups=indices.numel(), pooling=0 if ragged else indices.shape[1], stride=table.stride(0),
        )  # fmt: skip
        return y

    return call
