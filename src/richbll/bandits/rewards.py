"""Rewards as a function of context and action, whichever way the model gives them, and their posterior.

A model of (x, a) has one output, and one posterior over all rows. A model of x has an output for every action, and the
reward of one alone is seen, so each action has a posterior of its own rows: its data term and its projection.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from richbll.bandits.local_noise import LocalNoise
from richbll.bandits.noise import RollingNoise
from richbll.bandits.replay import Replay
from richbll.errors import ShapeError
from richbll.estimator import RichBLL
from richbll.network.batches import map_tensors
from richbll.precision import no_autocast
from richbll.rng import child_generator

_NOISE_ROWS = 4096  # to which a local noise is fitted at most

Noise = RollingNoise | LocalNoise
Encode = Callable[[Tensor, Tensor, int], Any]  # contexts (n, …), actions (n,), their number → inputs of the model


@dataclass(frozen=True)
class Fit:
    """How a posterior is made of rows: from all of them, with a projection from some."""

    options: dict[str, Any]  # of `RichBLL`
    projection_rows: int | None = None
    seed: int = 0

    @property
    def last_layer(self) -> Any:
        """Where it is, if that was said."""
        return self.options.get("last_layer")

    def __call__(self, model: nn.Module, inputs: Any, num_rows: int, noise_variance: Any) -> RichBLL:
        """Fitted on the rows for the projection, and updated with the others."""
        uq = RichBLL(model, noise_variance=noise_variance, **self.options)
        if self.projection_rows is None or num_rows <= self.projection_rows:
            return uq.fit([(inputs, None)])
        order = torch.randperm(num_rows, generator=child_generator(self.seed, "projection", num_rows))
        some, others = torch.split(order, [self.projection_rows, num_rows - self.projection_rows])
        uq.fit([(_rows(inputs, some, num_rows), None)])
        return uq.update([(_rows(inputs, others, num_rows), None)])


class ByCode:
    """f(x, a) with the action's code among the inputs."""

    def __init__(self, model: nn.Module, num_actions: int, encode: Encode) -> None:
        self.model, self.num_actions, self._encode = model, num_actions, encode

    def predict(self, contexts: Tensor, actions: Tensor) -> Tensor:
        """The network's reward of an action in each context."""  # (n,)
        output = _called(self.model, self._encode(contexts, actions, self.num_actions))
        if output.shape not in ((len(contexts), 1), (len(contexts),)):
            raise ShapeError(
                f"The model returned {tuple(output.shape)} for {len(contexts)} contexts with their actions; it must "
                f"return one reward each. Leave `encode` out if it returns a reward for every action."
            )
        return output.view(len(contexts))

    def posterior(self, replay: Replay, noise: Noise, fit: Fit) -> list[RichBLL]:
        """One, from all rows."""
        inputs = self._encode(replay.contexts, replay.actions, self.num_actions)
        return [_posterior(self.model, inputs, replay.rewards, 0, noise, fit)]

    def draws(self, posterior: list[RichBLL], contexts: Tensor, generator: torch.Generator | None) -> Tensor:
        """A reward for every action: one new function for each context, or the mean without a generator."""  # (n, A)
        inputs = self._every(contexts)
        return _drawn(posterior[0], inputs, self.num_actions, generator).view(len(contexts), self.num_actions)

    def noise(self, posterior: list[RichBLL], contexts: Tensor) -> Tensor:
        """σ² of every action's reward, as the posterior has it."""  # (n, A)
        return _noise(posterior[0], self._every(contexts)).view(len(contexts), self.num_actions)

    def _every(self, contexts: Tensor) -> Any:
        """Every context with every action."""
        actions = torch.arange(self.num_actions, device=contexts.device).repeat(len(contexts))
        return self._encode(contexts.repeat_interleave(self.num_actions, dim=0), actions, self.num_actions)


