"""The commands of the laboratory: ``demo``, ``reproduce``, ``results``, ``bench`` and ``data``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Literal

from tyro.conf import Positional
from tyro.extras import SubcommandApp

from mirrordescent.cli.output import AsJSON, DataDirectory, aligned, plain, say, show

data_app = SubcommandApp()


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

    Removes pixels from the photographs bundled with scikit-image, restores them by total-variation
    inpainting with learned and classical methods, and measures each against the certified optimum.
    Step sizes are tuned on other photographs. Then trains a small network on digits, against Adam.
    Prints tables and writes a page to OUT, in about a minute. Needs no network.

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
    from mirrordescent_lab.demo import run

    run(out, size, iterations, missing, noise, fill, seed)


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
    from mirrordescent_lab import experiments

    found = experiments.reproduce(name, scale, out, data, say)
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
    from mirrordescent_lab import provenance
    from mirrordescent_lab.experiments.paper_claims import paper_claims
    from mirrordescent_lab.experiments.rebuild import rebuild

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


def diagnose(
    mirror: str,
    problem: str,
    out: Path,
    count: int,
    iterations: int,
    exact_iterates: bool,
    data: Path | None,
    json: bool,
) -> None:
    """Examine a map on a kind of problem, as ``mirrordescent diagnose`` says it does."""
    from mirrordescent_lab.diagnosis_page import write
    from mirrordescent_lab.experiments.diagnose import diagnose_entry
    from mirrordescent_lab.provenance import recorded

    with recorded("0") as provenance:
        found = diagnose_entry(
            mirror, problem, data, count=count, iterations=iterations, exact_iterates=exact_iterates
        )
    page = write(found, out / found.name, provenance)
    lines = [str(geometry.likeness) for geometry in found.geometries.values()]
    lines += [
        line
        for part, verdicts in found.judged.items()
        for line in (f"\n{part}", *(f"  {v}" for v in verdicts))
    ]
    show({"page": page, "verdicts": found.judged}, [*lines, f"\nwritten to {page}"], json)


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


@data_app.command(name="list")
def list_datasets(directory: DataDirectory = None, json: AsJSON = False) -> None:
    """List the data sets that can be read, and whether they are there."""
    from mirrordescent_lab import data

    folder = data.data_directory(directory)
    found = {name: data.dataset(name) for name in data.names()}
    there = {
        name: any((folder / name / file.path).is_file() for file in each.files)
        for name, each in found.items()
    }
    rows = [
        (name, "there" if there[name] else "not there", each.title) for name, each in found.items()
    ]
    show(
        {name: {**plain(each), "there": there[name]} for name, each in found.items()},
        aligned(rows),
        json,
    )


@data_app.command(name="verify")
def verify_datasets(
    names: Positional[tuple[str, ...]] = (), directory: DataDirectory = None, json: AsJSON = False
) -> int:
    """Check size and checksum of every file of the data sets. Some files are alternatives: not all
    need be there.

    The exit code is 1 if a file is damaged, or if no file of a named data set is there.

    For example: mirrordescent data verify mnist stl10

    Args:
        names: the data sets; all by default.
    """
    from mirrordescent_lab import data

    found = {name: data.verify(name, directory) for name in names or data.names()}
    report = {
        name: {file: status.value for file, status in files.items()}
        for name, files in found.items()
    }
    show(
        report,
        aligned(
            [(f"{name}/{file}", s) for name, files in report.items() for file, s in files.items()]
        ),
        json,
    )
    statuses = [set(files.values()) for files in found.values()]
    damaged = any(data.FileStatus.DAMAGED in each for each in statuses)
    return 1 if damaged or (names and {data.FileStatus.MISSING} in statuses) else 0


@data_app.command(name="fetch")
def fetch_dataset(
    name: Positional[str], directory: DataDirectory = None, json: AsJSON = False
) -> None:
    """Fetch the files of a data set that are not there, and check them all; without a network, say
    what to put where.

    For example: mirrordescent data fetch mnist

    Args:
        name: the data set.
    """
    from mirrordescent_lab import data

    found = {
        file.path: data.require(name, file.path, directory)
        for file in data.dataset(name).files
        if file.url
    }
    if not found:  # it has to be put there by hand: say how, unless that has been done
        record = data.dataset(name)
        there = [
            file.path
            for file in record.files
            if (data.data_directory(directory) / name / file.path).is_file()
        ]
        found = {
            path: data.require(name, path, directory) for path in there or [record.files[0].path]
        }
    show(found, [f"{path}: intact" for path in found.values()], json)


@data_app.command(name="path")
def data_path(name: Positional[str | None] = None, directory: DataDirectory = None) -> None:
    """Print the folder in which data sets are looked for, or the folder of one of them.

    Args:
        name: a data set.
    """
    from mirrordescent_lab import data

    folder = data.data_directory(directory)
    print(folder if name is None else folder / data.dataset(name).name)


COMMANDS = (demo, reproduce, results, bench)
GROUPS = {"data": (data_app, "Data sets: list, fetch, verify, path.")}
