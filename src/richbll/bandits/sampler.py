"""`ThompsonSampler`: draw a function from the posterior for each context, and play what it likes best."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from richbll.bandits.noise import RollingNoise
from richbll.bandits.replay import Replay
from richbll.bandits.rewards import ByCode, ByOutput, Encode, Fit, Noise
from richbll.bandits.training import Predict, Train, fit_network
from richbll.checks import non_negative, true_or_false, whole_number
from richbll.errors import NotFittedError, OptionError
from richbll.estimator import RichBLL
from richbll.network.untouched import evaluating
from richbll.rng import child_generator


class ThompsonSampler:
    """Chooses actions with your network, and trains it on what came of them.

    Contexts may have any shape that the model takes. After `every` new rewards, or when the data has grown by the part
    `growth`, the model is trained and the posterior is built anew from all that was seen, or from a subsample. Unlike
    the rest of richbll it does change the model: training it is the point.

    Args:
        model: any `nn.Module` that ends in a linear layer.
        num_actions: how many actions there are.
        encode: None, if the model takes contexts and returns a reward for every action; or a function of contexts,
            actions and their number that gives the inputs of a model with one output, such as `bandits.with_action`.
        train: what trains the model, called with the model, a function (contexts, actions) → rewards, and all contexts,
            actions and rewards so far. Default: `bandits.fit_network`.
        every: it learns after so many rewards,
        growth: or after this part of all rewards so far, when that is more.
        restart: with 1.5, the weights go back to where they were at first whenever there are 1.5 times the rows of the
            last time. A network that is trained on and on from its first few rewards can stay worse than a new one.
        first_pulls: how often each action is played before anything is drawn.
        noise: σ² of the rewards: `RollingNoise` or `LocalNoise`, whose `prior` decides how long it explores at least.
        observation_noise: whether draws are rewards with their noise, and not their means.
        subsample: rows for the posterior, as `RichBLL` takes it; never fewer than features, and scaled to all rows.
        projection_rows: with `subsample=None`, the posterior is that of all rows, and only so many of them are read for
            the projection, which is what costs most.
        seed: of the draws.
        options: further options of `RichBLL`, such as prior_variance, ridge or enrich.

    Examples:
        >>> from richbll.bandits import ThompsonSampler
        >>> model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> sampler = ThompsonSampler(model, num_actions=3)
        >>> for _ in range(3):
        ...     contexts = torch.randn(20, 2)
        ...     actions = sampler.act(contexts)
        ...     _ = sampler.observe(contexts, actions, contexts[:, 0] * actions)
        >>> actions.shape, len(sampler.replay)
        (torch.Size([20]), 60)
    """

    def __init__(
        self,
        model: nn.Module,
        num_actions: int,
        *,
        encode: Encode | None = None,
        train: Train | None = None,
        every: int = 20,
        growth: float = 0.02,
        restart: float | None = None,
        first_pulls: int = 3,
        noise: Noise | None = None,
        observation_noise: bool = False,
        subsample: int | float | str | None = 2048,
        projection_rows: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if restart is not None and non_negative("restart", restart) <= 1:
            raise OptionError(f"restart={restart!r}: must be above 1, the factor by which the data has grown, or None.")
        if "noise_variance" in options or "likelihood" in options:
            raise OptionError(
                "A sampler estimates the noise of numeric rewards itself: give noise=RollingNoise(…) or LocalNoise(…)."
            )
        if noise is not None and not isinstance(noise, Noise):
            raise OptionError(f"noise={noise!r}: must be a RollingNoise(…) or a LocalNoise(…).")
        if projection_rows is not None and subsample is not None:
            raise OptionError(
                f"projection_rows={projection_rows!r} is for a posterior of all rows; with subsample={subsample!r} "
                "both are from the same rows. Give subsample=None, or leave projection_rows out."
            )
        actions = whole_number("num_actions", num_actions, least=2)
        self._options = {"ridge": 1e-2, "progress": False, "subsample": subsample} | options
        RichBLL(model, noise_variance=1.0, **self._options)  # wrong options are told now
        self.replay = Replay(actions)
        self.noise = noise if noise is not None else RollingNoise()
        rows = None if projection_rows is None else whole_number("projection_rows", projection_rows, least=1)
        self._fit = Fit(self._options, rows, whole_number("seed", seed))
        self._rewards = ByOutput(model, actions) if encode is None else ByCode(model, actions, encode)
        self._train: Train = fit_network if train is None else train
        self._every, self._growth = whole_number("every", every, least=1), non_negative("growth", growth)
        self._first_pulls = whole_number("first_pulls", first_pulls, least=1)
        self._restart, self._at_first = restart, copy.deepcopy(model.state_dict()) if restart is not None else None
        self._observation_noise = true_or_false("observation_noise", observation_noise)
        self._seed, self._num_acts = whole_number("seed", seed), 0
        self._posterior: list[RichBLL] | None = None
        self._learned, self._started = 0, 0  # rows when it last learned, and last began anew

    # ------------------------------------------------------------------ playing

    def act(self, contexts: Tensor) -> Tensor:
        """An action for every context (n, …), each by a draw of its own."""  # (n,)
        due = self._due(len(contexts))
        if self._posterior is None:
            return torch.cat([due, torch.arange(len(contexts) - len(due)) % self.replay.num_actions])
        if len(due) == len(contexts):
            return due
        values = self.draw(contexts[len(due) :])
        return torch.cat([due, values.argmax(dim=1).cpu()])

    def draw(self, contexts: Tensor) -> Tensor:
        """Rewards of every action as one draw of the posterior sees them, a new one for each context."""  # (n, A)
        posterior = self._fitted()
        self._num_acts += 1
        generator = child_generator(self._seed, "bandit", self._num_acts)
        values = self._rewards.draws(posterior, contexts, generator)
        if self._observation_noise:
            extra = torch.randn(values.shape, generator=generator, dtype=torch.float64)
            values = values + self._rewards.noise(posterior, contexts).sqrt().to(values) * extra.to(values)
        return values

    def expected(self, contexts: Tensor) -> Tensor:
        """Mean rewards of every action; `argmax` of it does not explore."""  # (n, A)
        return self._rewards.draws(self._fitted(), contexts, None)

    def observe(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> "ThompsonSampler":
        """What came of actions (n,) in contexts (n, …); learns when it is time."""
        before = len(self.replay)
        self.replay.add(contexts, actions, rewards)
        if self._posterior is not None and len(self.replay) > before:
            self.noise.add(self._errors(slice(before, None)))
        if len(self.replay) - self._learned >= max(self._every, self._growth * self._learned) or (
            self._posterior is None and not len(self._due(1))
        ):
            self.learn()
        return self

    def learn(self) -> "ThompsonSampler":
        """Train the model and build the posterior now; `observe` does so by itself."""
        replay, model = self.replay, self._rewards.model
        missing = [a for a in range(replay.num_actions) if not bool((replay.actions == a).any())]
        if missing and isinstance(self._rewards, ByOutput):
            return self  # an output without any row has no posterior yet: `act` plays it next
        if self._at_first is not None and self._restart is not None and len(replay) >= self._restart * self._started:
            model.load_state_dict(self._at_first)
            self._started = len(replay)
        if self._posterior is None:
            self.noise.add(self._errors(slice(None)))  # before it has seen these rewards
        was_training = model.training
        model.train()
        try:
            self._train(model, self._predict, replay.contexts, replay.actions, replay.rewards)
        finally:
            model.train(was_training)
        self._posterior = self._rewards.posterior(replay, self.noise, self._fit)
        self._learned = len(replay)
        return self

    # ------------------------------------------------------------------ inside

    @property
    def _predict(self) -> Predict:
        return self._rewards.predict

    def _errors(self, rows: slice) -> Tensor:
        """Of the network as it is, at these rows."""  # (n,)
        replay, model = self.replay, self._rewards.model
        with evaluating(model), torch.no_grad():
            return replay.rewards[rows] - self._predict(replay.contexts[rows], replay.actions[rows])

    def _due(self, count: int) -> Tensor:
        """Actions that were played too seldom, in turn, at most so many."""
        played = torch.zeros(self.replay.num_actions, dtype=torch.long)
        if len(self.replay):
            played = torch.bincount(self.replay.actions.cpu(), minlength=self.replay.num_actions)
        rounds = [(pull, a) for a, n in enumerate(played.tolist()) for pull in range(n, self._first_pulls)]
        return torch.tensor([action for _, action in sorted(rounds)][:count], dtype=torch.long)

    def _fitted(self) -> list[RichBLL]:
        if self._posterior is None:
            raise NotFittedError("This sampler has not learned anything: act and observe first, or call learn().")
        return self._posterior
