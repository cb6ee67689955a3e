"""The demonstration: restore photographs and train a network, learned against classical."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent import zoo
from mirrordescent._internal.extras import requires_extra
from mirrordescent._internal.image_arrays import psnr
from mirrordescent.contests.contest import TUNED_PDHG, Contest, grid
from mirrordescent.contests.image_contests import damage, imaging_contest
from mirrordescent.contests.training_runs import (
    LOSS,
    PAPER_ADAM,
    TEST_ACCURACY,
    Training,
    panels,
)
from mirrordescent.data import bundled_photographs, digits, halve
from mirrordescent.methods import AMD, GD, SMD, Adam, Method, Nesterov
from mirrordescent.oracles import Minibatch
from mirrordescent.problems import TVInpainting
from mirrordescent.problems.network_training import NetworkTraining
from mirrordescent.racing import TunableSolver
from mirrordescent.recipes.architectures import small_cnn
from mirrordescent.references import certify
from mirrordescent.report import Comparison, Curve, Page, Panel, Picture, Section, Table

with requires_extra("cli", "The demonstration", "rich"):
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table as ConsoleTable

T = TypeVar("T")

SCENES = ("cat", "cup")  # the bundled test photographs
SHOWN_AT = (10, 50, 200)  # iterations in the tables
TUNED_AT = 100  # iteration at which step sizes are compared
STEPS = grid(2e-3, 2e-1)
RIVALS = [
    TunableSolver("GD", GD, STEPS),
    TunableSolver("Nesterov", Nesterov, STEPS),
    TunableSolver("Adam", Adam, STEPS),
    TUNED_PDHG,
]
NETWORKS = 4
TRAINING_STEPS = 200
BATCH = 100
ADAM = TunableSolver("Adam, tuned", Adam, grid(5e-3, 1e-1))
PAPER_BASELINE = "LMD, two networks"
METHODS_NOTE = (
    "LMD is mirror descent with a learned mirror map. LSMD is the stochastic variant, which keeps "
    "its iterate in the dual space. LAMD is the accelerated variant. The maps “stencil” and “one "
    "network” have an exact inverse. The paper's LMD approximates the inverse by a second network, "
    "and diverges after a few iterations."
)
PICTURES_NOTE = (
    "Drag across the picture to compare. Any two pictures can be laid over each other: click one "
    "below to put it on the right. The certified optimum has the smallest objective; another "
    "picture may be nearer to the original."
)
GAP_NOTE = (
    "Mean gap f(x) − f* after k iterations, where f* is a proven lower bound of the minimum, and "
    f"time of all iterations. The best method is in the first row. {METHODS_NOTE}"
)
LOSS_NOTE = (
    "Mean loss on the training data after k steps with 100 digits each, for a convolutional "
    "network "
    "with 2970 parameters from four random starts. The best method is in the first row. LAMD "
    "(accelerated mirror descent with a learned map) has a map and step sizes that were learned on "
    "MNIST; nothing was tuned for these digits. Adam has the paper's step size, and the best of "
    "five step sizes on another start."
)


@dataclass(frozen=True)
class Damage:
    """Damage of the photographs.

    Args:
        size: Side of the photographs in pixels.
        missing: Share of the pixels to remove.
        noise: Standard deviation of the noise on the other pixels.
        fill: Whether methods start from an image with filled holes.
        seed: Seed of the mask and the noise.
    """

    size: int = 128
    missing: float = 0.2
    noise: float = 0.05
    fill: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 8:
            raise ValueError(f"size must be at least 8, got {self.size}")
        if not 0 < self.missing < 1:
            raise ValueError(f"missing must be a share between 0 and 1, got {self.missing}")
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise must be ≥ 0, got {self.noise}")


def run(out: Path, settings: Damage, iterations: int) -> None:
    """Restore photographs, train networks, print tables and write a page.

    Args:
        out: Folder to write to.
        settings: Damage of the photographs.
        iterations: Number of iterations of every method.
    """
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    sections = [*photographs(settings, iterations, console), *networks(console)]
    lead = f"{_photographs_lead(settings)} {NETWORKS_LEAD}"
    page = Page(
        "Mirror descent in learned geometries",
        lead,
        sections,
        {**asdict(settings), "iterations": iterations},
    )
    console.print(f"Pictures and curves: {page.write(out / 'index.html')}")


NETWORKS_LEAD = (
    "A small network is trained on 1438 digits: by LAMD with a map learned on MNIST, and by Adam."
)


def _photographs_lead(settings: Damage) -> str:
    return (
        f"Two photographs of {settings.size} × {settings.size} pixels, {settings.missing:.0%} of "
        f"them missing and the others with noise {settings.noise:g}, are restored by total "
        "variation: by mirror descent with maps learned on other photographs, and by classical "
        "methods with step sizes tuned on other photographs."
    )


def photographs(settings: Damage, iterations: int, console: Console) -> list[Section]:
    """Damage photographs, tune step sizes on others, and restore them with every method."""
    console.print(_photographs_lead(settings))
    generator = torch.Generator().manual_seed(settings.seed)
    damages = (generator, settings.missing, settings.noise)
    training = damage(squares(bundled_photographs("train"), settings.size)[:2], *damages)
    clean = squares(bundled_photographs("test"), settings.size)
    problem = damage(clean, *damages)
    contest = imaging_contest(problem, settings.fill, iterations)
    rehearsal = imaging_contest(training, settings.fill, iterations)
    methods = learned_methods()
    for tunable in _track(RIVALS, "Tuning", console):
        setting = rehearsal.tune(tunable, min(TUNED_AT, iterations))
        methods[tunable.label(setting)] = tunable.make(setting)
    curves = [
        contest.run(name, method)
        for name, method in _track(list(methods.items()), "Restoring", console)
    ]
    curves = ranked(curves)
    table = numbers(curves, iterations)
    console.print(_console_table(table, "Photographs: mean gap f(x) − f* after k iterations"))
    console.print(METHODS_NOTE)
    few = min(SHOWN_AT[0], iterations)
    pictures = comparison(clean, contest, methods, few)
    return [
        Section(f"Restored in {few} iterations", pictures, PICTURES_NOTE),
        Section("Photographs in numbers", table, GAP_NOTE),
        Section("Gap along the way", Panel(curves)),
    ]


def learned_methods() -> dict[str, Method[Any]]:
    """Return the methods of the zoo for inpainting."""
    one_network = cast(SMD, zoo.load("photo-inpaint-conjugate"))
    return {
        "LAMD, stencil": cast(Method[Any], zoo.load("photo-inpaint-stencil")),
        "LAMD, one network": AMD(one_network.mirror, one_network.t),
        "LSMD, one network": one_network,
        PAPER_BASELINE: cast(Method[Any], zoo.load("photo-inpaint-pair")),
    }


def squares(images: list[Tensor], size: int) -> Tensor:
    """Return the central square of every image, resized: (n, 3, size, size)."""
    crops = []
    for image in images:
        height, width = image.shape[-2:]
        side = min(height, width)
        top = (height - side) // 2
        left = (width - side) // 2
        crop = image[..., top : top + side, left : left + side].unsqueeze(0)
        crops.append(F.interpolate(crop, (size, size), mode="bilinear", antialias=True).clamp(0, 1))
    return torch.cat(crops)


def comparison(
    clean: Tensor, contest: Contest, methods: dict[str, Method[Any]], iterations: int
) -> Comparison:
    """Return the damaged, restored, optimal and original photographs.

    Args:
        clean: Original photographs.
        contest: Contest on the damaged photographs.
        methods: Methods by name.
        iterations: Number of iterations of every method.
    """
    problem = cast(TVInpainting, contest.problem)
    images = {"damaged": problem.start()}
    for name, method in methods.items():
        images[name] = cast(Tensor, contest.solve(method, iterations=iterations).x)
    images["certified optimum"] = certify(problem).x
    scenes = {}
    for i, scene in enumerate(SCENES):
        scenes[scene] = {name: _rated(batch[i], clean[i]) for name, batch in images.items()}
        scenes[scene]["original"] = Picture(clean[i])
    return Comparison(scenes, before="damaged", after="LSMD, one network")


def _rated(image: Tensor, truth: Tensor) -> Picture:
    return Picture(image, f"{psnr(image.clamp(0, 1), truth):.1f} dB")


def networks(console: Console) -> list[Section]:
    """Train small networks on digits with a learned method and with Adam."""
    console.print(f"\n{NETWORKS_LEAD}")
    training = training_of(range(NETWORKS))
    rehearsal = training_of([NETWORKS])
    setting = rehearsal.tune(ADAM)
    methods = {
        "LAMD": cast(Method[Any], zoo.load("mnist-cnn-diagonal")),
        f"Adam ({PAPER_ADAM:g})": Adam(PAPER_ADAM),
        ADAM.label(setting): ADAM.make(setting),
    }
    runs = [
        training.run(name, method)
        for name, method in _track(list(methods.items()), "Training", console)
    ]
    measured = panels(runs)
    losses = ranked(measured[LOSS].curves)
    accuracies = {curve.name: curve for curve in measured[TEST_ACCURACY].curves}
    table = numbers(losses, TRAINING_STEPS, [accuracies[curve.name] for curve in losses])
    console.print(_console_table(table, "Digits: mean loss on the training data after k steps"))
    return [
        Section("Digits in numbers", table, LOSS_NOTE),
        Section("Training loss along the way", measured[LOSS]),
        Section("Test accuracy along the way", measured[TEST_ACCURACY]),
    ]


def training_of(seeds: Iterable[int]) -> Training:
    """Return networks from these random starts, with their training and test data."""
    images, labels = digits("train", size=28)
    test_images, test_labels = digits("test", size=28)
    problem = NetworkTraining(small_cnn(), halve(images).unsqueeze(1), labels)
    return Training(
        problem,
        problem.initial(seeds),
        Minibatch(BATCH),
        steps=TRAINING_STEPS,
        looks=TRAINING_STEPS // SHOWN_AT[0],
        test_inputs=halve(test_images).unsqueeze(1),
        test_targets=test_labels,
    )


def ranked(curves: Sequence[Curve]) -> list[Curve]:
    """Return curves in the order of their last means: the smallest first, diverged ones last."""

    def last_mean(curve: Curve) -> float:
        mean = curve.mean_at(curve.iterations[-1])
        return math.inf if math.isnan(mean) else mean

    return sorted(curves, key=last_mean)


def numbers(curves: Sequence[Curve], last: int, shares: Sequence[Curve] = ()) -> Table:
    """Return a table with a row for every curve: means at a few iterations, and the time.

    Args:
        curves: Curves of the methods.
        last: Last iteration.
        shares: Curves of a share, such as the accuracy; their last means become a column.
    """
    iterations = sorted({k for k in SHOWN_AT if k <= last} | {last})
    columns = ["method", *(f"k = {k}" for k in iterations)]
    if shares:
        columns.append("test accuracy")
    columns.append("time")
    rows = []
    for i, curve in enumerate(curves):
        row = [curve.name, *(_mean(curve, k) for k in iterations)]
        if shares:
            row.append(f"{shares[i].mean_at(last):.1%}")
        rows.append([*row, f"{curve.seconds[-1]:.2f} s"])
    return Table(columns, rows)


def _mean(curve: Curve, iteration: int) -> str:
    mean = curve.mean_at(iteration)
    if math.isnan(mean):
        return "diverged"
    return f"{mean:.3g}"


def _console_table(table: Table, title: str) -> ConsoleTable:
    """Return a table for the terminal, with the first row highlighted."""
    printable = ConsoleTable(title=title, title_justify="left")
    for column in table.columns:
        printable.add_column(column, justify="left" if column == "method" else "right")
    for i, row in enumerate(table.rows):
        printable.add_row(*row, style="bold green" if i == 0 else None)
    return printable


def _track(items: Sequence[T], description: str, console: Console) -> Iterable[T]:
    return track(items, description=description, console=console, transient=True)
