"""What `predict` and `joint` return: values, never tuples."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from richbll.checks import one_of, whole_number
from richbll.errors import DataError, NotFittedError, OptionError, ShapeError
from richbll.likelihoods import bernoulli, categorical, draws
from richbll.likelihoods.conformal import Calibration, interval_half_width, prediction_set
from richbll.likelihoods.gaussian import central_interval, log_density

LINKS = ("mc", "probit", "bridge")
SCORES = ("entropy", "mutual_information", "variance", "relative_variance", "max_prob", "energy")


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
    calibration: Calibration | None = None  # from `conformalize`

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
        """Lower and upper end of the central interval for a new observation, each (n, c).

        After `conformalize` it holds a new observation with at least that probability, whatever the noise really is.

        Examples:
            >>> pred = RegressionPredictive(torch.zeros(1, 1), torch.ones(1, 1), torch.tensor([3.0]))
            >>> [round(float(end), 2) for end in pred.interval(0.95)]
            [-3.92, 3.92]
        """
        if self.calibration is None:
            return central_interval(self.mean, self.variance, level)
        half = interval_half_width(self.calibration, self.std, level)
        return self.mean - half, self.mean + half

    def log_prob(self, y: Tensor) -> Tensor:
        """Log-density of targets (n, c), summed over outputs, (n,).

        Examples:
            >>> RegressionPredictive(torch.zeros(1, 1), torch.ones(1, 1), torch.tensor([0.0])).log_prob(torch.zeros(1))
            tensor([-0.9189])
        """
        if y.numel() != self.mean.numel() or len(y) != len(self.mean):
            raise ShapeError(f"Targets have shape {tuple(y.shape)}, predictions {tuple(self.mean.shape)}.")
        y = y.to(torch.promote_types(y.dtype, self.mean.dtype))  # of whole numbers, and of True and False, too
        return log_density(y.reshape(self.mean.shape).to(self.mean.device), self.mean, self.variance)


@dataclass(frozen=True)
class ClassPredictive:
    """Probabilities and uncertainty of a classifier: several classes, yes or no, or several labels at once.

    Logits are Gaussian and independent; `link` says how that becomes probabilities: "mc" draws `num_samples` of them,
    "probit" and "bridge" are closed forms.

    Examples:
        >>> pred = ClassPredictive(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
        >>> pred.probs
        tensor([[0.8808, 0.1192]])
        >>> unsure = ClassPredictive(torch.tensor([[2.0, 0.0]]), torch.tensor([[9.0, 9.0]]))
        >>> bool(unsure.entropy > pred.entropy)
        True
    """

    logits: Tensor  # (n, C)
    logit_variance: Tensor  # (n, C)
    exclusive: bool = True  # one class of several; False: each output is a yes or no of its own
    link: str = "mc"
    num_samples: int = 50
    seed: int = 0
    score: str = "entropy"
    calibration: Calibration | None = None
    features_sq: Tensor | None = None  # (n,) ‖φ^r‖²

    def __post_init__(self) -> None:
        one_of("link", self.link, LINKS)
        one_of("score", self.score, SCORES)
        whole_number("num_samples", self.num_samples, least=1)
        whole_number("seed", self.seed)

    @cached_property
    def probs(self) -> Tensor:
        """Class probabilities, (n, C); for yes or no the probability of yes."""
        return self._log_probs.exp()

    @cached_property
    def _log_probs(self) -> Tensor:
        """log p of every class (n, C), or of yes (n, c), without going through p."""
        if self.link == "mc":
            return draws.log_mean_exp(self._log_samples(), self.num_samples)
        return self._closed_form(self.logits)

    def _log_no(self) -> Tensor:
        """log p of no (n, c): by the same draws, or with the logit's sign turned."""
        if self.link == "mc":
            of_no = bernoulli.log_samples(self.logits, self.logit_variance, self.num_samples, self.seed, answer=0)
            return draws.log_mean_exp(of_no, self.num_samples)
        return self._closed_form(-self.logits)

    def _closed_form(self, logits: Tensor) -> Tensor:
        room = categorical if self.exclusive else bernoulli
        link = room.log_probit if self.link == "probit" else room.log_bridge
        return draws.by_rows(link, logits, self.logit_variance)

    def _log_samples(self) -> Iterator[draws.Part]:
        room = categorical if self.exclusive else bernoulli
        return room.log_samples(self.logits, self.logit_variance, self.num_samples, self.seed)  # (k, rows, C)

    @property
    def predicted(self) -> Tensor:
        """The most probable class, (n,); for yes or no 0 or 1, (n, c)."""
        return self.probs.argmax(dim=1) if self.exclusive else (self.probs > 0.5).long()

    @property
    def entropy(self) -> Tensor:
        """Entropy of the probabilities in nats, (n,): all uncertainty, whatever its source."""
        return self._entropy(self.probs)

    @property
    def mutual_information(self) -> Tensor:
        """Entropy minus the mean entropy of draws, (n,): what knowing the function would resolve."""
        samples = ((rows, log_p.exp()) for rows, log_p in self._log_samples())
        with_entropy = ((rows, torch.cat([p, self._entropy(p).unsqueeze(-1)], dim=-1)) for rows, p in samples)
        mean = draws.mean(with_entropy, self.num_samples)  # (n, C + 1)
        return (self._entropy(mean[:, :-1]) - mean[:, -1]).clamp_min(0)

    @property
    def ood_score(self) -> Tensor:
        """How unlike the training data an input looks, (n,), by the chosen score; larger is stranger."""
        if self.score in ("variance", "relative_variance"):
            variance = self.variance_of(self.logits.argmax(dim=1)) if self.exclusive else self.logit_variance.sum(dim=1)
            return variance if self.score == "variance" else self._relative(variance)
        if self.score == "max_prob":
            p = self.probs
            return 1 - (p.amax(dim=1) if self.exclusive else torch.maximum(p, 1 - p).mean(dim=1))
        if self.score == "energy":
            if not self.exclusive:
                raise OptionError('score="energy" is for one class of several: a sure no has a low logit.')
            return -torch.logsumexp(self.logits, dim=1)
        return self.mutual_information if self.score == "mutual_information" else self.entropy

    def _relative(self, variance: Tensor) -> Tensor:
        """Over ‖φ^r‖²; where all features are zero nothing is known of the input, and the score is infinite."""
        if self.features_sq is None:
            raise OptionError('score="relative_variance" divides by ‖φ‖²: give features_sq, as `predict` does.')
        return torch.where(self.features_sq > 0, variance / self.features_sq, torch.inf)

    def variance_of(self, classes: Tensor) -> Tensor:
        """The logit variance of one class per example, for instance the true one, (n,).

        Examples:
            >>> ClassPredictive(torch.zeros(1, 3), torch.tensor([[1.0, 2.0, 3.0]])).variance_of(torch.tensor([1]))
            tensor([2.])
        """
        n, C = self.logits.shape
        if classes.numel() != n:
            raise ShapeError(f"Classes have shape {tuple(classes.shape)} for {n} predictions.")
        if n and not 0 <= int(classes.min()) <= int(classes.max()) < C:
            raise DataError(f"Classes must be whole numbers from 0 to {C - 1}.")
        classes = classes.reshape(-1, 1).long().to(self.logit_variance.device)
        return self.logit_variance.gather(1, classes).squeeze(1)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log-probability of labels, (n,): class numbers, or 0 and 1 for each output, summed.

        Examples:
            >>> pred = ClassPredictive(torch.zeros(1, 4), torch.zeros(1, 4))
            >>> pred.log_prob(torch.tensor([2])).exp()
            tensor([0.2500])
        """
        n, C = self.logits.shape
        if len(y) != n or y.numel() != (n if self.exclusive else n * C):
            raise ShapeError(f"Labels have shape {tuple(y.shape)} for {n} predictions of {C} outputs.")
        labels = y.reshape(n, 1 if self.exclusive else C).to(self.logits.device)
        labels = labels.long() if labels.dtype == torch.bool else labels
        most = C - 1 if self.exclusive else 1
        if bool(((labels < 0) | (labels > most) | (labels != labels.round())).any()):
            raise DataError(f"Labels must be whole numbers from 0 to {most}.")
        if self.exclusive:
            return self._log_probs.gather(1, labels.long()).squeeze(1)
        return torch.where(labels > 0.5, self._log_probs, self._log_no()).sum(dim=1)

    def prediction_set(self, level: float = 0.9) -> Tensor:
        """Which classes to expect, (n, C) of True and False: the true one is among them with that probability.

        Examples:
            >>> from richbll import RichBLL
            >>> x, model = torch.randn(90, 2), torch.nn.Linear(2, 3)
            >>> uq = RichBLL(model, "classification").fit(x[:50]).conformalize((x[50:], model(x[50:]).argmax(dim=1)))
            >>> uq.predict(x[:4]).prediction_set(0.8).shape
            torch.Size([4, 3])
        """
        if self.calibration is None:
            raise NotFittedError("Prediction sets need held-out labels: call conformalize(loader) first.")
        if self.calibration.asked != self.asked:
            raise OptionError(
                f"Calibrated with {self.calibration.asked}, but predicted with {self.asked}: give conformalize the "
                "same options."
            )
        return prediction_set(self.calibration, self.probs, level)

    @property
    def asked(self) -> str:
        """How these probabilities were asked for."""
        return f"link={self.link}, num_samples={self.num_samples}, seed={self.seed}" if self.link == "mc" else self.link

    def _entropy(self, p: Tensor) -> Tensor:
        return categorical.entropy(p) if self.exclusive else bernoulli.binary_entropy(p).sum(dim=-1)


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
