"""The command line: ``mirrordescent --help``."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

from tyro.extras import SubcommandApp

from mirrordescent import __version__
from mirrordescent.cli import collections, experiments, learning, solve
from mirrordescent.cli.lab import lab
from mirrordescent.cli.output import say


def demo(
    out: Path = Path("out/demo"),
    size: int = 128,
    iterations: int = 200,
    missing: float = 0.2,
    noise: float = 0.05,
    fill: bool = False,
    seed: int = 0,
) -> None:
    """Restore damaged photographs and train a network, and compare.

    Removes pixels from the photographs bundled with scikit-image, restores them by total-variation inpainting with
    learned and classical methods, and measures each against the certified optimum. Step sizes are tuned on other
    photographs. Then trains a small network on digits, against Adam. Prints tables and writes a page to OUT, in about
    a minute. Needs no network.

    For a harder problem: mirrordescent demo --missing 0.6 --size 256

    From a fairer start: mirrordescent demo --fill

    Args:
        out: the folder to write to.
        size: side of the photographs, in pixels.
        iterations: budget of every method.
        missing: share of the pixels to remove.
        noise: standard deviation of the noise added to the rest.
        fill: start from an image whose holes are filled from their neighbours, not left black.
        seed: seed of the mask and the noise.
    """
    lab("demo").run(out, size, iterations, missing, noise, fill, seed)


def version() -> None:
    """Print the version."""
    print(__version__)


COMMANDS = (
    demo, learning.learn, experiments.reproduce, experiments.results, experiments.diagnose, experiments.bench, version,
)  # fmt: skip
GROUPS = {
    "solve": (solve.app, "Restore your photographs: denoise, inpaint."),
    "zoo": (collections.zoo_app, "Learned methods: list, show, verify."),
    "data": (collections.data_app, "Data sets: list, verify, path."),
}
DESCRIPTION = "Mirror descent in learned and classical geometries. Examples are in the help of every command."
ALIASES = {"learn": ("train",)}


def _app(brief: bool) -> SubcommandApp:
    """Return all commands, with a line of help each for the overview, or with all of it."""
    app = SubcommandApp()
    for name, (group, help) in GROUPS.items():
        app.command(group, name=name, help=help)
    for command in COMMANDS:
        line = (command.__doc__ or "").partition("\n")[0]
        app.command(help=line if brief else None, aliases=ALIASES.get(command.__name__))(command)
    return app


def main() -> None:
    """Run the command line.

    Exit codes: 0 if all went well, 1 if a command ran and something failed in it, 2 for a user's mistake, which is one
    line on standard error, and 130 for an interruption.
    """
    overview = not sys.argv[1:] or sys.argv[1] in ("-h", "--help")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: say(f"mirrordescent: {message}")
            code = _app(brief=overview).cli(prog="mirrordescent", description=DESCRIPTION)
        sys.stdout.flush()
    except BrokenPipeError:  # as of `| head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, TypeError, OSError, LookupError, ImportError, MemoryError) as error:
        # The text of a KeyError is its argument, and would be shown in quotation marks.
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        say(f"mirrordescent: {' '.join(text.split()) or type(error).__name__}")
        sys.exit(2)
    except KeyboardInterrupt:
        say("mirrordescent: interrupted")
        sys.exit(130)
    if code:
        sys.exit(code)
