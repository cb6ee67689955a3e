"""``mirrordescent diagnose``: is a learned map a good one, and does a learned solver pay?"""

from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from mirrordescent.cli.output import AsJSON, DataDirectory, show

KINDS = ("inpaint", "denoise", "svm", "tomography", "network")


def diagnose(
    mirror: Positional[str],
    problem: Annotated[str, tyro.conf.arg(metavar="KIND|PROBLEMS")],
    out: Path = Path("out/diagnosis"),
    count: int = 8,
    iterations: int | None = None,
    exact_iterates: bool = False,
    accuracy: float = 1e-2,
    data: DataDirectory = None,
    json: AsJSON = False,
) -> None:
    """Say whether a learned map is a good mirror map on a kind of problem, and whether a solver
    pays on your own.

    On a kind of problem it writes OUT/MIRROR/diagnosis.md with numbers, figures and a verdict on
    every assumption of the theorems, and prints the verdicts: how far are runs from their bounds?

    On problems of your own, a Python file as for mirrordescent learn, it also answers the practical
    question, on held-out problems and by the clock: does the solver beat the best of the classical
    ones that fit, tuned on other problems; where does it stall; on which problems does it fail?
    OUT/MIRROR.html has tables and curves.

    For example:

        mirrordescent diagnose photo-inpaint-pair --problem inpaint
        mirrordescent diagnose out/zoo/my_problems.safetensors --problem my_problems.py --count 64

    Args:
        mirror: an entry of the zoo, or a .safetensors file.
        problem: inpaint, denoise, svm, tomography or network; or a .py file with a ProblemFamily.
        out: the folder to write to.
        count: how many problems.
        iterations: the length of every run; 200 by default, or 2000 on problems of your own.
        exact_iterates: follow the exact iterates of inexact maps too, which takes a Newton solve in
            every step.
        accuracy: for a .py file, the relative gap that is to be reached.
    """
    from mirrordescent._internal.suggestions import require_known

    if problem.endswith(".py"):
        return _tried(mirror, Path(problem), out, count, iterations or 2000, accuracy, json)
    require_known(problem, KINDS, "kind of problem")
    _examined(mirror, problem, out, count, iterations or 200, exact_iterates, data, json)


def _examined(
    mirror: str,
    problem: str,
    out: Path,
    count: int,
    iterations: int,
    exact_iterates: bool,
    data: Path | None,
    json: bool,
) -> None:
    """Diagnose a map on a kind of problem, print the verdicts and write a page."""
    from mirrordescent.diagnosis import diagnose_entry, write

    diagnosis = diagnose_entry(
        mirror, problem, data, count=count, iterations=iterations, exact_iterates=exact_iterates
    )
    page = write(diagnosis, out / diagnosis.name)
    lines = [str(geometry.likeness) for geometry in diagnosis.geometries.values()]
    for part, verdicts in diagnosis.judged.items():
        lines.append(f"\n{part}")
        lines += [f"  {verdict}" for verdict in verdicts]
    lines.append(f"\nwritten to {page}")
    show({"page": page, "verdicts": diagnosis.judged}, lines, json)


def _tried(
    mirror: str, path: Path, out: Path, count: int, iterations: int, accuracy: float, json: bool
) -> None:
    """Ask what theory says and whether it pays, on the problems of a Python file."""
    from mirrordescent.automatic.trial import trial
    from mirrordescent.cli.output import aligned, say
    from mirrordescent.cli.problem_files import load_family, load_solver

    family = load_family(path)
    name = Path(mirror).stem
    method = load_solver(mirror)
    found = trial(
        family, method, name=name, accuracy=accuracy, count=count, iterations=iterations, say=say
    )
    page = found.page().write(out / f"{name}.html")
    stalls = found.stalls()[1]
    fails = found.failures_in_words()
    table = found.table()
    verdicts = _verdicts(family, method, min(count, 4))
    report: dict[str, Any] = {
        "verdict": found.words,
        "stalls": stalls,
        "fails": fails,
        "failures": [
            {"problem": i, "gap": gap, "classical": taken} for i, gap, taken in found.failures()
        ],
        "assumptions": [str(verdict) for verdict in verdicts],
        "page": page,
    }
    lines = [
        found.words,
        stalls,
        fails,
        "",
        *aligned([table.columns, *table.rows]),
        "",
        *map(str, verdicts),
    ]
    show(report, [*lines, f"page: {page}"], json)


def _verdicts(family: Any, method: Any, count: int) -> list[Any]:
    """Return what can be said about the assumptions of the theorems, on a few problems."""
    from mirrordescent.methods import Wrapper
    from mirrordescent.theory import diagnose as examined

    while isinstance(method, Wrapper):  # theorems are about the method inside
        method = method.method
    draw = family.validation(count)
    return list(examined(method, draw.problem, draw.x0, iterations=50).verdicts)
