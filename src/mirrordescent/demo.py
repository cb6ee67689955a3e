"""The demonstration: photographs with missing pixels, restored by every method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.data import bundled_photographs
from mirrordescent.methods import AMD, ASMD, GD, MD, PDHG, SMD, Adam, Method, Nesterov
from mirrordescent.mirrors import HyperbolicEntropy, Logit
from mirrordescent.mirrors.quadratic import Euclidean
from mirrordescent.problems import TVInpainting
from mirrordescent.references import Certificate, certify
from mirrordescent.solve import Solution, solve

SHOWN_AT = (10, 50, 200)
TUNED_AT = 100  # step sizes are the best of their grid at this iteration
STEPS = [m * 10.0**-k for k in (3, 2, 1, 0) for m in (1, 2, 5)]
MIRRORED = ("MD logit", "SMD hyperbolic", "AMD Euclidean", "AMD logit", "ASMD Euclidean")
RATIOS = [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]


@dataclass(frozen=True)
class Contestant:
    """A method up to one number, and the grid that number is tuned on."""

    name: str
    make: Callable[[float], Method[Any]]
    grid: list[float]


def contestants(*problems: TVInpainting) -> list[Contestant]:
    """Every method, with geometries that make sense for pixels: the box holds those of all problems."""
    low, high = min(float(p.y.min()) for p in problems), max(float(p.y.max()) for p in problems)
    box = Logit(low - 0.5, high + 0.5)
    return [
        Contestant("GD", GD, STEPS),
        Contestant("Adam", Adam, STEPS),
        Contestant("Nesterov", Nesterov, STEPS),
        Contestant("MD logit", lambda t: MD(box, t), STEPS),
        Contestant("SMD hyperbolic", lambda t: SMD(HyperbolicEntropy(1.0), t), STEPS),
        Contestant("AMD Euclidean", lambda t: AMD(Euclidean(), t), STEPS),
        Contestant("AMD logit", lambda t: AMD(box, t), STEPS),
        Contestant("ASMD Euclidean", lambda t: ASMD(Euclidean(), t), STEPS),
        Contestant("PDHG", PDHG, RATIOS),
    ]


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
    training = damage(squares(bundled_photographs("train"), size)[:2], missing, noise, generator)
    problem = damage(clean, missing, noise, generator)
    console.print(
        f"Inpainting {len(clean)} photographs of {size}×{size}, {missing:.0%} of the pixels missing, noise {noise:g}. "
        f"Step sizes are tuned on {training.batch} others, at iteration {TUNED_AT}."
    )
    reference = certify(problem)
    floor = certify(training).lower
    shown = sorted({k for k in SHOWN_AT if k <= iterations} | {iterations})
    results: dict[str, Solution] = {}
    settings: dict[str, float] = {}
    for contestant in track(contestants(problem, training), description="Restoring", console=console, transient=True):
        settings[contestant.name] = tune(contestant, training, floor, fill)
        results[contestant.name] = solve(
            problem,
            contestant.make(settings[contestant.name]),
            problem.start(fill=fill),
            iterations=iterations,
            trace=sorted({*shown, *range(0, min(iterations, 20)), *range(0, iterations + 1, max(1, iterations // 40))}),
            progress=False,
        )
    console.print(table(results, settings, reference, shown))
    picture = out / "inpainting.png"
    draw(picture, clean, problem, results, reference)
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


def damage(clean: Tensor, missing: float, noise: float, generator: torch.Generator) -> TVInpainting:
    """Remove the same random pixels from all images and add noise."""
    mask = torch.rand(clean.shape[-2:], generator=generator) >= missing
    return TVInpainting(mask * clean + noise * torch.randn(clean.shape, generator=generator), mask)


def tune(contestant: Contestant, problem: TVInpainting, floor: Tensor, fill: bool) -> float:
    """Return the setting with the smallest mean gap on the training images; a failed run loses."""

    def gap(setting: float) -> float:
        solution = solve(
            problem, contestant.make(setting), problem.start(fill=fill), iterations=TUNED_AT, progress=False
        )
        return float((solution.value - floor).mean()) if solution.ok else float("inf")

    return min(contestant.grid, key=gap)


def table(results: dict[str, Solution], settings: dict[str, float], reference: Certificate, shown: list[int]) -> Table:
    """One row per method: its gap above the proven lower bound, and its time."""
    result = Table(title="Mean gap f(x) − f*, certified", title_justify="left")
    result.add_column("method")
    result.add_column("setting", justify="right")
    for k in shown:
        result.add_column(f"k = {k}", justify="right")
    result.add_column("ms per iteration", justify="right")
    result.add_column("status")
    for name, solution in results.items():
        gaps = [f"{float((solution.trace.at(k) - reference.lower).mean()):.3g}" for k in shown]
        pace = 1000 * solution.seconds / int(solution.steps.max())
        status = "ok" if solution.ok else ", ".join(sorted({str(s) for s in solution.statuses if s.failed}))
        result.add_row(name, f"{settings[name]:g}", *gaps, f"{pace:.2f}", status)
    return result


def psnr(image: Tensor, truth: Tensor) -> float:
    """−10 log₁₀ of the mean squared error, for pixels in [0, 1]."""
    return -10 * float((image.clamp(0, 1) - truth).square().mean().log10())


def draw(
    path: Path, clean: Tensor, problem: TVInpainting, results: dict[str, Solution], reference: Certificate
) -> None:
    """Write the restorations of one photograph after the whole budget, and the mean curves of all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mirrored = min((name for name in results if name in MIRRORED), key=lambda name: float(results[name].value.mean()))
    panels = {
        "original": clean[0],
        "damaged": problem.start()[0],
        mirrored: cast(Tensor, results[mirrored].x)[0],
        "PDHG": cast(Tensor, results["PDHG"].x)[0],
        "certified optimum": reference.x[0],
    }
    figure = Figure(figsize=(14, 8.5), layout="constrained")
    FigureCanvasAgg(figure)
    pictures, curves = cast(Any, figure.subfigures(2, 1, height_ratios=[1, 1.5]))
    for axes, (title, image) in zip(pictures.subplots(1, len(panels)), panels.items(), strict=True):
        axes.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy())
        axes.set_title(title if title == "original" else f"{title}, {psnr(image, clean[0]):.1f} dB")
        axes.set_axis_off()
    by_iteration, by_time = curves.subplots(1, 2, sharey=True)
    for name, solution in results.items():
        gaps = (solution.trace.values - reference.lower).mean(1)
        by_iteration.plot(solution.trace.iterations[1:], gaps[1:], label=name)
        by_time.plot(solution.trace.seconds[1:], gaps[1:], label=name)
    by_iteration.set(xscale="log", yscale="log", xlabel="iterations", ylabel="mean gap f(x) − f*")
    by_time.set(xscale="log", yscale="log", xlabel="seconds")
    by_iteration.grid(alpha=0.3)
    by_time.grid(alpha=0.3)
    by_time.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=110)
