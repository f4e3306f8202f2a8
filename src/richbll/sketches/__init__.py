"""Random projections of long gradients into q numbers, one file each. A file's name is the sketch's name.

A sketch is a module with a function `make(size, seed) -> Sketch`; dropping a file here is all that it takes to add one.
"""

import importlib
import pkgutil

from richbll.checks import one_of, whole_number
from richbll.sketches.sketch import Sketch

__all__ = ["Sketch", "make_sketch", "sketch_names"]

_NOT_SKETCHES = {"dense", "signs", "sketch"}


def sketch_names() -> list[str]:
    """The names that `make_sketch` takes."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NOT_SKETCHES)


def make_sketch(name: str, size: int, seed: int) -> Sketch:
    """The sketch named, into `size` numbers. The same name, size and seed always give the same map.

    Examples:
        >>> import torch
        >>> from richbll.sketches import make_sketch
        >>> gradients = torch.ones(3, 10)
        >>> make_sketch("fold", size=4, seed=0).flat("layer.weight", gradients).shape
        torch.Size([3, 4])
    """
    name = one_of("sketch", name, sketch_names())
    size, seed = whole_number("sketch_size", size, least=1), whole_number("seed", seed)
    made: Sketch = importlib.import_module(f"{__name__}.{name}").make(size, seed)
    return made
