"""Is a learned method any good? It runs against what one would use without it, on pictures of one's
own.
"""

import copy
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import torch
from torch import Generator, Tensor

from mirrordescent import zoo
from mirrordescent._internal.checks import require_not_negative, require_positive
from mirrordescent.data.image_files import random_crops
from mirrordescent.data.photo_collections import pictures
from mirrordescent.methods import PDHG, Method
from mirrordescent.mirrors import Euclidean, MirrorMap
from mirrordescent.mirrors.icnn import ConvICNN
from mirrordescent.problems.tv import TVDenoising, TVInpainting
from mirrordescent.references import certify
from mirrordescent.report import Curve, Page, Panel, Section, Table
from mirrordescent.restore.planning import Task
from mirrordescent.schedules import Schedule
from mirrordescent.solving import relative_gap, solve

LEVELS = (1e-2, 1e-3)
SHIPPED: dict[Task, tuple[str, ...]] = {
    "inpaint": ("image-tv", "photo-inpaint-stencil"),
    "denoise": ("image-tv", "ellipse-denoise-stencil"),
}
RATIOS = (0.1, 0.2, 0.35, 0.5, 0.8, 1.2)  # of PDHG's steps
SCALES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # of the control's steps
REPEATS = 3


@dataclass(frozen=True)
class Contestant:
    """How fast a method is: iterations and seconds to every level, None where it is not reached;
    and its curve.
    """

    name: str
    iterations: tuple[int | None, ...]
    seconds: tuple[float | None, ...]
    curve: Curve


@dataclass(frozen=True)
class Verdict:
    """The contestants, the learned one first, and what to make of them, in words."""

    contestants: tuple[Contestant, ...]
    words: str
    settings: Mapping[str, object]

    def table(self) -> Table:
        """Return iterations and times."""
        heads = [f"{what} to {level:g}" for level in LEVELS for what in ("iterations", "seconds")]
        rows = []
        for each in self.contestants:
            cells = [c for pair in zip(each.iterations, each.seconds, strict=True) for c in pair]
            rows.append(
                (each.name, *("never" if cell is None else f"{cell:.3g}" for cell in cells))
            )
        return Table(("method", *heads), rows)

    def page(self) -> Page:
        """Return it all as a page."""
        curves = [each.curve for each in self.contestants]
        sections = [
            Section("Verdict", self.table(), self.words),
            Section("Convergence", Panel(curves, "relative gap, mean over the pictures")),
        ]
        return Page(f"Is {self.contestants[0].name} any good?", self.words, sections, self.settings)


@torch.no_grad()
def compare(
    entry: str | Path,
    task: Task,
    images: str | Path = "bundled",
    *,
    count: int = 8,
    size: int = 96,
    weight: float = 0.15,
    noise: float = 0.05,
    missing: float = 0.2,
    iterations: int = 500,
    seed: int = 0,
) -> Verdict:
    """Run a learned method against tuned PDHG, the shipped entries, and itself without its map.

    Steps of PDHG, and of the control, which is the same method with the identity for a map, are
    tuned on the training pictures of the source; all are measured on its test pictures, to relative
    gaps of 1e-2 and 1e-3, on average.

    Args:
        entry: of the zoo, or a .safetensors file: a method.
        task: "inpaint" or "denoise".
        images: "bundled", a folder or an archive of pictures.
        count: how many squares are cut out of them.
        size: their side.
        weight: λ.
        noise: that is added to them.
        missing: share of the pixels that is removed for inpainting.
        iterations: the budget of every method.
        seed: decides what is cut out and removed, and the noise.
    """
    require_positive(count=count, size=size, weight=weight, iterations=iterations)
    require_not_negative(noise=noise)
    if not 0 <= missing < 1:
        raise ValueError(f"missing must be a share of the pixels, in [0, 1), got {missing}")
    method = zoo.load(entry)
    if not isinstance(method, Method):
        raise ValueError(
            f"{entry} is a {type(method).__name__}, not a method: there is nothing to run"
        )
    generator = Generator().manual_seed(seed)

    def drawn(split: str) -> TVInpainting:
        clean = random_crops(pictures(images, cast(Any, split)), size, count, generator)
        if {part.inputs for part in method.modules() if isinstance(part, ConvICNN)} == {1}:
            clean = clean.mean(1, keepdim=True)  # the map is for grey pictures
        y = clean + noise * torch.randn(clean.shape, generator=generator)
        if task == "denoise":
            return TVDenoising(y, weight)
        mask = torch.rand(count, 1, size, size, generator=generator) >= missing
        return TVInpainting(mask * y, mask, weight)

    training, test = (_Course(drawn(split), iterations) for split in ("train", "test"))
    name = Path(entry).stem
    field: dict[str, Method[Any]] = {name: method}
    field["PDHG, tuned"] = training.fastest(PDHG(ratio) for ratio in RATIOS)
    control = training.fastest(_controls(method))
    if control is not None:
        field[f"{name} without its map"] = control
    field |= {other: cast(Method[Any], zoo.load(other)) for other in SHIPPED[task] if other != name}
    found = tuple(test.run(label, each) for label, each in field.items())
    settings = {
        "problem": task,
        "pictures": images,
        "squares": f"{count} of {size}×{size}",
        "weight": weight,
        "noise": noise,
        "missing": missing if task == "inpaint" else 0,
        "iterations, at most": iterations,
    }
    return Verdict(found, _words(found), settings)


