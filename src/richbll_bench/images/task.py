"""What a method is given and what it gives back: one seed's images and network, and predictions for sets of images."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from richbll_bench import image_datasets
from richbll_bench.images.backbones import Setting, Trained, trained
from richbll_bench.images.proxies import PROXIES, proxy
from richbll_bench.images.reading import Images
from richbll_bench.images.split import Scaling, Split, batches, split
from richbll_bench.images.training import EVALUATION_BATCH
from richbll_bench.regression.seeds import derived_seed

OUTSIDE = {  # images that do not belong to the classes of a data set
    "cifar10": ("svhn", "cifar100"),
    "fashion_mnist": ("mnist",),
    "mnist": ("fashion_mnist",),
}


@dataclass(frozen=True)
class Seen:
    """What the last layer is given, and what it answers."""

    features: Tensor  # (n, d)
    logits: Tensor  # (n, C)


@dataclass(frozen=True)
class Batches:
    """Images as a loader that can be read again and again, in one order."""

    images: Images
    scaling: Scaling
    batch_size: int = EVALUATION_BATCH

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return batches(self.images, self.scaling, self.batch_size)

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)


@dataclass(frozen=True)
class Task:
    """Classification on one data set, for one seed."""

    setting: Setting
    seed: int
    per_class: int = 1024  # training images of each class that posteriors are made of
    num_samples: int = 50
    kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)  # what several methods need
    _seen: dict[str, Seen] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def data(self) -> Split:
        """The images of this seed."""
        return split(self.setting.dataset, self.seed, self.setting.num_images, self.setting.num_test)

    @cached_property
    def backbone(self) -> Trained:
        """The network that all methods share which do not train their own."""
        return trained(self.setting, self.data, self.seed)

    @property
    def outside(self) -> tuple[str, ...]:
        """Sets of images of other classes."""
        return OUTSIDE[self.setting.dataset]

    def of_fewer(self, per_class: int) -> "Task":
        """The same images and network, and what it has seen of them; another subset."""
        seen = {name: found for name, found in self._seen.items() if name != "subset"}
        fewer = replace(self, per_class=per_class, kept={}, _seen=seen)
        vars(fewer).update(data=self.data, backbone=self.backbone)
        return fewer

    def images(self, name: str) -> Images:
        """A set by name: "train", "subset", "validation", "test", another data set's test images, or a proxy."""
        if name in ("train", "validation", "test"):
            found: Images = getattr(self.data, name)
            return found
        address = f"images {name}"
        if address not in self.kept:
            self.kept[address] = self._made(name)
        kept: Images = self.kept[address]
        return kept

    def _made(self, name: str) -> Images:
        if name == "subset":
            return first_of_each_class(self.data.train, self.per_class)
        if name in PROXIES:
            return proxy(name, self.data.validation, derived_seed(self.seed, "proxy", name))
        return image_datasets.load(name, "test").rows(slice(self.setting.num_test)).as_color()

    def loader(self, name: str) -> Batches:
        """The same, in batches as a network is given them."""
        return Batches(self.images(name), self.data.scaling)

    def seen(self, name: str) -> Seen:
        """Features and logits of the shared network, computed once for all methods."""
        if name not in self._seen:
            self._seen[name] = seen_by(self.backbone.model, self.loader(name))
        return self._seen[name]


def first_of_each_class(images: Images, count: int) -> Images:
    """No more than so many of each class; training images are in random order already."""
    rows = [(images.labels == label).nonzero().flatten()[:count] for label in range(1 + int(images.labels.max()))]
    return images.rows(torch.cat(rows))


def seen_by(model: nn.Module, loader: Batches) -> Seen:
    """By a network whose last module is its last layer."""
    assert isinstance(model, nn.Sequential)
    features, logits = [], []
    with torch.no_grad():
        for x, _ in loader:
            features.append(model[:-1](x))
            logits.append(model[-1](features[-1]))
    return Seen(torch.cat(features), torch.cat(logits))


@dataclass(frozen=True)
class Prediction:
    """Probabilities and scores of a set of images; every score is larger for images that look stranger."""

    log_probs: Tensor  # (n, C)
    scores: Mapping[str, Tensor]  # (n,) each
    links: Mapping[str, Tensor] = field(default_factory=dict)  # log-probabilities by other formulas


@dataclass(frozen=True)
class Fitted:
    """Predictions for a set of images by its name, what it cost to be able to make them, and what was chosen."""

    predict: Callable[[str], Prediction]
    seconds: float  # of the processor, beyond training the network
    costs: Mapping[str, float] = field(default_factory=dict)


class Method(Protocol):
    """One file in `images/methods/`."""

    @property
    def name(self) -> str:
        """In records."""

    @property
    def title(self) -> str:
        """In tables."""

    @property
    def source(self) -> str:
        """Whose method it is, and which settings were taken from where."""

    @property
    def score(self) -> str:
        """The score that it is judged by."""

    @property
    def own_networks(self) -> int:
        """How many networks it trains for itself."""

    def fit(self, task: Task) -> Fitted:
        """On training and validation images."""
