"""``mirrordescent solve``: photographs restored by total variation, and problems of your own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional
from tyro.extras import SubcommandApp

from mirrordescent.cli.output import AsJSON, Switch

if TYPE_CHECKING:
    from mirrordescent.restore.planning import Task

app = SubcommandApp()


@dataclass(frozen=True)
class Solving:
    """What denoising and inpainting have in common.

    Args:
        images: photographs, or folders of them, in any format that Pillow reads.
        weight: λ of the total variation, larger is smoother; or auto, to choose it for every
            photograph by its noise. By hand, for noise of 1, 2, 5, 10, 20 %: 0.011, 0.027, 0.086,
            0.2, 0.48.
        isotropic: measure the variation of a pixel in both directions together, so that edges of
            all directions count alike, as is usual; or add up both. Together by default, unless a
            method or a mirror is named.
        coupled: measure it of all colours together, so that edges of different colours meet; by
            default likewise.
        method: lmd, lsmd, lamd, lasmd, md, smd, amd, asmd, gd, nesterov, adam, pdhg or dual-fista;
            by default a learned method begins, image-tv-isotropic, and a primal-dual one finishes.
        mirror: an entry of the zoo, or a .safetensors file, for the methods with a mirror map.
        iterations: how many there may be in all.
        tolerance: relative gap to the optimum to reach and to prove, if need be with a primal-dual
            method at the end.
        fused: use kernels in C, which make steps several times faster on a CPU, and which are
            compiled once, in some seconds. By default if they are there or there is a C compiler.
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
class Writing:
    """Where what is restored goes, and what is said about it.

    Args:
        truth: the undamaged photograph, or a folder of them with the same names, for PSNR and SSIM.
        out: folder to write to, with a page index.html. Inputs are never overwritten.
        resume: leave out photographs that an earlier run has restored to the same folder in the
            same way.
        verbose: say also which methods took how many iterations, and the value of the objective.
    """

    truth: Path | None = None
    out: Path = Path("out/solve")
    resume: bool = False
    verbose: bool = False
    json: AsJSON = False


@dataclass(frozen=True)
class Damage:
    """What inpainting has in addition: which pixels are missing.

    Args:
        mask: an image of the same size, or a folder of them with the same names: white where pixels
            are known, black where they are missing. Without one, pixels that are fully transparent
            are missing.
        mask_white: what white means in the mask: known; or missing, as for scikit-image and OpenCV.
        mask_colour: a colour that marks missing pixels in the photograph itself, such as '#ff00ff'.
        missing: share of the pixels to remove at random, for a trial.
        seed: decides which pixels are removed.
        keep_known: leave known pixels exactly as they are, and let the holes meet them smoothly. By
            default if there is hardly any noise.
    """

    mask: Path | None = None
    mask_white: Literal["known", "missing"] = "known"
    mask_colour: str | None = None
    missing: float | None = None
    seed: int = 0
    keep_known: Switch = "auto"


@app.command
def denoise(
    options: Annotated[Solving, tyro.conf.arg(name="")],
    writing: Annotated[Writing, tyro.conf.arg(name="")],
) -> int:
    """Remove noise from photographs by total variation.

    For example:

        mirrordescent solve denoise noisy.jpg mirrordescent solve denoise holidays/ --out restored
        --resume mirrordescent solve denoise noisy.png --truth clean.png --method lamd --iterations
        40 --verbose
    """
    return _run("denoise", options, writing, None)


@app.command
def inpaint(
    options: Annotated[Solving, tyro.conf.arg(name="")],
    damage: Annotated[Damage, tyro.conf.arg(name="")],
    writing: Annotated[Writing, tyro.conf.arg(name="")],
) -> int:
    """Fill in missing pixels of photographs, and remove their noise, by total variation.

    For example:

        mirrordescent solve inpaint scratched.jpg --mask mask.png mirrordescent solve inpaint
        marked.png --mask-colour '#ff00ff' mirrordescent solve inpaint cutout.png
        (transparent pixels are missing) mirrordescent solve inpaint photo.jpg --missing 0.3    (a
        trial: removes pixels first) mirrordescent solve inpaint scans/ --mask masks/ --mirror
        photo-inpaint-conjugate --tolerance 1e-4
    """
    return _run("inpaint", options, writing, damage)


