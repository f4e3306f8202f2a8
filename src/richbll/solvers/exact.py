"""Exact, in two passes: features first, then C = Φ^mᵀU in their orthonormal basis U, and H = CᵀC.

Contracting over the data first needs no random projection and no N × m Jacobian. C is m × r; when it does not fit into
memory the parameters are taken in blocks, each with a pass of its own, and H is the sum over blocks.
"""

import torch
from torch import Tensor

from richbll.checks import human_bytes
from richbll.core.projection import refined_projection, spectrum_of
from richbll.errors import DataChangedError, MemoryBudgetError
from richbll.network.gradients import blocks_of
from richbll.network.network import Network
from richbll.solvers.solution import Solution, Source, feature_moments

_SLICE = 2**14  # parameters at a time in a product


def solve(network: Network, stream: Source, memory: int) -> Solution:
    """Moments and projection, with C in at most a quarter of the memory and gradients in a third."""
    moments, dtype = feature_moments(network, stream)
    spectrum = spectrum_of(moments.gram_projection, moments.num_rows, dtype)
    c, width = network.num_gradients, spectrum.num_alive
    device = moments.gram_projection.device

    CtC = torch.zeros(c, width, width, dtype=torch.float64, device=device)
    UtU = torch.eye(width, dtype=torch.float64, device=device)
    trace_m = torch.zeros(c, dtype=torch.float64, device=device)
    blocks = blocks_of(network.parameter_sizes, _largest_block(network, width, memory // 4)) if width else []
    reader = network.gradients()
    for number, block in enumerate(blocks, start=1):
        task = "gradients" if len(blocks) == 1 else f"gradients {number}/{len(blocks)}"
        C = torch.zeros(c, sum(p.stop - p.start for p in block), width, dtype=torch.float64, device=device)
        gram = torch.zeros_like(moments.gram_projection)
        UtU = torch.zeros_like(UtU)
        for batch in stream.batches(task):
            phi_r, f = network.features(batch)
            columns = network.reader.read(batch, f).columns
            phi = phi_r.to(torch.float64)
            U = phi @ spectrum.rough_whitener  # (n, alive)
            gram += phi.mT @ phi
            UtU += U.mT @ U
            for rows, phi_m in reader.micro_batches(batch, f, block, memory // 3, columns):  # (n', c, m')
                phi_m = phi_m.to(torch.promote_types(phi_m.dtype, torch.float32))  # products of bfloat16 are too coarse
                add_product(C, phi_m, U[rows].to(phi_m.dtype))
                trace_m += torch.linalg.vector_norm(phi_m, dim=(0, 2), dtype=torch.float64).square()
        _check_same_data(moments.gram_projection, gram, dtype)
        CtC += C.mT @ C
    return Solution(moments, refined_projection(spectrum, UtU, CtC, trace_m, dtype))


def add_product(C: Tensor, phi_m: Tensor, U: Tensor) -> None:
    """C += Φ^mᵀU in place, a slice of parameters at a time, so that the product is never there as a whole."""
    for start in range(0, C.shape[1], _SLICE):
        part = slice(start, start + _SLICE)
        C[:, part] += phi_m[:, :, part].permute(1, 2, 0) @ U


def _largest_block(network: Network, width: int, most_bytes: int) -> int:
    """How many parameters fit at once: C takes c · width float64 numbers for each."""
    each = 8 * network.num_gradients * width
    if each > most_bytes:
        raise MemoryBudgetError(
            f"One parameter takes {human_bytes(each)} ({network.num_gradients} outputs × {width} directions), "
            f"but memory_budget leaves {human_bytes(most_bytes)}. Raise the budget."
        )
    return most_bytes // each


def _check_same_data(first: Tensor, second: Tensor, dtype: torch.dtype) -> None:
    """Both passes saw the same examples, in whatever order: the same Gram matrix."""
    difference = float((first - second).norm() / first.norm())
    if difference > max(torch.finfo(dtype).eps ** 0.5 / 10, 1e-9):
        raise DataChangedError(
            f"The second reading of the data differs from the first (Gram matrices by {difference:.2g}). The exact "
            "solver reads the data twice: turn random augmentation off, and if the model itself is random in eval "
            'mode, make it deterministic; or use solver="cross", which reads the data once.'
        )
