"""richbll: how sure is a trained network? Richer Bayesian last layers for any PyTorch model."""

from richbll import errors
from richbll._version import __version__
from richbll.estimator import FunctionSamples, RichBLL, load
from richbll.export import UncertainModule
from richbll.predictive import JointPredictive, RegressionPredictive

__all__ = [
    "FunctionSamples",
    "JointPredictive",
    "RegressionPredictive",
    "RichBLL",
    "UncertainModule",
    "__version__",
    "errors",
    "load",
]
