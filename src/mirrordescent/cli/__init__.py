"""The command line: ``mirrordescent --help``."""

import io
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from typing import get_args

from tyro.extras import SubcommandApp

from mirrordescent import __version__
from mirrordescent.cli import (
    app,
    comparing,
    data,
    demo,
    diagnosing,
    learning,
    priors,
    solve,
    zoo,
)
from mirrordescent.cli.errors import report
from mirrordescent.cli.output import EscapedStderr, Switch, say, visible
from mirrordescent.cli.plugins import Command, load_plugins


def version() -> None:
    """Print the version."""
    print(__version__)


COMMANDS: dict[str, Command] = {
    "demo": demo.demo,
    "solve": solve.app,
    "app": app.app,
    "learn": learning.learn,
    "learn-prior": priors.learn_prior,
    "compare": comparing.compare,
    "diagnose": diagnosing.diagnose,
    "zoo": zoo.app,
    "data": data.app,
    "version": version,
}
"""The library's own commands, in the order of the help text."""

ALIASES = {"learn": ("train",)}
SWITCHES = ("isotropic", "coupled", "fused", "keep-known")
"""Options with the values auto, yes and no."""

DESCRIPTION = """
Restore photographs, and learn fast solvers for your own class of optimisation problems.

For example: mirrordescent solve denoise photo.jpg

Every command has examples in its help, such as mirrordescent solve inpaint --help.

Add --debug to any command to see the traceback of an error.
""".strip()


def main() -> None:
    """Run the command line.

    Exit codes: 0 for success; 1 if a command ran and part of its work failed; 2 for a user's
    mistake, described in one line on standard error; 70 for a bug of the library; 130 for an
    interruption.
    """
    for stream in (sys.stdout, sys.stderr):  # a terminal may lack characters such as ×
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    arguments, debug = _extract_debug(sys.argv[1:])
    if arguments in (["--version"], ["-V"]):
        return version()
    try:
        exit_code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe has stopped, as in `mirrordescent … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt as stop:
        say(f"mirrordescent: {str(stop) or 'interrupted'}")
        sys.exit(getattr(stop, "exit_code", 130))
    except Exception as error:
        sys.exit(report(error, debug))
    if exit_code:
        sys.exit(exit_code)


def _run(arguments: list[str]) -> int | None:
    """Run the command that the arguments name and return its exit code."""
    commands = dict(COMMANDS)
    if not arguments or arguments[0] not in _own_names():
        commands |= load_plugins(commands.keys() | _own_names())
    if not arguments or _is_group(commands, arguments):
        arguments = [*arguments, "--help"]
    overview = arguments[0] in ("-h", "--help")
    with warnings.catch_warnings(), _escaped_stderr(arguments):
        warnings.showwarning = lambda message, *_: say(f"mirrordescent: {message}")
        exit_code: int | None = _app(commands, overview).cli(
            prog="mirrordescent", description=DESCRIPTION, args=_expand(arguments)
        )
    return exit_code


def _app(commands: Mapping[str, Command], overview: bool) -> SubcommandApp:
    """Return the application with its commands.

    Args:
        commands: Functions and groups of commands by name.
        overview: Whether to show only the first line of every help text.
    """
    app = SubcommandApp()
    for name, command in commands.items():
        if isinstance(command, SubcommandApp):
            app.command(command, name=name)
            continue
        summary = (command.__doc__ or "").partition("\n")[0]
        register = app.command(
            name=name, help=summary if overview else None, aliases=ALIASES.get(name)
        )
        register(command)
    return app


def _own_names() -> set[str]:
    """Return the names and aliases of the library's own commands."""
    aliases = [alias for names in ALIASES.values() for alias in names]
    return {*COMMANDS, *aliases}


def _is_group(commands: Mapping[str, Command], arguments: list[str]) -> bool:
    """Return whether the arguments name a group of commands and nothing else."""
    return len(arguments) == 1 and isinstance(commands.get(arguments[0]), SubcommandApp)


def _extract_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """Return the arguments without ``--debug``, and whether it was among them.

    >>> _extract_debug(["zoo", "list", "--debug"])
    (['zoo', 'list'], True)
    """
    remaining = [argument for argument in arguments if argument != "--debug"]
    return remaining, len(remaining) < len(arguments)


def _expand(arguments: list[str]) -> list[str]:
    """Return arguments with their short forms written out.

    ``--x`` and ``--no-x`` stand for ``--x yes`` and ``--x no`` if x has the default auto. A Python
    file after ``solve`` stands for ``problems`` and the file.

    >>> _expand(["solve", "mine.py", "--json"])
    ['solve', 'problems', 'mine.py', '--json']
    >>> _expand(["--fused", "a.png", "--no-coupled", "--isotropic", "auto"])
    ['--fused', 'yes', 'a.png', '--coupled', 'no', '--isotropic', 'auto']
    """
    if arguments[:1] == ["solve"] and arguments[1:] and arguments[1].endswith(".py"):
        arguments = ["solve", "problems", *arguments[1:]]
    expanded: list[str] = []
    for index, argument in enumerate(arguments):
        name = argument.removeprefix("--").removeprefix("no-")
        following = arguments[index + 1 : index + 2]
        has_value = bool(following) and following[0] in get_args(Switch)
        if not argument.startswith("--") or name not in SWITCHES or has_value:
            expanded.append(argument)
        else:
            expanded += [f"--{name}", "no" if argument.startswith("--no-") else "yes"]
    return expanded


def _escaped_stderr(arguments: list[str]) -> AbstractContextManager[object]:
    """Escape control characters on standard error if an argument contains any."""
    if all(visible(argument) == argument for argument in arguments):
        return nullcontext()
    return redirect_stderr(EscapedStderr())
