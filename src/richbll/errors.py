"""What can go wrong, by kind. Every message says what was wrong, with the numbers, and what to do."""

__all__ = [
    "ArtifactError",
    "CheckpointError",
    "DataChangedError",
    "DataError",
    "DistributedError",
    "LastLayerError",
    "MemoryBudgetError",
    "ModelError",
    "NonFiniteError",
    "NotFittedError",
    "NumericalError",
    "OptionError",
    "RichBLLError",
    "RichBLLWarning",
    "ShapeError",
]


class RichBLLError(Exception):
    """Base of all errors that richbll raises by itself.

    Examples:
        >>> import richbll
        >>> try:
        ...     richbll.RichBLL(torch.nn.Linear(2, 1), likelihood="regresion")
        ... except richbll.errors.RichBLLError as error:
        ...     print(type(error).__name__)
        OptionError
    """


class OptionError(RichBLLError, ValueError):
    """An option has a value that it cannot have."""


class ShapeError(RichBLLError, ValueError):
    """Two shapes that must agree do not."""


class DataError(RichBLLError, ValueError):
    """A batch, or the whole stream of batches, cannot be used."""


class DataChangedError(DataError):
    """The second reading of the data differs from the first."""


class NonFiniteError(DataError):
    """NaN or Inf in features, outputs, gradients or targets."""


class ModelError(RichBLLError, ValueError):
    """The model cannot be read as it is."""


class LastLayerError(ModelError):
    """No linear last layer produces the model's output."""


class NotFittedError(RichBLLError, RuntimeError):
    """Something was asked of an estimator before `fit`."""


class NumericalError(RichBLLError, ArithmeticError):
    """A factorisation failed."""


class MemoryBudgetError(RichBLLError, MemoryError):
    """The work does not fit into the memory budget."""


class DistributedError(RichBLLError, RuntimeError):
    """Another process that reads the data too has failed, or the processes do not fit together."""


class ArtifactError(RichBLLError, ValueError):
    """A saved posterior cannot be read, or belongs to another model."""


class CheckpointError(RichBLLError, ValueError):
    """A checkpoint cannot be read or written, or belongs to another fit."""


class RichBLLWarning(UserWarning):
    """Something works, but not as well as it could."""
