"""Reading models by rules, and what they are compared with: plain autograd, one scalar at a time, in float64."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from richbll.network.batches import Batch, unpack
from richbll.network.functional import call_with
from richbll.network.network import Network, read_network
from richbll.network.outputs import read_output
from richbll.network.reading import Reading
from richbll.network.records import Record, RecordReader, SiteShape
from richbll.network.structure import summed
from richbll.network.untouched import untouched

ROOM = 2**30


@dataclass(frozen=True)
class AllOutputs:
    """Every output's gradient."""

    one_column: bool = False

    def read(self, batch: Batch, f: Tensor) -> Reading:
        return Reading()


@dataclass(frozen=True)
class ChosenOutput:
    """The gradient of one output of each example: 0, 1, 0, 1, …"""

    one_column: bool = True

    def read(self, batch: Batch, f: Tensor) -> Reading:
        return Reading(columns=chosen(len(f), f.shape[1]))


def chosen(n: int, c: int) -> Tensor:
    return torch.arange(n) % c


def network_of(model: nn.Module, batch: Batch, reader: Any = None, counts=None) -> Network:
    reader = reader or AllOutputs()
    return read_network(model, batch, parameters=counts, make_reader=lambda c, r: reader)


def reader_of(model: nn.Module, inputs: Any, reader: Any = None, rules: bool = True, counts=None) -> RecordReader:
    """A reader that has tried its rules on these inputs."""
    with untouched(model):
        batch = unpack(inputs)
        return RecordReader(network_of(model, batch, reader, counts), batch, rules)


def read(reader: RecordReader, inputs: Any, room: int = ROOM) -> list[Record]:
    batch = inputs if isinstance(inputs, Batch) else unpack(inputs)
    with untouched(reader._network.model):
        return list(reader.read(batch, reader.shapes, room))


def by_rule(reader: RecordReader) -> set[str]:
    return {shape.site[0] for shape in reader.shapes if shape.kind != "general"}


def gradient_at(records: list[Record], shape: SiteShape) -> Tensor:
    """(c, n, elements) of all records."""
    return torch.cat([summed(record.gradients[shape.site], 0, shape.size) for record in records], dim=1)


def truth(model: nn.Module, inputs: Any, names: list[str]) -> dict[str, Tensor]:
    """By autograd, scalar by scalar, in the model's own precision: (c, n, p) of every parameter."""
    batch = unpack(inputs)
    with untouched(model):
        leaves = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
        f = read_output(call_with(model, leaves, batch.args, batch.kwargs), batch.size)
        wanted = [leaves[name] for name in names]
        rows: dict[str, list[Tensor]] = {name: [] for name in names}
        for f_ik in f.mT.flatten():
            found = torch.autograd.grad(f_ik, wanted, retain_graph=True, materialize_grads=True)
            for name, gradient in zip(names, found, strict=True):
                rows[name].append(gradient.to_dense().flatten())
    return {name: torch.stack(some).view(f.shape[1], batch.size, -1) for name, some in rows.items()}


def assert_equals_truth(reader: RecordReader, records: list[Record], want: dict[str, Tensor], rtol: float) -> None:
    """Every element at every site, relative to the largest of all."""
    largest = max(float(values.abs().max()) for values in want.values() if values.numel())
    for shape in reader.shapes:
        (name, start), stop = shape.site, shape.site[1] + shape.size
        got, true = gradient_at(records, shape), want[name][:, :, start:stop]
        assert got.shape == true.shape, name
        error = float((got.double() - true).abs().max()) if got.numel() else 0.0
        assert error <= rtol * largest, f"{name}: {error / largest:.2g}"
