"""``mirrordescent diagnose``: check a learned map against theory, or a solver against others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional

from mirrordescent.cli.output import (
    AsJSON,
    DataDirectory,
    Entry,
    Folder,
    OptionalCount,
    aligned,
    join_argument_lines,
    say,
    show,
)

if TYPE_CHECKING:
    from mirrordescent.learn import ProblemFamily
    from mirrordescent.methods import Method

KINDS = ("inpaint", "denoise", "svm", "tomography", "network")
ITERATIONS = 200
"""Default number of iterations on a kind of problem."""
OWN_ITERATIONS = 2000
"""Default number of iterations on problems of a Python file."""


@join_argument_lines
def diagnose(
    mirror: Positional[Entry],
    problem: Annotated[str, tyro.conf.arg(metavar="KIND|PROBLEMS")],
    out: Folder = Path("out/diagnosis"),
    count: int = 8,
    iterations: OptionalCount = None,
    exact_iterates: bool = False,
    accuracy: float = 1e-2,
    data: DataDirectory = None,
    json: AsJSON = False,
) -> None:
    """Check a learned mirror map against the theorems, or a solver against classical ones.

    With a kind of problem, the command checks every assumption of the convergence theorems and
    compares runs with their bounds. It prints the verdicts and writes numbers and figures to
    OUT/MIRROR/diagnosis.md.

    With a Python file, as for mirrordescent learn, it also measures the solver on held-out
    problems: is it faster than the best classical solver, which is tuned on other problems? Where
    does it stall, and on which problems does it fail? OUT/MIRROR.html has tables and curves.

    For example:

        mirrordescent diagnose photo-inpaint-pair --problem inpaint
        mirrordescent diagnose out/zoo/my_problems.safetensors --problem my_problems.py --count 64

    Args:
        mirror: Name of a zoo entry, or a .safetensors file.
        problem: Kind of problem (inpaint, denoise, svm, tomography or network), or a Python file
            with a ProblemFamily.
        out: Folder for the report.
        count: Number of problems.
        iterations: Number of iterations. The default is 200, or 2000 with a Python file.
        exact_iterates: Whether to compute, if the inverse of the map is inexact, also the iterates
            with the exact inverse. This takes a Newton solve in every step.
        accuracy: Relative gap to reach, for a Python file.
    """
    from mirrordescent._internal.suggestions import require_known

    if problem.endswith(".py"):
        _diagnose_solver(
            mirror, Path(problem), out, count, iterations or OWN_ITERATIONS, accuracy, json
        )
        return
    require_known(problem, KINDS, "kind of problem")
    _diagnose_map(mirror, problem, out, count, iterations or ITERATIONS, exact_iterates, data, json)


def _diagnose_map(
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


def _diagnose_solver(
    mirror: str, path: Path, out: Path, count: int, iterations: int, accuracy: float, json: bool
) -> None:
    """Diagnose a solver on the problems of a Python file."""
    from mirrordescent.automatic.trial import trial
    from mirrordescent.cli.problem_files import load_family, load_solver

    family = load_family(path)
    name = Path(mirror).stem
    method = load_solver(mirror)
    result = trial(
        family, method, name=name, accuracy=accuracy, count=count, iterations=iterations, say=say
    )
    page = result.page().write(out / f"{name}.html")
    _, stalls = result.stalls()
    fails = result.failures_in_words()
    table = result.table()
    verdicts = _check_assumptions(family, method, min(count, 4))
    failures = [
        {"problem": index, "gap": gap, "classical": classical}
        for index, gap, classical in result.failures()
    ]
    report: dict[str, Any] = {
        "verdict": result.words,
        "stalls": stalls,
        "fails": fails,
        "failures": failures,
        "assumptions": verdicts,
        "page": page,
    }
    lines = [result.words, stalls, fails, ""]
    lines += aligned([table.columns, *table.rows])
    lines += ["", *verdicts, f"page: {page}"]
    show(report, lines, json)


def _check_assumptions(family: ProblemFamily, method: Method[Any], count: int) -> list[str]:
    """Return verdicts on the assumptions of the theorems, from a few problems."""
    from mirrordescent.methods import Wrapper
    from mirrordescent.theory import diagnose as diagnose_method

    while isinstance(method, Wrapper):  # the theorems apply to the wrapped method
        method = method.method
    draw = family.validation(count)
    diagnosis = diagnose_method(method, draw.problem, draw.x0, iterations=50)
    return [str(verdict) for verdict in diagnosis.verdicts]
