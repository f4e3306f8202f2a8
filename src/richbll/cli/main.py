"""`richbll COMMAND …`: finds the commands, and turns errors into one line and an exit code."""

import importlib
import pkgutil
import sys
import warnings
from collections.abc import Callable
from typing import Any

from richbll import cli
from richbll.errors import RichBLLError, RichBLLWarning

_MISSING = "The command line needs typer and rich: pip install 'richbll[cli]'"


def main(arguments: list[str] | None = None) -> None:
    """Run a command: what is wrong is said in one line on stderr, with exit code 1 and no traceback."""
    try:
        run = application()
    except ModuleNotFoundError as error:
        raise SystemExit(_told(_MISSING if error.name in ("typer", "rich") else str(error))) from error
    with warnings.catch_warnings():
        warnings.simplefilter("always", RichBLLWarning)
        warnings.showwarning = _show_warning
        try:
            run(arguments)
        except (RichBLLError, OSError) as error:
            raise SystemExit(_told(str(error))) from error


def application() -> Any:
    """All commands of this folder, as one application of typer."""
    import typer

    app = typer.Typer(
        name="richbll",
        help="How sure is a trained network? Richer Bayesian last layers.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def _richbll() -> None:
        """How sure is a trained network? Richer Bayesian last layers."""

    for module in pkgutil.iter_modules(cli.__path__):
        if module.name != "main":
            found = importlib.import_module(f"{cli.__name__}.{module.name}")
            try:
                if hasattr(found, "group"):
                    app.add_typer(found.group(), name=module.name)
                else:
                    command = found.make() if hasattr(found, "make") else found.command
                    app.command(module.name)(command)
            except ModuleNotFoundError as error:  # of an extra that the other commands do without
                anything = {"allow_extra_args": True, "ignore_unknown_options": True}
                app.command(module.name, context_settings=anything)(_unavailable(module.name, str(error.name)))
    return app


def _unavailable(name: str, needed: str) -> Callable[[], None]:
    def command() -> None:
        raise RichBLLError(f"richbll {name} needs {needed}: pip install 'richbll[bench]'")

    command.__doc__ = f"Needs {needed}: pip install 'richbll[bench]'."
    return command


def _told(message: str) -> int:
    print("richbll: " + " ".join(message.split()), file=sys.stderr)
    return 1


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _told(f"warning: {message}")
