"""The commands ``reproduce``, ``results`` and ``bench`` of ``mirrordescent``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from mirrordescent.cli.output import AsJSON, DataDirectory, say, show


def reproduce(
    name: Positional[str],
    scale: Literal["quick", "standard", "paper"] = "standard",
    out: Path = Path("out"),
    data: DataDirectory = None,
    json: AsJSON = False,
) -> None:
    """Run one or all of the paper's experiments, and check their claims.

    The experiments are phantoms, denoise, inpaint, svm, baseline-grids, inpaint-time,
    generalisation, tomography, moons, mlp, cnn, mlp-time, cnn-time, fewshot, transfer, resnet,
    network-geometry, charlm, combined-maps, attribution, learned-again and error-terms. Writes
    curves (CSV), figures (PNG and SVG), the paper's claims with the numbers measured here, a page
    and a summary to OUT/NAME. Where a data set is missing, bundled data are used. The standard
    scale takes minutes an experiment, the quick one seconds.

    For example:

        mirrordescent reproduce inpaint --scale quick
        mirrordescent reproduce all --out results

    Args:
        name: the experiment, or all.
        scale: how many problems and iterations.
        out: the folder to write to.
    """
    from mirrordescent_experiments import reproduction

    found = reproduction.reproduce(name, scale, out, data, say)
    lines = [
        line for result in found for line in (result.markdown(), f"written to {out / result.name}")
    ]
    show({result.name: result.summary() for result in found}, lines, json)


def results(
    folder: Positional[Path] = Path("docs/results"), check: bool = False, json: AsJSON = False
) -> int:
    """Build the pages of results again from the summaries that are stored with them, and print the
    paper's claims.

    Writes claims.md and index.html to every folder with a summary.json, and an overview README.md
    beside them.

    For example: mirrordescent results docs/results

    Args:
        folder: the folder with a subfolder for every experiment.
        check: write nothing, and say which pages are stale: those whose entries are not the shipped
            ones, or not known. The exit code is 1 if a stale page is not in FOLDER/stale.json, or a
            page there is not stale.
    """
    from mirrordescent_experiments import provenance
    from mirrordescent_experiments.paper_claims import paper_claims
    from mirrordescent_experiments.rebuild import rebuild

    if check:
        wrong = provenance.check(folder)
        show(
            wrong,
            wrong
            or [f"no page of {folder} is stale but those that are listed in {provenance.STALE}"],
            json,
        )
        return 1 if wrong else 0

    found = rebuild(folder)
    claims = paper_claims(folder)
    report = {
        "paper": [vars(claim) for claim in claims],
        **{r.name: {claim.statement: claim.holds for claim in r.claims} for r in found},
    }
    held = {r.name: sum(c.holds is True for c in r.claims) for r in found}
    lines = [f"{folder / r.name}: {held[r.name]} of {len(r.claims)} claims hold" for r in found]
    pairs = [
        (f"{claim.verdict:14} {claim.statement}", f"{'':14} {claim.measured}") for claim in claims
    ]
    lines += ["", *(line for pair in pairs for line in pair)]
    show(report, lines, json)
    return 0


def bench(folder: Path = Path()) -> None:
    """Measure speed side by side with other libraries and solvers, as ratios. Needs a clone of the
    repository.

    For example: mirrordescent bench --folder ~/mirrordescent

    Args:
        folder: the clone.
    """
    if not (folder / "benchmarks" / "__main__.py").is_file():
        raise FileNotFoundError(
            f"there are no benchmarks in {folder.resolve()}: run them in a clone"
        )
    sys.path.insert(0, str(folder.resolve()))
    runpy.run_module("benchmarks", run_name="__main__")
