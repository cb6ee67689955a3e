"""``mirrordescent learn``: an entry of the zoo again, a method of your own, or a solver for your
own problems.
"""

import os
import warnings
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import tyro
from tyro.conf import Positional, UseAppendAction

from mirrordescent.cli.problem_files import import_modules, load_family


def learn(
    what: Annotated[Positional[str], tyro.conf.arg(metavar="PROBLEMS|CONFIG|NAME")],
    runs: Path = Path("runs"),
    out: Path = Path("out/zoo"),
    data: Path | None = None,
    resume: bool = True,
    device: str = "cpu",
    set: UseAppendAction[tuple[str, ...]] = (),
    modules: Annotated[
        UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="import", metavar="MODULE")
    ] = (),
    minutes: float = 10.0,
    accuracy: float = 1e-2,
    json: bool = False,
) -> int:
    """Learn a solver for your own problems, a method that a small TOML file describes, or an entry
    of the zoo again.

    Your own problems are a class in a Python file, a ProblemFamily (docs/learn.md). Everything else
    is done here: a pool is certified, classical solvers are tuned, schedules and maps learned, the
    fastest chosen by the clock on other problems and judged on unseen ones. Then OUT/NAME.html says
    in plain words what to use, or that learning does not pay, and OUT/NAME.safetensors has the
    solver, for mirrordescent solve my_problems.py. Interrupted, it goes on where it stopped.
    Started by torchrun, processes share what is tried, so that each has more time.

    Runs are kept in RUNS/NAME and go on where they stopped. What was learned is written to
    OUT/NAME.safetensors, which is used with --mirror OUT/NAME.safetensors, or
    mirrordescent.zoo.load. If nothing was learned, the command says why and ends with 1. What was
    learned from a file about images is compared with other methods in the end, as mirrordescent
    compare does, which takes pictures of your own.

    For example:

        mirrordescent learn my_problems.py --minutes 10 --accuracy 1e-2
        torchrun --nproc-per-node 4 -m mirrordescent learn my_problems.py --minutes 60
        mirrordescent learn photo-inpaint-conjugate
        mirrordescent learn my.toml --set settings.meta_steps=200 --set map.filters=8
        mirrordescent learn my.toml --import my_module

    where my.toml says

        name = "my-map"

        [family]                    # or type = "my_module:MyFamily", with its arguments below
        type = "inpainting"         # inpainting, denoising, svm, moons
        source = "holidays/"        # bundled, a folder or an archive of pictures
        size = 32

        [map]                       # or type = "my_module:MyMap" type = "conjugate"          #
        conjugate, pair, diagonal, spline, or a map of the library such as Stencil filters = 16

        [method]                    # or name = "my_module:MyMethod" name = "lsmd" step = 0.3
        schedule = "power-laws"     # a few numbers that go on as powers of k; by default one number
        a step

        [settings]
        meta_steps = 1000

        [settings.optimiser]
        learning_rate = 0.002

        [settings.objective]
        differentiation = "full"    # checkpointed, evolution, or {type = "truncated", segment = 30}

    Args:
        what: a .py file with a ProblemFamily, a .toml file, or the name of an entry such as
            photo-inpaint-conjugate.
        runs: the folder for checkpoints and logs.
        out: the folder to write the entry to.
        data: the data directory; MIRRORDESCENT_DATA by default.
        resume: go on where a run stopped, or start anew.
        device: to learn on, such as cuda.
        set: key=value, to change a setting; once for each.
        modules: a module of yours to import first, from this folder or that of the file; once for
            each. A file can name classes of imported modules only.
        minutes: for a .py file, the time it may take, about.
        accuracy: for a .py file, the relative gap that the solver is to reach.
        json: print the outcome as JSON.
    """
    from mirrordescent import zoo
    from mirrordescent.cli.output import progress, say, show
    from mirrordescent.learn import read_recipe
    from mirrordescent.learn.trainer import NothingLearned
    from mirrordescent.recipes import recipe as recipe_of

    began = perf_counter()
    import_modules(modules, (Path.cwd(), Path(what).resolve().parent))
    if what.endswith(".py"):
        return _searched(Path(what), out, minutes, accuracy, resume, json)
    if what.endswith(".toml"):
        recipe = read_recipe(what, set)
        set = ()
    else:
        recipe = recipe_of(what)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NothingLearned)  # it is said below
        path = recipe.train(
            runs, out, data, changes=set, resume=resume, device=device, progress=progress()
        )
    stages = zoo.card(path).stages
    report: dict[str, Any] = {"entry": path}
    for stage in stages:  # the last one that was judged
        if "best_validation" in stage:
            report |= {
                "best validation": stage["best_validation"],
                "at meta-step": stage["best_meta_step"],
            }
    report["seconds"] = perf_counter() - began
    failures = [
        f"in stage {stage['stage']}, {stage['failure']}" for stage in stages if "failure" in stage
    ]
    if not failures and (words := _compared(recipe.on, path)) is not None:
        report["verdict"] = words
    show(report, [f"{key}: {value}" for key, value in report.items()], json)
    for failure in failures:
        say(f"mirrordescent: {failure}")
    return 1 if failures else 0


def _searched(
    path: Path, out: Path, minutes: float, accuracy: float, resume: bool, json: bool
) -> int:
    """Find a solver for the problems of a Python file."""
    from mirrordescent import auto
    from mirrordescent.cli.output import progress, say, show

    found = auto(
        load_family(path),
        name=path.stem,
        accuracy=accuracy,
        minutes=minutes,
        out=out,
        resume=resume,
        say=say,
        progress=progress(),
    )
    if int(os.environ.get("RANK", 0)) > 0:  # the first process says what was found
        return 0
    page = found.file.with_suffix(".html")
    report = {
        "verdict": found.words,
        "recommended": found.recommended,
        "solver": found.file,
        "page": page,
        "seconds": found.seconds,
    }
    show(report, [found.words, f"solver: {found.file}", f"page: {page}"], json)
    return 0


def _compared(on: str, path: Path) -> str | None:
    """Say how a method for total variation does against others on bundled pictures; None of other
    kinds of problems.
    """
    from mirrordescent.restore.compare import compare
    from mirrordescent.restore.planning import Task

    for kind in ("inpainting", "denoising"):
        if f"type = {kind}" in on:
            try:
                task: Task = "inpaint" if kind == "inpainting" else "denoise"
                return compare(path, task, count=4, size=32, iterations=150).words
            except (ValueError, TypeError) as error:
                return f"not compared with others: {error}"
    return None
