"""What every solver takes and returns."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from richbll.core.moments import Moments, batch_moments
from richbll.core.projection import Projection
from richbll.network.batches import Batch
from richbll.network.network import Network


class Source(Protocol):
    """Batches to read: the user's stream, or a held subsample of it."""

    can_be_reread: bool
    num_data: int | None  # how many examples the rows stand for, where these are fewer than all

    def batches(self, task: str) -> Iterator[Batch]:
        """All batches, under the name of a task."""


@dataclass(frozen=True)
class Solution:
    """What is left of the data: its moments and the projection."""

    moments: Moments
    projection: Projection
    cross: Tensor | None = None  # (c, m, r) Φ^mᵀΦ^r where the solver keeps it: it adds up with that of later data


class Solver(Protocol):
    """A way from a network and its data to AᵀA."""

    def __call__(self, network: Network, stream: Source, memory: int) -> Solution:
        """Read the data, within a number of bytes."""


def feature_moments(network: Network, stream: Source) -> tuple[Moments, torch.dtype]:
    """One pass of forward evaluations: the moments of φ^r and the residuals, and the features' dtype."""
    total: Moments | None = None
    for batch in stream.batches("features"):
        phi_r, f = network.features(batch)
        reading = network.reader.read(batch, f)
        moments = batch_moments(phi_r, reading.weights, reading.residuals)
        total = moments if total is None else total + moments
    assert total is not None  # a stream without examples has raised
    return counted(total, stream), phi_r.dtype


def counted(moments: Moments, stream: Source) -> Moments:
    """With the number of examples that a subsample stands for."""
    return moments if stream.num_data is None else replace(moments, num_data=stream.num_data)
