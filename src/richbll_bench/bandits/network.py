"""The network of all neural agents: contexts with the action's one-hot code in, a reward out, 2 × 100 ReLU units in μP.

    z₁ = n^(1/2) (x, e_a) w₁ᵀ + b₁,   a₁ = relu z₁,   z₂ = a₁ w₂ᵀ + b₂,   a₂ = relu z₂,   f = n^(-1/2) a₂ w₃ᵀ + b₃

It is the backbone of the regressions, trained by a step written by hand, which is faster than autograd's.
"""

import torch
from torch import Tensor, nn

from richbll_bench.bandits.descent import Descent
from richbll_bench.regression.network import backbone, rate


class Network:
    """Parameters as one vector, and views of it."""

    def __init__(
        self,
        num_inputs: int,
        seed: int,
        width: int = 100,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.width = width
        parameters = [
            (p, rate(name, tuple(p.shape)), 1.0) for name, p in backbone(num_inputs, seed, width).named_parameters()
        ]
        self._descent = Descent(parameters, dtype)
        self.theta, self.parameters = self._descent.theta, self._descent.parameters  # w₁ b₁ w₂ b₂ w₃ b₃
        self._scales = (width**0.5, width**-0.5)

    def hidden(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """a₁ and a₂ (n, width)."""
        w1, b1, w2, b2, _, _ = self.parameters
        a1 = torch.addmm(b1, x, w1.mT, alpha=self._scales[0]).relu_()
        return a1, torch.addmm(b2, a1, w2.mT).relu_()

    def readout(self, a2: Tensor) -> Tensor:
        """f (n,)."""
        w3, b3 = self.parameters[4:]
        return torch.addmv(b3.expand(len(a2)), a2, w3[0], alpha=self._scales[1])

    @property
    def last_weights(self) -> Tensor:
        """(w₃, b₃), so that f = φ^r · (w₃, b₃)."""  # (width + 1,)
        return torch.cat([self.parameters[4][0], self.parameters[5]])

    def features(self, x: Tensor) -> Tensor:
        """φ^r = (n^(-1/2) a₂, 1), the gradient of f by (w₃, b₃)."""  # (n, width + 1)
        _, a2 = self.hidden(x)
        return with_one(self._scales[1] * a2)

    def outputs(self, x: Tensor) -> Tensor:
        """f (n,)."""
        return self.readout(self.hidden(x)[1])

    def deltas(self, a1: Tensor, a2: Tensor) -> tuple[Tensor, Tensor]:
        """∂f/∂z₁ = (δ₂ w₂) 1[a₁ > 0] and δ₂ = ∂f/∂z₂ = n^(-1/2) w₃ 1[a₂ > 0]."""  # (n, width) each
        delta2 = (a2 > 0).to(a2.dtype).mul_(self._scales[1] * self.parameters[4])
        return (delta2 @ self.parameters[2]).mul_(a1 > 0), delta2

    def train_on(self, x: Tensor, y: Tensor, learning_rate: float, weights: Tensor) -> None:
        """One step on a batch x (n, d), y (n,), whose squared errors count by their weights (n,)."""
        _, _, w2, _, w3, _ = self.parameters
        g1, h1, g2, h2, g3, h3 = self._descent.gradients
        a1, a2 = self.hidden(x)
        error = (self.readout(a2) - y).mul_(2 / len(y)).mul_(weights)  # ∂loss/∂f
        torch.mv(a2.mT, error, out=g3[0]).mul_(self._scales[1])
        torch.sum(error, 0, keepdim=True, out=h3)
        delta2 = torch.outer(error, w3[0]).mul_(self._scales[1])
        torch.ops.aten.threshold_backward.grad_input(delta2, a2, 0, grad_input=delta2)
        torch.mm(delta2.mT, a1, out=g2)
        torch.sum(delta2, 0, out=h2)
        delta1 = delta2 @ w2
        torch.ops.aten.threshold_backward.grad_input(delta1, a1, 0, grad_input=delta1)
        torch.mm(delta1.mT, x, out=g1).mul_(self._scales[0])
        torch.sum(delta1, 0, out=h1)
        self._descent.move(learning_rate)

    def as_module(self) -> nn.Sequential:
        """The same network as a module that shares nothing with this one."""
        module = backbone(self.parameters[0].shape[1], 0, self.width).to(self.theta.dtype)
        torch.nn.utils.vector_to_parameters(self.theta.clone(), module.parameters())
        return module


def with_one(a: Tensor) -> Tensor:
    """(a, 1)."""  # (n, width + 1)
    return torch.cat([a, a.new_ones(len(a), 1)], dim=1)


def with_action(contexts: Tensor, actions: Tensor, num_arms: int) -> Tensor:
    """(x, e_a)."""  # (n, d + arms)
    return torch.cat([contexts, nn.functional.one_hot(actions, num_arms).to(contexts.dtype)], dim=1)


def with_every_action(contexts: Tensor, num_arms: int) -> Tensor:
    """(x, e_a) for every arm, arms of one context beside each other."""  # (n · arms, d + arms)
    codes = torch.eye(num_arms, dtype=contexts.dtype).repeat(len(contexts), 1)
    return torch.cat([contexts.repeat_interleave(num_arms, dim=0), codes], dim=1)
