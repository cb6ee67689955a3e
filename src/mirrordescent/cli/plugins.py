"""Commands of other packages: entry points of the group ``mirrordescent.commands``.

A package adds a command to ``mirrordescent`` by an entry point in its ``pyproject.toml``::

    [project.entry-points."mirrordescent.commands"]
    bench = "my_package.commands:bench"

The name of the entry point is the name of the command. Its object is a function with typed
arguments, whose docstring is the help text, or a ``tyro.extras.SubcommandApp`` whose ``__doc__`` is
the help text.
"""

from collections.abc import Callable, Collection
from importlib.metadata import EntryPoint, entry_points
from typing import TypeAlias

import tyro
from tyro.extras import SubcommandApp

from mirrordescent.cli.output import join_argument_lines, say

GROUP = "mirrordescent.commands"

Command: TypeAlias = Callable[..., int | None] | SubcommandApp


def load_plugins(reserved: Collection[str]) -> dict[str, Command]:
    """Return the commands of installed packages by name.

    A plug-in that cannot be loaded, or that has a reserved name, is left out with a warning.

    Args:
        reserved: Names of the library's own commands.
    """
    commands: dict[str, Command] = {}
    for point in _entry_points():
        if point.name in reserved or point.name in commands:
            _warn(point, "another command has this name")
            continue
        try:
            commands[point.name] = _load(point)
        except (Exception, SystemExit) as error:  # whatever another package does on import
            _warn(point, f"{type(error).__name__}: {error}")
    return commands


def plugin_packages() -> set[str]:
    """Return the names of the top-level packages that add commands."""
    return {point.module.partition(".")[0] for point in _entry_points()}


def _entry_points() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


def _load(point: EntryPoint) -> Command:
    command: Command = point.load()
    if isinstance(command, SubcommandApp):
        return command
    if not callable(command):
        raise TypeError(f"{point.value} must be a function or a SubcommandApp")
    command = join_argument_lines(command)
    _require_parser(command)
    return command


def _require_parser(command: Callable[..., int | None]) -> None:
    """Raise if no parser can be made for the arguments of a function."""
    try:
        tyro.cli(command, args=["--help"], console_outputs=False)
    except SystemExit as end:
        if end.code:
            raise


def _warn(point: EntryPoint, reason: str) -> None:
    say(f"mirrordescent: the command {point.name!r} of {point.value} was not loaded: {reason}")
