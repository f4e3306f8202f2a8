"""Before any work: which rules hold for this model.

The model is run on two and on three examples, two of them the same. The shapes and the values of every call's output
show where the batch is in it. Then the gradients that rules give are compared with plain autograd's, parameter
by parameter; one that disagrees, or that no rule reaches, takes the general route. Where a gradient is so small that
this proves nothing (behind a ReLU that is dead for both examples), the function is called once more by itself, with
random gradients by its output, and compared. So a rule can be missing, but not silently wrong. Only a plain sequence of
torch's own layers (plain.py) goes without: what it does is known from their types, and tests compare all of these.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from richbll.network.batches import Batch, map_tensors
from richbll.network.capture import Call, Capture, Pattern, Site, layout_of, observed, slow_attention
from richbll.network.company import same_rows
from richbll.network.functional import call_with
from richbll.network.network import Network
from richbll.network.outputs import coarsest, read_output, same_up_to_rounding
from richbll.network.plain import is_plain
from richbll.network.rules.rule import ALIKE, Examples, Layout
from richbll.network.structure import Gradient, summed
from richbll.rng import child_generator

TRIED = 2  # examples
_THREE = [1, 0, 0]  # which of them, for a run on three: in no order, so that nothing is hidden that sorts or reverses
_ACTIVATIONS = 3  # so many times the tensors of its ruled calls does an example take while it is read
_PROVES = 1e3  # a gradient so many times larger than what is allowed proves something when it agrees


@dataclass(frozen=True)
class Trial:
    """What the trial run has shown."""

    layouts: list[Layout | None]  # of every call
    pattern: Pattern
    gradients: dict[Site, list[Gradient]]  # those that agree, of two examples and two sums over outputs
    activation_bytes: int  # of one example
    is_plain: bool = False  # no example can depend on another one


def tried(network: Network, batch: Batch, names: dict[int, str], others: set[int]) -> Trial | None:
    """First with outputs that all examples share spread over the examples, then with none of them by rules.

    A plain sequence of layers has nothing to show but its shapes.
    """
    attempts: list[Callable[[_Attempt], Trial | None]] = [lambda new: new.run(True), lambda new: new.run(False)]
    if is_plain(network.model, batch):
        attempts.insert(0, _Attempt.seen)
    for attempt in attempts:
        try:
            found = attempt(_Attempt(network, batch, names, others))
        except Exception:
            continue  # the next attempt will do, or the general route, or that raises the model's own error
        if found is not None:
            return found
    return None


class _Attempt:
    def __init__(self, network: Network, batch: Batch, names: dict[int, str], others: set[int]) -> None:
        self._network, self._names, self._others = network, names, others
        self._precision = coarsest(*(p.dtype for p in network.model.parameters()))
        self._generator = child_generator(0, "trial")
        self._batch = replace(batch, targets=None, row_weights=None)

    def run(self, may_spread: bool) -> Trial | None:
        first, f = self._observed(TRIED)
        second, _ = self._observed(TRIED + 1)
        if first.pattern != second.pattern:
            return None
        layouts = [self._layout(a, b) for a, b in zip(first.calls, second.calls, strict=True)]
        layouts = [layout if may_spread or layout not in ALIKE else None for layout in layouts]
        left_out = first.unruled | second.unruled
        for call, layout in zip(first.calls, layouts, strict=True):
            if layout is None:  # a call that is not understood is left alone, and none of its parameters is trusted
                left_out |= {name for name, _ in call.sites}
        sites = {use.site for use in first.used if use.site[0] not in left_out}
        if any(layout in ALIKE for layout in layouts):
            capture, f = self._observed(TRIED, layouts)  # once more, with shared outputs spread over examples
        else:
            capture, first.layouts = first, layouts
        if capture.changed or capture.pattern != first.pattern:
            return None
        R = self._random(TRIED, *f.shape).to(f)  # two sums over outputs, with weights of their own for each example
        refused: set[Site] = set()
        ruled = capture.gradients(sites, [(f * weights).sum() for weights in R], refused)
        plain, truth = self._autograd(R, {name for name, _ in sites - refused})
        if not same_up_to_rounding(f, plain, self._precision):
            return None
        least = 1e-3 * _largest([row for rows in truth.values() for row in rows])
        compared = {site: _compared(site, ruled[site], truth) for site in sorted(sites - refused)}
        agreed = {
            site: pair for site, pair in compared.items() if pair is not None and pair.agree(self._allowed, least)
        }
        ruled = {site: ruled[site] for site in agreed}
        for call in self._unproved(capture, ruled, agreed, least):
            if not self._agrees_alone(call, capture):
                ruled = {site: parts for site, parts in ruled.items() if site not in call.sites}
        needed = [any(site in ruled for site in call.sites) for call in capture.calls]
        layouts = [layout if is_needed else None for layout, is_needed in zip(layouts, needed, strict=True)]
        return Trial(layouts, first.pattern, ruled, self._activation_bytes(capture))

    def seen(self) -> Trial | None:
        """Of a model whose layers are known to have the batch first and to be right: shapes, from one forward pass."""
        batch = self._examples(TRIED)
        first: list[Layout | None] = [0] * len(self._names)  # of each call, of which there are no more than parameters
        capture = Capture(self._names, self._others, batch.size, first, differentiates=False)
        observed(self._network.model, batch, capture)
        if capture.unruled or capture.changed:
            return None
        ruled = capture.gradients_of_zeros(TRIED)
        layouts = first[: len(capture.calls)]
        return Trial(layouts, capture.pattern, ruled, self._activation_bytes(capture), is_plain=True)

    def _examples(self, count: int) -> Batch:
        """The first row of the batch and the last, or three of these. New ones each time: a model may change them."""
        rows = torch.tensor([0, 1] if count == TRIED else _THREE, device=self._batch.device)
        return self._batch.rows(rows * (self._batch.size - 1))

    def _observed(self, count: int, layouts: list[Layout | None] | None = None) -> tuple[Capture, Tensor]:
        batch = self._examples(count)
        capture = Capture(self._names, self._others, batch.size, layouts)
        return capture, observed(self._network.model, batch, capture)

    def _layout(self, two: Call, three: Call) -> Layout | None:
        """By shapes, and by values: row by row the same, whatever other examples there are."""
        layout = layout_of(two.shape, three.shape, TRIED, TRIED + 1)
        a, b = two.glimpse, three.glimpse
        if layout is None or a is None or b is None:
            return None
        if layout in ALIKE:
            return layout if same_up_to_rounding(a, b, coarsest(self._precision, a.dtype)) else None
        pair = Examples(layout, TRIED).first(a)[_THREE], Examples(layout, TRIED + 1).first(b)
        return layout if same_rows([pair], self._precision) else None

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64)

    def _autograd(self, R: Tensor, names: set[str]) -> tuple[Tensor, dict[str, list[Tensor]]]:
        """By plain autograd, without observation: outputs, and gradients of the sum k for the example k."""
        model, pair = self._network.model, self._examples(TRIED)
        leaves = {name: model.get_parameter(name).detach().requires_grad_() for name in sorted(names)}
        constants = {name: p.detach() for name, p in model.named_parameters()}
        with slow_attention(), torch.enable_grad():
            f = read_output(call_with(model, constants | leaves, pair.args, pair.kwargs), TRIED)
            return f.detach(), _gradients([(f[k] * R[k, k]).sum() for k in range(TRIED)], leaves)

    @property
    def _allowed(self) -> float:
        return torch.finfo(self._precision).eps ** 0.5

    # ------------------------------------------------------------------ a call by itself

    def _unproved(
        self, capture: Capture, ruled: dict[Site, list[Gradient]], agreed: dict[Site, "_Compared"], least: float
    ) -> list[Call]:
        """The calls one of whose gradients is so small, beside the largest, that its agreement proves nothing."""
        found: dict[int, Call] = {}
        for site, parts in ruled.items():
            if len(parts) == 1 and max(agreed[site].sizes, default=1.0) > 0 and agreed[site].agree(self._allowed, 0.0):
                continue
            numbers = [use.call for use in capture.used if use.site == site]
            strengths = [_strength(part) for part in parts]
            small = _PROVES * self._allowed * max(*strengths, least)
            for number, strength in zip(numbers, strengths, strict=True):
                if strength <= small:
                    found[number] = capture.calls[number]
        return list(found.values())

    def _agrees_alone(self, call: Call, capture: Capture) -> bool:
        """The same function once more, with the same inputs, and random gradients by its output.

        That says nothing of what the model does with an output that was spread over examples: these are not believed.
        """
        assert capture.layouts is not None
        if any(capture.layouts[k] in ALIKE for k, other in enumerate(capture.calls) if other.asked is call.asked):
            return False
        try:
            return self._alone(call, capture)
        except Exception:
            return False  # inside the model, something around it made it run

    def _alone(self, call: Call, capture: Capture) -> bool:
        assert capture.layouts is not None
        numbers = [k for k, other in enumerate(capture.calls) if other.asked is call.asked]
        layouts = [capture.layouts[k] for k in numbers]
        alone = Capture(self._names, self._others, TRIED, layouts)
        inputs = {id(t): t.detach() for t, _ in call.watched if id(t) not in self._names}
        fixed = {id(buffer) for buffer in self._network.model.buffers()}  # by running statistics there is no derivative
        moving = {
            f"input {key}": t.requires_grad_()
            for key, t in inputs.items()
            if t.is_floating_point() and key not in fixed
        }
        leaves = {id(t): alone.leaf(t) for t, _ in call.watched if id(t) in self._names}
        func = call.asked[0]
        args, kwargs = _swapped(call.asked[1:], inputs)
        with slow_attention(), torch.enable_grad():
            z = _output(alone.__torch_function__(func, (), args, kwargs))
            args, kwargs = _swapped((args, kwargs), leaves)
            plain = _output(func(*args, **kwargs))
            layout = layouts[-1]
            if layout is None or alone.changed or alone.pattern != [capture.pattern[k] for k in numbers]:
                return False
            R = self._random(TRIED, *z.shape).to(z)
            sites = {site for other in alone.calls for site in other.sites}
            ruled = alone.gradients(sites, [(z * weights).sum() for weights in R])
            examples = Examples(layout, TRIED)
            rows, mine = examples.first(R, lead=1), examples.first(plain)
            named = {self._names[key]: leaf for key, leaf in leaves.items()}
            # by the inputs too, although nobody asks: torch's GroupNorm in channels_last ends the process without
            found = _gradients([(mine[k] * rows[k, k]).sum() for k in range(TRIED)], named | moving)
            truth = {name: found[name] for name in named}
        least = 1e-3 * _largest([row for rows in truth.values() for row in rows])
        compared = [_compared(site, ruled[site], truth) for site in sites]
        return all(pair is not None and pair.agree(self._allowed, least) for pair in compared)

    def _activation_bytes(self, capture: Capture) -> int:
        """What an example takes, estimated from the tensors that have the batch in them somewhere."""
        outputs = sum(torch.Size(call.seen).numel() * call.like.element_size() for call in capture.calls)
        tensors = {id(t): t for call in capture.calls for t, _ in call.watched}
        inputs = sum(
            t.numel() * t.element_size()
            for t in tensors.values()
            if any(size % TRIED == 0 for size in t.shape[:2]) and not isinstance(t, torch.nn.Parameter)
        )
        return max(1, _ACTIVATIONS * (outputs + inputs) // TRIED)


def _gradients(targets: list[Tensor], leaves: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    """Of each target by every leaf, flattened."""
    rows: dict[str, list[Tensor]] = {name: [] for name in leaves}
    for target in targets:
        grads = torch.autograd.grad(target, list(leaves.values()), retain_graph=True, allow_unused=True)
        for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
            rows[name].append((torch.zeros_like(leaf) if grad is None else grad.to_dense()).flatten())
    return rows


@dataclass(frozen=True)
class _Compared:
    """A rule beside plain autograd, for either example: the largest difference, and the largest element."""

    gaps: tuple[float, ...]
    sizes: tuple[float, ...]

    def agree(self, allowed: float, least: float) -> bool:
        """Relative to the largest element, or to the least that matters."""
        return all(gap <= allowed * max(size, least) for gap, size in zip(self.gaps, self.sizes, strict=True))


def _compared(site: Site, found: list[Gradient], truth: Mapping[str, list[Tensor]]) -> _Compared | None:
    """None where the shapes do not fit."""
    (name, start), size = site, found[0].size
    try:
        got = summed(found, 0, size)
        if {part.size for part in found} != {size}:
            return None
        if size == 0:
            return _Compared((), ())
        want = torch.stack([whole[start : start + size] for whole in truth[name]]).to(got.dtype)  # (2, size)
        own = torch.stack([got[k, k] for k in range(TRIED)])
        gaps, sizes = torch.stack([own - want, want]).abs().amax(dim=2).tolist()
        return _Compared(tuple(gaps), tuple(sizes))
    except Exception:
        return None


def _largest(rows: Sequence[Tensor]) -> float:
    return max((float(row.abs().max()) for row in rows if row.numel()), default=0.0)


def _strength(part: Gradient) -> float:
    """The largest element of either example's gradient."""
    values = part.dense(0, part.size)
    return _largest([values[k, k] for k in range(TRIED)])


def _swapped(value: Any, others: dict[int, Tensor]) -> Any:
    """With other tensors in place of some, by their ids."""
    return map_tensors(value, lambda tensor: others.get(id(tensor), tensor))


def _output(result: Any) -> Tensor:
    """The output, where attention weights come with it."""
    return result[0] if isinstance(result, tuple) else result
