"""Comparison of a learned method with its alternatives on pictures."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Generator

from mirrordescent import zoo
from mirrordescent._internal.checks import require_not_negative, require_positive
from mirrordescent.data.image_files import random_crops
from mirrordescent.data.photo_collections import pictures
from mirrordescent.learn.control import has_map, without_map
from mirrordescent.learn.families import Draw
from mirrordescent.methods import PDHG, Method
from mirrordescent.mirrors.icnn import ConvICNN
from mirrordescent.problems.tv import TVDenoising, TVInpainting
from mirrordescent.racing import Race, TunablePrimalDual, TunableSolver, mean_log_gap
from mirrordescent.references import certify
from mirrordescent.report import Curve, Page, Panel, Section, Table

ComparedTask: TypeAlias = Literal["denoise", "inpaint"]

LEVELS = (1e-2, 1e-3)
SHIPPED: dict[ComparedTask, tuple[str, ...]] = {
    "inpaint": ("image-tv", "photo-inpaint-stencil"),
    "denoise": ("image-tv", "ellipse-denoise-stencil"),
}
RATIOS = (0.1, 0.2, 0.35, 0.5, 0.8, 1.2)  # of the step sizes of PDHG
SCALES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # of the step sizes of the method without its map
WITHOUT_MAP = "without its map"
EVERY_ITERATION = 60  # values are recorded at every iteration up to this one, then at every fifth
REPEATS = 3


@dataclass(frozen=True)
class ComparisonRow:
    """Iterations and seconds of a method to every level, None if it is not reached.

    Args:
        name: Name of the method.
        iterations: Iterations to the levels.
        seconds: Seconds to the levels.
        curve: Mean relative gap along the run.
    """

    name: str
    iterations: tuple[int | None, ...]
    seconds: tuple[float | None, ...]
    curve: Curve


@dataclass(frozen=True)
class ComparisonResult:
    """The methods that were compared, the learned one first.

    Args:
        contestants: The methods with their results.
        words: The result in words.
        settings: Settings of the comparison.
    """

    contestants: tuple[ComparisonRow, ...]
    words: str
    settings: Mapping[str, object]

    def table(self) -> Table:
        """Return a table of iterations and seconds."""
        columns = ["method"]
        for level in LEVELS:
            columns += [f"iterations to {level:g}", f"seconds to {level:g}"]
        rows = []
        for each in self.contestants:
            cells = [each.name]
            for iterations, seconds in zip(each.iterations, each.seconds, strict=True):
                cells += [_number(iterations), _number(seconds)]
            rows.append(tuple(cells))
        return Table(tuple(columns), rows)

    def page(self) -> Page:
        """Return a page with the table and the curves."""
        curves = [each.curve for each in self.contestants]
        sections = [
            Section("Verdict", self.table(), self.words),
            Section("Convergence", Panel(curves, "relative gap, mean over the pictures")),
        ]
        return Page(f"Is {self.contestants[0].name} any good?", self.words, sections, self.settings)


def _number(value: float | None) -> str:
    return "never" if value is None else f"{value:.3g}"


@torch.no_grad()
def compare(
    entry: str | Path,
    task: ComparedTask,
    images: str | Path = "bundled",
    *,
    count: int = 8,
    size: int = 96,
    weight: float = 0.15,
    noise: float = 0.05,
    missing: float = 0.2,
    iterations: int = 500,
    seed: int = 0,
) -> ComparisonResult:
    """Compare a learned method with tuned PDHG, the shipped entries, and itself without its map.

    Without its map, a method has the identity in place of its mirror maps. Its step sizes are
    tuned on training pictures, and so are the ratio of the step sizes of PDHG and its
    over-relaxation. All methods are then measured on test pictures, to mean relative gaps of 1e-2
    and 1e-3.

    Args:
        entry: Entry of the zoo, or .safetensors file, of a method.
        task: "inpaint" or "denoise".
        images: "bundled", or a folder or an archive of pictures.
        count: Number of squares that are cut out of the pictures.
        size: Side of the squares in pixels.
        weight: Weight λ of the total variation.
        noise: Standard deviation of the added noise.
        missing: Share of the pixels that is removed for inpainting.
        iterations: Largest number of iterations.
        seed: Seed of the squares, the noise and the missing pixels.
    """
    require_positive(count=count, size=size, weight=weight, iterations=iterations)
    require_not_negative(noise=noise)
    if not 0 <= missing < 1:
        raise ValueError(f"missing must be a share of the pixels, in [0, 1), got {missing}")
    method = _load_method(entry)
    generator = Generator().manual_seed(seed)

    def race_on(split: Literal["train", "test"]) -> Race:
        clean = random_crops(pictures(images, split), size, count, generator)
        if _is_for_grey(method):
            clean = clean.mean(1, keepdim=True)
        y = clean + noise * torch.randn(clean.shape, generator=generator)
        if task == "denoise":
            return _race(TVDenoising(y, weight), iterations)
        mask = torch.rand(count, 1, size, size, generator=generator) >= missing
        return _race(TVInpainting(mask * y, mask, weight), iterations)

    training = race_on("train")
    test = race_on("test")
    name = Path(entry).stem
    methods = {name: method}
    methods["PDHG, tuned"] = _tuned(TunablePrimalDual("PDHG", PDHG, RATIOS), training)
    if has_map(method):
        control = TunableSolver(WITHOUT_MAP, lambda scale: without_map(method, 1 / scale), SCALES)
        methods[f"{name} {WITHOUT_MAP}"] = _tuned(control, training)
    for other in SHIPPED[task]:
        if other != name:
            methods[other] = _load_method(other)
    rows = tuple(_measure(label, each, test) for label, each in methods.items())
    settings = {
        "entry": zoo.versioned(entry),
        "problem": task,
        "pictures": images,
        "squares": f"{count} of {size}×{size}",
        "weight": weight,
        "noise": noise,
        "missing": missing if task == "inpaint" else 0,
        "iterations, at most": iterations,
    }
    return ComparisonResult(rows, _words(rows), settings)


def _load_method(entry: str | Path) -> Method[Any]:
    method = zoo.load(entry)
    if not isinstance(method, Method):
        raise ValueError(
            f"entry must be a method, got {entry}, which is a {type(method).__name__}, not a method"
        )
    return method


def _is_for_grey(method: Method[Any]) -> bool:
    channels = {part.inputs for part in method.modules() if isinstance(part, ConvICNN)}
    return channels == {1}


def _race(problem: TVInpainting, iterations: int) -> Race:
    x0 = problem.start(fill=problem.mask is not None)
    lower = certify(problem, 1e-5).lower.to(x0)
    first = range(min(EVERY_ITERATION, iterations) + 1)
    later = range(EVERY_ITERATION, iterations + 1, 5)
    recorded = sorted({*first, *later})
    return Race(Draw(problem, x0, lower), LEVELS[-1], iterations, recorded=recorded)


def _tuned(solver: TunableSolver, race: Race) -> Method[Any]:
    return solver.make(solver.tune(mean_log_gap(race, floor=LEVELS[-1])))


def _measure(name: str, method: Method[Any], race: Race) -> ComparisonRow:
    """Count the iterations to every level, then time runs of these lengths."""
    curve = race.curve(method).mean()
    iterations: list[int | None] = []
    seconds: list[float | None] = []
    for level in LEVELS:
        needed = int(curve.iterations_to(level))
        if needed < 0:
            iterations.append(None)
            seconds.append(None)
        else:
            iterations.append(needed)
            seconds.append(statistics.median(race.times(method, max(1, needed), REPEATS)))
    shown = Curve(name, curve.iterations, curve.seconds, curve.gaps)
    return ComparisonRow(name, tuple(iterations), tuple(seconds), shown)


def _words(rows: Sequence[ComparisonRow]) -> str:
    """Return a sentence: is the first method faster than the others, and does its map help?"""
    own, rival, *others = rows
    control = next((row for row in others if row.name.endswith(WITHOUT_MAP)), None)
    parts = [
        _against_rival(level, mine, theirs)
        for level, mine, theirs in zip(LEVELS, own.seconds, rival.seconds, strict=True)
    ]
    if control is not None:
        helps = _is_faster(own.iterations, control.iterations)
        parts.append("its map helps" if helps else "its map does not help")
    faster = [
        row.name for row in others if row is not control and _is_faster(row.seconds, own.seconds)
    ]
    if faster:
        parts.append(f"{' and '.join(faster)} would be faster")
    return f"{own.name} {'; '.join(parts)}."


def _against_rival(level: float, mine: float | None, theirs: float | None) -> str:
    if mine is None:
        return f"does not reach a gap of {level:g}"
    if theirs is None:
        return f"reaches a gap of {level:g} in {mine:.2g} s, which tuned PDHG does not reach"
    if mine > theirs:
        slower = f"takes {mine / theirs:.1f} times as long as tuned PDHG"
        return f"{slower} to reach a gap of {level:g}"
    return f"reaches a gap of {level:g} {theirs / mine:.1f} times as fast as tuned PDHG"


def _is_faster(one: Sequence[float | None], other: Sequence[float | None]) -> bool:
    """Return whether the first is faster to the lowest gap that at least one of them reaches."""
    for mine, theirs in zip(reversed(one), reversed(other), strict=True):
        if mine is None and theirs is None:
            continue
        return theirs is None or (mine is not None and mine < theirs)
    return False
