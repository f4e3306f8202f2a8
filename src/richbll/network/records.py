"""Reading a batch: features, outputs and the gradients of every example, by rules where they hold.

A trial run shows for which parameters they do. Every later forward pass must be like it: the same functions on the same
parameters, with the batch in the same place. And their outputs must be the same for an example in whatever company:
some examples of every batch are read once more, and of a batch in parts some of every 64. Where it is not so, as in a
model that takes another branch, the general route reads from there on.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from richbll.checks import finite_rows
from richbll.errors import RichBLLError
from richbll.network.batches import Batch, tensors_in
from richbll.network.capture import Capture, Site, observed
from richbll.network.company import companies, same_rows
from richbll.network.gradients import MOST_ROWS, Piece
from richbll.network.network import Network, forward
from richbll.network.outputs import coarsest, same_outputs, same_up_to_rounding
from richbll.network.plain import ends_with, is_plain
from richbll.network.reading import Reading
from richbll.network.rows import Rows
from richbll.network.rules.rule import ALIKE, FLAT
from richbll.network.structure import Dense, Gradient, Outer, Windows, place
from richbll.network.taps import recorded_inputs
from richbll.network.trial import TRIED, Trial, tried
from richbll.precision import float64_device

# What these do in a forward pass without gradients is not what they do in one with: their parts are fused.
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)

_TRUSTED_ROWS = 64  # in parts of a batch: after so many, examples are looked at in other company again
_JOINED_ROWS, _JOINED_BYTES = 1024, 2**24  # small batches are put together up to these


@dataclass(frozen=True)
class SiteShape:
    """What the cost of a part of a parameter depends on."""

    site: Site
    size: int  # number of elements
    kind: str  # "linear", "convolution", "embedding", "vector" or "general"
    positions: int = 1  # T
    widths: tuple[int, int] = (0, 0)  # of the two factors
    row_bytes: int = 0  # to keep what an example's gradient is made from: shared by all outputs,
    output_bytes: int = 0  # and for each output
    group: int = 0  # linear sites of one group have the same left factor, as a weight and its bias
    columns: int = 0  # of weight[:, …], where a range is best some of these: a convolution's channels, the wider factor


@dataclass(frozen=True)
class Record:
    """Some rows of a batch, as richbll sees them."""

    rows: slice  # of the batch
    phi_r: Tensor  # (n, r)
    reading: Reading
    gradients: dict[Site, list[Gradient]]  # to be added up where a parameter is used several times


class RecordReader:
    """Reads batches of one network, and remembers which of its parameters have rules that hold."""

    def __init__(self, network: Network, batch: Batch, rules: bool = True) -> None:
        self._network = network
        self._precision = coarsest(*(p.dtype for p in network.model.parameters()))
        self._names = {id(network.model.get_parameter(name)): name for name in network.parameter_sizes}
        self._others = {id(p) for p in network.model.parameters()} - self._names.keys()
        self._general = network.gradients()
        found = tried(network, batch, self._names, self._others) if rules and self._names else None
        trial = found or Trial([], [], {}, activation_bytes=1)
        described = [_described(site, parts) for site, parts in trial.gradients.items()]
        ruled = _whole(described, network.parameter_sizes)
        self._trial = replace(trial, gradients={})
        self._ends_plainly = trial.is_plain and ends_with(network.model, network.last_layer.name)
        is_spread = any(layout in ALIKE for layout in trial.layouts)
        self._is_fused = is_spread or any(isinstance(module, _FUSED) for module in network.model.modules())
        self._rules_hold = bool(ruled)
        self._joins = True  # until batches are not the same when they are joined
        self._ruled = names = {shape.site[0] for shape in ruled}
        self.shapes = ruled + [
            SiteShape((name, 0), size, "general", output_bytes=size * network.model.get_parameter(name).element_size())
            for name, size in network.parameter_sizes.items()
            if name not in names
        ]

    # ------------------------------------------------------------------ reading

    @property
    def routes(self) -> Tensor:
        """Which routes have held so far: rules, and vectorised gradients. Later batches go on with these."""
        return torch.tensor([self._rules_hold, self._general.vectorised])

    @routes.setter
    def routes(self, held: Tensor) -> None:
        self._rules_hold, self._general.vectorised = map(bool, held)

    def most_joined(self) -> int:
        """Rows up to which small batches are read together: while the work on them costs less than beginning it."""
        if not (self._joins and self._rules_hold):
            return 0
        return min(_JOINED_ROWS, _JOINED_BYTES // self._trial.activation_bytes)

    def read(
        self, batch: Batch, sites: Iterable[SiteShape], most_bytes: int, gradients_stay: bool = False
    ) -> Iterator[Record]:
        """The batch in rows that fit, each with its gradients at some sites: (c, n, …), or c = 1 of a chosen output.

        Where a model is on a device without float64 its records are moved to the CPU; gradients may stay.
        """
        parts = self._read_joined if batch.parts else self._read_alone
        for record in parts(batch, list(sites), most_bytes):
            yield _beside_float64(record, gradients_stay)

    def _read_alone(self, batch: Batch, wanted: list[SiteShape], most_bytes: int) -> Iterator[Record]:
        """One of the user's batches."""
        start = trusted = 0  # up to `trusted` rows go without being looked at in other company
        while start < batch.size:
            rest = batch.size - start
            num_parts = -(-rest // self._num_rows(wanted, most_bytes))
            rows = slice(start, start + -(-rest // num_parts))
            part = batch.rows(rows)
            looks = start >= trusted
            if self._rules_hold:
                record = self._by_rules(part, rows, wanted, looks)
            else:
                record = self._without_rules(part, rows, wanted)
            if record is None:
                self._rules_hold = False  # and fewer rows may fit
                continue
            yield record
            trusted = start + _TRUSTED_ROWS if looks else trusted
            start = rows.stop

    def _read_joined(self, batch: Batch, wanted: list[SiteShape], most_bytes: int) -> Iterator[Record]:
        """All of it by rules; where that fails, the user's own batches, one by one, from here on.

        So errors name these, and a model that looks at its whole batch to choose a branch sees what it would have seen.
        """
        record = None
        if batch.size <= self._num_rows(wanted, most_bytes):
            with suppress(RichBLLError):
                record = self._by_rules(batch, slice(0, batch.size), wanted)
        if record is not None:
            yield record
            return
        self._joins = False
        start = 0
        for part in batch.parts:
            for record in self._read_alone(part, wanted, most_bytes):
                yield replace(record, rows=slice(start + record.rows.start, start + record.rows.stop))
            start += part.size

    def _num_rows(self, wanted: list[SiteShape], most_bytes: int) -> int:
        """How many fit."""
        model = self._network.model
        general = sum(
            shape.size * model.get_parameter(shape.site[0]).element_size()
            for shape in wanted
            if shape.kind == "general" or not self._rules_hold
        )
        per_row = max(2 * general * self._network.num_gradients, self._trial.activation_bytes)
        return max(1, min(most_bytes // per_row, MOST_ROWS)) if general else max(1, most_bytes // per_row)

    def _by_rules(self, batch: Batch, rows: slice, wanted: list[SiteShape], looks: bool = True) -> Record | None:
        """None when the model was not like its trial run: the general route then reads, or raises the model's error.

        Without `looks` no examples are read once more in other company, unless all of them have to be.
        """
        network = self._network
        try:
            plain = self._trial.is_plain and is_plain(network.model, batch)
            everybody = FLAT in self._trial.layouts
            groups = [] if plain else companies(batch.size, everybody)
            capture, phi_r, f = self._captured(batch, groups, plain and self._ends_plainly)
            if any(call.more_to_see for call in capture.calls):
                everybody, groups = True, companies(batch.size, everybody=True)
                capture, phi_r, f = self._captured(batch, groups)
            if not self._like_trial(capture):
                return None
            looks = bool(groups) and (looks or everybody)
            if looks and not self._same_alone(batch, groups, capture, phi_r, f):
                return None
            if self._is_fused and not self._same_fused(batch, phi_r, f):
                return None
            reading = network.reader.read(batch, f.detach())
            sites = {shape.site for shape in wanted if shape.kind != "general"}
            gradients = _apart(capture.gradients(sites, _targets(f, reading.columns)))
        except RichBLLError:
            raise
        except Exception:
            return None
        general = [shape for shape in wanted if shape.kind == "general"]
        gradients |= self._dense(batch, f.detach(), reading.columns, general)
        return Record(rows, phi_r.detach(), reading, gradients)

    def _without_rules(self, batch: Batch, rows: slice, wanted: list[SiteShape]) -> Record:
        phi_r, f = self._network.features(batch)
        reading = self._network.reader.read(batch, f)
        return Record(rows, phi_r, reading, self._dense(batch, f, reading.columns, wanted))

    def _dense(
        self, batch: Batch, f: Tensor, columns: Tensor | None, wanted: list[SiteShape]
    ) -> dict[Site, list[Gradient]]:
        """Gradients by the general route."""
        if not wanted:
            return {}
        block = tuple(Piece(shape.site[0], shape.site[1], shape.site[1] + shape.size) for shape in wanted)
        parts = list(self._general.micro_batches(batch, f, block, columns=columns))
        phi_m = torch.cat([part for _, part in parts]).transpose(0, 1)  # (c, n, m')
        cut = torch.split(phi_m, [shape.size for shape in wanted], dim=2)
        return {shape.site: [Dense(values)] for shape, values in zip(wanted, cut, strict=True)}

    def _captured(
        self, batch: Batch, groups: list[Tensor], is_its_output: bool = False
    ) -> tuple[Capture, Tensor, Tensor]:
        """One forward pass under observation, with features and outputs; groups are of examples to be looked at."""
        rows = torch.cat(groups).to(batch.device) if groups else None
        capture = Capture(self._names, self._others, batch.size, self._trial.layouts, rows)
        own = batch.copied()  # gradients are made from inputs
        a, f = self._observed(own, capture)
        return capture, self._network.checked(a.detach(), f, batch, is_its_output), f

    def _observed(self, batch: Batch, capture: Capture) -> tuple[Tensor, Tensor]:
        """The last layer's input and the outputs."""
        last_layer, model = self._network.last_layer, self._network.model
        with recorded_inputs(last_layer.layers(model)) as inputs:
            f = observed(model, batch, capture)
        return last_layer.input_rows(inputs, batch.size), f

    # ------------------------------------------------------------------ like the trial run?

    def _like_trial(self, capture: Capture) -> bool:
        """The same functions on the same parameters, with the batch in the same place."""
        return not capture.changed and capture.pattern == self._trial.pattern and not capture.unruled & self._ruled

    def _same_alone(self, batch: Batch, groups: list[Tensor], capture: Capture, phi_r: Tensor, f: Tensor) -> bool:
        """Without the other examples: the output of every call, so that its rows are those of the batch, and of all."""
        layouts, start = self._trial.layouts, 0
        for rows in groups:
            everyone, part = torch.arange(len(rows), device=batch.device), slice(start, start + len(rows))
            alone = Capture(self._names, self._others, len(rows), layouts, everyone, differentiates=False)
            a, seen = self._observed(batch.rows(rows.to(batch.device)), alone)
            if not (self._like_trial(alone) and self._same_outputs(rows, a, seen, phi_r, f)):
                return False
            calls = [(c.glimpse, other.glimpse) for c, other in zip(capture.calls, alone.calls, strict=True)]
            pairs = [(mine[part], other) for mine, other in calls if mine is not None and other is not None]
            if not same_rows(pairs, self._precision):
                return False
            start += len(rows)
        return True

    def _same_fused(self, batch: Batch, phi_r: Tensor, f: Tensor) -> bool:
        """As the model runs without gradients and observation; for all rows under a mask."""
        model, last_layer = self._network.model, self._network.last_layer
        for rows in companies(batch.size, _is_masked(batch)):
            with torch.no_grad():
                a, seen = forward(model, last_layer, batch.rows(rows.to(batch.device)))
            if not self._same_outputs(rows, a, seen, phi_r, f):
                return False
        return True

    def _same_outputs(self, rows: Tensor, a: Tensor, seen: Tensor, phi_r: Tensor, f: Tensor) -> bool:
        """Features and outputs of some rows."""
        features, precision = self._network.last_layer.features(a), coarsest(self._precision, a.dtype)
        are_features_same = same_up_to_rounding(features, phi_r[rows], precision)
        return are_features_same and same_outputs(seen, f[rows], self._precision, among=f)


def _beside_float64(record: Record, gradients_stay: bool) -> Record:
    """On the device where sums are kept: the model's, or the CPU for one that has no float64."""
    device = float64_device(record.phi_r.device)
    if device == record.phi_r.device:
        return record
    if gradients_stay:
        return replace(record, phi_r=record.phi_r.to(device))

    def moved(gradient: Any) -> Any:
        values = {field.name: getattr(gradient, field.name) for field in fields(gradient)}
        return replace(gradient, **{name: v.to(device) for name, v in values.items() if isinstance(v, Tensor)})

    gradients = {site: [moved(use) for use in uses] for site, uses in record.gradients.items()}
    return replace(record, phi_r=record.phi_r.to(device), gradients=gradients)


def check_finite(batch: Batch, squared_norms: Tensor) -> None:
    """A NaN in a gradient, by the number of its row: from (c, n) squared norms."""
    sizes = [part.size for part in batch.parts]
    if sizes and sum(sizes) == batch.size:
        for part, norms in zip(batch.parts, torch.split(squared_norms, sizes, dim=1), strict=True):
            finite_rows("gradients", part.where, norms.mT)
    finite_rows("gradients", batch.where, squared_norms.mT)


def _targets(f: Tensor, columns: Tensor | None) -> list[Tensor]:
    """What is differentiated: each output summed over the batch, or every example's chosen one."""
    if columns is None:
        return [column.sum() for column in f.unbind(dim=1)]
    return [f.gather(1, columns.unsqueeze(1)).sum()]


def _apart(gradients: dict[Site, list[Gradient]]) -> dict[Site, list[Gradient]]:
    """Left factors that begin at one address are the same: one that is a view of another gets memory of its own."""
    first: dict[int, tuple[int, ...]] = {}
    moved: dict[tuple[int, ...], Tensor] = {}
    for uses in gradients.values():
        for k, use in enumerate(uses):
            if not isinstance(use, Outer):
                continue
            where = place(use.left)
            if first.setdefault(where[0], where) != where:
                moved.setdefault(where, use.left.clone())
                uses[k] = Outer(moved[where], use.right)
    return gradients


def _is_masked(batch: Batch) -> bool:
    tensors = tensors_in((batch.args, batch.kwargs))
    return any("mask" in name for name in batch.kwargs) or any(tensor.dtype == torch.bool for tensor in tensors)


def _described(site: Site, parts: list[Gradient]) -> SiteShape:
    size = parts[0].size
    held = [t for part in parts for t in part.tensors]
    row_bytes = sum(t.numel() * t.element_size() // TRIED for t in held if t.shape[0] == 1 or t.ndim == 2)
    output_bytes = sum(t.numel() * t.element_size() // (2 * TRIED) for t in held if t.shape[0] == 2 and t.ndim > 2)
    kind, positions, widths, group, columns = "vector", 1, (0, 0), 0, 0
    if all(isinstance(part, Outer) for part in parts):
        outers = [part for part in parts if isinstance(part, Outer)]
        kind, positions = "linear", sum(part.left.shape[2] for part in outers)
        widths = (outers[0].left.shape[3], outers[0].right.shape[3])
        group = hash(tuple(place(part.left) for part in outers))
        columns = widths[1] if len(outers) == 1 and widths[0] < widths[1] else 0
    elif all(isinstance(part, Windows) for part in parts):
        windows = [part for part in parts if isinstance(part, Windows)]
        kind, positions = "convolution", sum(part.g[0, 0, 0].numel() for part in windows)
        widths = (windows[0].g.shape[2], windows[0].row)
        columns = windows[0].x.shape[2] if len(windows) == windows[0].groups == 1 else 0
    elif all(isinstance(part, Rows) for part in parts):
        tables = [part for part in parts if isinstance(part, Rows)]
        kind, positions = "embedding", sum(part.indices.shape[1] for part in tables)
        widths = (tables[0].num_rows, tables[0].row)
    return SiteShape(site, size, kind, positions, widths, row_bytes, output_bytes, group, columns)


def _whole(agreed: list[SiteShape], sizes: dict[str, int]) -> list[SiteShape]:
    """Only parameters all of whose elements are covered, each once, in the model's order."""
    whole: list[SiteShape] = []
    for name, size in sizes.items():
        parts = sorted((shape for shape in agreed if shape.site[0] == name), key=lambda shape: shape.site[1])
        ends = list(accumulate(shape.size for shape in parts))
        if ends and [shape.site[1] for shape in parts] == [0, *ends[:-1]] and ends[-1] == size:
            whole += parts
    numbers = {group: number for number, group in enumerate(dict.fromkeys(shape.group for shape in whole))}
    return [replace(shape, group=numbers[shape.group]) for shape in whole]