@app.command
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
    """Solve problems of your own: those that a class in a Python file draws, a ProblemFamily
    (docs/learn.md).

    Solutions are written to OUT/NAME.safetensors: x, or x.KEY where points are dicts, the values
    f(x), and bounds below which f cannot be. Each problem is listed with its value, its gap and how
    it ended. The exit code is 1 if one of them has not reached the accuracy.

    For example:

        mirrordescent solve my_problems.py
        mirrordescent solve my_problems.py --solver out/zoo/my_problems.safetensors --accuracy 1e-3
        mirrordescent solve problems my_problems.py --seeds 1 2 3 --json

    Args:
        file: the Python file.
        solver: a .safetensors file that mirrordescent learn has written, or an entry of the zoo; by
            default out/zoo/NAME.safetensors if it is there, else FISTA, or PDHG where there are
            kinks.
        seeds: which problems to draw; by default held-out ones.
        count: how many of those.
        accuracy: the relative gap (f(x) - f*)/(f(x0) - f*) to reach.
        iterations: how many there may be.
        prove: find lower bounds on the values first, to know how near solutions are; without them a
            run ends where it hardly moves.
        out: the folder to write to.
    """
    from mirrordescent.cli.output import aligned, progress, say, show
    from mirrordescent.cli.own import solve_own

    found = solve_own(file, solver, seeds, count, accuracy, iterations, prove, out, say, progress())
    show(
        found.report,
        [*aligned(found.rows), f"solver: {found.solver}", f"solutions: {found.path}"],
        json,
    )
    return 0 if found.reached else 1


def _run(task: Task, options: Solving, writing: Writing, damage: Damage | None) -> int:
    import tempfile

    from mirrordescent._internal.checks import require_positive
    from mirrordescent.cli.output import progress, say, show, visible
    from mirrordescent.restore import plan
    from mirrordescent.restore.jobs import Jobs, Wanted
    from mirrordescent.restore.masks import Masks
    from mirrordescent.restore.outcome import Failure, Outcome
    from mirrordescent.restore.page import page

    weight = None if options.weight == "auto" else options.weight
    if weight is not None:
        require_positive(weight=weight)
    plain = options.method is None and options.mirror is None
    chosen = {"isotropic": _decided(options.isotropic), "coupled": _decided(options.coupled)}
    variant = {name: plain if choice is None else choice for name, choice in chosen.items()}
    fused = _kernels(_decided(options.fused))
    isotropic = variant["isotropic"]
    how = plan(
        task,
        options.method,
        options.mirror,
        options.iterations,
        options.tolerance,
        fused,
        isotropic=isotropic,
    )
    masks = Masks()
    keep = None
    if damage is not None:
        masks = Masks(
            damage.mask, damage.mask_white, damage.mask_colour, damage.missing, damage.seed
        )
        keep = _decided(damage.keep_known)
    wanted = Wanted(task, writing.out, weight, keep, masks, writing.truth, variant)
    jobs = Jobs(wanted, options.images, writing.resume, say)
    writing.out.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=writing.out).close()  # it has to be possible to keep what is found
    outcomes: list[Outcome] = []
    failures: list[Failure] = []
    for outcome in jobs.run(how, progress()):
        if isinstance(outcome, Failure):
            failures.append(outcome)
            continue
        outcomes.append(outcome)
        if not writing.json:
            print(visible(outcome.line(writing.verbose)), flush=True)
    where = page(wanted, outcomes, failures, how).write(writing.out / "index.html")
    report = {
        "task": task,
        "page": where,
        "images": [outcome.record for outcome in outcomes],
        "failed": {failure.name: failure.reason for failure in failures},
    }
    show(report, [f"page: {where}"], writing.json)
    asked = options.tolerance is not None
    unreached = [
        outcome
        # where known pixels were put back, the gap is of what holes were filled from
        for outcome in outcomes
        if outcome.failed
        or (
            how.promised
            and not outcome.gap <= how.tolerance
            and (asked or not outcome.record["kept"])
        )
    ]
    for each in unreached:
        say(
            f"mirrordescent: {each.name} ended as {each.record['status']} with a relative gap of {each.gap:.1e}"
        )
    if failures:
        say(f"mirrordescent: {len(failures)} of {len(jobs.sources)} photographs were not restored:")
    for failure in failures:
        say(f"  {failure.name}: {failure.reason}")
    return 1 if unreached or failures else 0


def _decided(switch: Switch) -> bool | None:
    return None if switch == "auto" else switch == "yes"


def _kernels(wanted: bool | None) -> bool | None:
    """Compile the kernels, unless they are not wanted; do without if that is not possible and
    nobody asked for them.
    """
    from mirrordescent import kernels
    from mirrordescent.cli.output import say

    if wanted is None and not kernels.available():
        try:
            kernels.library()
        except (OSError, RuntimeError) as error:
            say(
                f"mirrordescent: without compiled kernels, which would be several times faster: {error}"
            )
    return wanted
