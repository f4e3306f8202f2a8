"""The noise of rewards, from errors of predictions that were made before the reward was seen.

σ² = max(mean of the last errors², 2 b₀ / n, floor)
"""

from collections import deque

from torch import Tensor

from richbll.checks import non_negative, whole_number
from richbll.errors import OptionError


class RollingNoise:
    """σ² = max(mean of the last `window` squared errors, 2 · `prior` / n, `floor`) after n rewards.

    The prior is a floor that sinks: as long as it is larger than the errors, actions are tried that look a bit worse,
    so that a rare high reward is found before the sampler has made up its mind. It is in squared units of the reward.

    Examples:
        >>> noise = RollingNoise(prior=10.0)
        >>> noise.add(torch.tensor([0.1, -0.1]))
        >>> noise.variance
        10.0
    """

    def __init__(self, window: int = 1000, prior: float = 0.0, floor: float = 1e-6) -> None:
        self._recent: deque[float] = deque(maxlen=whole_number("window", window, least=1))
        self.prior, self.floor = non_negative("prior", prior), non_negative("floor", floor)
        if self.floor == 0:
            raise OptionError("floor=0: noise may not vanish; give a small positive number, such as 1e-6.")
        self._count = 0

    def add(self, errors: Tensor) -> None:
        """Errors (n,) of the newest predictions."""
        squares = errors.detach().double().square().cpu().flatten()
        self._recent.extend(squares.tolist())
        self._count += len(squares)

    @property
    def variance(self) -> float:
        """σ² now."""
        rolling = sum(self._recent) / len(self._recent) if self._recent else 0.0
        return max(rolling, 2 * self.prior / max(self._count, 1), self.floor)
