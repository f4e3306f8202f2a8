"""SNGP: a network that keeps distances, under a Gaussian process of random features."""

from dataclasses import dataclass

from richbll_bench.images import scores
from richbll_bench.images.backbones import trained
from richbll_bench.images.sngp import mean_field, precision_root, sngp, variance
from richbll_bench.images.task import Fitted, Prediction, Task, seen_by


@dataclass(frozen=True)
class Sngp:
    """One network; the posterior's precision is summed up in a pass after training."""

    name: str = "sngp"
    title: str = "SNGP"
    source: str = (
        "Liu et al. (2020): spectral norms up to 6, 1,024 random features, ridge 1, mean-field factor 25, precision "
        "of a Gaussian likelihood from one pass over the training images; the variance as the score."
    )
    score: str = "variance"
    own_networks: int = 1

    def fit(self, task: Task) -> Fitted:
        """Train it, then read the training images once."""
        num_classes = len(task.data.classes)
        found = trained(
            task.setting,
            task.data,
            task.seed,
            kind="sngp",
            make=lambda: sngp(task.setting.width, task.seed, num_classes),
        )
        lower = precision_root(seen_by(found.model, task.loader("train")).features)

        def predict(name: str) -> Prediction:
            seen = seen_by(found.model, task.loader(name))
            v = variance(lower, seen.features)
            log_probs = mean_field(seen.logits, v).log_softmax(dim=1)
            return Prediction(log_probs, scores.of_probabilities(log_probs) | {"variance": v})

        return Fitted(predict, found.seconds)


method = Sngp()
