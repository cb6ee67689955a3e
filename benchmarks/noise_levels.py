"""Estimate the noise of photographs, and compare with the noise that was added.

The photographs are squares of the validation photographs of BSDS500, or whole photographs, grey and
colour, with white noise of 2, 3, 5, 10 and 20 %, as PNG files or JPEG files. The noise of a file is
the root mean square of its difference from the photograph without noise, compressed in the same
way. An estimate counts as right if it is within 15 % of the noise of a plain file, or within 25 %
of the noise of a JPEG file. Estimates that `estimate_noise` calls uncertain count as wrong, and
their share is shown. The last table shows what is estimated if there is no noise.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.measure import Row, about, quick, table, verdict
from mirrordescent import data
from mirrordescent.recipes.noise_estimator import (
    NoisyCase,
    compressed_case,
    plain_case,
    to_grey,
)
from mirrordescent.restore import estimate_noise
from mirrordescent.restore.noise import Noise
from mirrordescent.restore.weight import NEGLIGIBLE

SIDES = (48, 64, 96, 128, 160, None)  # None: the whole photograph
NOISES = (0.02, 0.03, 0.05, 0.1, 0.2)
QUALITIES = (60, 75, 85, 95)
SUBSAMPLINGS = {"4:4:4": 0, "4:2:0": 2}
SMALLEST = 64  # side from which on targets count
VISIBLE = 0.02  # noise from which on estimates should be certain
PLAIN_ERROR = 0.15
JPEG_ERROR = 0.25
PLAIN_SHARE = 0.95
JPEG_SHARE = 0.8
UNCERTAIN_SHARE = 0.05


@dataclass(frozen=True)
class Setting:
    """A kind of file.

    Args:
        side: Side of the squares, or None for whole photographs.
        grey: Whether photographs are grey.
        quality: Quality of JPEG, or None for plain files.
        subsampling: Resolution of the colours in JPEG files.
    """

    side: int | None
    grey: bool
    quality: int | None = None
    subsampling: str = "4:4:4"

    def case(self, photo: Tensor, sigma: float, seed: int) -> NoisyCase:
        """Return a noisy file of a photograph."""
        clean = to_grey(photo) if self.grey else photo
        chance = random.Random(seed)
        if self.side is not None:
            top = chance.randrange(clean.shape[1] - self.side + 1)
            left = chance.randrange(clean.shape[2] - self.side + 1)
            clean = clean[:, top : top + self.side, left : left + self.side]
        generator = torch.Generator().manual_seed(seed)
        if self.quality is None:
            return plain_case(clean, sigma, generator)
        subsampling = SUBSAMPLINGS[self.subsampling]
        return compressed_case(clean, sigma, self.quality, subsampling, generator)


@dataclass(frozen=True)
class Score:
    """Cases of one row: the noise, and the estimate."""

    cases: Sequence[tuple[float, Noise]]
    error: float

    def right(self) -> float:
        """Return the share of estimates that are certain and right."""
        right = [
            found.certain and abs(found.level / noise - 1) <= self.error
            for noise, found in self.cases
        ]
        return sum(right) / len(right)

    def uncertain(self) -> float:
        """Return the share of uncertain estimates among cases with visible noise."""
        visible = [found for noise, found in self.cases if noise > VISIBLE]
        return sum(not found.certain for found in visible) / max(1, len(visible))


def estimate(case: NoisyCase) -> Noise:
    """Estimate the noise of a file."""
    return estimate_noise(case.image[None], compression=[case.compression])[0]


def score(photographs: list[Tensor], settings: Sequence[Setting], error: float) -> Score:
    """Estimate the noise of files, with a photograph and a noise level at a time."""
    cases = []
    seed = 0
    for index, photo in enumerate(photographs):
        for sigma in NOISES:
            seed += 1
            case = settings[(index + seed) % len(settings)].case(photo, sigma, seed)
            cases.append((case.noise, estimate(case)))
    return Score(cases, error)


def rows(photographs: list[Tensor]) -> Iterator[Row]:
    """Yield the rows of all kinds of files, then the totals."""
    totals: dict[str, list[Score]] = {"plain": [], "JPEG": []}
    for side in SIDES:
        for grey in (True, False):
            for kind in totals:
                if kind == "plain":
                    settings = [Setting(side, grey)]
                else:
                    settings = [
                        Setting(side, grey, quality, subsampling)
                        for quality in QUALITIES
                        for subsampling in SUBSAMPLINGS
                    ]
                found = score(photographs, settings, PLAIN_ERROR if kind == "plain" else JPEG_ERROR)
                if side is None or side >= SMALLEST:
                    totals[kind].append(found)
                size = "whole" if side is None else f"{side}×{side}"
                yield (*_row(f"{kind}, {'grey' if grey else 'colour'}, {size}", found), "", "")
    for kind, scores in totals.items():
        together = Score([case for each in scores for case in each.cases], scores[0].error)
        share = PLAIN_SHARE if kind == "plain" else JPEG_SHARE
        met = together.right() >= share and together.uncertain() <= UNCERTAIN_SHARE
        yield (
            *_row(f"all {kind} files of {SMALLEST}×{SMALLEST} and above", together),
            f"≥ {share:.0%}, ≤ {UNCERTAIN_SHARE:.0%}",
            verdict(met),
        )


def _row(name: str, found: Score) -> Row:
    errors = sorted(abs(each.level / noise - 1) for noise, each in found.cases)
    median = errors[len(errors) // 2]
    return name, f"{found.right():.1%}", f"{found.uncertain():.1%}", f"{median:.1%}"


def clean_rows(photographs: list[Tensor]) -> Iterator[Row]:
    """Yield what is estimated of photographs without noise."""
    for name, setting in {
        "plain, colour, 160×160": Setting(160, grey=False),
        "plain, grey, 160×160": Setting(160, grey=True),
        "JPEG of quality 90, colour, 160×160": Setting(160, False, 90, "4:2:0"),
        "JPEG of quality 75, colour, 160×160": Setting(160, False, 75, "4:2:0"),
    }.items():
        found = [estimate(setting.case(photo, 0.0, 7)) for photo in photographs]
        none = sum(each.certain and each.level < NEGLIGIBLE for each in found) / len(found)
        uncertain = sum(not each.certain for each in found) / len(found)
        worst = max((each.level for each in found if each.certain), default=0.0)
        yield name, f"{none:.0%}", f"{uncertain:.0%}", f"{worst:.3f}"


def main() -> str:
    """Measure."""
    photographs = data.bsds500("val")[: 4 if quick() else None]
    header = ("files", "right", "cannot tell", "median error", "target", "")
    second = ("files without noise", "called clean", "cannot tell", "largest certain estimate")
    return (
        f"{about(__doc__)}\n{table(header, rows(photographs))}\n"
        f"{table(second, clean_rows(photographs))}"
    )


if __name__ == "__main__":
    print(main())
