"""What several processes must see alike before they read: the network, the options, and which rules hold.

Each process tries its rules on a batch of its own and plans from what it finds, but the plans must be the same: else
they would wait for each other in different places.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from richbll.errors import DistributedError, RichBLLWarning
from richbll.network.batches import Batch, Stream
from richbll.network.fingerprint import batch_digest, network_fingerprint
from richbll.network.network import Network
from richbll.network.ranks import Ranks
from richbll.network.records import RecordReader, SiteShape


class _Source(Protocol):
    ranks: Ranks

    def peek(self) -> Batch: ...


def tried_reader(network: Network, source: _Source, rules: bool = True) -> RecordReader:
    """A reader that has tried its rules on the first batch, with shapes that all processes agree on."""
    with source.ranks.together("the first batch") as block:
        reader = RecordReader(network, source.peek(), rules)
        if source.ranks.size > 1:
            block.value = [asdict(shape) for shape in reader.shapes if shape.kind != "general"]
    if source.ranks.size > 1:
        reader.shapes = agreed_shapes(block.said, network)
    return reader


def agreed_shapes(said: list[list[dict[str, Any]]], network: Network) -> list[SiteShape]:
    """A parameter goes by rules where it does so, alike, in all processes; sizes are the largest of all."""
    by_rank = [[_decoded(fields) for fields in mine] for mine in said]
    ruled: list[SiteShape] = []
    general: list[SiteShape] = []
    groups: dict[tuple[int, ...], int] = {}
    for name, size in network.parameter_sizes.items():
        found = [[shape for shape in mine if shape.site[0] == name] for mine in by_rank]
        if found[0] and len({tuple(map(_outline, mine)) for mine in found}) == 1:
            for alike in zip(*found, strict=True):
                group = groups.setdefault(tuple(shape.group for shape in alike), len(groups))
                ruled.append(_largest(alike, group))
        else:
            num_bytes = size * network.model.get_parameter(name).element_size()
            general.append(SiteShape((name, 0), size, "general", output_bytes=num_bytes))
    return ruled + general


def _decoded(fields: dict[str, Any]) -> SiteShape:
    """From JSON, which has no tuples."""
    return SiteShape(**fields | {"site": tuple(fields["site"]), "widths": tuple(fields["widths"])})


def _outline(shape: SiteShape) -> tuple[object, ...]:
    """What must be the same; the length of a sequence need not be."""
    return shape.site, shape.size, shape.kind, shape.widths


def _largest(alike: Sequence[SiteShape], group: int) -> SiteShape:
    return replace(
        alike[0],
        positions=max(shape.positions for shape in alike),
        row_bytes=max(shape.row_bytes for shape in alike),
        output_bytes=max(shape.output_bytes for shape in alike),
        columns=min(shape.columns for shape in alike),  # none where a process uses the weight several times
        group=group,
    )


def own_facts(network: Network, stream: Stream, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """What this process tells the others before it reads; nothing where there are none."""
    if stream.ranks.size == 1:
        return None
    must_be_same = network_fingerprint(network) | {name: repr(value) for name, value in options.items()}
    digest = batch_digest(b"", stream.peek()).hex()
    return {"same": must_be_same, "the first batch": digest, "can be reread": stream.can_be_reread}


def check_alike(said: list[dict[str, Any]], stream: Stream) -> None:
    """The same model and options in all processes, and not the same data; it is read again only where all can."""
    if stream.ranks.size == 1:
        return
    stream.can_be_reread = all(other["can be reread"] for other in said)
    _check_same([other["same"] for other in said])
    _warn_of_equal_data([other["the first batch"] for other in said])


def _check_same(said: list[dict[str, str]]) -> None:
    for rank, other in enumerate(said):
        names = [name for name in said[0] | other if said[0].get(name) != other.get(name)]
        if names:
            raise DistributedError(
                f"Rank {rank} differs from rank 0 in {', '.join(names)}. All ranks must read the same network with the "
                "same options: give all of them the same weights and buffers (running statistics of BatchNorm differ "
                "after DistributedDataParallel; load one checkpoint everywhere, or broadcast model.buffers())."
            )


def _warn_of_equal_data(digests: list[str]) -> None:
    same = [rank for rank, digest in enumerate(digests) if digests.count(digest) > 1]
    if same:
        warnings.warn(
            f"The first batch is the same on ranks {', '.join(map(str, same))}: each rank must read its own part of "
            "the data, or examples count several times. Use a DistributedSampler, or give every rank its shard.",
            RichBLLWarning,
            stacklevel=5,
        )
