"""How large the noise is thought to be, which decides how long an agent explores.

Errors are those of predictions that were made before the reward was seen:

    rolling          σ² = max(mean of the last errors², floor), the paper's
    inverse_gamma    σ² = (b₀ + Σ errors²/2) / (a₀ + n/2) over all errors: a floor that sinks as 2 b₀ / n
    per_arm          the mean of those of the last errors² that are the arm's; of all, if none is
    local            2 b₀ / n here, and `last_layer` adds what it sees at a place

A floor, or a prior, is what prevents lock-in: before the first large reward errors are tiny, and with a tiny σ² the
safe arm would soon be certain to be the best.
"""

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from richbll_bench.errors import BanditError

KINDS = ("rolling", "inverse_gamma", "per_arm", "local")


@dataclass(frozen=True)
class NoiseRule:
    """Which estimate, and its constants."""

    kind: str = "rolling"
    floor: float = 1e-4
    window: int = 1000
    shape: float = 1.0  # a₀
    scale: float = 100.0  # b₀, in squared units of the reward

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BanditError(f"Noise is estimated by one of {', '.join(KINDS)}; not {self.kind!r}.")


class Noise:
    """The errors seen so far, as much as the rule needs of them."""

    def __init__(self, rule: NoiseRule, num_arms: int) -> None:
        self.rule, self.num_arms = rule, num_arms
        self._recent: deque[tuple[float, int]] = deque(maxlen=rule.window)
        self._sum, self._count = 0.0, 0

    def add(self, errors: Tensor, actions: Tensor) -> None:
        """Errors (n,) of what was predicted for the arms (n,) that were played."""
        squares = errors.double().square()
        self._sum, self._count = self._sum + float(squares.sum()), self._count + len(squares)
        if self.rule.kind in ("rolling", "per_arm"):
            self._recent.extend(zip(squares.tolist(), actions.tolist(), strict=True))

    def variances(self) -> Tensor:
        """σ² of every arm."""  # (arms,)
        rule = self.rule
        if rule.kind in ("inverse_gamma", "local"):
            seen = self._sum / 2 if rule.kind == "inverse_gamma" else 0.0
            value = max((rule.scale + seen) / (rule.shape + self._count / 2), rule.floor)
            return torch.full((self.num_arms,), value, dtype=torch.float64)
        squares, arms = torch.tensor([s for s, _ in self._recent]), torch.tensor([a for _, a in self._recent])
        overall = max(float(squares.mean()) if len(squares) else 0.0, rule.floor)
        found = torch.full((self.num_arms,), overall, dtype=torch.float64)
        if rule.kind == "per_arm":
            for arm in sorted(set(arms.tolist())):
                found[arm] = max(float(squares[arms == arm].mean()), rule.floor)
        return found
