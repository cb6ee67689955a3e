"""The demonstration: photographs with missing pixels, restored by every method."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from mirrordescent import zoo
from mirrordescent.data import bundled_photographs
from mirrordescent.experiments.contest import CLASSICAL, Contest, Tunable, grid
from mirrordescent.experiments.imaging import damage, imaging_contest
from mirrordescent.methods import AMD, ASMD, GD, MD, SMD, Adam, Method, Nesterov
from mirrordescent.mirrors import Euclidean, HyperbolicEntropy, Logit
from mirrordescent.problems import TVInpainting
from mirrordescent.references import certify
from mirrordescent.solve import Solution

SHOWN_AT = (10, 50, 200)
TUNED_AT = 100  # step sizes are the best of their grid at this iteration
STEPS = grid(1e-3, 5.0)
LEARNED = ("learned LSMD", "learned LAMD")


def contestants(*problems: TVInpainting) -> list[Tunable]:
    """Every method, with geometries that make sense for pixels: the box holds those of all problems."""
    low, high = min(float(p.y.min()) for p in problems), max(float(p.y.max()) for p in problems)
    box = Logit(low - 0.5, high + 0.5)
    return [
        Tunable("GD", GD, STEPS),
        Tunable("Adam", Adam, STEPS),
        Tunable("Nesterov", Nesterov, STEPS),
        Tunable("MD logit", lambda t: MD(box, t), STEPS),
        Tunable("SMD hyperbolic", lambda t: SMD(HyperbolicEntropy(1.0), t), STEPS),
        Tunable("AMD Euclidean", lambda t: AMD(Euclidean(), t), STEPS),
        Tunable("AMD logit", lambda t: AMD(box, t), STEPS),
        Tunable("ASMD Euclidean", lambda t: ASMD(Euclidean(), t), STEPS),
        CLASSICAL,
    ]


def learned_methods() -> dict[str, Method[Any]]:
    """The shipped map for inpainting, in the method it was learned with and in the accelerated one."""
    learned = cast(SMD, zoo.load("photo-inpaint-conjugate"))
    return {"learned LSMD": learned, "learned LAMD": AMD(learned.mirror, learned.t)}


def run(out: Path, size: int, iterations: int, missing: float, noise: float, fill: bool, seed: int) -> None:
    """Damage, tune, restore, print, draw."""
    if size < 8:
        raise ValueError(f"size must be at least 8, got {size}")
    if not 0 < missing < 1:
        raise ValueError(f"missing must be a share between 0 and 1, got {missing}")
    if not 0 <= noise < float("inf"):
        raise ValueError(f"noise must be ≥ 0, got {noise}")
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    generator = torch.Generator().manual_seed(seed)
    clean = squares(bundled_photographs("test"), size)
    training = damage(squares(bundled_photographs("train"), size)[:2], generator, missing, noise)
    problem = damage(clean, generator, missing, noise)
    console.print(
        f"Inpainting {len(clean)} photographs of {size}×{size}, {missing:.0%} of the pixels missing, noise {noise:g}. "
        f"Step sizes are tuned on {training.batch} others, at iteration {TUNED_AT}."
    )
    contest, rehearsal = (imaging_contest(p, fill, iterations) for p in (problem, training))
    results: dict[str, Solution] = {}
    settings: dict[str, str] = {}
    for tunable in track(contestants(problem, training), description="Restoring", console=console, transient=True):
        setting = rehearsal.tune(tunable, at=TUNED_AT)
        settings[tunable.name] = f"{setting:g}"
        results[tunable.name] = contest.solve(tunable.make(setting))
    for name, method in learned_methods().items():
        settings[name], results[name] = "learned", contest.solve(method)
    console.print(table(results, settings, contest))
    picture = out / "inpainting.png"
    draw(picture, clean, problem, results, contest)
    console.print(f"Pictures and curves: {picture}")


def squares(images: list[Tensor], size: int) -> Tensor:
    """Cut the central square out of every image and shrink it: (n, 3, size, size)."""
    crops = []
    for image in images:
        side = min(image.shape[-2:])
        top, left = ((length - side) // 2 for length in image.shape[-2:])
        crop = image[..., top : top + side, left : left + side].unsqueeze(0)
        crops.append(F.interpolate(crop, (size, size), mode="bilinear", antialias=True).clamp(0, 1))
    return torch.cat(crops)


def table(results: dict[str, Solution], settings: dict[str, str], contest: Contest) -> Table:
    """One row per method: its gap above the proven lower bound, and its time."""
    result = Table(title="Mean gap f(x) − f*, certified", title_justify="left")
    result.add_column("method")
    result.add_column("setting", justify="right")
    shown = sorted({k for k in SHOWN_AT if k <= contest.iterations} | {contest.iterations})
    for k in shown:
        result.add_column(f"k = {k}", justify="right")
    result.add_column("ms per iteration", justify="right")
    result.add_column("status")
    for name, solution in results.items():
        curve = contest.curve(name, solution)
        pace = 1000 * solution.seconds / int(solution.steps.max())
        status = "ok" if solution.ok else ", ".join(sorted({str(s) for s in solution.statuses if s.failed}))
        gaps = [f"{curve.mean_at(k):.3g}" for k in shown]
        result.add_row(name, settings[name], *gaps, f"{pace:.2f}", status)
    return result


def psnr(image: Tensor, truth: Tensor) -> float:
    """−10 log₁₀ of the mean squared error, for pixels in [0, 1]."""
    return -10 * float((image.clamp(0, 1) - truth).square().mean().log10())


def draw(path: Path, clean: Tensor, problem: TVInpainting, results: dict[str, Solution], contest: Contest) -> None:
    """Write the restorations of one photograph by ten iterations, the optimum, and the mean curves of all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    few = min(10, contest.iterations)
    restored = contest.solve(learned_methods()["learned LSMD"], iterations=few).x
    panels = {
        "original": clean[0],
        "damaged": problem.start()[0],
        f"learned LSMD, {few} iterations": cast(Tensor, restored)[0],
        "certified optimum": certify(problem).x[0],
    }
    figure = Figure(figsize=(14, 8.5), layout="constrained")
    FigureCanvasAgg(figure)
    pictures, curves = cast(Any, figure.subfigures(2, 1, height_ratios=[1, 1.5]))
    for axes, (title, image) in zip(pictures.subplots(1, len(panels)), panels.items(), strict=True):
        axes.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy())
        axes.set_title(title if title == "original" else f"{title}, {psnr(image, clean[0]):.1f} dB")
        axes.set_axis_off()
    by_iteration, by_time = curves.subplots(1, 2, sharey=True)
    for index, (name, solution) in enumerate(results.items()):
        curve = contest.curve(name, solution)
        style = {"color": f"C{index % 10}", "linestyle": "--" if name in LEARNED else "-", "label": name}
        by_iteration.plot(curve.iterations[1:], curve.values[1:].mean(1), **style)
        by_time.plot(curve.seconds[1:], curve.values[1:].mean(1), **style)
    by_iteration.set(xscale="log", yscale="log", xlabel="iterations", ylabel="mean gap f(x) − f*")
    by_time.set(xscale="log", yscale="log", xlabel="seconds")
    by_iteration.grid(alpha=0.3)
    by_time.grid(alpha=0.3)
    by_time.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=110)
