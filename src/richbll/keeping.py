"""`fit(checkpoint=path)`: where the state of a fit is kept, and what it must be taken up with."""

import os
import re
from pathlib import Path

from richbll.checks import whole_number
from richbll.errors import OptionError
from richbll.network import checkpoint
from richbll.network.checkpoint import CheckpointedSource
from richbll.network.fingerprint import network_fingerprint
from richbll.network.network import Network
from richbll.options import Options
from richbll.solvers.solution import Source

_MATTER = ("likelihood", "basis", "subsample", "seed", "transform", "class_posterior", "curvature", "enrich")


class Keeping:
    """A file for the state of a fit, and how often it is written."""

    def __init__(self, path: str | os.PathLike[str], every: int) -> None:
        if not isinstance(path, str | os.PathLike):
            raise OptionError(f"checkpoint={path!r}: must be the path of a file.")
        self._path, self._every = Path(path), whole_number("checkpoint_every", every, least=1)

    def source(self, source: Source, network: Network, options: Options) -> CheckpointedSource:
        """The source, with its state kept; takes up what is in the file."""
        if source.ranks.size > 1:
            raise OptionError(
                f"checkpoint does not go with {source.ranks.size} processes yet: fit without it, or fit every shard by "
                "itself, save(moments=True), and richbll.merge."
            )
        if options.transform == "per_class" and network.parameter_sizes:
            raise OptionError('checkpoint does not go with transform="per_class": fit without it, or with "shared".')
        return CheckpointedSource(source, self._path, self._every, _fingerprint(network, options))

    def remove(self) -> None:
        """The fit is done."""
        checkpoint.remove(self._path)


def _fingerprint(network: Network, options: Options) -> dict[str, str]:
    solver = options.solver if isinstance(options.solver, str) else _name(options.solver)
    noise = "a function of x" if options.noise_function is not None else "constant"
    others = {"solver": solver, "noise": noise, "memory_budget": str(options.memory)}
    return network_fingerprint(network) | {name: repr(getattr(options, name)) for name in _MATTER} | others


def _name(solver: object) -> str:
    """A function by its name, which does not change from run to run; an object by what it shows of itself."""
    if hasattr(solver, "__qualname__"):
        return f"{solver.__module__}.{solver.__qualname__}"
    return re.sub(" at 0x[0-9a-fA-F]+", "", repr(solver))
