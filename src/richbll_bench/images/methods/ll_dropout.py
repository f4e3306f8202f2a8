"""Last-layer dropout: the shared network is trained with dropout before its last layer, and keeps it on."""

from dataclasses import dataclass

import torch
from torch import nn

from richbll_bench.images.draws import averaged
from richbll_bench.images.task import Fitted, Prediction, Task
from richbll_bench.regression.seeds import random_numbers


@dataclass(frozen=True)
class LastLayerDropout:
    """Only the last layer runs again for a draw."""

    name: str = "ll_dropout"
    title: str = "LL Dropout"
    source: str = "Gal and Ghahramani (2016): the network's own dropout of 0.2, 50 draws; entropy as the score."
    score: str = "entropy"
    own_networks: int = 0

    def fit(self, task: Task) -> Fitted:
        """Nothing to do."""
        model = task.backbone.model
        assert isinstance(model, nn.Sequential)
        readout = model[-1]
        (p,) = [layer.p for layer in model if isinstance(layer, nn.Dropout)]

        def predict(name: str) -> Prediction:
            features = task.seen(name).features
            with torch.no_grad(), random_numbers(task.seed, "last dropout", name):
                draws = (readout(nn.functional.dropout(features, p)) for _ in range(task.num_samples))
                return averaged(draws)

        return Fitted(predict, 0.0)


method = LastLayerDropout()
