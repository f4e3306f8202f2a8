"""What `predict` and `joint` return: values, never tuples."""

from dataclasses import dataclass

from torch import Tensor

from richbll.errors import ShapeError
from richbll.likelihoods.gaussian import central_interval, log_density


@dataclass(frozen=True)
class RegressionPredictive:
    """Mean and uncertainty of a regression model, per example and output.

    `std` and `interval` are about new observations and include the noise; `epistemic_variance` is about the function
    alone: what more data would teach.

    Examples:
        >>> pred = RegressionPredictive(torch.zeros(2, 1), torch.ones(2, 1), torch.tensor([3.0]))
        >>> pred.std.flatten()
        tensor([2., 2.])
        >>> lower, upper = pred.interval(0.9)
        >>> upper.flatten()
        tensor([3.2897, 3.2897])
    """

    mean: Tensor  # (n, c)
    epistemic_variance: Tensor  # (n, c)
    noise_variance: Tensor  # broadcasts to (n, c)

    @property
    def variance(self) -> Tensor:
        """Epistemic variance plus noise."""  # (n, c)
        return self.epistemic_variance + self.noise_variance

    @property
    def std(self) -> Tensor:
        """Standard deviation of a new observation."""  # (n, c)
        return self.variance.sqrt()

    @property
    def ood_score(self) -> Tensor:
        """How far an input is from what was learned: the epistemic variance, summed over outputs."""  # (n,)
        return self.epistemic_variance.sum(dim=-1)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval for a new observation, each (n, c)."""
        return central_interval(self.mean, self.variance, level)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log-density of targets, summed over outputs."""  # (n,)
        if y.numel() != self.mean.numel() or len(y) != len(self.mean):
            raise ShapeError(f"Targets have shape {tuple(y.shape)}, predictions {tuple(self.mean.shape)}.")
        return log_density(y.reshape(self.mean.shape), self.mean, self.variance)


@dataclass(frozen=True)
class JointPredictive:
    """Mean and full covariance of the function over several inputs; noise is not included.

    Examples:
        >>> joint = JointPredictive(torch.zeros(2, 1), torch.eye(2)[None])
        >>> joint.covariance.shape
        torch.Size([1, 2, 2])
    """

    mean: Tensor  # (n, c)
    covariance: Tensor  # (c, n, n)
