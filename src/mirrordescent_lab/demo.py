"""The demonstration: photographs restored and a network trained, in learned geometries and
without.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table as ConsoleTable
from torch import Tensor
from torch.nn import functional as F

from mirrordescent import zoo
from mirrordescent._internal.image_arrays import psnr
from mirrordescent.data import bundled_photographs, digits
from mirrordescent.methods import AMD, GD, SMD, Adam, Method, Nesterov
from mirrordescent.oracles import Minibatch
from mirrordescent.problems import TVInpainting
from mirrordescent.problems.network_training import NetworkTraining
from mirrordescent.references import certify
from mirrordescent.report import Comparison, Curve, Page, Panel, Picture, Section, Table
from mirrordescent_lab.architectures import small_cnn
from mirrordescent_lab.data import halve
from mirrordescent_lab.experiments.contest import CLASSICAL, Contest, Tunable, grid
from mirrordescent_lab.experiments.imaging import damage, imaging_contest
from mirrordescent_lab.experiments.networks import PAPER_ADAM
from mirrordescent_lab.experiments.training import LOSS, TEST_ACCURACY, Training, panels

T = TypeVar("T")

SCENES = ("cat", "cup")  # the photographs bundled for testing
SHOWN_AT = (10, 50, 200)
TUNED_AT = 100  # step sizes are the best of their grid at this iteration
STEPS = grid(2e-3, 2e-1)
RIVALS = [
    Tunable("GD", GD, STEPS),
    Tunable("Nesterov", Nesterov, STEPS),
    Tunable("Adam", Adam, STEPS),
    CLASSICAL,
]
NETWORKS = 4
TRAINING_STEPS = 200
BATCH = 100
ADAM = Tunable("Adam, tuned", Adam, grid(5e-3, 1e-1))
PICTURES_NOTE = (
    "Drag across the picture. Any two can be laid over each other; clicking one below puts it on the right. The "
    "certified optimum has the least value of the objective; it need not be the picture nearest to the original."
)
GAP_NOTE = (
    "The mean gap f(x) − f* after k iterations, where f* is a proven lower bound, and the time of all iterations. LMD, "
    "whose two networks are not quite each other's inverse, is made for few iterations."
)
LOSS_NOTE = (
    "The mean loss on the training data after k steps of 100 digits each, for a convolutional network with 2970 "
    "parameters from four random starts. LAMD has a geometry and step sizes that were learned on MNIST; nothing "
    "about it was chosen for these digits. Adam has the step size of the paper, and the best of five on another start."
)


def run(
    out: Path, size: int, iterations: int, missing: float, noise: float, fill: bool, seed: int
) -> None:
    """Restore photographs, train networks, print tables, and write a page."""
    _check(size, iterations, missing, noise)
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    lead = (
        f"Two photographs of {size} × {size}, with {missing:.0%} of their pixels missing and noise {noise:g} on the "
        f"others, are restored by total variation: in geometries that were learned on other photographs, and by "
        f"classical methods with the best step sizes for two others. Then a small network is trained on digits."
    )
    console.print(lead)
    sections = [
        *photographs(size, iterations, missing, noise, fill, seed, console),
        *networks(console),
    ]
    settings = {
        "size": size,
        "iterations": iterations,
        "missing": missing,
        "noise": noise,
        "fill": fill,
        "seed": seed,
    }
    page = Page("Mirror descent in learned geometries", lead, sections, settings).write(
        out / "index.html"
    )
    console.print(f"Pictures and curves: {page}")


def _check(size: int, iterations: int, missing: float, noise: float) -> None:
    if size < 8:
        raise ValueError(f"size must be at least 8, got {size}")
    if not 0 < missing < 1:
        raise ValueError(f"missing must be a share between 0 and 1, got {missing}")
    if not 0 <= noise < float("inf"):
        raise ValueError(f"noise must be ≥ 0, got {noise}")
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")


def photographs(
    size: int,
    iterations: int,
    missing: float,
    noise: float,
    fill: bool,
    seed: int,
    console: Console,
) -> list[Section]:
    """Damage photographs, tune step sizes on others, and restore them with every method."""
    generator = torch.Generator().manual_seed(seed)
    training = damage(squares(bundled_photographs("train"), size)[:2], generator, missing, noise)
    clean = squares(bundled_photographs("test"), size)
    problem = damage(clean, generator, missing, noise)
    contest, rehearsal = (imaging_contest(p, fill, iterations) for p in (problem, training))
    methods = learned_methods()
    for tunable in _track(RIVALS, "Tuning", console):
        setting = rehearsal.tune(tunable, min(TUNED_AT, iterations))
        methods[f"{tunable.name} ({setting:g})"] = tunable.make(setting)
    curves = [contest.run(*each) for each in _track(list(methods.items()), "Restoring", console)]
    table = numbers(curves, iterations)
    console.print(_printable(table, "Photographs: mean gap f(x) − f*, certified"))
    few = min(SHOWN_AT[0], iterations)
    return [
        Section(
            f"Restored in {few} iterations", comparison(clean, contest, methods, few), PICTURES_NOTE
        ),
        Section("Photographs in numbers", table, GAP_NOTE),
        Section("Gap along the way", Panel(curves)),
    ]


def learned_methods() -> dict[str, Method[Any]]:
    """Return the shipped methods for inpainting: a pair of networks, one network, and any
    others.
    """
    one = cast(SMD, zoo.load("photo-inpaint-conjugate"))
    methods = {
        "LMD": cast(Method[Any], zoo.load("photo-inpaint-pair")),
        "LSMD, one network": one,
        "LAMD, one network": AMD(one.mirror, one.t),
    }
    if "photo-inpaint-stencil" in zoo.list():
        methods["LAMD, stencil"] = cast(Method[Any], zoo.load("photo-inpaint-stencil"))
    return methods


def squares(images: list[Tensor], size: int) -> Tensor:
    """Cut the central square out of every image and shrink it: (n, 3, size, size)."""
    crops = []
    for image in images:
        side = min(image.shape[-2:])
        top, left = ((length - side) // 2 for length in image.shape[-2:])
        crop = image[..., top : top + side, left : left + side].unsqueeze(0)
        crops.append(F.interpolate(crop, (size, size), mode="bilinear", antialias=True).clamp(0, 1))
    return torch.cat(crops)


def comparison(
    clean: Tensor, contest: Contest, methods: dict[str, Method[Any]], iterations: int
) -> Comparison:
    """Show what every method makes of the photographs in a few iterations, and what they could be
    at best.
    """
    problem = cast(TVInpainting, contest.problem)
    restored = {
        name: cast(Tensor, contest.solve(method, iterations=iterations).x)
        for name, method in methods.items()
    }
    images = {"damaged": problem.start(), **restored, "certified optimum": certify(problem).x}
    scenes = {
        scene: {
            **{name: _rated(batch[i], clean[i]) for name, batch in images.items()},
            "original": Picture(clean[i]),
        }
        for i, scene in enumerate(SCENES)
    }
    return Comparison(scenes, before="damaged", after="LSMD, one network")


def _rated(image: Tensor, truth: Tensor) -> Picture:
    return Picture(image, f"{psnr(image.clamp(0, 1), truth):.1f} dB")


def networks(console: Console) -> list[Section]:
    """Train small networks on digits, with a learned method and with Adam."""
    training = training_of(range(NETWORKS))
    rehearsal = training_of([NETWORKS])
    setting = rehearsal.tune(ADAM)
    methods = {
        "LAMD": cast(Method[Any], zoo.load("mnist-cnn-diagonal")),
        f"Adam ({PAPER_ADAM:g})": Adam(PAPER_ADAM),
        f"{ADAM.name} ({setting:g})": ADAM.make(setting),
    }
    measured = panels(
        [training.run(*each) for each in _track(list(methods.items()), "Training", console)]
    )
    table = numbers(measured[LOSS].curves, TRAINING_STEPS, measured[TEST_ACCURACY].curves)
    console.print(_printable(table, "Digits: mean loss on the training data"))
    return [
        Section("Digits in numbers", table, LOSS_NOTE),
        *(
            Section(f"{name.capitalize()} along the way", measured[name])
            for name in (LOSS, TEST_ACCURACY)
        ),
    ]


def training_of(seeds: Iterable[int]) -> Training:
    """Return networks from these random starts, with the digits they are trained and tested on."""
    (images, labels) = digits("train", size=28)
    (test, test_labels) = digits("test", size=28)
    images, test = (halve(each).unsqueeze(1) for each in (images, test))
    problem = NetworkTraining(small_cnn(), images, labels)
    return Training(
        problem,
        problem.initial(seeds),
        Minibatch(BATCH),
        steps=TRAINING_STEPS,
        looks=TRAINING_STEPS // SHOWN_AT[0],
        test_inputs=test,
        test_targets=test_labels,
    )


def numbers(curves: Sequence[Curve], last: int, shares: Sequence[Curve] = ()) -> Table:
    """Return a row per method: its means at a few iterations, its share at the end if there is one,
    and its time.
    """
    shown = sorted({k for k in SHOWN_AT if k <= last} | {last})
    columns = [
        "method",
        *(f"k = {k}" for k in shown),
        *(["test accuracy"] if shares else []),
        "time",
    ]
    ends = [[f"{share.mean_at(last):.1%}"] for share in shares] or [[] for _ in curves]
    rows = [
        [curve.name, *(_mean(curve, k) for k in shown), *end, f"{curve.seconds[-1]:.2f} s"]
        for curve, end in zip(curves, ends, strict=True)
    ]
    return Table(columns, rows)


def _mean(curve: Curve, iteration: int) -> str:
    mean = curve.mean_at(iteration)
    return f"{mean:.3g}" if mean == mean else "diverged"


def _printable(table: Table, title: str) -> ConsoleTable:
    printable = ConsoleTable(title=title, title_justify="left")
    for column in table.columns:
        printable.add_column(column, justify="left" if column == "method" else "right")
    for row in table.rows:
        printable.add_row(*row)
    return printable


def _track(items: Sequence[T], description: str, console: Console) -> Iterable[T]:
    return track(items, description=description, console=console, transient=True)
