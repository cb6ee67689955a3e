"""What can be learned for a class of problems: schedules with the plain geometry, then maps of growing richness."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mirrordescent.domains import Box, PositiveOrthant, Simplex, WholeSpace
from mirrordescent.learn.families import Draw
from mirrordescent.methods import AMD, Equipped, Method
from mirrordescent.methods.accelerated import DualWeight, Mixing
from mirrordescent.mirrors import Euclidean, Logit, MirrorMap, OrthantEntropy, SimplexEntropy, Stencil
from mirrordescent.mirrors.dense import DenseQuadratic, LowRankQuadratic
from mirrordescent.mirrors.weighted import Weighted, WeightedSimplexEntropy
from mirrordescent.oracles import Smoothed
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import PowerLaws

PLAIN = "schedules"
SMALL = 512  # entries, up to which a full matrix is tried


@dataclass(frozen=True)
class Candidate:
    """What can be learned: a map in words, and how it is made."""

    name: str
    geometry: Callable[[], MirrorMap]


def candidates(draw: Draw) -> list[Candidate]:
    """Return those that fit the domain and the shape of the points, the plain geometry first."""
    domain, shape = draw.problem.domain, _shape(draw)
    found = [Candidate(PLAIN, lambda: Euclidean(domain))]
    if shape is None:
        return found
    if isinstance(domain, WholeSpace):
        found.append(Candidate("a weight for every entry", lambda: Weighted(Euclidean(), shape)))
        if len(shape) == 3 and min(shape[-2:]) >= 4:
            found.append(Candidate("a stencil", lambda: Stencil(0.5)))
        found.append(Candidate("a diagonal and a low rank", lambda: LowRankQuadratic(shape)))
        if math.prod(shape) <= SMALL:
            found.append(Candidate("a full matrix", lambda: DenseQuadratic(shape)))
    if isinstance(domain, Simplex):
        found.append(Candidate("entropy", SimplexEntropy))
        found.append(Candidate("weighted entropy", lambda: WeightedSimplexEntropy(shape[-1])))
    if isinstance(domain, PositiveOrthant):
        found.append(Candidate("hyperbolic entropy", OrthantEntropy))
        found.append(Candidate("weighted hyperbolic entropy", lambda: Weighted(OrthantEntropy(), shape)))
    if isinstance(domain, Box):
        found.append(Candidate("logit", lambda: Logit(domain.lower, domain.upper)))
        found.append(Candidate("weighted logit", lambda: Weighted(Logit(domain.lower, domain.upper), shape)))
    return found


def method_for(mirror: MirrorMap, problem: Problem, step: float, horizon: int) -> Method[Any]:
    """Return accelerated mirror descent with all its numbers to be learned: t, λ and the dual weight, by powers of k.

    It begins as the method of the textbooks, with r = 3. Where f has kinks that can be rounded, the width of the
    rounding is learned too, and falls like 1/k at first.
    """
    counts = sorted({2**i for i in range(horizon.bit_length()) if 2**i < horizon} | {horizon})
    mixing, weight = Mixing(3.0), DualWeight(3.0, 1)
    method = AMD(
        mirror,
        PowerLaws(counts, [step] * len(counts)),
        regulariser=mirror if mirror.linear else None,
        storage="primal" if mirror.linear else "dual",
        mixing=PowerLaws(counts, [min(0.95, float(mixing(k))) for k in counts], power=1.0, bound=1.0),
        dual_weight=PowerLaws(counts, [max(0.3, float(weight(k))) for k in counts], power=-1.0),
    )
    if type(problem).smoothed_grad is Problem.smoothed_grad:
        return method
    widths = [0.1 / k for k in counts]
    return Equipped(method, Smoothed(PowerLaws(counts, widths, power=1.0)))


def _shape(draw: Draw) -> tuple[int, ...] | None:
    return tuple(draw.x0.shape[1:]) if isinstance(draw.x0, Tensor) else None


def numbers(method: Method[Any]) -> int:
    """Return how many numbers a method has learned."""
    return sum(p.numel() for p in method.parameters() if p.requires_grad)
