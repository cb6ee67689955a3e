"""The command line: ``mirrordescent --help``."""

import os
import sys
import warnings
from contextlib import nullcontext, redirect_stderr
from importlib.metadata import entry_points
from typing import get_args

from tyro.extras import SubcommandApp

from mirrordescent import __version__
from mirrordescent.cli import collections, comparing, data, demo, diagnosing, learning, solve
from mirrordescent.cli.output import Shown, Switch, say, visible


def version() -> None:
    """Print the version."""
    print(__version__)


COMMANDS = (demo.demo, learning.learn, comparing.compare, diagnosing.diagnose, version)
GROUPS = {
    "solve": (
        solve.app,
        "Restore your photographs: denoise, inpaint; or solve problems of your own.",
    ),
    "zoo": (collections.app, "Learned methods: list, show, verify."),
    "data": (data.app, "Data sets: list, fetch, verify, path."),
}
PLUGINS = "mirrordescent.commands"
DESCRIPTION = (
    "Mirror descent in learned and classical geometries. Examples are in the help of every command."
)
SWITCHES = ("isotropic", "coupled", "fused", "keep-known")
ALIASES = {"learn": ("train",)}


def _app(brief: bool) -> SubcommandApp:
    """Return all commands, with a line of help each for the overview, or with all of it.

    Installed packages add commands by entry points of the group ``mirrordescent.commands``.
    """
    commands = (*COMMANDS, *(point.load() for point in entry_points(group=PLUGINS)))
    app = SubcommandApp()
    for name, (group, help) in GROUPS.items():
        app.command(group, name=name, help=help)
    for command in commands:
        line = (command.__doc__ or "").partition("\n")[0]
        app.command(help=line if brief else None, aliases=ALIASES.get(command.__name__))(command)
    return app


def _switched(arguments: list[str]) -> list[str]:
    """Return arguments with --x and --no-x, of options that are decided by themselves otherwise, as
    --x yes and --x no.

    What is to be solved may be a Python file, without saying that it has problems in it.

    >>> _switched(["solve", "mine.py", "--json"])
    ['solve', 'problems', 'mine.py', '--json']
    >>> _switched(["--fused", "a.png", "--no-coupled", "--isotropic", "auto"])
    ['--fused', 'yes', 'a.png', '--coupled', 'no', '--isotropic', 'auto']
    """
    if arguments[:1] == ["solve"] and arguments[1:] and arguments[1].endswith(".py"):
        arguments = ["solve", "problems", *arguments[1:]]
    found: list[str] = []
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=True):
        name = argument.removeprefix("--").removeprefix("no-")
        if not argument.startswith("--") or name not in SWITCHES or after in get_args(Switch):
            found.append(argument)
        else:
            found += [f"--{name}", "no" if argument.startswith("--no-") else "yes"]
    return found


def _no_memory(error: RuntimeError) -> bool:
    """Tell whether an error is how torch says that there is no memory left, or Python that nesting
    is too deep.
    """
    return (
        isinstance(error, RecursionError)
        or "allocate memory" in str(error)
        or "out of memory" in str(error)
    )


def main() -> None:
    """Run the command line.

    Exit codes: 0 if all went well, 1 if a command ran and something failed in it, 2 for a user's
    mistake, which is one line on standard error, and 130 for an interruption.
    """
    if sys.argv[1:] in (["--version"], ["-V"]):
        return version()
    overview = not sys.argv[1:] or sys.argv[1] in ("-h", "--help")
    odd = any(visible(argument) != argument for argument in sys.argv[1:])
    try:
        with warnings.catch_warnings(), redirect_stderr(Shown()) if odd else nullcontext():
            warnings.showwarning = lambda message, *_: say(f"mirrordescent: {message}")
            code = _app(brief=overview).cli(
                prog="mirrordescent", description=DESCRIPTION, args=_switched(sys.argv[1:])
            )
        sys.stdout.flush()
    except BrokenPipeError:  # as of `| head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (
        ValueError,
        TypeError,
        OSError,
        LookupError,
        ImportError,
        MemoryError,
        RuntimeError,
        ArithmeticError,
    ) as error:
        if isinstance(error, RuntimeError) and not _no_memory(error):
            raise
        # The text of a KeyError is its argument, and would be shown in quotation marks.
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        say(f"mirrordescent: {' '.join(text.split()) or type(error).__name__}")
        sys.exit(2)
    except KeyboardInterrupt as stop:
        say(f"mirrordescent: {str(stop) or 'interrupted'}")
        sys.exit(getattr(stop, "exit_code", 130))
    if code:
        sys.exit(code)
