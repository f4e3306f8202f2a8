"""AdamW on all parameters of a network as one vector, with the gradient's norm clipped: a few operations in all."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Step:
    """AdamW's constants, and the largest norm of a gradient."""

    weight_decay: float = 1e-2
    clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


class Descent:
    """Parameters and their gradient, each a vector with views of it in the parameters' shapes.

    A parameter comes with the factor of its learning rate and with that of its weight decay.
    """

    def __init__(self, parameters: Sequence[tuple[Tensor, float, float]], dtype: torch.dtype) -> None:
        self.step = Step()
        values = [value.detach() for value, _, _ in parameters]
        self.theta = torch.cat([value.flatten() for value in values]).to(dtype)
        self._gradient = torch.zeros_like(self.theta)
        self._rates = _spread([rate for _, rate, _ in parameters], values).to(self.theta)
        decay = [rate * self.step.weight_decay * factor for _, rate, factor in parameters]
        self._decay = _spread(decay, values).to(self.theta)
        shapes = [value.shape for value in values]
        self.parameters, self.gradients = _views(self.theta, shapes), _views(self._gradient, shapes)
        self._first, self._second = torch.zeros_like(self.theta), torch.zeros_like(self.theta)
        self._num_steps = 0

    def move(self, learning_rate: float) -> None:
        """One step along the gradient that was written into `gradients`."""
        gradient, (beta1, beta2) = self._gradient, self.step.betas
        self._num_steps += 1
        norm = float(torch.linalg.vector_norm(gradient))
        gradient.mul_(min(1.0, self.step.clip / (norm + 1e-6)))
        self._first.lerp_(gradient, 1 - beta1)
        self._second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (self._second / (1 - beta2**self._num_steps)).sqrt_().add_(self.step.eps)
        self.theta.addcmul_(self.theta, self._decay, value=-learning_rate)
        rate = -learning_rate / (1 - beta1**self._num_steps)
        self.theta.addcdiv_(self._first * self._rates, root, value=rate)


def _spread(numbers: Sequence[float], like: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.full((value.numel(),), number) for number, value in zip(numbers, like, strict=True)])


def _views(vector: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    parts = torch.split(vector, [shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
