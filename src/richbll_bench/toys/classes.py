"""Two classes with room for doubt: on a line with a gap, and as two moons in the plane."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from richbll_bench.nets import Pair


@dataclass(frozen=True)
class Problem:
    """Data of a seed, and a box around it that is larger."""

    num_inputs: int
    activation: type[nn.Module]  # of the network
    sample: Callable[[int, int], Pair]  # of so many points and a seed: (n, d), (n, 1)
    box: tuple[float, ...]  # |x| of every input at most
    apart: float  # an input further from all data than this is far from it


def line(num_points: int, seed: int) -> Pair:
    """0.8 ≤ |x| ≤ 2; the class changes within both parts, and once more in the gap between them."""
    generator = torch.Generator().manual_seed(seed)
    distance = 0.8 + 1.2 * torch.rand(num_points, 1, generator=generator)
    x = torch.where(torch.arange(num_points).unsqueeze(-1) % 2 == 0, distance, -distance)
    probability = torch.sigmoid(6 * torch.sin(2.5 * x))
    return x, (torch.rand(num_points, 1, generator=generator) < probability).float()


def moons(num_points: int, seed: int) -> Pair:
    """Two half circles that reach into each other, noise 0.2, centred."""
    generator = torch.Generator().manual_seed(seed)
    angle = math.pi * torch.rand(num_points, 1, generator=generator)
    y = (torch.arange(num_points) % 2).float().unsqueeze(-1)
    upper = torch.cat([angle.cos() - 0.5, angle.sin() - 0.25], dim=1)
    x = torch.where(y == 0, upper, -upper)
    return x + 0.2 * torch.randn(num_points, 2, generator=generator), y


PROBLEMS = {"line": Problem(1, nn.Tanh, line, (4.0,), 0.3), "moons": Problem(2, nn.ReLU, moons, (4.0, 3.5), 1.0)}


def far_inputs(problem: Problem, data: Tensor, num_points: int, seed: int) -> Tensor:
    """Inputs of the box that are far from all data, evenly spread."""  # (num_points, d)
    generator = torch.Generator().manual_seed(seed)
    found = torch.empty(0, problem.num_inputs)
    while len(found) < num_points:
        tried = torch.tensor(problem.box) * (2 * torch.rand(num_points, problem.num_inputs, generator=generator) - 1)
        far = torch.cdist(tried, data).amin(dim=1) > problem.apart
        found = torch.cat([found, tried[far]])
    return found[:num_points]


def train_classifier(model: nn.Module, data: Pair, *, epochs: int, learning_rate: float, prior_variance: float) -> None:
    """The most probable weights, by full-batch Adam: − log p(y | θ) + ‖θ‖² / 2τ², of which this is the Laplace mode."""
    x, y = data
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        optimizer.zero_grad()
        weights = torch.stack([p.square().sum() for p in parameters]).sum()
        loss = binary_cross_entropy_with_logits(model(x), y) + weights / (2 * prior_variance * len(x))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
