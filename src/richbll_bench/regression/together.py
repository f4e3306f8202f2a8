"""Many networks of one shape trained as one: the network's number is a leading dimension of every tensor.

On a CPU a step of twenty small networks costs little more than a step of one. Each of them sees its own rows in its own
order and has its own gradient clipped, so it is the network that it would have been alone.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from richbll_bench.regression.denormals import denormals_are_zero
from richbll_bench.regression.quick import Quick

State = dict[str, Tensor]
Forward = Callable[..., Any]  # one network as a function of its inputs
Objective = Callable[[Forward, Tensor, Tensor], Tensor]  # of a network, inputs (n, d) and targets (n, 1)
Rate = Callable[[str, tuple[int, ...]], float]
Pairs = tuple[Tensor, Tensor]  # inputs (S, n, d) and targets (S, n, 1) of every network

_WORTH_IT = 0.75  # networks that are done are put away when no more than this part is going on


@dataclass(frozen=True)
class Recipe:
    """How a network is trained."""

    epochs: int
    batch_size: int
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    clip: float = 1.0  # the gradient's norm, network by network
    every: int = 10  # epochs between two looks at the validation rows


def squared_error(network: Forward, x: Tensor, y: Tensor) -> Tensor:
    """Mean of (f(x) − y)²."""  # ()
    return (network(x) - y).square().mean()


class Together:
    """Networks under training."""

    def __init__(
        self,
        networks: Sequence[nn.Module],
        objective: Objective,
        recipe: Recipe,
        rate: Rate = lambda *_: 1.0,
        randomness: str = "error",  # "same" or "different" for networks that draw random numbers
        decay: Rate = lambda *_: 1.0,  # how many times the weight decay a parameter has
    ) -> None:
        self._recipe = recipe
        self._skeleton = copy.deepcopy(networks[0]).to("meta")
        parameters, self._buffers = stack_module_state(list(networks))
        self._parameters: State = dict(parameters)
        self._randomness = randomness
        self._gradients = Quick(self._clipped(objective))
        groups = [
            {
                "params": [stacked],
                "lr": recipe.learning_rate * rate(name, tuple(stacked.shape[1:])),
                "weight_decay": recipe.weight_decay * decay(name, tuple(stacked.shape[1:])),
            }
            for name, stacked in self._parameters.items()
        ]
        self._optimizer = torch.optim.AdamW(groups, fused=True)

    def _of_one(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of one network's parameters, buffers and rows, from one of the network and its rows."""

        def of_one(parameters: State, buffers: State, *rows: Tensor) -> Any:
            return function(lambda *a, **k: functional_call(self._skeleton, (parameters, buffers), a, k), *rows)

        return of_one

    def _clipped(self, objective: Objective) -> Callable[[State, State, Tensor, Tensor], State]:
        """The objective's gradients, those of each network together no longer than allowed."""
        gradients_of = vmap(grad(self._of_one(objective)), randomness=self._randomness)
        longest = self._recipe.clip

        def clipped(parameters: State, buffers: State, x: Tensor, y: Tensor) -> State:
            gradients = gradients_of(parameters, buffers, x, y)
            squares = [g.flatten(1).square().sum(dim=1) for g in gradients.values()]
            norms = torch.stack(squares).sum(dim=0).sqrt()  # (S,)
            factors = (longest / (norms + 1e-6)).clamp(max=1.0)
            # torch's fused AdamW reads memory in order, whatever the strides of a gradient are
            return {name: (g * factors.view(-1, *[1] * (g.ndim - 1))).contiguous() for name, g in gradients.items()}

        return clipped

    def epoch(self, x: Tensor, y: Tensor, orders: Tensor) -> None:
        """One epoch over rows x (S, N, d) and y (S, N, 1), each network in its own order (S, N)."""
        who = torch.arange(len(x)).unsqueeze(1)
        x, y = x[who, orders], y[who, orders]
        size = self._recipe.batch_size
        with denormals_are_zero():
            for start in range(0, x.shape[1], size):
                self._step(x[:, start : start + size], y[:, start : start + size])

    def _step(self, x: Tensor, y: Tensor) -> None:
        held = {name: parameter.detach() for name, parameter in self._parameters.items()}
        for name, gradient in self._gradients(held, self._buffers, x, y).items():
            self._parameters[name].grad = gradient
        self._optimizer.step()

    def evaluate(self, function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        """Of every network and its rows."""
        with torch.no_grad():
            mapped = vmap(self._of_one(function), randomness=self._randomness)
            return mapped(self._parameters, self._buffers, *rows)

    def keep(self, numbers: Sequence[int]) -> None:
        """Go on with these networks alone."""
        for group, (name, old) in zip(self._optimizer.param_groups, self._parameters.items(), strict=True):
            new = old.detach()[numbers].requires_grad_()
            moments = self._optimizer.state.pop(old, {})
            self._optimizer.state[new] = {key: m[numbers] if m.ndim else m for key, m in moments.items()}
            group["params"], self._parameters[name] = [new], new
        self._buffers = {name: stacked[numbers] for name, stacked in self._buffers.items()}

    def weights(self) -> Tensor:
        """All parameters of every network as one vector."""  # (S, P)
        return torch.cat([stacked.detach().flatten(1) for stacked in self._parameters.values()], dim=1)

    def state(self, number: int) -> State:
        """A copy of one network's parameters and buffers."""
        held = self._parameters | dict(self._buffers)
        return {name: stacked[number].detach().clone() for name, stacked in held.items()}


def orders(seeds: Sequence[int], num_rows: int) -> Iterator[Tensor]:
    """The order of the rows in every epoch, for each seed from its own random numbers."""  # (S, N)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    while True:
        yield torch.stack([torch.randperm(num_rows, generator=generator) for generator in generators])


@dataclass(frozen=True)
class Selected:
    """What the validation rows have chosen for one network."""

    epochs: int
    error: float  # on the validation rows: mean squared, if nothing else was asked for
    state: State


def select(
    together: Together,
    seeds: Sequence[int],
    train: Pairs,
    validation: Pairs,
    recipe: Recipe,
    error: Objective = squared_error,
) -> list[Selected]:
    """Train on, look every so many epochs, and keep every network at its best."""
    (x, y), best = train, [Selected(0, float("inf"), {})] * len(seeds)
    ways = orders(seeds, x.shape[1])
    for epoch in range(1, recipe.epochs + 1):
        together.epoch(x, y, next(ways))
        if epoch % recipe.every == 0 or epoch == recipe.epochs:
            for number, now in enumerate(together.evaluate(error, *validation).tolist()):
                if now < best[number].error:
                    best[number] = Selected(epoch, now, together.state(number))
    return best


def train_for(together: Together, seeds: Sequence[int], train: Pairs, epochs: Sequence[int]) -> list[State]:
    """Train every network for its own number of epochs."""
    x, y = train
    ways, states, running = orders(seeds, x.shape[1]), [State() for _ in seeds], list(range(len(seeds)))
    for epoch in range(1, max(epochs) + 1):
        together.epoch(x[running], y[running], next(ways)[running])
        for place, number in enumerate(running):
            if epochs[number] == epoch:
                states[number] = together.state(place)
        going = [place for place, number in enumerate(running) if epochs[number] > epoch]
        if going and len(going) <= _WORTH_IT * len(running):
            together.keep(going)
            running = [running[place] for place in going]
    return states
