"""A Gaussian process with an RBF kernel, one length scale per input, by evidence."""

import time
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from torch import Tensor

from richbll import RegressionPredictive
from richbll_bench.regression.seeds import derived_seed
from richbll_bench.regression.split import Pair
from richbll_bench.regression.task import Fitted, Predict, Task


class RbfProcess(gpytorch.models.ExactGP):  # type: ignore[misc]
    """Constant mean, kernel s² exp(−½ Σ_j (x_j − x'_j)² / ℓ_j²), Gaussian noise."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[1]))
        self.double()

    def forward(self, x: Tensor) -> Any:
        """The prior of the function values."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@dataclass(frozen=True)
class RbfGp:
    """Exact; where there are many rows, hyper-parameters from some of them, the posterior from all."""

    num_steps: int
    most_rows: int  # for the evidence
    name: str = "rbf_gp"
    title: str = "RBF GP"
    source: str = (
        "gpytorch's exact GP, one length scale per input, constant mean; hyper-parameters by evidence with 100 steps "
        "of Adam at 0.1 from gpytorch's first values, on a random 1000 rows if there are more; float64."
    )

    def fit(self, task: Task) -> list[Fitted]:
        """One seed after the other."""
        return [
            self._fitted(part.everything_but_test, seed) for seed, part in zip(task.seeds, task.splits, strict=True)
        ]

    def _fitted(self, data: Pair, seed: int) -> Fitted:
        began = time.perf_counter()
        x, y = data[0].double(), data[1].double().squeeze(1)
        scale = float(y.std())
        generator = torch.Generator().manual_seed(derived_seed(seed, "evidence"))
        some = torch.randperm(len(x), generator=generator)[: self.most_rows]
        process = RbfProcess(x[some], y[some] / scale)
        with _exactly():
            maximise_evidence(process, self.num_steps)
        process.set_train_data(x, y / scale, strict=False)
        noise = float(process.likelihood.noise.detach()) * scale**2
        return Fitted(posterior(process, scale), time.perf_counter() - began, {"noise_variance": noise})


def _exactly() -> Any:
    """Cholesky factors instead of iterations, whatever the size."""
    return gpytorch.settings.fast_computations(False, False, False)


def maximise_evidence(process: RbfProcess, num_steps: int) -> None:
    """By Adam on log p(y | x)."""
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(process.likelihood, process)
    optimizer = torch.optim.Adam(process.parameters(), lr=0.1)
    process.train()
    for _ in range(num_steps):
        optimizer.zero_grad()
        (-evidence(process(*process.train_inputs), process.train_targets)).backward()
        optimizer.step()


def posterior(process: RbfProcess, scale: float) -> Predict:
    """m + K* (K + σ²I)⁻¹ (y − m) and k** − K* (K + σ²I)⁻¹ K*ᵀ, in the targets' units.

    The Cholesky factor is made for every prediction: those of all seeds would not fit into memory.
    """
    process.eval()
    kernel, x, y = process.covar_module, process.train_inputs[0], process.train_targets
    noise, center = process.likelihood.noise.detach(), process.mean_module.constant.detach()

    def predict(x_new: Tensor) -> RegressionPredictive:
        with torch.no_grad():
            covariance = kernel(x).to_dense()
            covariance.diagonal().add_(noise)
            chol = torch.linalg.cholesky(covariance)
            half = torch.linalg.solve_triangular(chol, kernel(x, x_new.double()).to_dense(), upper=False)  # (N, n)
            residual = torch.linalg.solve_triangular(chol, (y - center).unsqueeze(1), upper=False)  # (N, 1)
            variance = kernel.outputscale - half.square().sum(dim=0).unsqueeze(1)  # (n, 1)
            mean = center + half.mT @ residual  # (n, 1)
        return RegressionPredictive(scale * mean, scale**2 * variance.clamp(min=0), scale**2 * noise)

    return predict


method = RbfGp(100, 1000)
