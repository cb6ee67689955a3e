"""Candidates that can be learned for a class of problems.

The first ones have schedules with the Euclidean geometry; the others also have mirror maps, with
more and more parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor

from mirrordescent.automatic.programs import POLISH, program_method
from mirrordescent.conditioning import ConditionalLaws
from mirrordescent.domains import Box, Domain, PositiveOrthant, Simplex, WholeSpace
from mirrordescent.execution.tv_images import pixels_of
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
from mirrordescent.problems.programs import QP
from mirrordescent.schedules import PowerLaws

PLAIN = "schedules"
KNOTS = 6  # knots of a learned spectrum, from the whole image to single pixels
LARGEST_MATRIX = 512  # number of entries of x up to which a full matrix is tried
SMALLEST_SPREAD = 1e-3  # features with a smaller standard deviation are ignored

Form: TypeAlias = Literal[
    "accelerated",
    "momentum",
    "steps",
    "primal-dual",
    "proximal",
    "admm",
    "active sets",
    "start",
    "start and active sets",
]
FOR_PROGRAMS: tuple[Form, ...] = ("admm", "active sets", "start", "start and active sets")
DUAL: tuple[Form, ...] = ("primal-dual", "proximal", *FOR_PROGRAMS)
Units: TypeAlias = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Candidate:
    """A method to learn: its mirror map, the form of its steps and the features it depends on.

    .. code-block:: none

        accelerated   AMD:   two points and two mirror steps; the fewest iterations
        momentum      ASMD:  y⁺ = y − s_k g,  x⁺ = w_k ∇ψ*(y⁺) + (1 − w_k) x;  one map per step
        steps         MD:    one map per step and nothing else; the fastest steps
        primal-dual   Condat and Vũ's method with momentum, for non-smooth f
        proximal      PDHG with momentum, if the rest of f has a prox
        admm          ADMM on a program, with a penalty for every inequality
        active sets   the same, with predictions of the active set
        start         ADMM with a learned start; also with predictions of the active set

    With a linear map, "momentum" is the heavy-ball method with a momentum and a step size for every
    iteration. On quadratics it contains Chebyshev's method, which is optimal. The form to use is
    chosen by measured time.

    Args:
        name: Name of the candidate.
        geometry: Makes the mirror map.
        form: Form of the steps.
        features: Features that schedules depend on, with their means and standard deviations.
    """

    name: str
    geometry: Callable[[], MirrorMap]
    form: Form = "accelerated"
    features: Units = field(default_factory=dict, hash=False)

    @property
    def plain(self) -> bool:
        """Whether only schedules are learned, with the Euclidean geometry."""
        return self.name.startswith(PLAIN)


def candidates(draw: Draw) -> list[Candidate]:
    """Return the candidates for some problems; those that learn only schedules come first."""
    domain = draw.problem.domain
    if isinstance(draw.problem, QP):
        return _program_candidates(draw.problem)
    plain = Candidate(PLAIN, lambda: Euclidean(domain))
    of_schedules = [
        plain,
        *variants_of(plain, draw),
        replace(plain, name=f"{PLAIN} of steps alone", form="steps"),
    ]
    if not isinstance(draw.x0, Tensor):
        return of_schedules
    shape = tuple(draw.x0.shape[1:])
    if isinstance(domain, WholeSpace):
        return of_schedules + _unconstrained_candidates(draw, shape)
    return of_schedules + _constrained_candidates(domain, shape)


def _program_candidates(problem: QP) -> list[Candidate]:
    name = "a penalty for every constraint"
    names: dict[Form, str] = {"admm": name}
    if not problem.sparse:
        names["start"] = f"{name} and a start"
    if not problem.cones:
        names["active sets"] = f"{name}, active sets"
    if not (problem.sparse or problem.cones):
        names["start and active sets"] = f"{name} and a start, active sets"
    return [Candidate(text, Euclidean, form=form) for form, text in names.items()]


def _unconstrained_candidates(draw: Draw, shape: tuple[int, ...]) -> list[Candidate]:
    chosen = [Candidate("a weight for every entry", lambda: Weighted(Euclidean(), shape))]
    if len(shape) == 3 and min(shape[-2:]) >= 4:
        chosen.append(Candidate("a spectrum", lambda: Spectral(cutoff=1.0, knots=KNOTS)))
        chosen.append(Candidate("a stencil", lambda: Stencil(0.5)))
        if features := informative_features(draw):
            conditional = Candidate(
                "a stencil by features", lambda: Stencil(_damping(features)), features=features
            )
            chosen.append(conditional)
    chosen.append(Candidate("a diagonal and a low rank", lambda: LowRankQuadratic(shape)))
    if math.prod(shape) <= LARGEST_MATRIX:
        chosen.append(Candidate("a full matrix", lambda: DenseQuadratic(shape)))
    return chosen


def _constrained_candidates(domain: Domain, shape: tuple[int, ...]) -> list[Candidate]:
    if isinstance(domain, Simplex):
        return [
            Candidate("entropy", SimplexEntropy),
            Candidate("weighted entropy", lambda: WeightedSimplexEntropy(shape[-1])),
        ]
    if isinstance(domain, PositiveOrthant):
        return [
            Candidate("hyperbolic entropy", OrthantEntropy),
            Candidate("weighted hyperbolic entropy", lambda: Weighted(OrthantEntropy(), shape)),
        ]
    if isinstance(domain, Box):
        bounds = (domain.lower, domain.upper)
        return [
            Candidate("logit", lambda: Logit(*bounds)),
            Candidate("weighted logit", lambda: Weighted(Logit(*bounds), shape)),
        ]
    return []


def variants_of(candidate: Candidate, draw: Draw) -> list[Candidate]:
    """Return candidates with the same geometry, but other steps or schedules of features."""
    variants = []
    if candidate.form == "accelerated":
        forms: list[Form] = ["momentum", *primal_dual_forms(draw.problem, candidate.geometry())]
        variants += [
            replace(candidate, name=f"{candidate.name}, {form}", form=form) for form in forms
        ]
    if not candidate.features and (features := informative_features(draw)):
        name = f"{candidate.name}, by features"
        variants.append(replace(candidate, name=name, features=features))
    return variants


def primal_dual_forms(problem: Problem, mirror: MirrorMap) -> list[Form]:
    """Return the primal-dual forms of steps for a problem and a map; none for smooth problems."""
    if problem.smoothness() != math.inf:
        return []
    saddle = problem.saddle_point()
    if saddle is None or not 0 < saddle.explicit().F_smoothness < math.inf:
        return []
    if _is_plain(mirror):
        return ["primal-dual", "proximal"] if saddle.proximable else ["primal-dual"]
    return ["primal-dual"] if mirror.linear else []


def _is_plain(mirror: MirrorMap) -> bool:
    return type(mirror) is Euclidean


@torch.no_grad()
def informative_features(draw: Draw) -> Units:
    """Return the features in which the problems of a batch differ: {name: (mean, deviation)}."""
    units = {}
    for name, values in draw.problem.features(cast(Tensor, draw.x0)).items():
        spread = float(values.double().std(correction=0))
        if spread > SMALLEST_SPREAD:
            units[name] = (float(values.double().mean()), spread)
    return units


def method_for(
    mirror: MirrorMap,
    problem: Problem,
    step: float,
    horizon: int,
    form: Form = "accelerated",
    features: Units | None = None,
) -> Method[Any]:
    """Return a method in which all schedules can be learned, as power laws of the iteration.

    It begins as the textbook method, with r = 3. If f is non-smooth and can be smoothed, the width
    of the smoothing is learned too; at first it decreases like 1/k.

    Args:
        mirror: Mirror map.
        problem: A problem of the class.
        step: First step size; for primal-dual methods, the ratio of the step sizes.
        horizon: Number of iterations that are unrolled.
        form: Form of the steps.
        features: Features that schedules depend on, with their means and standard deviations.
    """
    counts = sorted({2**i for i in range(horizon.bit_length()) if 2**i < horizon} | {horizon})
    law: Callable[..., PowerLaws] = partial(PowerLaws, counts)
    if features:
        law = partial(ConditionalLaws, counts, features=tuple(features), units=features)
    method: Method[Any]
    if form in FOR_PROGRAMS:
        relaxation = partial(law, bound=2.0)
        return program_method(
            problem,
            step,
            lambda value: relaxation([value] * len(counts)),
            polish=POLISH if "active sets" in form else 0,
            start="start" in form,
        )
    if form in DUAL:
        method = _primal_dual_method(mirror, step, form, law, len(counts))
    else:
        method = _gradient_method(mirror, step, form, law, counts)
        smoothing = _smoothing(problem, law, counts)
        if smoothing is not None:
            method = Equipped(method, smoothing)
    return Conditioned(method) if features else method


def _primal_dual_method(
    mirror: MirrorMap, ratio: float, form: Form, law: Callable[..., PowerLaws], count: int
) -> ScheduledPrimalDual:
    ones = [1.0] * count
    return ScheduledPrimalDual(
        law([ratio] * count),
        law(ones),
        law(ones),
        law([0.02] * count, bound=1.0),
        mirror=None if _is_plain(mirror) else mirror,
        implicit=form == "proximal",
    )


def _gradient_method(
    mirror: MirrorMap,
    step: float,
    form: Form,
    law: Callable[..., PowerLaws],
    counts: Sequence[int],
) -> GradientMethod[Any]:
    textbook_mixing = [float(Mixing(3.0)(k)) for k in counts]
    textbook_weight = [float(DualWeight(3.0, 1)(k)) for k in counts]
    t = law([step] * len(counts))
    mixing = law([min(0.95, each) for each in textbook_mixing], power=1.0, bound=1.0)
    weight = law([max(0.3, each) for each in textbook_weight], power=-1.0)
    if form == "steps":
        euclidean = isinstance(mirror, Euclidean)
        return MD(mirror, t) if mirror.linear or euclidean else SMD(mirror, t)
    if form == "momentum":
        return ASMD(mirror, t, mixing=mixing, dual_weight=weight)
    if mirror.linear or mirror.diagonal() is not None:
        # Both steps then use the same mapped gradient.
        return AMD(
            mirror, t, regulariser=mirror, storage="primal", mixing=mixing, dual_weight=weight
        )
    return AMD(mirror, t, mixing=mixing, dual_weight=weight)


def _smoothing(
    problem: Problem, law: Callable[..., PowerLaws], counts: Sequence[int]
) -> Oracle | None:
    """Return the oracle that smooths f, or None if f is smooth or cannot be smoothed.

    For images it is the oracle that the C kernels support.
    """
    if type(problem).smoothed_grad is Problem.smoothed_grad or problem.smoothness() != math.inf:
        return None
    widths = [0.1 / k for k in counts]
    if pixels_of(problem) is None or problem.kink is None:
        return Smoothed(law(widths, power=1.0))
    kink = float(torch.as_tensor(problem.kink).median())
    return Rounded(law([kink / width for width in widths], power=-1.0))


def _damping(features: Units) -> ConditionalLaws:
    """Return the damping of a stencil as a function of features."""
    return ConditionalLaws([1], [0.5], bound=1.0, features=tuple(features), units=features)


def parameter_count(method: Method[Any]) -> int:
    """Return the number of learned parameters of a method."""
    return sum(p.numel() for p in method.parameters() if p.requires_grad)
