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
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from richbll.network.batches import tensors_in
from richbll.network.rules import rules
from richbll.network.rules.rule import FLAT, SHARED, Examples, Layout, Make, Unruled, Used
from richbll.network.structure import Gradient

Site = tuple[str, int]  # a parameter, and the element at which a part of it begins


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

    shape: tuple[int, ...]  # as the function returned it
    seen: tuple[int, ...]  # as the model saw it
    edge: GradientEdge
    watched: tuple[tuple[Tensor, int], ...]  # inputs that the gradient needs, with their versions


@dataclass(eq=False)
class Capture(TorchFunctionMode):
    """While active, takes down calls. `layouts` says where the batch is in each call's output."""

    names: dict[int, str]  # id of a parameter that counts → its name
    others: set[int]  # ids of parameters that do not
    num_rows: int
    layouts: Sequence[Layout] | None = None  # None: a trial run, in which outputs are left as they are
    calls: list[Call] = field(default_factory=list)
    used: list[Use] = field(default_factory=list)
    unruled: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self._rules = rules()
        self._inputs: tuple[tuple[Tensor, int], ...] = ()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        met = self._met(args, kwargs)
        if not met:
            return func(*args, **kwargs)
        rule = self._rules.get(func)
        known = (len(self.calls), len(self.used))
        if rule is not None:
            self._inputs = tuple((t, t._version) for t in (*args, *kwargs.values()) if isinstance(t, Tensor))
            try:
                return rule(self, func, args, kwargs)
            except Unruled:
                del self.calls[known[0] :], self.used[known[1] :]
        result = func(*args, **kwargs)
        if tensors_in(result):  # and not merely a shape, a device or a flag
            self.unruled |= met
        return result

    def _met(self, args: Any, kwargs: Any) -> set[str]:
        found = set()
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor):
                if id(value) in self.names:
                    found.add(self.names[id(value)])
            elif isinstance(value, tuple | list):
                found |= {self.names[id(part)] for part in value if id(part) in self.names}
        return found

    # what rules call

    def leaf(self, value: Any) -> Any:
        """A parameter without its history, requiring a gradient where it counts; anything else as it is."""
        if id(value) in self.names:
            return value.detach().requires_grad_()
        return value.detach() if id(value) in self.others else value

    def uses(self, output: Tensor, *used: Used) -> Tensor:
        """The output came from these parameters. Returns it as the model shall see it."""
        number, shape = len(self.calls), tuple(output.shape)
        if self.layouts is not None and number >= len(self.layouts):
            raise ChangedError("the model made other calls than on trial")
        if self.layouts is not None and self.layouts[number] == SHARED:
            output = _spread(output, self.num_rows)
        self.calls.append(Call(shape, tuple(output.shape), get_gradient_edge(output), self._inputs))
        for parameter, make, start in used:
            if id(parameter) in self.names:
                self.used.append(Use((self.names[id(parameter)], start), number, make))
        return output

    # afterwards

    def gradients(self, sites: set[Site], targets: Sequence[Tensor]) -> dict[Site, list[Gradient]]:
        """∂f/∂θ of every example at these sites, for each of c sums over the batch of one output."""
        assert self.layouts is not None
        wanted = [use for use in self.used if use.site in sites]
        numbers = sorted({use.call for use in wanted})
        edges = [self.calls[number].edge for number in numbers]
        by_call: dict[int, Tensor] = {}
        if edges:
            found = [self._backward(edges, t, retain=k + 1 < len(targets)) for k, t in enumerate(targets)]
            for position, number in enumerate(numbers):
                by_call[number] = self._stacked(number, [g[position] for g in found])
        made: dict[Site, list[Gradient]] = {}
        for use in wanted:
            call, layout = self.calls[use.call], self.layouts[use.call]
            if any(tensor._version != version for tensor, version in call.watched):
                raise ChangedError("an input was changed in place after it had been used")
            made.setdefault(use.site, []).append(use.make(by_call[use.call], Examples(layout, self.num_rows)))
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
        like = next((g for g in found if g is not None), None)
        if like is None:
            like = call.watched[0][0].new_zeros(())
        filled = [like.new_zeros(call.seen) if g is None else g for g in found]
        g = torch.stack(filled) if len(filled) > 1 else filled[0].unsqueeze(0)
        if layout == SHARED:
            return g.reshape(len(g), self.num_rows, *call.shape)
        return Examples(layout, self.num_rows).first(g, lead=1)


def _spread(output: Tensor, num_rows: int) -> Tensor:
    """An output that is the same for all examples, once for each."""
    if output.ndim > 1 and output.shape[0] == 1:
        return output.expand(num_rows, *output.shape[1:])
    return output.unsqueeze(0).expand(num_rows, *output.shape)


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
        return SHARED
    for dim in range(min(2, len(small))):
        rest = small[:dim] + small[dim + 1 :] == large[:dim] + large[dim + 1 :]
        if rest and (small[dim], large[dim]) == (num_small, num_large):
            return dim
    if small[1:] == large[1:] and small[0] * num_large == large[0] * num_small:
        return FLAT
    return None
