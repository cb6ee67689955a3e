"""``mirrordescent reproduce``, ``results``, ``diagnose`` and ``bench``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from mirrordescent.cli.lab import lab
from mirrordescent.cli.output import AsJSON, DataDirectory, say, show


def reproduce(
    name: Positional[str],
    scale: Literal["quick", "standard", "paper"] = "standard",
    out: Path = Path("out"),
    data: DataDirectory = None,
    json: AsJSON = False,
) -> None:
    """Run an experiment of the paper, or all, and check its claims.

    The experiments are phantoms, denoise, inpaint, svm, baseline-grids, inpaint-time, generalisation, tomography,
    moons, mlp, cnn, mlp-time, cnn-time, fewshot, transfer and resnet. Writes curves (CSV), figures (PNG and SVG), the
    paper's claims with the numbers measured here, a page and a summary to OUT/NAME. Without the data set, bundled
    photographs are used. The standard scale takes about half an hour on two cores, the quick one seconds.

    For example:

        mirrordescent reproduce inpaint --scale quick
        mirrordescent reproduce all --out results

    Args:
        name: the experiment, or all.
        scale: how many problems and iterations.
        out: the folder to write to.
    """
    found = lab("experiments").reproduce(name, scale, out, data, say)
    lines = [line for result in found for line in (result.markdown(), f"written to {out / result.name}")]
    show({result.name: result.summary() for result in found}, lines, json)


def results(folder: Positional[Path] = Path("docs/results"), json: AsJSON = False) -> None:
    """Build the pages of results again from the summaries that are stored with them.

    Writes claims.md and index.html to every folder with a summary.json, and an overview README.md beside them.

    For example: mirrordescent results docs/results

    Args:
        folder: where there is a folder for every experiment.
    """
    found = lab("experiments.rebuild").rebuild(folder)
    report = {r.name: {claim.statement: claim.holds for claim in r.claims} for r in found}
    lines = [f"{folder / r.name}: {sum(c.holds for c in r.claims)} of {len(r.claims)} claims hold" for r in found]
    show(report, lines, json)


def diagnose(
    mirror: Positional[str],
    problem: Literal["inpaint", "denoise", "svm", "tomography", "network"],
    out: Path = Path("out/diagnosis"),
    count: int = 8,
    iterations: int = 200,
    exact_iterates: bool = False,
    data: DataDirectory = None,
    json: AsJSON = False,
) -> None:
    """Say whether a learned map is a good mirror map on a kind of problem, and how far runs are from their bounds.

    Writes OUT/MIRROR/diagnosis.md with numbers, figures and a verdict on every assumption, and prints the verdicts.

    For example: mirrordescent diagnose photo-inpaint-pair --problem inpaint

    Args:
        mirror: an entry of the zoo, or a .safetensors file.
        problem: the kind of problem.
        out: the folder to write to.
        count: how many problems.
        iterations: the length of every run.
        exact_iterates: follow the exact iterates of inexact maps too, which takes a Newton solve in every step.
    """
    diagnose_entry = lab("experiments.diagnose").diagnose_entry
    found = diagnose_entry(mirror, problem, data, count=count, iterations=iterations, exact_iterates=exact_iterates)
    page = found.write(out / found.name)
    lines = [line for part, verdicts in found.judged.items() for line in (f"\n{part}", *(f"  {v}" for v in verdicts))]
    show({"page": page, "verdicts": found.judged}, [*lines, f"\nwritten to {page}"], json)


def bench(folder: Path = Path()) -> None:
    """Measure speed side by side with peers, as ratios. Needs a checkout of the repository.

    For example: mirrordescent bench --folder ~/mirrordescent

    Args:
        folder: the checkout.
    """
    if not (folder / "benchmarks" / "__main__.py").is_file():
        raise FileNotFoundError(f"there are no benchmarks in {folder.resolve()}: they are run in a checkout")
    sys.path.insert(0, str(folder.resolve()))
    runpy.run_module("benchmarks", run_name="__main__")
