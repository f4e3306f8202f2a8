"""A deep ensemble: networks that differ in their first weights and in the order of the images."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from richbll_bench.images.backbones import trained
from richbll_bench.images.cnn import cnn
from richbll_bench.images.own_network import by_passes
from richbll_bench.images.task import Fitted, Task
from richbll_bench.regression.seeds import derived_seed

_MEMBERS = 5


@dataclass(frozen=True)
class Ensemble:
    """The first member is the network that the other methods share."""

    name: str = "ensemble"
    title: str = "Ensemble"
    source: str = "Lakshminarayanan et al. (2017): five networks; the entropy of their mean as the score."
    score: str = "entropy"
    own_networks: int = _MEMBERS - 1

    def fit(self, task: Task) -> Fitted:
        """Train the others, on the same images."""
        members = [task.backbone]
        for number in range(1, _MEMBERS):
            seed = derived_seed(task.seed, "member", number)
            make = _maker(task, seed)
            members.append(trained(task.setting, task.data, seed, kind=f"member-of-{task.seed}", make=make))
        seconds = sum(member.seconds for member in members)
        return Fitted(by_passes(task, [member.model for member in members]), seconds)


def _maker(task: Task, seed: int) -> Callable[[], nn.Module]:
    return lambda: cnn(task.setting.width, seed, num_classes=len(task.data.classes))


method = Ensemble()
