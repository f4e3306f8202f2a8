"""Thompson sampling with your own network: it explores where the network does not know, and stops where it does.

The model gets a context with the action's code and returns a reward, or gets a context and returns a reward for every
action. `ThompsonSampler` keeps what was seen, trains the model on it, and draws rewards from a `RichBLL` posterior.
"""

from richbll.bandits.inputs import with_action
from richbll.bandits.local_noise import LocalNoise
from richbll.bandits.noise import RollingNoise
from richbll.bandits.replay import Replay
from richbll.bandits.sampler import ThompsonSampler
from richbll.bandits.training import fit_network

__all__ = ["LocalNoise", "Replay", "RollingNoise", "ThompsonSampler", "fit_network", "with_action"]
