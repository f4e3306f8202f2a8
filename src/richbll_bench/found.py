"""Found by their files: everything that is one file in a folder, with no list of them to keep."""

import difflib
import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType

from richbll.errors import RichBLLError


def files_in(folder: Iterable[str]) -> list[str]:
    """The names of a package's modules, from its `__path__`."""
    return sorted(module.name for module in pkgutil.iter_modules(folder))


def module_of(package: str, name: str, names: list[str], error: type[RichBLLError], missing: str) -> ModuleType:
    """The module of that name; an error that begins with what is missing says which there are, and which is near."""
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise error(f"{missing}; there are {', '.join(names)}.{hint}")
    return importlib.import_module(f"{package}.{name.replace('-', '_')}")
