"""Rich-BLL and BLL as anyone can have them: `richbll.bandits.ThompsonSampler` with the agents' network and training.

What plays is the library's: replay, noise, projection, posterior and draws. Only the steps of training are the agents'
own, given as `train=`, since the wheel asks for tens of thousands of them.
"""

import time

import torch
from torch import Tensor, nn

from richbll.bandits import LocalNoise, ThompsonSampler, with_action
from richbll_bench.bandits.agent import Seconds
from richbll_bench.bandits.buffer import Buffer
from richbll_bench.bandits.last_layer import LastLayerRule
from richbll_bench.bandits.training import plain_learner
from richbll_bench.errors import BanditError
from richbll_bench.regression.denormals import denormals_are_zero


class Sampled:
    """One run of the library's sampler, by the rule of a last layer with local noise."""

    def __init__(self, seed: int, num_features: int, num_arms: int, rule: LastLayerRule) -> None:
        if rule.noise.kind != "local" or rule.standardise or rule.feature_scale != 1.0 or rule.draws != "function":
            raise BanditError("The library's sampler has local noise, one function for all arms, and scales nothing.")
        self.seconds, self.schedule, self._num_arms = Seconds(), rule.schedule, num_arms
        self._buffer = Buffer(num_features, num_arms)
        self._learner = plain_learner(num_features + num_arms, seed, rule.schedule)
        self.sampler = ThompsonSampler(
            self._learner.network.as_module(),
            num_arms,
            encode=with_action,
            train=self._train,
            every=1,  # after every phase
            growth=0.0,
            first_pulls=rule.schedule.first_pulls,
            noise=LocalNoise(prior=rule.noise.scale, floor=rule.noise.floor),
            observation_noise=rule.observation_noise,
            subsample=rule.posterior_rows,
            projection_rows=rule.projection_rows if rule.posterior_rows is None else None,
            seed=seed,
            prior_variance=rule.prior_variance,
            ridge=rule.ridge,
            enrich=rule.enrich,
        )

    def phase_length(self, num_seen: int) -> int:
        """By the schedule."""
        return self.schedule.phase_length(num_seen, self._num_arms)

    def act(self, contexts: Tensor) -> Tensor:
        """Each context by a draw of its own."""  # (n,)
        with self.seconds.of("act"):
            return self.sampler.act(contexts)

    def observe(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """The sampler learns at once."""
        self._buffer.add(contexts, actions, rewards)
        spent, began = self.seconds.spent, time.process_time()
        training = spent.get("train", 0.0)
        self.sampler.observe(contexts, actions, rewards)
        rest = time.process_time() - began - (spent.get("train", 0.0) - training)
        spent["posterior"] = spent.get("posterior", 0.0) + rest

    def best(self, contexts: Tensor) -> Tensor:
        """By the mean."""  # (n,)
        return self.sampler.expected(contexts).argmax(dim=1)

    def _train(self, model: nn.Module, *_: object) -> None:
        """What a phase asks for, by the steps written by hand; then the weights go into the model."""
        with self.seconds.of("train"), denormals_are_zero():
            self._learner.learn(self._buffer)
            torch.nn.utils.vector_to_parameters(self._learner.network.theta.clone(), model.parameters())
