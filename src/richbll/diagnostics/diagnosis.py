"""What `diagnose` returns: a value with a readable print and a picture."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from richbll.core.bounds import Bound
from richbll.errors import OptionError


@dataclass(frozen=True)
class Diagnosis:
    """How well the last layer stands for the whole network here, and what decides the uncertainty.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        >>> from richbll import RichBLL
        >>> x = torch.randn(200, 2)
        >>> diagnosis = RichBLL(model, noise_variance=0.1).fit(x).diagnose(x)
        >>> 0 <= diagnosis.residual <= 1
        True
    """

    num_points: int
    num_features: int  # r
    residual: float  # ‖(I − P_r)Φ^m‖ / ‖Φ^m‖ over the training data, Frobenius
    spectral_residual: float  # the same in the spectral norm, over the points
    spectrum: Tensor  # (n,) eigenvalues of the eNTK matrix at the points
    std_ratio: float  # mean epistemic std, rich ÷ plain
    epistemic_share: float | None  # mean share of the epistemic part in the total variance, where the noise is a number
    effective_dimension: float  # γ: directions that the data determines
    rank: int  # ρ: directions that the features have
    subsample_bound: Bound  # relative error of a subsample of the size in use
    theorem_bound: Bound  # Theorem 3.5, which needs very many points
    advised_subsample: int | None  # k for "auto"; None when the points are too few to tell
    num_data: int

    @property
    def num_for_90_percent(self) -> int:
        """How many eigenvalues hold 90 % of the eNTK's trace."""
        share = self.spectrum.cumsum(0) / self.spectrum.sum()
        return int((share < 0.9).sum()) + 1

    @property
    def advice(self) -> str:
        """One plain sentence on what to expect."""
        decided = self.effective_dimension / max(self.rank, 1)
        if decided > 0.9:
            who = "the data decides almost every direction, so rich and plain are close where inputs are like the data"
        elif decided > 0.5:
            who = "the data decides most directions and the prior the rest: the transform matters there"
        else:
            who = "the prior decides most directions: prior_variance and the transform matter, so tune on held-out data"
        fits = "well" if self.residual < 0.3 else "in part" if self.residual < 0.7 else "poorly"
        return f"The last layer stands {fits} for the other weights, and {who}."

    def __str__(self) -> str:
        k = "not to be told from so few points"
        if self.advised_subsample is not None:
            k = f"{self.advised_subsample:,} of {self.num_data:,}"
        share = "–" if self.epistemic_share is None else f"{self.epistemic_share:.1%}"
        rows = [
            ("residual of the projection", f"{self.residual:.3f} (spectral norm {self.spectral_residual:.3f})"),
            ("eNTK spectrum", f"{self.num_for_90_percent} of {len(self.spectrum)} eigenvalues hold 90 % of the trace"),
            ("mean std, rich ÷ plain", f"{self.std_ratio:.3f}"),
            ("epistemic share of the variance", share),
            (
                "directions the data determines",
                f"{self.effective_dimension:.1f} of {self.rank} (r = {self.num_features})",
            ),
            ("subsample that would do", f"{k}: all of it" if self.advised_subsample == self.num_data else k),
            ("bound on a subsample's error", str(self.subsample_bound)),
            ("Theorem 3.5", str(self.theorem_bound)),
        ]
        width = max(len(name) for name, _ in rows)
        lines = [f"  {name:{width}}  {value}" for name, value in rows]
        return "\n".join([f"Diagnosis at {self.num_points} points", *lines, f"  {self.advice}"])

    def plot(self, path: str | None = None) -> Any:
        """Eigenvalues of the eNTK and their cumulative share, as a matplotlib figure; saved where a path is given."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise OptionError("plot() needs matplotlib: pip install matplotlib.") from error
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        values = self.spectrum.cpu().numpy()
        index = range(1, len(values) + 1)
        left.semilogy(index, values.clip(min=values[0] * 1e-12), lw=1.5)
        left.set(xlabel="index", ylabel="eigenvalue", title="eNTK spectrum")
        right.plot(index, values.cumsum() / values.sum(), lw=1.5)
        right.set(xlabel="eigenvalues", ylabel="share of the trace", title="cumulative", ylim=(0, 1.02))
        for ax in (left, right):
            ax.axvline(self.num_features, color="0.6", ls=":", lw=1)
            ax.annotate(f"r = {self.num_features}", (self.num_features, ax.get_ylim()[0]), xytext=(3, 4),
                        textcoords="offset points", fontsize=8, color="0.4")  # fmt: skip
            ax.spines[["top", "right"]].set_visible(False)
        if path is not None:
            figure.savefig(path, dpi=130)
        return figure