class ByOutput:
    """f(x) with an output for every action."""

    def __init__(self, model: nn.Module, num_actions: int) -> None:
        self.model, self.num_actions = model, num_actions

    def predict(self, contexts: Tensor, actions: Tensor) -> Tensor:
        """The network's reward of an action in each context."""  # (n,)
        output = _called(self.model, contexts)
        if output.shape != (len(contexts), self.num_actions):
            raise ShapeError(
                f"The model returned {tuple(output.shape)} for {len(contexts)} contexts; with {self.num_actions} "
                f"actions it must return ({len(contexts)}, {self.num_actions}). Give `encode` if it takes actions."
            )
        return output.gather(1, actions.unsqueeze(1)).squeeze(1)

    def posterior(self, replay: Replay, noise: Noise, fit: Fit) -> list[RichBLL]:
        """One for each action, from its own rows."""
        found = []
        for action in range(self.num_actions):
            rows = replay.actions == action
            contexts, rewards = replay.contexts[rows], replay.rewards[rows]
            found.append(_posterior(self.model, contexts, rewards, action, noise, fit))
        return found

    def draws(self, posterior: list[RichBLL], contexts: Tensor, generator: torch.Generator | None) -> Tensor:
        """A reward for every action: one new function for each context, or the mean without a generator."""  # (n, A)
        columns = [_drawn(uq, contexts, 1, generator)[:, action] for action, uq in enumerate(posterior)]
        return torch.stack(columns, dim=1)

    def noise(self, posterior: list[RichBLL], contexts: Tensor) -> Tensor:
        """σ² of every action's reward, as the posterior has it."""  # (n, A)
        return torch.stack([_noise(uq, contexts)[:, action] for action, uq in enumerate(posterior)], dim=1)


def _called(model: nn.Module, inputs: Any) -> Tensor:
    """The model as `RichBLL` calls it: a tensor, a tuple of tensors, or a mapping by keyword."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _posterior(model: nn.Module, inputs: Any, rewards: Tensor, output: int, noise: Noise, fit: Fit) -> RichBLL:
    """Of the rows with these inputs and rewards, which are those of one output."""
    if not isinstance(noise, LocalNoise):
        return fit(model, inputs, len(rewards), noise_variance=noise.variance)
    rows = torch.arange(0, len(rewards), -(-len(rewards) // _NOISE_ROWS), device=rewards.device)  # spread over time
    spread = _rows(inputs, rows, len(rewards))
    plain = RichBLL(model, noise_variance=1.0, enrich=False, last_layer=fit.last_layer, progress=False)
    plain.fit([(spread, None)])  # only to find the features
    phi, f = _features(plain, spread)
    variance = noise.fitted(phi, rewards[rows] - f[:, output])

    def at(*args: Any, **kwargs: Any) -> Tensor:
        return variance(_features(plain, kwargs or (args[0] if len(args) == 1 else args))[0]).unsqueeze(1)

    return fit(model, inputs, len(rewards), noise_variance=at)


def _rows(inputs: Any, rows: Tensor, num_rows: int) -> Any:
    """Some rows of inputs; a tensor that has none for every row is passed on whole."""

    def some(tensor: Tensor) -> Tensor:
        return tensor[rows.to(tensor.device)] if tensor.ndim and len(tensor) == num_rows else tensor

    return map_tensors(inputs, some)


def _features(uq: RichBLL, inputs: Any) -> tuple[Tensor, Tensor]:
    """φ^r (n, r) and f (n, c)."""
    a, f = uq._forward(inputs)
    return uq._state.last_layer.features(a), f


def _noise(uq: RichBLL, inputs: Any) -> Tensor:
    """σ² at some inputs."""  # (n, c)
    found = uq.predict(inputs)
    return found.noise_variance.expand(found.epistemic_variance.shape)


def _drawn(uq: RichBLL, inputs: Any, rows_per_group: int, generator: torch.Generator | None) -> Tensor:
    """f + Z ε, with one ε for the rows of a group; rows of a group follow each other."""  # (n, c)
    with torch.no_grad():
        a, f = uq._forward(inputs)
        head = uq._head_for(uq._state, a)
        Z = head.whitened(a)  # (n, c or 1, r)
        with no_autocast(Z.device):
            mean = head.mean(Z, f)
            if generator is None:
                return mean
            eps = torch.randn(
                len(Z) // rows_per_group, mean.shape[1], Z.shape[2], generator=generator, dtype=torch.float64
            )
            each = eps.repeat_interleave(rows_per_group, dim=0).to(Z)
            return mean + (Z * each).sum(dim=2)
