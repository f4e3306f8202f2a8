"""Posteriors that differ in the data term alone have one transform: it is computed once, with the first of them.

The gradients are those of the labels' logits, whatever the curvature and whether or not classes share a posterior, so
AᵀA is the same; only the Gram matrix of the features, one forward pass, is each one's own.
"""

from typing import Any

from richbll.network.network import Network
from richbll.solvers.exact import solve
from richbll.solvers.solution import Solution, Source, feature_moments

_ADDRESS = "projection"


class KeptTransform:
    """A solver of `RichBLL` that keeps the projection of one network and subset of images among what a task keeps."""

    def __init__(self, kept: dict[str, Any]) -> None:
        self._kept = kept

    @property
    def is_there(self) -> bool:
        """Whether a fit would be a forward pass only."""
        return _ADDRESS in self._kept

    def __call__(self, network: Network, stream: Source, memory: int) -> Solution:
        """As the exact solver, but for the gradients if they were read before."""
        if not self.is_there:
            solution = solve(network, stream, memory)
            self._kept[_ADDRESS] = solution.projection
            return solution
        moments, _ = feature_moments(network, stream)
        return Solution(moments, self._kept[_ADDRESS])
