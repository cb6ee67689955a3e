"""``mirrordescent solve``: restore photographs, or solve the problems of a Python file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional
from tyro.extras import SubcommandApp

from mirrordescent.cli.output import (
    AsJSON,
    Folder,
    NumberOrAuto,
    OptionalCount,
    OptionalNumber,
    OptionalPath,
    OptionalText,
    Quiet,
    Switch,
    join_argument_lines,
)

if TYPE_CHECKING:
    from mirrordescent.restore.degradation import Degradation
    from mirrordescent.restore.jobs import RestorationSettings
    from mirrordescent.restore.outcome import Failure, Outcome
    from mirrordescent.restore.planning import RestorationPlan, Task

MOST_LISTED = 20  # files that are left out

app = SubcommandApp()
app.__doc__ = (
    "Restore photographs (denoise, inpaint, deblur, upsample), or solve problems of your own."
)


@dataclass(frozen=True)
class ObjectiveOptions:
    """What is assumed about the photographs and their noise.

    Args:
        images: Photographs, or folders of photographs, in any format that Pillow reads.
        prior: Regulariser: tv (total variation), photo (learned from photographs), or the file of a
            learned prior. With auto, the learned prior is used by denoise for noise up
            to 20 %, and for colour photographs by inpaint for noise up to 20 % and by deblur for
            noise up to 3 %; otherwise total variation.
        noise: Standard deviation of the noise in units of full brightness, such as 0.05 for 5 %.
            With auto, it is estimated for each photograph.
        strength: Factor of the noise level that is assumed: 0.7 keeps more detail, 1.5 gives a
            smoother photograph.
        weight: Weight λ of the total variation, in place of noise and strength. With auto, it
            follows from the noise of each photograph. To set it by hand: 0.011, 0.027, 0.086, 0.2
            or 0.48 for noise of 1, 2, 5, 10 or 20 %.
        iterations: Largest number of iterations. By default 100 to 300 with a learned prior. With
            total variation, 20 with a mirror map, 200 without one, and about 1000 if a gap must be
            proven.
        tolerance: Relative gap to the optimum that must be proven. By default 1e-3 for denoise and
            inpaint. If --method, --mirror or --iterations is given without --tolerance, no gap is
            required. With total variation, a primal-dual method finishes the run if necessary.
        fused: Whether to use C kernels, which make steps several times faster on a CPU. By default
            they are used if this installation has them. With --fused yes it is an error if they are
            missing.
    """

    images: Annotated[
        Positional[tuple[Path, ...]],
        tyro.conf.arg(metavar="PATH [PATH ...]", help_behavior_hint=""),
    ]
    prior: Annotated[str, tyro.conf.arg(metavar="tv|photo|FILE")] = "auto"
    noise: NumberOrAuto = "auto"
    strength: float = 1.0
    weight: NumberOrAuto = "auto"
    iterations: OptionalCount = None
    tolerance: OptionalNumber = None
    fused: Switch = "auto"


@dataclass(frozen=True)
class MethodOptions:
    """The form of the total variation and the method. Each of these options implies --prior tv.

    Args:
        isotropic: Whether to measure the variation of a pixel as the length of its gradient, which
            treats edges of all directions equally, or as the sum over both directions. The default
            is yes, or no if --method or --mirror is given.
        coupled: Whether to measure the variation of all colours together, so that edges of
            different colours coincide. The default is yes, or no if --method or --mirror is given.
        method: Method for total variation: one of lmd, lsmd, lamd, lasmd, md, smd, amd, asmd, gd,
            nesterov, adam, pdhg and dual-fista. By default the learned method image-tv-isotropic
            starts and a primal-dual method finishes. With a learned prior, it is
            photo-prior-denoise, photo-prior-inpaint or photo-prior-deblur.
        mirror: Zoo entry or .safetensors file with the mirror map, for methods that have one.
    """

    isotropic: Switch = "auto"
    coupled: Switch = "auto"
    method: OptionalText = None
    mirror: OptionalText = None


@dataclass(frozen=True)
class BlurOptions:
    """The blur that is undone: give exactly one of these.

    Args:
        kernel: Image of the kernel: the picture of a point of light, white on black. It is scaled
            to sum 1.
        gaussian: Standard deviation of a Gaussian blur in pixels, such as 1.6.
        motion: Length in pixels and angle in degrees of a motion blur, such as 9,30. At 0 degrees
            the motion is horizontal; at 90 it is vertical.
    """

    kernel: OptionalPath = None
    gaussian: OptionalNumber = None
    motion: OptionalText = None


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

    truth: OptionalPath = None
    out: Folder = Path("out/solve")
    resume: Annotated[bool, tyro.conf.arg(aliases=["-r"])] = False
    verbose: Annotated[bool, tyro.conf.arg(aliases=["-v"])] = False
    quiet: Quiet = False
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

    mask: OptionalPath = None
    mask_white: Literal["known", "missing"] = "known"
    mask_colour: Annotated[OptionalText, tyro.conf.arg(aliases=["--mask-color"])] = None
    missing: OptionalNumber = None
    seed: int = 0
    keep_known: Switch = "auto"


@app.command
def denoise(
    options: Annotated[ObjectiveOptions, tyro.conf.arg(name="")],
    how: Annotated[MethodOptions, tyro.conf.arg(name="")],
    writing: Annotated[OutputOptions, tyro.conf.arg(name="")],
) -> int:
    """Remove noise from photographs.

    For example:

        mirrordescent solve denoise noisy.jpg
        mirrordescent solve denoise noisy.jpg --noise 0.05 --strength 0.8
        mirrordescent solve denoise holidays/ --out restored --resume
        mirrordescent solve denoise noisy.png --truth clean.png --method lamd --iterations 40
    """
    return _restore("denoise", options, writing, how)


@app.command
def inpaint(
    options: Annotated[ObjectiveOptions, tyro.conf.arg(name="")],
    how: Annotated[MethodOptions, tyro.conf.arg(name="")],
    damage: Annotated[MaskOptions, tyro.conf.arg(name="")],
    writing: Annotated[OutputOptions, tyro.conf.arg(name="")],
) -> int:
    """Fill in missing pixels of photographs and remove their noise.

    Small holes are filled so that they are hardly seen. Deep ones are filled smoothly: nothing is
    invented.

    For example:

        mirrordescent solve inpaint scratched.jpg --mask mask.png
        mirrordescent solve inpaint marked.png --mask-colour '#ff00ff'
        mirrordescent solve inpaint cutout.png               (transparent pixels are missing)
        mirrordescent solve inpaint photo.jpg --missing 0.3  (a trial: removes pixels first)
        mirrordescent solve inpaint scans/ --mask masks/ --tolerance 1e-4
    """
    return _restore("inpaint", options, writing, how, damage)


@app.command
def deblur(
    options: Annotated[ObjectiveOptions, tyro.conf.arg(name="")],
    blur: Annotated[BlurOptions, tyro.conf.arg(name="")],
    writing: Annotated[OutputOptions, tyro.conf.arg(name="")],
) -> int:
    """Undo a known blur of photographs.

    For example:

        mirrordescent solve deblur soft.jpg --gaussian 1.6
        mirrordescent solve deblur shaken.jpg --motion 9,30
        mirrordescent solve deblur stars.tif --kernel star.png --noise 0.01
    """
    return _restore("deblur", options, writing, degradation=_blur(blur))


@app.command
@join_argument_lines
def upsample(
    options: Annotated[ObjectiveOptions, tyro.conf.arg(name="")],
    writing: Annotated[OutputOptions, tyro.conf.arg(name="")],
    factor: int = 2,
) -> int:
    """Enlarge photographs.

    For example:

        mirrordescent solve upsample small.jpg
        mirrordescent solve upsample icons/ --factor 4

    Args:
        factor: Ratio of the sides of the enlarged and the given photograph, from 2 to 8.
    """
    from mirrordescent.restore.degradation import Degradation

    if factor < 2:
        raise ValueError(f"--factor must be at least 2, got {factor}")
    return _restore("upsample", options, writing, degradation=Degradation(factor=factor))


@app.command
@join_argument_lines
def array(
    file: Positional[Path],
    weight: float,
    spacing: Annotated[
        tuple[float, ...], tyro.conf.arg(metavar="D [D ...]", help_behavior_hint="")
    ] = (),
    memory: str = "1GB",
    tolerance: float = 1e-3,
    out: Folder = Path("out/solve"),
    quiet: Quiet = False,
    json: AsJSON = False,
) -> int:
    """Remove noise from an image or a volume that is larger than memory.

    The array is solved in windows by total variation, and one gap is proven for the whole array.
    The result is OUT/NAME.npy, or OUT/NAME.zarr. The folder OUT/NAME.work keeps the dual variables,
    from which an interrupted command continues. It can be removed afterwards. The exit code is 1 if
    the gap was not proven.

    For example:

        mirrordescent solve array scan.npy --weight 0.1 --memory 512MB
        mirrordescent solve array stack.tif --weight 20 --spacing 2.5 1 1
        mirrordescent solve array volume.zarr --weight 0.1 --out /data/clean

    Args:
        file: Array with two or three axes: a file .npy, a folder .zarr, or a TIFF file with pages.
        weight: Weight λ of the total variation, in the units of the array.
        spacing: Distance of neighbours along each axis; 1 by default.
        memory: Memory of a window, besides about 300 MB of Python and PyTorch.
        tolerance: Relative gap to the optimum that must be proven.
        out: Folder for the result.
    """
    from mirrordescent.cli.output import progress, show
    from mirrordescent.restore.array_files import bytes_of, create_array, open_array
    from mirrordescent.restore.large_arrays import denoise_large

    given = open_array(file)
    _require_writable(out)
    target = out / f"{file.stem}{'.zarr' if file.suffix == '.zarr' else '.npy'}"
    if target.resolve() == file.resolve():
        raise ValueError(f"the result would overwrite {file}: give another folder with --out")
    result = denoise_large(
        given,
        create_array(target, tuple(given.shape), given),
        out / f"{file.stem}.work",
        weight=weight,
        memory=bytes_of(memory),
        axis_weights=[1 / distance for distance in spacing] or None,
        gap=tolerance,
        progress=progress(quiet),
    )
    lines = [
        f"{target}: {result.windows} windows, {result.sweeps} sweeps",
        f"value {result.value:.6g}, proven to be within {result.gap:.2g} of the optimum",
    ]
    show({"array": str(target), **asdict(result)}, lines, json)
    return 0 if result.converged else 1


@app.command
@join_argument_lines
def problems(
    file: Positional[Path],
    solver: OptionalText = None,
    seeds: Annotated[
        tuple[int, ...], tyro.conf.arg(metavar="N [N ...]", help_behavior_hint="")
    ] = (),
    count: int = 8,
    accuracy: float = 1e-2,
    iterations: int = 2000,
    prove: bool = True,
    out: Folder = Path("out/solve"),
    quiet: Quiet = False,
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
        file, solver, seeds, count, accuracy, iterations, prove, out, say, progress(quiet)
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
    task: Task,
    options: ObjectiveOptions,
    writing: OutputOptions,
    how: MethodOptions | None = None,
    damage: MaskOptions | None = None,
    degradation: Degradation | None = None,
) -> int:
    """Restore photographs, write them with a page, and return the exit code."""
    from mirrordescent._internal.progress import bar_labels
    from mirrordescent.cli.output import progress, say, show, visible
    from mirrordescent.restore.jobs import PAGE, Jobs
    from mirrordescent.restore.outcome import Failure
    from mirrordescent.restore.page import page

    how = how or MethodOptions()
    settings = _settings(task, options, writing, how, damage, degradation)
    plan = _plan(task, options, how)
    jobs = Jobs(settings, options.images, writing.resume, say)
    _require_writable(writing.out)
    outcomes: list[Outcome] = []
    failures: list[Failure] = []
    try:
        with bar_labels(solving="photographs: iteration", tiles="photographs: tile"):
            for outcome in jobs.run(plan, progress(writing.quiet)):
                if isinstance(outcome, Failure):
                    failures.append(outcome)
                    continue
                outcomes.append(outcome)
                if not writing.json:
                    print(visible(outcome.line(writing.verbose)), flush=True)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; {len(outcomes)} of the photographs are restored, and the same command "
            f"with --resume restores the others"
        ) from None
    path = page(settings, outcomes, failures, plan, jobs.skipped).write(writing.out / PAGE)
    report = {
        "task": task,
        "page": path,
        "images": [outcome.record for outcome in outcomes],
        "failed": {failure.name: failure.reason for failure in failures},
        "skipped": jobs.skipped,
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
    _list_skipped(jobs.skipped)
    return 1 if unreached or failures else 0


def _list_skipped(skipped: list[str]) -> None:
    """Say which files of the folders were left out, because their formats are not read."""
    from mirrordescent.cli.output import say

    if not skipped:
        return
    count = "1 file was" if len(skipped) == 1 else f"{len(skipped)} files were"
    say(f"mirrordescent: {count} left out, without the suffix of an image that can be read:")
    for name in skipped[:MOST_LISTED]:
        say(f"  {name}")
    if len(skipped) > MOST_LISTED:
        say(f"  and {len(skipped) - MOST_LISTED} more, which the page lists")


def _plan(task: Task, options: ObjectiveOptions, how: MethodOptions) -> RestorationPlan:
    """Choose the methods and the stopping rule."""
    from mirrordescent.restore import plan_restoration

    return plan_restoration(
        task,
        how.method,
        how.mirror,
        options.iterations,
        options.tolerance,
        use_kernels(_decision(options.fused)),
        isotropic=_variant(how)["isotropic"],
    )


def _settings(
    task: Task,
    options: ObjectiveOptions,
    writing: OutputOptions,
    how: MethodOptions,
    damage: MaskOptions | None,
    degradation: Degradation | None,
) -> RestorationSettings:
    """Return the settings for the restoration of every photograph."""
    from mirrordescent.restore.deciding import TV, require_prior
    from mirrordescent.restore.degradation import Degradation
    from mirrordescent.restore.jobs import RestorationSettings
    from mirrordescent.restore.masks import Masks
    from mirrordescent.restore.request import Request

    masks = Masks()
    keep_known = None
    if damage is not None:
        masks = Masks(
            damage.mask, damage.mask_white, damage.mask_colour, damage.missing, damage.seed
        )
        keep_known = _decision(damage.keep_known)
    prior = options.prior
    switches = [_decision(how.isotropic), _decision(how.coupled)]
    if how.method or how.mirror or switches != [None, None]:
        prior = TV if prior == "auto" else prior
        if prior != TV:
            raise ValueError(
                "--method, --mirror, --isotropic and --coupled are for --prior tv, not for "
                f"--prior {prior}"
            )
    require_prior(prior)
    request = Request(
        task,
        prior,
        None if options.noise == "auto" else options.noise,
        options.strength,
        None if options.weight == "auto" else options.weight,
        keep_known,
        degradation or Degradation(),
        _variant(how),
    )
    return RestorationSettings(request, writing.out, masks, writing.truth)


def _blur(options: BlurOptions) -> Degradation:
    """Return the blur of a kernel file or of numbers."""
    import math

    from mirrordescent.problems import gaussian_kernel, motion_kernel
    from mirrordescent.restore.degradation import Degradation, as_kernel
    from mirrordescent.restore.photo import read_photo

    given = [
        each for each in (options.kernel, options.gaussian, options.motion) if each is not None
    ]
    if len(given) != 1:
        raise ValueError("give exactly one of --kernel, --gaussian and --motion")
    if options.kernel is not None:
        return Degradation(as_kernel(read_photo(options.kernel).colour.mean(0)))
    if options.gaussian is not None:
        return Degradation(gaussian_kernel(options.gaussian))
    assert options.motion is not None
    try:
        length, angle = map(float, options.motion.split(","))
    except ValueError:
        raise ValueError(
            "--motion must be a length in pixels and an angle in degrees, such as 9,30, "
            f"got {options.motion!r}"
        ) from None
    return Degradation(motion_kernel(length, math.radians(angle)))


def _variant(how: MethodOptions) -> dict[str, bool]:
    """Return the form of the total variation: isotropic and coupled unless a method is named."""
    default = how.method is None and how.mirror is None
    variant = {}
    for name, switch in (("isotropic", how.isotropic), ("coupled", how.coupled)):
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


def use_kernels(requested: bool | None) -> bool | None:
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
