"""One forward pass that remembers what every parameter met, and one backward pass that asks for ∂f/∂z alone.

A mode sees every torch function that receives one of the model's parameters. Where there is a rule for the function,
the gradient by its output z is all that is needed, and no weight gradient is ever formed; a parameter that also meets a
function without a rule takes the general route altogether. z is remembered as an edge of autograd's graph, so that
operations in place on it later do no harm.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from richbll.network.batches import Batch
from richbll.network.outputs import read_output
from richbll.network.pooling import pooled
from richbll.network.rules import rules
from richbll.network.rules.rule import ALIKE, FLAT, ROW, SHARED, Examples, Layout, Make, Unruled, Used
from richbll.network.structure import Gradient

Site = tuple[str, int]  # a parameter, and the element at which a part of it begins
Asked = tuple[Any, tuple[Any, ...], dict[str, Any]]  # a function, with its arguments
Pattern = list[tuple[object, tuple[Site, ...]]]  # which function used which parts of which parameters, call by call


# After these an output depends on a parameter in other ways than through z: derivatives inside of the model.
_DERIVATIVES = {torch.autograd.grad, torch.autograd.backward, Tensor.backward, torch._make_dual}


class ChangedError(Exception):
    """A forward pass was not like the trial run: rules do not hold for it."""


@dataclass(frozen=True)
class Use:
    """One parameter in one call."""

    site: Site
    call: int  # number of the call in the forward pass
    make: Make


@dataclass(frozen=True)
class Call:
    """The output of one call, and what it was made of."""

    asked: Asked
    sites: tuple[Site, ...]
    shape: tuple[int, ...]  # as the function returned it
    like: Tensor  # without elements; as the model saw it
    seen: tuple[int, ...]  # its shape
    edge: GradientEdge | None
    watched: tuple[tuple[Tensor, int], ...]  # inputs that the gradient needs, with their versions
    glimpse: Tensor | None  # values of some rows
    more_to_see: bool  # these rows are all the same, but not all rows are


_GLIMPSED = 2048  # values of an example's output, about, that are kept to be compared


@dataclass(eq=False)
class Capture(TorchFunctionMode):
    """While active, takes down calls. `layouts` says where the batch is in each call's output; None: nobody knows."""

    names: dict[int, str]  # id of a parameter that counts → its name
    others: set[int]  # ids of parameters that do not
    num_rows: int
    layouts: Sequence[Layout | None] | None = None  # None: a trial run, in which outputs are left as they are
    rows: Tensor | None = None  # of which to keep the outputs' values; in a trial run, of all
    differentiates: bool = True
    calls: list[Call] = field(default_factory=list)
    used: list[Use] = field(default_factory=list)
    unruled: set[str] = field(default_factory=set)
    changed: bool = False  # an output did not have the batch where it was on trial

    def __post_init__(self) -> None:
        super().__init__()
        self._rules = rules()
        self._asked: Asked = (None, (), {})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DERIVATIVES:
            self.unruled |= set(self.names.values())
        met = {self.names[id(tensor)] for tensor in _tensors((*args, *kwargs.values())) if id(tensor) in self.names}
        if not met:
            return pooled(func, args, kwargs)
        own_transform = torch._C._functorch.maybe_current_level() is not None  # a vmap or a derivative in the model
        rule = None if own_transform else self._rules.get(func)
        known = (len(self.calls), len(self.used))
        if rule is not None:
            self._asked = (func, args, kwargs)
            try:
                result = rule(self, func, args, kwargs)
                self.unruled |= met - {use.site[0] for use in self.used[known[1] :]}  # say, x in x @ P
                return result
            except Unruled:
                del self.calls[known[0] :], self.used[known[1] :]
        result = func(*args, **kwargs)
        if any(True for _ in _tensors(result)):  # and not merely a shape, a device or a flag
            self.unruled |= met
        return result

    @property
    def pattern(self) -> Pattern:
        """What the model did with its parameters."""
        return [(call.asked[0], call.sites) for call in self.calls]

    # what rules call

    def leaf(self, value: Any) -> Any:
        """A parameter without its history, requiring a gradient where it counts; anything else as it is."""
        if id(value) in self.names:
            return value.detach().requires_grad_()
        return value.detach() if id(value) in self.others else value

    def uses(self, output: Tensor, *used: Used) -> Tensor:
        """The output came from these parameters. Returns it as the model shall see it."""
        number, shape = len(self.calls), tuple(output.shape)
        counted = [(self.names[id(p)], make, start) for p, make, start in used if id(p) in self.names]
        if not counted:
            return output
        layout = self._layout(number, shape)
        glimpse, more_to_see = self._glimpse(output, layout)
        if layout in ALIKE:
            output = output if layout == ROW else output.unsqueeze(0)
            output = output.expand(self.num_rows, *output.shape[1:])  # once for each example
        edge = get_gradient_edge(output) if self.differentiates and output.requires_grad else None
        if self.differentiates and edge is None:  # in a part of the model without gradients
            self.unruled |= {name for name, _, _ in counted}
        _, args, kwargs = self._asked
        watched = tuple((t, t._version) for t in _tensors((*args, *kwargs.values())))
        sites = tuple((name, start) for name, _, start in counted)
        like, seen = output.detach().new_empty(0), tuple(output.shape)
        self.calls.append(Call(self._asked, sites, shape, like, seen, edge, watched, glimpse, more_to_see))
        self.used += [Use((name, start), number, make) for name, make, start in counted]
        return output

    def _layout(self, number: int, shape: tuple[int, ...]) -> Layout | None:
        """Where the batch is; not raised from inside the model, which might catch it."""
        layout = self.layouts[number] if self.layouts is not None and number < len(self.layouts) else None
        if layout is not None and not _fits(shape, layout, self.num_rows):
            self.changed = True
            return None
        return layout

    def _glimpse(self, output: Tensor, layout: Layout | None) -> tuple[Tensor | None, bool]:
        """Values as they are now, since the model may change them in place later, and whether there are others."""
        if self.layouts is None:
            return output.detach().clone(), False
        if self.rows is None or layout is None:
            return None, False
        if layout in ALIKE:
            return output.detach().clone().expand(len(self.rows), *output.shape), False
        by_row = Examples(layout, self.num_rows).first(output.detach())
        some = by_row[self.rows].flatten(1)  # rows first: they are few, and to flatten all of them may take a copy
        every = some.shape[1] // _GLIMPSED | 1
        glimpse = some[:, ::every].contiguous()  # and not a view that keeps whole rows of every call
        is_one = bool((glimpse == glimpse[:1]).all())
        return glimpse, is_one and bool((by_row.flatten(1)[:, ::every] != glimpse[:1]).any())

    # afterwards

    def gradients(
        self, sites: set[Site], targets: Sequence[Tensor], refused: set[Site] | None = None
    ) -> dict[Site, list[Gradient]]:
        """∂f/∂θ of every example at these sites, for each of c sums over the batch of one output.

        Sites whose rule does not know this layout are put among the refused; without such a set, nothing is given.
        """
        assert self.layouts is not None
        wanted = [use for use in self.used if use.site in sites]
        edges = {n: edge for n in sorted({use.call for use in wanted}) if (edge := self.calls[n].edge) is not None}
        by_call: dict[int, Tensor] = {}
        if edges:
            ends = list(edges.values())
            found = [self._backward(ends, t, retain=k + 1 < len(targets)) for k, t in enumerate(targets)]
            for position, number in enumerate(edges):
                by_call[number] = self._stacked(number, [g[position] for g in found])
        return self._made(wanted, by_call, refused)

    def gradients_of_zeros(self, count: int) -> dict[Site, list[Gradient]]:
        """What `gradients` gives for so many sums that do not depend on anything: shapes, without a backward pass."""
        zeros = {number: call.like.new_zeros(count, *call.seen) for number, call in enumerate(self.calls)}
        return self._made(self.used, zeros)

    def _made(
        self, wanted: list[Use], by_call: dict[int, Tensor], refused: set[Site] | None = None
    ) -> dict[Site, list[Gradient]]:
        """By the rules, from ∂f/∂z of every call."""
        assert self.layouts is not None
        made: dict[Site, list[Gradient]] = {}
        for use in wanted:
            call, layout = self.calls[use.call], self.layouts[use.call]
            if any(tensor._version != version for tensor, version in call.watched):
                raise ChangedError("an input was changed in place after it had been used")
            try:
                if layout is None or use.call not in by_call:
                    raise Unruled
                made.setdefault(use.site, []).append(use.make(by_call[use.call], Examples(layout, self.num_rows)))
            except Exception as error:  # Unruled, or shapes that do not fit
                if refused is None:
                    raise ChangedError("a rule does not know this layout") from error
                refused.add(use.site)
        return made

    @staticmethod
    def _backward(edges: list[GradientEdge], target: Tensor, retain: bool) -> tuple[Tensor | None, ...]:
        if not target.requires_grad:
            return (None,) * len(edges)
        return torch.autograd.grad(target, edges, retain_graph=retain, allow_unused=True)

    def _stacked(self, number: int, found: list[Tensor | None]) -> Tensor:
        """∂f/∂z with outputs and examples in front."""  # (c, n, …)
        assert self.layouts is not None
        call, layout = self.calls[number], self.layouts[number]
        filled = [call.like.new_zeros(call.seen) if g is None else g for g in found]
        g = torch.stack(filled) if len(filled) > 1 else filled[0].unsqueeze(0)
        if layout in ALIKE:
            return g.reshape(len(g), self.num_rows, *call.shape)
        return g if layout is None else Examples(layout, self.num_rows).first(g, lead=1)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _fits(shape: tuple[int, ...], layout: Layout, num_rows: int) -> bool:
    """Whether there can be so many examples where the layout says."""
    if layout == SHARED:
        return True
    if layout == ROW:
        return shape[:1] == (1,)
    if layout == FLAT:
        return shape[0] % num_rows == 0
    return len(shape) > int(layout) and shape[int(layout)] == num_rows


def observed(model: nn.Module, batch: Batch, capture: Capture) -> Tensor:
    """The outputs (n, c) of a forward pass under observation."""
    with slow_attention(), torch.set_grad_enabled(capture.differentiates), capture:
        raw = model(*batch.args, **batch.kwargs)
    return read_output(raw, batch.size)


@contextmanager
def slow_attention() -> Iterator[None]:
    """Transformer layers run their parts one by one, not fused: the fused kernels have no gradient."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def layout_of(small: tuple[int, ...], large: tuple[int, ...], num_small: int, num_large: int) -> Layout | None:
    """Where the batch is, from the shapes of one output for two numbers of examples."""
    if len(small) != len(large):
        return None
    if small == large:
        return ROW if len(small) > 1 and small[0] == 1 else SHARED
    for dim in range(min(2, len(small))):
        rest = small[:dim] + small[dim + 1 :] == large[:dim] + large[dim + 1 :]
        if rest and (small[dim], large[dim]) == (num_small, num_large):
            return dim
    if small[1:] == large[1:] and small[0] * num_large == large[0] * num_small:
        return FLAT
    return None
