"""``mirrordescent learn``: learn a solver, a method from a TOML file, or a zoo entry."""

import os
import warnings
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import tyro
from tyro.conf import Positional, UseAppendAction

from mirrordescent.cli.errors import is_mistake
from mirrordescent.cli.output import AsJSON, DataDirectory, Folder, join_argument_lines
from mirrordescent.cli.problem_files import import_modules, load_family


@join_argument_lines
def learn(
    what: Annotated[Positional[str], tyro.conf.arg(metavar="PROBLEMS|CONFIG|NAME")],
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
    out: Folder = Path("out/zoo"),
    data: DataDirectory = None,
    resume: bool = True,
    device: Annotated[str, tyro.conf.arg(metavar="DEVICE")] = "cpu",
    set: Annotated[UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="KEY=VALUE")] = (),
    modules: Annotated[
        UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="import", metavar="MODULE")
    ] = (),
    minutes: float = 10.0,
    accuracy: float = 1e-2,
    json: AsJSON = False,
) -> int:
    """Learn a fast solver for your own problems, or a method that a TOML file describes.

    1. Your own problems: a Python file with a ProblemFamily (docs/learn.md). The command tunes
    classical solvers, learns schedules and mirror maps, chooses the fastest method, and tests it
    on unseen problems. OUT/NAME.html says which solver to use, or that learning does not pay.
    OUT/NAME.safetensors is the solver, which mirrordescent solve my_problems.py uses. Under
    torchrun, the processes share the work.

    2. A TOML file, which describes a family of problems, a mirror map and a method (see below). A
    method for images is compared with other methods at the end.

    3. The name of a zoo entry, which is learned again.

    An interrupted run continues if it is started again. Checkpoints are written to RUNS/NAME, and
    the result to OUT/NAME.safetensors. To use the result, pass this file to the option --mirror of
    mirrordescent solve, or to mirrordescent.zoo.load in Python. If nothing was learned, the command
    says why, and the exit code is 1.

    For example:

        mirrordescent learn my_problems.py --minutes 10 --accuracy 1e-2
        torchrun --nproc-per-node 4 -m mirrordescent learn my_problems.py --minutes 60
        mirrordescent learn photo-inpaint-conjugate
        mirrordescent learn my.toml --set settings.meta_steps=200 --set map.filters=8
        mirrordescent learn my.toml --import my_module

    where my.toml is

        name = "my-map"

        [family]                  # or type = "my_module:MyFamily", with its arguments below
        type = "inpainting"       # inpainting, denoising, svm, moons
        source = "holidays/"      # bundled, a folder or an archive of pictures
        size = 32

        [map]                     # or type = "my_module:MyMap"
        type = "conjugate"        # conjugate, pair, diagonal, spline, or a class such as Stencil
        filters = 16

        [method]                  # or name = "my_module:MyMethod"
        name = "lsmd"
        step = 0.3
        schedule = "power-laws"   # few values, joined by powers of k; default: one for each step

        [settings]
        meta_steps = 1000

        [settings.optimiser]
        learning_rate = 0.002

        [settings.objective]
        differentiation = "full"  # checkpointed, evolution, {type = "truncated", segment = 30}

    Args:
        what: Python file with a ProblemFamily, TOML file, or name of a zoo entry such as
            photo-inpaint-conjugate.
        runs: Folder for checkpoints and logs.
        out: Folder for the result.
        resume: Whether to continue an interrupted run. Otherwise a new run starts.
        device: Device on which to learn, such as cuda.
        set: Setting to change, as table.key=value. The option can be repeated.
        modules: Module to import first, if the TOML file refers to classes of your own. It is
            searched for in the current folder and in the folder of the TOML file. The option can
            be repeated.
        minutes: Approximate duration, for a Python file.
        accuracy: Relative gap that the solver must reach, for a Python file.
    """
    from mirrordescent import zoo
    from mirrordescent.cli.output import progress, say, show
    from mirrordescent.learn import read_recipe
    from mirrordescent.learn.trainer import NothingLearned
    from mirrordescent.recipes import recipe as recipe_of

    began = perf_counter()
    import_modules(modules, (Path.cwd(), Path(what).resolve().parent))
    if what.endswith(".py"):
        return _learn_solver(Path(what), out, minutes, accuracy, resume, json)
    changes = set
    if what.endswith(".toml"):
        recipe = read_recipe(what, changes)
        changes = ()
    else:
        recipe = recipe_of(what)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NothingLearned)  # reported below
        path = recipe.train(
            runs, out, data, changes=changes, resume=resume, device=device, progress=progress()
        )
    stages = zoo.card(path).stages
    report: dict[str, Any] = {"entry": path}
    for stage in stages:  # the last stage with a validation counts
        if "best_validation" in stage:
            report["best validation"] = stage["best_validation"]
            report["at meta-step"] = stage["best_meta_step"]
    report["seconds"] = perf_counter() - began
    failures = [
        f"in stage {stage['stage']}, {stage['failure']}" for stage in stages if "failure" in stage
    ]
    if not failures:
        verdict = _compare_images(recipe.on, path)
        if verdict is not None:
            report["verdict"] = verdict
    show(report, [f"{key}: {value}" for key, value in report.items()], json)
    for failure in failures:
        say(f"mirrordescent: {failure}")
    return 1 if failures else 0


def _learn_solver(
    path: Path, out: Path, minutes: float, accuracy: float, resume: bool, json: bool
) -> int:
    """Learn a solver for the problems of a Python file."""
    from mirrordescent import auto
    from mirrordescent.cli.output import progress, say, show

    result = auto(
        load_family(path),
        name=path.stem,
        accuracy=accuracy,
        minutes=minutes,
        out=out,
        resume=resume,
        say=say,
        progress=progress(),
    )
    if int(os.environ.get("RANK", 0)) > 0:  # only the first process prints
        return 0
    page = result.file.with_suffix(".html")
    report = {
        "verdict": result.words,
        "recommended": result.recommended,
        "solver": result.file,
        "page": page,
        "seconds": result.seconds,
    }
    show(report, [result.words, f"solver: {result.file}", f"page: {page}"], json)
    return 0


def _compare_images(family: str, path: Path) -> str | None:
    """Compare a method for images with others on bundled pictures and return the verdict.

    Args:
        family: Description of the family. Families other than images have no comparison.
        path: File with the method.
    """
    from mirrordescent.restore.compare import ComparedTask, compare

    tasks: dict[str, ComparedTask] = {"inpainting": "inpaint", "denoising": "denoise"}
    for kind, task in tasks.items():
        if f"type = {kind}" not in family:
            continue
        try:
            return compare(path, task, count=4, size=32, iterations=150).words
        except Exception as error:
            if not is_mistake(error):
                raise
            return f"not compared with other methods: {error}"
    return None
