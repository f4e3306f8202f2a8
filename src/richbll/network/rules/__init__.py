"""Per-layer gradient rules: how a torch function's gradient by its parameters follows from that by its output.

A file here holds rules for related functions in a dictionary `RULES`: function → rule. A rule runs the function, says
which parameters it used, and how ∂f/∂θ of every example is made from ∂f/∂z. What has no rule is differentiated by the
general route, in the same model.
"""

import importlib
import pkgutil
from functools import cache

from richbll.network.rules.rule import Rule


@cache
def rules() -> dict[object, Rule]:
    """All rules, by the function that they are for."""
    found: dict[object, Rule] = {}
    for module in pkgutil.iter_modules(__path__):
        found |= getattr(importlib.import_module(f"{__name__}.{module.name}"), "RULES", {})
    return found
