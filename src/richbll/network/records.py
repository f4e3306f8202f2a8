"""Reading a batch: features, outputs and the gradients of every example, by rules where they hold.

Before any work the model is run on two and on three examples. That shows where the batch is in every call's output, and
the gradients that rules give are compared with plain autograd, parameter by parameter: one that disagrees, or that no
rule reaches, takes the general route. So a rule can be missing, but not silently wrong.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from richbll.checks import finite_rows
from richbll.network.batches import Batch, tensors_in
from richbll.network.capture import Capture, ChangedError, Site, layout_of, slow_attention
from richbll.network.functional import call_with
from richbll.network.gradients import MOST_ROWS, Piece
from richbll.network.network import Network, forward
from richbll.network.outputs import coarsest, read_output, same_outputs, same_up_to_rounding
from richbll.network.reading import Reading
from richbll.network.rules.rule import SHARED, Layout
from richbll.network.structure import Dense, Gradient, Outer, Rows, Windows
from richbll.network.taps import recorded_inputs
from richbll.rng import child_generator

_ACTIVATIONS = 3  # so many times the tensors of its ruled calls does an example take while it is read
_TRIED = 2  # examples of the trial run


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


@dataclass(frozen=True)
class Record:
    """Some rows of a batch, as richbll sees them."""

    rows: slice  # of the batch
    phi_r: Tensor  # (n, r)
    f: Tensor  # (n, c)
    reading: Reading
    gradients: dict[Site, list[Gradient]]  # to be added up where a parameter is used several times


class RecordReader:
    """Reads batches of one network, and remembers which of its parameters have rules that hold."""

    def __init__(self, network: Network, batch: Batch, rules: bool = True) -> None:
        self._network = network
        self._precision = coarsest(*(p.dtype for p in network.model.parameters()))
        self._names = {id(network.model.get_parameter(name)): name for name in network.parameter_sizes}
        self._others = {id(p) for p in network.model.parameters()} - self._names.keys()
        self._layouts: list[Layout] = []
        self._activation_bytes = 1  # of one example
        self._general = network.gradients()
        ruled = self._tried(batch) if rules and self._names else []
        self._rules_hold = bool(ruled)
        names = {shape.site[0] for shape in ruled}
        self.shapes = ruled + [
            SiteShape((name, 0), size, "general", output_bytes=size * network.model.get_parameter(name).element_size())
            for name, size in network.parameter_sizes.items()
            if name not in names
        ]

    # ------------------------------------------------------------------ reading

    def read(self, batch: Batch, sites: Iterable[SiteShape], most_bytes: int) -> Iterator[Record]:
        """The batch in rows that fit, each with its gradients at some sites: (c, n, …), or c = 1 of a chosen output."""
        wanted = list(sites)
        for rows in self._micro_batches(batch, wanted, most_bytes):
            part = batch.rows(rows)
            record = self._by_rules(part, rows, wanted) if self._rules_hold else None
            if record is None:
                self._rules_hold = False
                record = self._without_rules(part, rows, wanted)
            yield record

    def _micro_batches(self, batch: Batch, wanted: list[SiteShape], most_bytes: int) -> Iterator[slice]:
        general = sum(shape.output_bytes for shape in wanted if shape.kind == "general" or not self._rules_hold)
        per_row = max(1, 2 * general * self._network.num_gradients)
        count = most_bytes // max(per_row, self._activation_bytes)
        count = max(1, min(count, MOST_ROWS if general else batch.size))
        for start in range(0, batch.size, count):
            yield slice(start, min(start + count, batch.size))

    def _by_rules(self, batch: Batch, rows: slice, wanted: list[SiteShape]) -> Record | None:
        """None when the model was not like its trial run: the general route then reads, or raises the model's error."""
        network = self._network
        try:
            capture, phi_r, f = self._captured(batch, self._layouts)
            if len(capture.calls) != len(self._layouts) or not self._alone(batch, phi_r, f):
                return None
            reading = network.reader.read(batch, f.detach())
            targets = _targets(f, reading.columns)
            sites = {shape.site for shape in wanted if shape.kind != "general"}
            gradients = capture.gradients(sites, targets)
        except ChangedError:
            return None
        general = [shape for shape in wanted if shape.kind == "general"]
        gradients |= self._dense(batch, f.detach(), reading.columns, general)
        return Record(rows, phi_r.detach(), f.detach(), reading, gradients)

    def _without_rules(self, batch: Batch, rows: slice, wanted: list[SiteShape]) -> Record:
        phi_r, f = self._network.features(batch)
        reading = self._network.reader.read(batch, f)
        return Record(rows, phi_r, f, reading, self._dense(batch, f, reading.columns, wanted))

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

    def _captured(self, batch: Batch, layouts: list[Layout] | None) -> tuple[Capture, Tensor, Tensor]:
        """One forward pass under observation, with features and outputs."""
        network = self._network
        with recorded_inputs(network.last_layer.layers(network.model)) as inputs:
            capture, f = self._observed(batch, layouts)
        a = network.last_layer.input_rows(inputs, batch.size)
        return capture, network.checked(a.detach(), f, batch), f

    def _observed(self, batch: Batch, layouts: list[Layout] | None) -> tuple[Capture, Tensor]:
        capture = Capture(self._names, self._others, batch.size, layouts)
        with slow_attention(), torch.enable_grad(), capture:
            raw = self._network.model(*batch.args, **batch.kwargs)
        return capture, read_output(raw, batch.size)

    def _alone(self, batch: Batch, phi_r: Tensor, f: Tensor) -> bool:
        """The same without the other examples of the batch, and without observation; for all rows under a mask."""
        network = self._network
        masked = any("mask" in name for name in batch.kwargs) or any(
            tensor.dtype == torch.bool for tensor in tensors_in((batch.args, batch.kwargs))
        )
        with torch.no_grad():
            if masked:
                raw = network.model(*batch.args, **batch.kwargs)
                if not same_outputs(read_output(raw, batch.size), f, self._precision):
                    return False
            two = torch.tensor([0, batch.size - 1], device=f.device)
            a, seen = forward(network.model, network.last_layer, batch.rows(two))
        replaced = f.detach().clone()
        replaced[two] = seen.to(replaced.dtype)
        alike = same_up_to_rounding(network.last_layer.features(a), phi_r[two], coarsest(self._precision, a.dtype))
        return alike and same_outputs(replaced, f, self._precision)

    # ------------------------------------------------------------------ before the work

    def _tried(self, batch: Batch) -> list[SiteShape]:
        """The sites whose gradients by rules agree with autograd's. First with outputs spread over examples."""
        for may_spread in (True, False):
            try:
                found = self._trial(batch, may_spread)
            except Exception:
                continue  # the next attempt will do, or the general route, or that raises the model's own error
            if found is not None:
                return found
        return []

    def _trial(self, batch: Batch, may_spread: bool) -> list[SiteShape] | None:
        device = next(iter(tensors_in((batch.args, batch.kwargs)))).device
        pair = batch.rows(torch.tensor([0, batch.size - 1], device=device))
        three = batch.rows(torch.tensor([0, batch.size - 1, 0], device=device))
        first, f = self._observed(pair, None)
        second, _ = self._observed(three, None)
        shapes = [(a.shape, b.shape) for a, b in zip(first.calls, second.calls, strict=True)]
        found = [layout_of(small, large, 2, 3) for small, large in shapes]
        if SHARED not in found and may_spread:
            may_spread = False
        unclear = {k for k, layout in enumerate(found) if layout is None or (layout == SHARED and not may_spread)}
        # a call that is not understood is left alone, and none of its parameters is trusted
        self._layouts = [0 if k in unclear or layout is None else layout for k, layout in enumerate(found)]
        left_out = first.unruled | {use.site[0] for use in first.used if use.call in unclear}
        sites = {use.site for use in first.used if use.site[0] not in left_out}
        if SHARED in self._layouts:
            first, f = self._observed(pair, self._layouts)  # once more, with outputs spread over examples
        first.layouts = self._layouts
        if not same_up_to_rounding(f, read_output(_plain(self._network, pair), _TRIED), self._precision):
            return None
        generator = child_generator(0, "trial")
        R = torch.randn(2, 1, f.shape[1], generator=generator, dtype=torch.float64).to(f)  # two sums over outputs
        ruled = first.gradients(sites, [(f * weights).sum() for weights in R])
        tensors = [t for call in first.calls for t, _ in call.watched]
        outputs = sum(torch.Size(call.seen).numel() for call in first.calls) * f.element_size()
        self._activation_bytes = max(1, _ACTIVATIONS * (outputs + _num_bytes(tensors, pair.size)) // pair.size)
        truth = self._autograd(pair, R, {name for name, _ in sites})
        largest = max((float(t.abs().max()) for two in truth.values() for t in two), default=0.0)
        agreed = [
            _described(site, ruled[site]) for site in sorted(sites) if self._agree(site, ruled[site], truth, largest)
        ]
        return _whole(agreed, self._network.parameter_sizes)

    def _autograd(self, pair: Batch, R: Tensor, names: set[str]) -> dict[str, list[Tensor]]:
        """By plain autograd: of the first sum for the first example, and of the second for the second."""
        model = self._network.model
        leaves = {name: model.get_parameter(name).detach().requires_grad_() for name in sorted(names)}
        constants = {name: p.detach() for name, p in model.named_parameters()}
        with slow_attention(), torch.enable_grad():
            f = read_output(call_with(model, constants | leaves, pair.args, pair.kwargs), pair.size)
        rows: dict[str, list[Tensor]] = {name: [] for name in leaves}
        for k in range(_TRIED):
            target = (f[k] * R[k, 0]).sum()
            grads = torch.autograd.grad(target, list(leaves.values()), retain_graph=k == 0, allow_unused=True)
            for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
                rows[name].append((torch.zeros_like(leaf) if grad is None else grad.to_dense()).flatten())
        return rows

    def _agree(self, site: Site, found: list[Gradient], truth: dict[str, list[Tensor]], largest: float) -> bool:
        (name, start), size = site, found[0].size
        got = summed(found, 0, size)
        allowed = torch.finfo(self._precision).eps ** 0.5
        for k, whole in enumerate(truth[name]):
            want = whole[start : start + size].to(got.dtype)
            if not bool((got[k, k] - want).abs().max() <= allowed * max(float(want.abs().max()), 1e-3 * largest)):
                return False
        return True


def summed(parts: list[Gradient], start: int, stop: int) -> Tensor:
    """Elements start … stop of the sum over all uses of a parameter."""  # (c, n, stop − start)
    total = parts[0].dense(start, stop)
    for part in parts[1:]:
        total = total + part.dense(start, stop)
    return total


def check_finite(batch: Batch, squared_norms: Tensor) -> None:
    """A NaN in a gradient, by the number of its row: from (c, n) squared norms."""
    finite_rows("gradients", batch.where, squared_norms.mT)


def _targets(f: Tensor, columns: Tensor | None) -> list[Tensor]:
    """What is differentiated: each output summed over the batch, or every example's chosen one."""
    if columns is None:
        return [column.sum() for column in f.unbind(dim=1)]
    return [f.gather(1, columns.unsqueeze(1)).sum()]


def _plain(network: Network, batch: Batch) -> object:
    with torch.no_grad():
        return network.model(*batch.args, **batch.kwargs)


def _num_bytes(tensors: list[Tensor], num_rows: int) -> int:
    """Of tensors that have the batch in them somewhere."""
    distinct = {id(t): t for t in tensors if any(size % num_rows == 0 for size in t.shape[:2])}
    return sum(t.numel() * t.element_size() for t in distinct.values() if not isinstance(t, torch.nn.Parameter))


def _described(site: Site, parts: list[Gradient]) -> SiteShape:
    size = parts[0].size
    held = [t for part in parts for t in part.tensors]
    row_bytes = sum(t.numel() * t.element_size() // _TRIED for t in held if t.shape[0] == 1 or t.ndim == 2)
    output_bytes = sum(t.numel() * t.element_size() // (2 * _TRIED) for t in held if t.shape[0] == 2 and t.ndim > 2)
    kind, positions, widths, group = "vector", 1, (0, 0), 0
    if all(isinstance(part, Outer) for part in parts):
        outers = [part for part in parts if isinstance(part, Outer)]
        kind, positions = "linear", sum(part.left.shape[2] for part in outers)
        widths = (outers[0].left.shape[3], outers[0].right.shape[3])
        group = hash(tuple(part.left.data_ptr() for part in outers))
    elif all(isinstance(part, Windows) for part in parts):
        windows = [part for part in parts if isinstance(part, Windows)]
        kind, positions = "convolution", sum(part.g[0, 0, 0].numel() for part in windows)
        widths = (windows[0].g.shape[2], windows[0].row)
    elif all(isinstance(part, Rows) for part in parts):
        tables = [part for part in parts if isinstance(part, Rows)]
        kind, positions = "embedding", sum(part.indices.shape[1] for part in tables)
        widths = (tables[0].num_rows, tables[0].row)
    return SiteShape(site, size, kind, positions, widths, row_bytes, output_bytes, group)


def _whole(agreed: list[SiteShape], sizes: dict[str, int]) -> list[SiteShape]:
    """Only parameters all of whose elements are covered, each once, in the model's order."""
    covered: dict[str, int] = {}
    for shape in agreed:
        covered[shape.site[0]] = covered.get(shape.site[0], 0) + shape.size
    return [s for name, size in sizes.items() if covered.get(name) == size for s in agreed if s.site[0] == name]
