"""MC dropout: a network with dropout after every block, kept on for predictions."""

from dataclasses import dataclass

from richbll_bench.images.backbones import trained
from richbll_bench.images.cnn import cnn
from richbll_bench.images.own_network import by_passes, num_draws, with_dropout
from richbll_bench.images.task import Fitted, Task

_P = 0.1


@dataclass(frozen=True)
class Dropout:
    """One network, several passes."""

    name: str = "dropout"
    title: str = "Dropout"
    source: str = (
        "Gal and Ghahramani (2016): dropout of 0.1 after every block and 0.2 before the last layer, 10 passes; the "
        "entropy of their mean as the score."
    )
    score: str = "entropy"
    own_networks: int = 1

    def fit(self, task: Task) -> Fitted:
        """Train it."""
        num_classes = len(task.data.classes)
        found = trained(
            task.setting,
            task.data,
            task.seed,
            kind=f"dropout-{_P}",
            make=lambda: cnn(task.setting.width, task.seed, num_classes=num_classes, dropout=_P),
        )
        model = with_dropout(found.model)
        return Fitted(by_passes(task, [model] * num_draws(task)), found.seconds)


method = Dropout()
