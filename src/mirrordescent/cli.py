"""The command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from tyro.conf import Positional
from tyro.extras import SubcommandApp

app = SubcommandApp()


@app.command
def demo(
    out: Path = Path("out/demo"),
    size: int = 128,
    iterations: int = 200,
    missing: float = 0.2,
    noise: float = 0.05,
    fill: bool = False,
    seed: int = 0,
) -> None:
    """Restore damaged photographs with every method, and compare.

    Removes pixels from the photographs bundled with scikit-image, restores them by total-variation inpainting with
    every method of the library, and measures each against the certified optimum. Step sizes are tuned on other
    photographs. Prints a table and writes OUT/inpainting.png. Needs no network.

    For a harder problem: mirrordescent demo --missing 0.6 --size 256.
    From a fairer start:  mirrordescent demo --fill.

    Args:
        out: the folder to write to.
        size: side of the photographs, in pixels.
        iterations: budget of every method.
        missing: share of the pixels that is removed.
        noise: standard deviation of the noise added to the rest.
        fill: start from an image whose holes are filled from their neighbours, not from black holes.
        seed: of the mask and the noise.
    """
    from mirrordescent.demo import run

    run(out, size, iterations, missing, noise, fill, seed)


@app.command
def train(name: Positional[str], runs: Path = Path("runs"), data: Path | None = None, out: Path | None = None) -> None:
    """Learn an entry of the zoo anew.

    Runs are kept in RUNS/NAME and go on where they stopped. Without OUT the entry replaces the shipped one.

    Args:
        name: of the entry, such as photo-inpaint-conjugate.
        runs: the folder for checkpoints and logs.
        data: the data directory; MIRRORDESCENT_DATA by default.
        out: the folder to write the entry to.
    """
    from mirrordescent.zoo.recipes import train as train_entry

    print(train_entry(name, runs, data, out))


@app.command
def reproduce(
    name: Positional[str],
    scale: Literal["quick", "standard", "paper"] = "standard",
    out: Path = Path("out"),
    data: Path | None = None,
) -> None:
    """Run an experiment of the paper: phantoms, denoise, inpaint, svm, baseline-grids, inpaint-time, generalisation,
    moons, mlp, cnn, cnn-time, fewshot, transfer, resnet.

    Writes curves (CSV), figures (PNG and SVG), the paper's claims with the numbers measured here, and a summary to
    OUT/NAME. The standard scale takes about half an hour on two cores, the quick one seconds.

    Args:
        name: of the experiment, or all.
        scale: how many problems and iterations.
        out: the folder to write to.
        data: the data directory; MIRRORDESCENT_DATA by default. Without the data set, bundled photographs are used.
    """
    from mirrordescent.experiments import reproduce as run

    for result in run(name, scale, out, data):
        print(result.page(), f"written to {out / result.name}", sep="\n")


@app.command
def diagnose(
    mirror: Positional[str],
    problem: Literal["inpaint", "denoise", "svm"],
    out: Path = Path("out/diagnosis"),
    count: int = 8,
    iterations: int = 200,
    exact_iterates: bool = False,
    data: Path | None = None,
) -> None:
    """Say whether a learned map is a good mirror map on a kind of problem, and how far runs are from their bounds.

    Writes OUT/MIRROR/diagnosis.md with numbers, figures and a verdict on every assumption, and prints the verdicts.
    For example: mirrordescent diagnose photo-inpaint --problem inpaint

    Args:
        mirror: an entry of the zoo, or a .safetensors file.
        problem: the kind of problem.
        out: the folder to write to.
        count: how many problems.
        iterations: of every run.
        exact_iterates: follow the exact iterates of inexact maps too, which takes a Newton solve in every step.
        data: the data directory; MIRRORDESCENT_DATA by default.
    """
    from mirrordescent.experiments.diagnose import diagnose_entry

    found = diagnose_entry(mirror, problem, data, count=count, iterations=iterations, exact_iterates=exact_iterates)
    for part, verdicts in found.judged.items():
        print(f"\n{part}", *(f"  {verdict}" for verdict in verdicts), sep="\n")
    print(f"\nwritten to {found.write(out / found.name)}")


@app.command
def version() -> None:
    """Print the version."""
    from mirrordescent import __version__

    print(__version__)


def main() -> None:
    """Run the command line; a user's mistake ends in one line and exit code 2."""
    try:
        app.cli(prog="mirrordescent", description="Mirror descent in learned and classical geometries.")
    except (ValueError, TypeError, OSError) as error:
        print(f"mirrordescent: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("mirrordescent: interrupted", file=sys.stderr)
        sys.exit(130)
