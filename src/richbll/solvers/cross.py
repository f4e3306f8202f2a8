"""Exact in one pass: the cross moment Φ^mᵀΦ^r, which is additive, for streams that can be read only once.

H = VᵀΦ^rᵀ Φ^m Φ^mᵀ Φ^r V follows afterwards. Rounding is amplified where the features are nearly collinear, so the
products are formed in float64; `exact` needs no such care.
"""

import torch
from torch import Tensor

from richbll.checks import human_bytes
from richbll.core.moments import Moments, batch_moments
from richbll.core.projection import Projection, spectrum_of
from richbll.errors import MemoryBudgetError
from richbll.network.gradients import blocks_of
from richbll.network.network import Network
from richbll.solvers.exact import add_product
from richbll.solvers.solution import Solution, Source, counted


def solve(network: Network, stream: Source, memory: int) -> Solution:
    """Moments and projection, with the cross moment in at most three quarters of the memory."""
    c, r = network.num_gradients, network.last_layer.num_features
    m = sum(network.parameter_sizes.values())
    _check_fits(c, m, r, memory)
    (block,) = blocks_of(network.parameter_sizes, m) if m else [()]
    device = network.device
    cross = torch.zeros(c, m, r, dtype=torch.float64, device=device)
    trace_m = torch.zeros(c, dtype=torch.float64, device=device)
    total: Moments | None = None
    reader = network.gradients()
    for batch in stream.batches("features and gradients"):
        phi_r, f = network.features(batch)
        reading = network.reader.read(batch, f)
        moments = batch_moments(phi_r, reading.weights, reading.residuals)
        total = moments if total is None else total + moments
        if not block:
            continue
        for rows, phi_m in reader.micro_batches(batch, f, block, memory // 16, reading.columns):  # (n', c, m)
            add_product(cross, phi_m.to(torch.float64), phi_r[rows].to(torch.float64))
            trace_m += torch.linalg.vector_norm(phi_m, dim=(0, 2), dtype=torch.float64).square()
    assert total is not None  # a stream without examples has raised
    projection = projection_from(cross, total, trace_m, phi_r.dtype)
    return Solution(counted(total, stream), projection, cross)


def projection_from(cross: Tensor, moments: Moments, trace_m: Tensor, dtype: torch.dtype) -> Projection:
    """H = (cross V)ᵀ (cross V) with V the whitener of the Gram matrix."""
    spectrum = spectrum_of(moments.gram_projection, moments.num_rows, dtype)
    C = cross @ spectrum.whitener  # (c, m, ρ)
    return Projection(spectrum, H=C.mT @ C, trace_m=trace_m)


def _check_fits(c: int, m: int, r: int, memory: int) -> None:
    needed = 8 * c * m * r
    if needed > memory * 3 // 4:
        raise MemoryBudgetError(
            f"The cross moment of {m:,} parameters with {r} features and {c} output(s) takes {human_bytes(needed)}, "
            f"but memory_budget is {human_bytes(memory)}. Give data that can be read twice (a DataLoader or a list), "
            "a subsample of a number of rows, or a larger budget."
        )
