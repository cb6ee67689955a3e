"""``mirrordescent solve``: restore photographs, or solve the problems of a Python file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional
from tyro.extras import SubcommandApp

from mirrordescent.cli.output import AsJSON, Switch, join_argument_lines

if TYPE_CHECKING:
    from mirrordescent.restore.jobs import RestorationSettings
    from mirrordescent.restore.outcome import Failure, Outcome
    from mirrordescent.restore.planning import RestorationPlan, Task

app = SubcommandApp()
app.__doc__ = "Restore photographs (denoise, inpaint), or solve problems of your own."


@dataclass(frozen=True)
class SolverOptions:
    """Options of denoising and inpainting.

    Args:
        images: Photographs, or folders of photographs, in any format that Pillow reads.
        weight: Weight λ of the total variation. A larger weight gives a smoother photograph. With
            auto, the noise of each photograph is estimated and determines its weight. To set it by
            hand: 0.011, 0.027, 0.086, 0.2 or 0.48 for noise of 1, 2, 5, 10 or 20 %.
        isotropic: Whether to measure the variation of a pixel as the length of its gradient, which
            treats edges of all directions equally, or as the sum over both directions. The default
            is yes, or no if --method or --mirror is given.
        coupled: Whether to measure the variation of all colours together, so that edges of
            different colours coincide. The default is yes, or no if --method or --mirror is given.
        method: One of lmd, lsmd, lamd, lasmd, md, smd, amd, asmd, gd, nesterov, adam, pdhg and
            dual-fista. By default the learned method image-tv-isotropic starts and a primal-dual
            method finishes.
        mirror: Zoo entry or .safetensors file with the mirror map, for methods that have one.
        iterations: Maximal number of iterations. The default depends on the method: 20 with a
            mirror map, 200 without one, and about 1000 if a gap is to be proven.
        tolerance: Relative gap to the optimum that must be reached and proven. If necessary, a
            primal-dual method finishes the run. The default is 1e-3; if --method, --mirror or
            --iterations is given, nothing has to be proven by default.
        fused: Whether to use C kernels, which make steps several times faster on a CPU. By default
            they are used if this installation has them. With --fused it is an error if they are
            missing.
    """

    images: Positional[tuple[Path, ...]]
    weight: float | Literal["auto"] = "auto"
    isotropic: Switch = "auto"
    coupled: Switch = "auto"
    method: str | None = None
    mirror: str | None = None
    iterations: int | None = None
    tolerance: float | None = None
    fused: Switch = "auto"


@dataclass(frozen=True)
class OutputOptions:
    """Where to write photographs, and what to print.

    Args:
        truth: The undamaged photograph, or a folder of undamaged photographs with the same names.
            If it is given, PSNR and SSIM are computed.
        out: Folder for the restored photographs and a page, index.html. Inputs are never
            overwritten.
        resume: Skip photographs that an earlier run has restored to the same folder with the same
            options.
        verbose: Print the methods, their numbers of iterations, and the value of the objective.
    """

    truth: Path | None = None
    out: Path = Path("out/solve")
    resume: bool = False
    verbose: bool = False
    json: AsJSON = False


@dataclass(frozen=True)
class MaskOptions:
    """Which pixels are missing, for inpainting.

    Args:
        mask: Image of the same size, or a folder of images with the same names: white where pixels
            are known, black where they are missing. Without a mask, fully transparent pixels are
            missing.
        mask_white: Meaning of white in the mask: known, or missing as in scikit-image and OpenCV.
        mask_colour: Colour that marks missing pixels in the photograph itself, such as '#ff00ff'.
        missing: Share of the pixels to remove at random, to try the command.
        seed: Seed for the random pixels.
        keep_known: Whether to leave known pixels exactly as they are and fill only the holes. The
            default is yes if the photograph has hardly any noise.
    """

    mask: Path | None = None
    mask_white: Literal["known", "missing"] = "known"
    mask_colour: str | None = None
    missing: float | None = None
    seed: int = 0
    keep_known: Switch = "auto"


@app.command
def denoise(
    options: Annotated[SolverOptions, tyro.conf.arg(name="")],
    writing: Annotated[OutputOptions, tyro.conf.arg(name="")],
) -> int:
    """Remove noise from photographs by total variation.

    For example:

        mirrordescent solve denoise noisy.jpg
        mirrordescent solve denoise holidays/ --out restored --resume
        mirrordescent solve denoise noisy.png --truth clean.png --method lamd --iterations 40
    """
    return _restore("denoise", options, writing, None)


@app.command
def inpaint(
    options: Annotated[SolverOptions, tyro.conf.arg(name="")],
    damage: Annotated[MaskOptions, tyro.conf.arg(name="")],
    writing: Annotated[OutputOptions, tyro.conf.arg(name="")],
) -> int:
    """Fill in missing pixels of photographs and remove their noise, by total variation.

    For example:

        mirrordescent solve inpaint scratched.jpg --mask mask.png
        mirrordescent solve inpaint marked.png --mask-colour '#ff00ff'
        mirrordescent solve inpaint cutout.png               (transparent pixels are missing)
        mirrordescent solve inpaint photo.jpg --missing 0.3  (a trial: removes pixels first)
        mirrordescent solve inpaint scans/ --mask masks/ --tolerance 1e-4
    """
    return _restore("inpaint", options, writing, damage)


@app.command
@join_argument_lines
def problems(
    file: Positional[Path],
    solver: str | None = None,
    seeds: tuple[int, ...] = (),
    count: int = 8,
    accuracy: float = 1e-2,
    iterations: int = 2000,
    prove: bool = True,
    out: Path = Path("out/solve"),
    json: AsJSON = False,
) -> int:
    """Solve problems of your own, drawn by a ProblemFamily in a Python file (docs/learn.md).

    The command lists the value, the relative gap, the iterations and the status of each problem. It
    writes the solutions to OUT/NAME.safetensors: x (or x.KEY if points are dicts), the values f(x),
    and lower bounds of f. The exit code is 1 if a problem has not reached the accuracy.

    For example:

        mirrordescent solve my_problems.py
        mirrordescent solve my_problems.py --solver out/zoo/my_problems.safetensors --accuracy 1e-3
        mirrordescent solve problems my_problems.py --seeds 1 2 3 --json

    Args:
        file: Python file with a ProblemFamily.
        solver: File that mirrordescent learn has written, or a zoo entry. The default is
            out/zoo/NAME.safetensors if it exists; otherwise PDHG if f is not smooth, else FISTA.
        seeds: Seeds of the problems to draw. By default held-out problems are drawn.
        count: Number of held-out problems.
        accuracy: Relative gap (f(x) - f*)/(f(x0) - f*) to reach.
        iterations: Maximal number of iterations.
        prove: Whether to compute lower bounds first, so that the gaps are known. Without them, a
            run stops when its iterates hardly change.
        out: Folder for the solutions.
    """
    from mirrordescent.cli.output import aligned, progress, say, show
    from mirrordescent.cli.own_problems import solve_own

    solved = solve_own(
        file, solver, seeds, count, accuracy, iterations, prove, out, say, progress()
    )
    lines = [
        *aligned(solved.rows),
        f"gaps: {solved.proof}",
        f"solver: {solved.solver}",
        f"solutions: {solved.path}",
    ]
    show(solved.report, lines, json)
    return 0 if solved.reached else 1


def _restore(
    task: Task, options: SolverOptions, writing: OutputOptions, damage: MaskOptions | None
) -> int:
    """Restore photographs, write them with a page, and return the exit code."""
    from mirrordescent._internal.progress import bar_labels
    from mirrordescent.cli.output import progress, say, show, visible
    from mirrordescent.restore.jobs import PAGE, Jobs
    from mirrordescent.restore.outcome import Failure
    from mirrordescent.restore.page import page

    settings = _settings(task, options, writing, damage)
    plan = _plan(task, options)
    jobs = Jobs(settings, options.images, writing.resume, say)
    _require_writable(writing.out)
    outcomes: list[Outcome] = []
    failures: list[Failure] = []
    with bar_labels(solving="photographs: iteration", tiles="photographs: tile"):
        for outcome in jobs.run(plan, progress()):
            if isinstance(outcome, Failure):
                failures.append(outcome)
                continue
            outcomes.append(outcome)
            if not writing.json:
                print(visible(outcome.line(writing.verbose)), flush=True)
    path = page(settings, outcomes, failures, plan).write(writing.out / PAGE)
    report = {
        "task": task,
        "page": path,
        "images": [outcome.record for outcome in outcomes],
        "failed": {failure.name: failure.reason for failure in failures},
    }
    show(report, [f"page: {path}"], writing.json)
    unreached = [
        outcome
        for outcome in outcomes
        if outcome.failed or _missed_tolerance(outcome, plan, options.tolerance is not None)
    ]
    for outcome in unreached:
        say(f"mirrordescent: {outcome.shortfall(plan)}")
    if failures:
        total = len(outcomes) + len(failures)
        say(f"mirrordescent: {len(failures)} of {total} photographs were not restored:")
    for failure in failures:
        say(f"  {failure.name}: {failure.reason}")
    return 1 if unreached or failures else 0


def _plan(task: Task, options: SolverOptions) -> RestorationPlan:
    """Choose the methods and the stopping rule."""
    from mirrordescent.restore import plan_restoration

    return plan_restoration(
        task,
        options.method,
        options.mirror,
        options.iterations,
        options.tolerance,
        _use_kernels(_decision(options.fused)),
        isotropic=_variant(options)["isotropic"],
    )


def _settings(
    task: Task, options: SolverOptions, writing: OutputOptions, damage: MaskOptions | None
) -> RestorationSettings:
    """Return the settings for the restoration of every photograph."""
    from mirrordescent._internal.checks import require_positive
    from mirrordescent.restore.jobs import RestorationSettings
    from mirrordescent.restore.masks import Masks

    weight = None if options.weight == "auto" else options.weight
    if weight is not None:
        require_positive(weight=weight)
    masks = Masks()
    keep_known = None
    if damage is not None:
        masks = Masks(
            damage.mask, damage.mask_white, damage.mask_colour, damage.missing, damage.seed
        )
        keep_known = _decision(damage.keep_known)
    return RestorationSettings(
        task, writing.out, weight, keep_known, masks, writing.truth, _variant(options)
    )


def _variant(options: SolverOptions) -> dict[str, bool]:
    """Return the form of the total variation: isotropic and coupled unless a method is named."""
    default = options.method is None and options.mirror is None
    variant = {}
    for name, switch in (("isotropic", options.isotropic), ("coupled", options.coupled)):
        decision = _decision(switch)
        variant[name] = default if decision is None else decision
    return variant


def _require_writable(folder: Path) -> None:
    """Create the output folder, and fail now if it is not writable."""
    import tempfile

    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(
            f"nothing can be written to the folder {folder}: {error.strerror or error}. "
            "Choose another one with --out"
        ) from error


def _missed_tolerance(outcome: Outcome, plan: RestorationPlan, requested: bool) -> bool:
    """Return whether a photograph misses the tolerance that the plan promises.

    If known pixels were kept, the gap is that of the solution from which the holes were copied, not
    that of the written photograph. It then counts only if the user has requested a tolerance.
    """
    if not plan.promised or outcome.gap <= plan.tolerance:
        return False
    return requested or not outcome.record["kept"]


def _decision(switch: Switch) -> bool | None:
    """Return the value of a switch, or None for auto."""
    return None if switch == "auto" else switch == "yes"


def _use_kernels(requested: bool | None) -> bool | None:
    """Say why C kernels are missing if the choice is automatic, and continue without them."""
    from mirrordescent import kernels
    from mirrordescent.cli.output import say

    if requested is None and not kernels.available():
        try:
            kernels.library()
        except kernels.KernelsUnavailable as error:
            say(
                "mirrordescent: running without compiled kernels, which are several times faster: "
                f"{error}"
            )
    return requested
