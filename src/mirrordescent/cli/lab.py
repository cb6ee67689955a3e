"""Commands that need the repository: what they run is not in the installed package."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from mirrordescent.cli.plugins import Command

PACKAGE = "mirrordescent_lab"
COMMANDS = ("demo", "reproduce", "results", "bench", "data")


def lab_commands(arguments: list[str]) -> dict[str, Command]:
    """Return the commands of ``mirrordescent_lab`` that are not entry points yet."""
    if not set(arguments[:1]) & set(COMMANDS) and find_spec(PACKAGE) is None:
        return {}
    module = lab("commands")
    groups: dict[str, Command] = {}
    for name, (group, help_text) in module.GROUPS.items():
        group.__doc__ = help_text
        groups[name] = group
    return groups | {command.__name__: command for command in module.COMMANDS}


def lab(module: str) -> ModuleType:
    """Return a module of ``mirrordescent_lab``, or say where to get that package."""
    try:
        import_module(PACKAGE)
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:  # the package is there, and something that it needs is not
            raise
        raise ImportError(
            f"{PACKAGE}.{module} is in the repository of mirrordescent and not in the installed package: clone the "
            "repository, and there run `make demo`, or `pip install -e .` and this command again"
        ) from error
    return import_module(f"{PACKAGE}.{module}")
