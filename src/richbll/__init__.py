"""richbll: how sure is a trained network? Richer Bayesian last layers for any PyTorch model."""

from richbll import bandits, distributed, errors
from richbll._version import __version__
from richbll.diagnostics.diagnosis import Diagnosis
from richbll.estimator import RichBLL
from richbll.export import UncertainModule
from richbll.functions import FunctionSamples
from richbll.loading import load
from richbll.merging import merge
from richbll.predictive import ClassPredictive, JointPredictive, RegressionPredictive
from richbll.solvers.sketch import Sketched

__all__ = [
    "ClassPredictive",
    "Diagnosis",
    "FunctionSamples",
    "JointPredictive",
    "RegressionPredictive",
    "RichBLL",
    "Sketched",
    "UncertainModule",
    "__version__",
    "bandits",
    "distributed",
    "errors",
    "load",
    "merge",
]
