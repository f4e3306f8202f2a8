"""A noisy curve that was observed on both sides of a gap."""

import torch
from torch import Tensor

from richbll_bench.nets import Pair

GAP, EDGE, END = 0.7, 2.0, 3.0  # the data has GAP ≤ |x| ≤ EDGE, the picture |x| ≤ END


def true_curve(x: Tensor) -> Tensor:
    """The function behind the noise."""
    return torch.cos(2.2 * x) + 0.3 * x


def curve_data(num_points: int, noise_std: float, seed: int) -> Pair:
    """Half of the points on either side of the gap."""  # (N, 1), (N, 1)
    generator = torch.Generator().manual_seed(seed)
    distance = GAP + (EDGE - GAP) * torch.rand(num_points, 1, generator=generator)
    x = torch.where(torch.arange(num_points).unsqueeze(-1) % 2 == 0, distance, -distance)
    return x, true_curve(x) + noise_std * torch.randn(num_points, 1, generator=generator)


def curve_inputs() -> Tensor:
    """Inputs for a picture."""  # (n, 1)
    return torch.linspace(-END, END, 301).unsqueeze(-1)


def regions(x: Tensor) -> dict[str, Tensor]:
    """Which inputs are inside the data, in the gap, and outside of both."""  # of (n, 1) each
    gap, outside = x.abs() < GAP, x.abs() > EDGE
    return {"inside": ~gap & ~outside, "gap": gap, "outside": outside}
