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
    network-geometry, frozen-tasks, language-track, charlm, combined-maps, attribution,
    learned-again, error-terms and photographs. Writes curves (CSV), figures (PNG and SVG), the
    paper's claims with the numbers measured, a page and a summary to OUT/NAME. If a data set is
    missing, bundled data are used. An experiment takes minutes at the standard scale and seconds at
    the quick scale; language-track takes hours.

    For example:

        mirrordescent reproduce inpaint --scale quick
        mirrordescent reproduce all --out results

    Args:
        name: Name of the experiment, or all.
        scale: Number of problems and iterations.
        out: Folder to write to.
    """
    from mirrordescent_experiments import reproduction

    experiments = reproduction.reproduce(name, scale, out, data, say)
    lines = []
    for result in experiments:
        lines += [result.markdown(), f"written to {out / result.name}"]
    show({result.name: result.summary() for result in experiments}, lines, json)


def results(
    folder: Positional[Path] = Path("docs/results"),
    out: Path = Path("out/results"),
    check: bool = False,
    code: bool = False,
    json: AsJSON = False,
) -> int:
    """Build the pages of results from the stored summaries, and print the paper's claims.

    Writes claims.md beside every summary.json, an overview FOLDER/README.md, and an HTML page
    OUT/NAME/index.html for every experiment.

    For example: mirrordescent results docs/results

    Args:
        folder: Folder with a subfolder for every experiment.
        out: Folder for the HTML pages.
        check: Write nothing, and list the stale pages instead. A page is stale if its entries are
            unknown or differ from the shipped ones. The exit code is 1 if a stale page is not in
            FOLDER/stale.json, or a page there is not stale. Pages whose code has changed since are
            listed for information.
        code: With check: a page that README or a guide quotes is also stale if its code changed.
    """
    from mirrordescent_experiments import provenance
    from mirrordescent_experiments.paper_claims import paper_claims
    from mirrordescent_experiments.rebuild import rebuild

    if code and not check:
        raise ValueError("--code is an option of --check: add --check")
    if check:
        faults = provenance.check(folder, code)
        success = f"no page of {folder} is stale but those that are listed in {provenance.STALE}"
        changed = provenance.changed_code(folder)
        heading = f"{len(changed)} pages were made by other code, or by code that is not known:"
        lines = [*(faults or [success]), "", heading]
        lines += [f"  {name}: {why}" for name, why in changed.items()]
        show({"faults": faults, "changed code": changed}, lines, json)
        return 1 if faults else 0

    report: dict[str, object] = {}
    lines = []
    for result in rebuild(folder, out):
        held = sum(claim.holds is True for claim in result.claims)
        lines.append(f"{folder / result.name}: {held} of {len(result.claims)} claims hold")
        report[result.name] = {claim.statement: claim.holds for claim in result.claims}
    claims = paper_claims(folder)
    lines.append("")
    for claim in claims:
        lines += [f"{claim.verdict:26} {claim.statement}", f"{'':26} {claim.measured}"]
    show({"paper": [vars(claim) for claim in claims], **report}, lines, json)
    return 0


def bench(folder: Path = Path()) -> None:
    """Measure speed against other libraries and solvers, as ratios.

    The benchmarks are in the repository: run this command in a clone.

    For example: mirrordescent bench --folder ~/mirrordescent

    Args:
        folder: Clone of the repository.
    """
    if not (folder / "benchmarks" / "__main__.py").is_file():
        raise FileNotFoundError(
            f"there are no benchmarks in {folder.resolve()}: run them in a clone"
        )
    sys.path.insert(0, str(folder.resolve()))
    runpy.run_module("benchmarks", run_name="__main__")
