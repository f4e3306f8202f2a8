"""The network of the agents with a variational last layer (`regression.variational_head`), by a step written by hand.

With φ the last hidden layer, m = w̄ᵀφ, v = |Lᵀφ|², and weights u_i of the n rows of a batch, the gradients of

    −ELBO = 1/n Σ u_i [½ log 2πσ² + ((y_i − m_i)² + v_i) / 2σ²] + (KL − noise prior) / N

are, with c_i = u_i / nσ² and width r,

    ∂m = c (m − y),   ∂φ = ∂m w̄ᵀ + c φ L Lᵀ,   ∂w̄ = φᵀ∂m + r w̄ / N,   ∂L = tril(φᵀ(c φ L) + r L / N) − diag(1 / L) / N,
    ∂log σ = 1/n Σ u_i (1 − ((y_i − m_i)² + v_i) / σ²) + (2ν − s / σ²) / N.
"""

import torch
from torch import Tensor

from richbll_bench.bandits.descent import Descent
from richbll_bench.regression.network import backbone, rate
from richbll_bench.regression.variational_head import DOF, WISHART_SCALE, VariationalHead, VariationalNetwork

_NAMES = ("W_mean", "W_logdiag", "W_offdiag", "noise_logdiag")


class Variational:
    """w₁ b₁ w₂ b₂ as in `network`, then w̄, log of L's diagonal, the rest of L, and log σ."""

    def __init__(
        self,
        num_inputs: int,
        seed: int,
        noise_std: float = 1.0,
        width: int = 100,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.width = width
        hidden = backbone(num_inputs, seed, width)[:-1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            head = VariationalHead(width, noise_std)
        parameters = [(p, rate(name, tuple(p.shape)), 1.0) for name, p in hidden.named_parameters()]
        parameters += [(getattr(head, name), 1.0, 0.0) for name in _NAMES]  # the prior is in the objective
        self._descent = Descent(parameters, dtype=dtype)
        self.theta = self._descent.theta
        self._num_inputs = num_inputs

    def hidden(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """a₁ and a₂ = φ (n, width)."""
        w1, b1, w2, b2 = self._descent.parameters[:4]
        a1 = torch.addmm(b1, x, w1.mT, alpha=self.width**0.5).relu_()
        return a1, torch.addmm(b2, a1, w2.mT).relu_()

    @property
    def chol(self) -> Tensor:
        """L (width, width)."""
        _, logdiag, offdiag, _ = self._descent.parameters[4:]
        return offdiag[0].tril(-1).diagonal_scatter(logdiag[0].exp())

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """m (n,), and φᵀL (n, width), of which v is the square."""
        _, phi = self.hidden(x)
        return phi @ self._descent.parameters[4][0], phi @ self.chol

    def outputs(self, x: Tensor) -> Tensor:
        """m (n,)."""
        return self.hidden(x)[1] @ self._descent.parameters[4][0]

    def train_on(self, x: Tensor, y: Tensor, learning_rate: float, weights: Tensor, num_rows: int) -> None:
        """One step on a batch x (n, d), y (n,) of N rows."""
        _, _, w2, _, mean, logdiag, _, log_std = self._descent.parameters
        g1, h1, g2, h2, g_mean, g_logdiag, g_offdiag, g_log_std = self._descent.gradients
        a1, phi = self.hidden(x)
        L, precision, share = self.chol, float((-2 * log_std).exp()), 1 / num_rows
        c = weights * (precision / len(y))
        error, Z = phi @ mean[0] - y, phi @ L
        d_m, cZ = c * error, c.unsqueeze(1) * Z
        torch.addmv(mean[0], phi.mT, d_m, beta=self.width * share, out=g_mean[0])
        d_L = torch.addmm(L, phi.mT, cZ, beta=self.width * share)
        torch.tril(d_L, -1, out=g_offdiag[0])
        torch.sub(d_L.diagonal() * logdiag[0].exp(), share, out=g_logdiag[0])
        fit = weights.mean() - (c * (error.square() + Z.square().sum(dim=1))).sum()
        g_log_std[0] = fit + share * (2 * DOF - WISHART_SCALE * precision)
        d_phi = torch.addmm(torch.outer(d_m, mean[0]), cZ, L.mT)
        delta2 = torch.ops.aten.threshold_backward(d_phi, phi, 0)
        torch.mm(delta2.mT, a1, out=g2)
        torch.sum(delta2, 0, out=h2)
        delta1 = torch.ops.aten.threshold_backward(delta2 @ w2, a1, 0)
        torch.mm(delta1.mT, x, out=g1).mul_(self.width**0.5)
        torch.sum(delta1, 0, out=h1)
        self._descent.move(learning_rate)

    def as_module(self) -> VariationalNetwork:
        """The same network as a module that shares nothing with this one."""
        hidden = backbone(self._num_inputs, 0, self.width)[:-1]
        module = VariationalNetwork(hidden, VariationalHead(self.width, 1.0)).to(self.theta.dtype)
        torch.nn.utils.vector_to_parameters(self.theta.clone(), module.parameters())
        return module
