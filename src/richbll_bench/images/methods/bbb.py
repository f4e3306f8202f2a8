"""Bayes by Backprop: a Gaussian for every weight, trained by the ELBO."""

from dataclasses import dataclass

from torch import Tensor, nn

from richbll_bench.images.backbones import trained
from richbll_bench.images.gaussian_cnn import gaussian_cnn, total_kl
from richbll_bench.images.own_network import by_passes, num_draws
from richbll_bench.images.task import Fitted, Task
from richbll_bench.images.training import Objective, negative_log_likelihood


def negative_elbo(num_images: int) -> Objective:
    """NLL of one draw + KL / N."""

    def objective(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return negative_log_likelihood(model, x, y) + total_kl(model) / num_images

    return objective


@dataclass(frozen=True)
class BayesByBackprop:
    """One network with twice as many parameters."""

    name: str = "bbb"
    title: str = "BBB"
    source: str = (
        "Blundell et al. (2015): a Gaussian for every weight of convolutions and last layer, prior with the variance "
        "that weights begin with, a draw for every batch, KL / N, 10 draws to predict; their mean's entropy as score."
    )
    score: str = "entropy"
    own_networks: int = 1

    def fit(self, task: Task) -> Fitted:
        """Train it; draws stay on in eval mode."""
        num_classes = len(task.data.classes)
        found = trained(
            task.setting,
            task.data,
            task.seed,
            kind="bbb",
            make=lambda: gaussian_cnn(task.setting.width, task.seed, num_classes),
            objective=negative_elbo(len(task.data.train)),
        )
        return Fitted(by_passes(task, [found.model] * num_draws(task)), found.seconds)


method = BayesByBackprop()