class _Course:
    """Problems with their optimal values, on which methods run."""

    def __init__(self, problem: TVInpainting, iterations: int) -> None:
        self.problem = problem
        self.iterations = iterations
        self.x0 = problem.start(fill=problem.mask is not None)
        self.lower = certify(problem, 1e-5).lower.to(self.x0)
        self.first = problem.value(self.x0)

    def gaps(self, method: Method[Any]) -> tuple[list[int], list[float], Tensor]:
        """Return iterations, seconds, and the mean of the relative gaps there."""
        recorded = sorted(
            {*range(0, min(60, self.iterations) + 1), *range(60, self.iterations + 1, 5)}
        )
        recorded = [k for k in recorded if k <= self.iterations]
        run = solve(
            self.problem,
            method,
            self.x0,
            iterations=self.iterations,
            trace=recorded,
            check_every=self.iterations,
            progress=False,
        )
        gaps = torch.stack(
            [relative_gap(values, self.lower, self.first) for values in run.trace.values]
        )
        return run.trace.iterations, run.trace.seconds, gaps.mean(1)

    def fastest(self, methods: Iterator[Method[Any]]) -> Any:
        """Return the one that comes nearest to the optimum on its way to the last level; None if
        there is none.
        """
        scored = [
            (self._score(self.gaps(method)[2]), index, method)
            for index, method in enumerate(methods)
        ]
        return min(scored)[2] if scored else None

    def _score(self, gaps: Tensor) -> float:
        return float(gaps.nan_to_num(1e9).clamp(min=LEVELS[-1]).log().mean())

    def run(self, name: str, method: Method[Any]) -> Contestant:
        """Count the iterations to every level, and time as many at one go."""
        iterations, seconds, gaps = self.gaps(method)
        reached = [
            next((k for k, gap in zip(iterations, gaps.tolist(), strict=True) if gap <= v), None)
            for v in LEVELS
        ]
        times = [None if k is None else self._time(method, max(1, k)) for k in reached]
        return Contestant(
            name, tuple(reached), tuple(times), Curve(name, iterations, seconds, gaps[:, None])
        )

    def _time(self, method: Method[Any], iterations: int) -> float:
        def once() -> float:
            began = perf_counter()
            solve(
                self.problem,
                method,
                self.x0,
                iterations=iterations,
                check_every=iterations,
                progress=False,
            )
            return perf_counter() - began

        return statistics.median(once() for _ in range(REPEATS))


def _controls(method: Method[Any]) -> Iterator[Method[Any]]:
    """Yield the method with the identity for a map and steps of several lengths; nothing if it has
    no map and steps.
    """
    if not isinstance(getattr(method, "mirror", None), MirrorMap) or not isinstance(
        getattr(method, "t", None), Schedule
    ):
        return
    for scale in SCALES:
        other = copy.deepcopy(method)
        other.mirror = Euclidean()
        other.t = _Scaled(cast(Any, method).t, scale)
        yield other


class _Scaled(Schedule):
    """Another schedule, times a number."""

    def __init__(self, inner: Schedule, scale: float) -> None:
        super().__init__()
        self.inner = inner
        self.scale = scale

    def forward(self, k: int) -> Any:
        return self.scale * self.inner(k)


def _words(contestants: Sequence[Contestant]) -> str:
    """Say which is faster, and whether the map is what makes it so."""
    own, *others = contestants
    rival = others[0]
    parts = []
    for level, mine, theirs in zip(LEVELS, own.seconds, rival.seconds, strict=True):
        if mine is None:
            parts.append(f"does not reach {level:g}")
        elif theirs is None:
            parts.append(f"reaches {level:g} in {mine:.2g} s, which tuned PDHG does not reach")
        else:
            factor = theirs / mine
            comparison = (
                f"{factor:.1f} times as fast as"
                if factor >= 1
                else f"{1 / factor:.1f} times as slow as"
            )
            parts.append(f"reaches {level:g} {comparison} tuned PDHG")
    control = next((each for each in others if each.name.endswith("without its map")), None)
    if control is not None:
        worth = _sooner(own.iterations, control.iterations)
        parts.append(
            "its map "
            + ("takes part in that" if worth else "does not help: without it, it is as fast")
        )
    better = [
        o.name
        for o in others
        if _sooner(o.seconds, own.seconds) and o is not rival and o is not control
    ]
    parts += [f"{' and '.join(better)} would be faster"] if better else []
    return f"{own.name} {'; '.join(parts)}."


def _sooner(one: Sequence[float | None], other: Sequence[float | None]) -> bool:
    """Tell whether one reaches the last level that either does before the other."""
    for mine, theirs in zip(reversed(one), reversed(other), strict=True):
        if mine is not None or theirs is not None:
            return theirs is None or (mine is not None and mine < theirs)
    return False
