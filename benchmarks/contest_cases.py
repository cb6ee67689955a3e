"""The problems on which solvers race: total-variation restoration of photographs that nothing was
tuned on.

Every case has training problems of its own kind beside it, on which step sizes and the like are
chosen.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Generator, Tensor

from mirrordescent import PDHG, TVInpainting, data, gap, relative_gap, solve
from mirrordescent.contests.image_contests import clean_tiles

TRAINING = 4  # images to choose settings on, or half as many large ones
LARGE = 256
CERTIFIED = 1e-5  # to what relative gap lower bounds are proven
LONGEST = 60_000  # iterations that this may take
# block-shaped holes, lying and standing in turn
HOLES = 10
HOLE = (6, 80)
SOURCES = {"bsds500": "BSDS500", "stl10": "STL-10", "ellipses": "ellipses"}


@dataclass(frozen=True)
class Case:
    """A batch of problems of one kind, and how they are started and timed.

    ``missing`` is the share of pixels removed at random; None stands for block-shaped holes, and 0
    for denoising.
    """

    count: int
    side: int
    source: str = "bsds500"
    fill: bool = True
    missing: float | None = 0.2
    noise: float = 0.05
    weight: float = 0.15
    isotropic: bool = False
    threads: tuple[int, ...] = (1,)

    @property
    def inpainting(self) -> bool:
        """Whether pixels are missing."""
        return self.missing != 0

    @property
    def training(self) -> int:
        """The number of training problems."""
        return min(self.count, TRAINING if self.side < LARGE else TRAINING // 2)

    @property
    def title(self) -> str:
        """Describe the case in words: the task, the size, and all that is not as usual."""
        task = (
            "inpainting"
            if self.inpainting
            else "isotropic denoising, grey"
            if self.isotropic
            else "denoising"
        )
        words = [task, f"{self.count} × {self.side}² {SOURCES[self.source]}"]
        if self.inpainting:
            words.append("filled" if self.fill else "from y")
        if self.missing is None:
            words.append(f"{HOLES} holes of {HOLE[0]}×{HOLE[1]}")
        elif self.missing not in (0, Case.missing):
            words.append(f"{self.missing:.0%} missing")
        if self.noise != Case.noise:
            words.append(f"noise {self.noise:g}")
        if self.weight != Case.weight:
            words.append(f"λ = {self.weight:g}")
        return ", ".join(words)


CASES = (
    Case(16, 96, "stl10", fill=False),
    Case(16, 96, "stl10", threads=(1, 2)),
    Case(8, 256, fill=False),
    Case(8, 256),
    Case(16, 96),
    Case(1, 96, threads=(1, 2)),
    *(Case(8, 128, weight=weight) for weight in (0.005, 0.02, 0.05, 0.5, 1.5)),
    *(Case(8, 128, missing=missing) for missing in (0.5, 0.8, None)),
    *(Case(8, 128, noise=noise) for noise in (0.0, 0.2)),
    Case(8, 128, missing=0),
    Case(16, 96, "ellipses", missing=0),
    Case(8, 128, missing=0, isotropic=True),
    Case(1, 96, missing=0, isotropic=True),
    Case(8, 128, missing=0, isotropic=True, noise=0.02, weight=0.027),
)


def problems(case: Case, training: bool) -> TVInpainting:
    """Return the training or the test problems of a case."""
    count = case.training if training else case.count
    generator = Generator().manual_seed(7)
    if case.source == "ellipses":
        y = data.noisy_phantoms(count, case.side, seed=3 if training else 4)[1]
    else:
        clean = clean_tiles(count, case.side, training, None, case.source)
        clean = clean.repeat(-(-count // len(clean)), 1, 1, 1)[
            :count
        ]  # the same picture with other noise, if need be
        clean = clean.mean(1, keepdim=True) if case.isotropic else clean
        y = clean + case.noise * torch.randn(clean.shape, generator=generator)
    mask = mask_of(case, generator)
    return TVInpainting(
        y if mask is None else mask * y, mask, case.weight, isotropic=case.isotropic
    )


def mask_of(case: Case, generator: Generator) -> Tensor | None:
    """Return where pixels are observed, (side, side); None: everywhere."""
    if not case.inpainting:
        return None
    if case.missing is not None:
        return torch.rand(case.side, case.side, generator=generator) >= case.missing
    mask = torch.ones(case.side, case.side, dtype=torch.bool)
    for hole in range(HOLES):
        size = HOLE if hole % 2 else HOLE[::-1]
        top, left = (
            int(torch.randint(case.side - length + 1, (), generator=generator)) for length in size
        )
        mask[top : top + size[0], left : left + size[1]] = False
    return mask


def lower_bounds(problem: TVInpainting) -> Tensor:
    """Return bounds on the optimal values, by PDHG in double precision from y with its holes
    filled.
    """
    precise = copy.deepcopy(problem).double()
    x0 = precise.start(fill=True)
    found = solve(
        precise,
        PDHG(0.3, 1.8),
        x0,
        iterations=LONGEST,
        stop=gap(CERTIFIED),
        check_every=50,
        fused=True,
        progress=False,
    )
    assert found.lower is not None
    gaps = relative_gap(found.value, found.lower, precise.value(x0))
    if float(gaps.max()) > CERTIFIED:
        raise RuntimeError(
            f"the lower bounds are proven to a relative gap of {float(gaps.max()):.1e} only"
        )
    return found.lower


Bounded = tuple[TVInpainting, Tensor]


def prepared(case: Case) -> tuple[Bounded, Bounded]:
    """Return test and training problems, each with lower bounds; cases that differ in their start
    share them.
    """
    return _prepared(replace(case, fill=True, threads=(1,)))


@lru_cache(maxsize=1)
def _prepared(case: Case) -> tuple[Bounded, Bounded]:
    test, training = (problems(case, training) for training in (False, True))
    return (test, lower_bounds(test)), (training, lower_bounds(training))
