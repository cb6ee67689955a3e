"""What can be learned for a class of problems: schedules with the plain geometry, then maps of
growing richness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor

from mirrordescent.conditioning import ConditionalLaws
from mirrordescent.domains import Box, PositiveOrthant, Simplex, WholeSpace
from mirrordescent.learn.families import Draw
from mirrordescent.methods import (
    AMD,
    ASMD,
    MD,
    SMD,
    Conditioned,
    Equipped,
    GradientMethod,
    Method,
    ScheduledPrimalDual,
)
from mirrordescent.methods.accelerated import DualWeight, Mixing
from mirrordescent.mirrors import (
    Euclidean,
    Logit,
    MirrorMap,
    OrthantEntropy,
    SimplexEntropy,
    Spectral,
    Stencil,
)
from mirrordescent.mirrors.dense import DenseQuadratic, LowRankQuadratic
from mirrordescent.mirrors.weighted import Weighted, WeightedSimplexEntropy
from mirrordescent.oracles import Oracle, Rounded, Smoothed
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import PowerLaws

PLAIN = "schedules"
KNOTS = 6  # of the spectrum of a map, from the whole image to single pixels
SMALL = 512  # entries, up to which a full matrix is tried
FELT = 1e-3  # a feature that varies less than this over a batch tells nothing

Form: TypeAlias = Literal["accelerated", "momentum", "steps", "primal-dual", "proximal"]
DUAL: tuple[Form, ...] = ("primal-dual", "proximal")
Units: TypeAlias = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Candidate:
    """What can be learned: a map, and how it is made; the form of the steps; and what schedules
    depend on.

    .. code-block:: none

        accelerated   AMD:   two points, two mirror steps, and a mean of them: the fewest iterations
        momentum      ASMD:  one map a step, y⁺ = y − s_k g,  x⁺ = w_k ∇ψ*(y⁺) + (1 − w_k) x
        steps         MD:    one map a step and nothing else: the quickest steps
        primal-dual   Condat and Vũ's method with momentum: where f has kinks, which it need not round
        proximal      PDHG with momentum: where the rest of f has a prox

    For a linear map the second is the heavy ball with a momentum and a step length of every count's
    own, which on quadratics may become Chebyshev's method, the best there is. What a form is worth,
    the clock decides.
    """

    name: str
    geometry: Callable[[], MirrorMap]
    form: Form = "accelerated"
    features: Units = field(default_factory=dict, hash=False)

    @property
    def plain(self) -> bool:
        """Whether only schedules are learned."""
        return self.name.startswith(PLAIN)


def candidates(draw: Draw) -> list[Candidate]:
    """Return those that fit the domain and the shape of the points, the plain geometry first."""
    domain = draw.problem.domain
    shape = _shape(draw)
    plain = Candidate(PLAIN, lambda: Euclidean(domain))
    found = [
        plain,
        *forms_of(plain, draw),
        replace(plain, name=f"{PLAIN} of steps alone", form="steps"),
    ]
    if shape is None:
        return found
    if isinstance(domain, WholeSpace):
        found.append(Candidate("a weight for every entry", lambda: Weighted(Euclidean(), shape)))
        if len(shape) == 3 and min(shape[-2:]) >= 4:
            found.append(Candidate("a spectrum", lambda: Spectral(cutoff=1.0, knots=KNOTS)))
            found.append(Candidate("a stencil", lambda: Stencil(0.5)))
            if told := telling(draw):
                found.append(
                    Candidate(
                        "a stencil by features", lambda: Stencil(_damping(told)), features=told
                    )
                )
        found.append(Candidate("a diagonal and a low rank", lambda: LowRankQuadratic(shape)))
        if math.prod(shape) <= SMALL:
            found.append(Candidate("a full matrix", lambda: DenseQuadratic(shape)))
    if isinstance(domain, Simplex):
        found.append(Candidate("entropy", SimplexEntropy))
        found.append(Candidate("weighted entropy", lambda: WeightedSimplexEntropy(shape[-1])))
    if isinstance(domain, PositiveOrthant):
        found.append(Candidate("hyperbolic entropy", OrthantEntropy))
        found.append(
            Candidate("weighted hyperbolic entropy", lambda: Weighted(OrthantEntropy(), shape))
        )
    if isinstance(domain, Box):
        found.append(Candidate("logit", lambda: Logit(domain.lower, domain.upper)))
        found.append(
            Candidate("weighted logit", lambda: Weighted(Logit(domain.lower, domain.upper), shape))
        )
    return found


def forms_of(candidate: Candidate, draw: Draw) -> list[Candidate]:
    """Return the same geometry with steps of other forms, and with schedules that depend on what
    problems tell.
    """
    found = []
    if candidate.form == "accelerated":
        found.append(replace(candidate, name=f"{candidate.name}, momentum", form="momentum"))
        dual = dual_forms(draw.problem, candidate.geometry())
        found += [replace(candidate, name=f"{candidate.name}, {form}", form=form) for form in dual]
    if not candidate.features and (told := telling(draw)):
        found.append(replace(candidate, name=f"{candidate.name}, by features", features=told))
    return found


def dual_forms(problem: Problem, mirror: MirrorMap) -> list[Form]:
    """Return the primal-dual forms of steps that fit, where f has kinks; with a map, which has to
    be linear, one.
    """
    saddle = problem.saddle_point() if problem.smoothness() == math.inf else None
    if saddle is None or not 0 < saddle.explicit().F_smoothness < math.inf:
        return []
    if _plain(mirror):
        return ["primal-dual", "proximal"] if saddle.proximable else ["primal-dual"]
    return ["primal-dual"] if mirror.linear else []


def _plain(mirror: MirrorMap) -> bool:
    return type(mirror) is Euclidean


@torch.no_grad()
def telling(draw: Draw) -> Units:
    """Return the names of the features by which the problems of a batch differ, with their means
    and spreads.
    """
    told = draw.problem.features(cast(Tensor, draw.x0)).items()
    found = {
        name: (float(values.double().mean()), float(values.double().std(correction=0)))
        for name, values in told
    }
    return {name: (mean, spread) for name, (mean, spread) in found.items() if spread > FELT}


def method_for(
    mirror: MirrorMap,
    problem: Problem,
    step: float,
    horizon: int,
    form: Form = "accelerated",
    features: Units | None = None,
) -> Method[Any]:
    """Return a method with all its numbers to be learned: t, λ and the dual weight, by powers of k.

    It begins as the method of the textbooks, with r = 3. Where f has kinks that can be rounded, the
    rounding is learned too: its width falls like 1/k at first. Of a primal-dual method ``step`` is
    the ratio.
    """
    counts = sorted({2**i for i in range(horizon.bit_length()) if 2**i < horizon} | {horizon})
    law: Callable[..., PowerLaws] = partial(PowerLaws, counts)
    if features:
        law = partial(ConditionalLaws, counts, features=tuple(features), units=features)
    if form in DUAL:
        begin = [1.0] * len(counts)
        numbers = (
            law([step] * len(counts)),
            law(begin),
            law(begin),
            law([0.02] * len(counts), bound=1.0),
        )
        dual: Method[Any] = ScheduledPrimalDual(
            *numbers, mirror=None if _plain(mirror) else mirror, implicit=form == "proximal"
        )
        return Conditioned(dual) if features else dual
    classical = [(float(Mixing(3.0)(k)), float(DualWeight(3.0, 1)(k))) for k in counts]
    t = law([step] * len(counts))
    mixing = law([min(0.95, each) for each, _ in classical], power=1.0, bound=1.0)
    weight = law([max(0.3, each) for _, each in classical], power=-1.0)
    method: GradientMethod[Any]
    if form == "accelerated" and (mirror.linear or mirror.diagonal() is not None):
        # One map of the gradient then serves both steps.
        method = AMD(
            mirror, t, regulariser=mirror, storage="primal", mixing=mixing, dual_weight=weight
        )
    elif form == "accelerated":
        method = AMD(mirror, t, mixing=mixing, dual_weight=weight)
    elif form == "momentum":
        method = ASMD(mirror, t, mixing=mixing, dual_weight=weight)
    else:
        method = (MD if mirror.linear or isinstance(mirror, Euclidean) else SMD)(mirror, t)
    rounding = _rounding(problem, law, counts)
    method = method if rounding is None else Equipped(method, rounding)
    return Conditioned(method) if features else method


def _rounding(
    problem: Problem, law: Callable[..., PowerLaws], counts: Sequence[int]
) -> Oracle | None:
    """Return the oracle that rounds kinks, if there are any: in the form that kernels know, where
    there are some.
    """
    if type(problem).smoothed_grad is Problem.smoothed_grad or problem.smoothness() != math.inf:
        return None
    widths = [0.1 / k for k in counts]
    if problem.pixels() is None or problem.kink is None:
        return Smoothed(law(widths, power=1.0))
    kink = float(torch.as_tensor(problem.kink).median())
    return Rounded(law([kink / width for width in widths], power=-1.0))


def _damping(features: Units) -> ConditionalLaws:
    """Return the number of a stencil as a function of features: one geometry for every problem."""
    return ConditionalLaws([1], [0.5], bound=1.0, features=tuple(features), units=features)


def _shape(draw: Draw) -> tuple[int, ...] | None:
    return tuple(draw.x0.shape[1:]) if isinstance(draw.x0, Tensor) else None


def numbers(method: Method[Any]) -> int:
    """Return how many numbers a method has learned."""
    return sum(p.numel() for p in method.parameters() if p.requires_grad)
