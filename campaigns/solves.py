"""Random problems of all sizes and scales.

Statuses must be right, lower bounds must be valid, and samples of a batch must be independent.
"""

from __future__ import annotations

import warnings
from random import Random
from typing import Any

import torch
from torch import Tensor

import mirrordescent as md
from campaigns.tally import Tally
from mirrordescent import methods
from mirrordescent.methods import Method
from mirrordescent.mirrors import (
    Diagonal,
    HyperbolicEntropy,
    MirrorMap,
    PNorm,
    SquaredPNorm,
    Stencil,
)

BATCH_NOTE = (
    "the same bits, with maps that neither multiply by matrices nor convolve. torch rounds "
    "products differently for other batch sizes, so that other maps promise no equal bits and are "
    "not tried"
)
SCALES = (1.0, 1.0, 1.0, 1e-30, 1e-10, 1e-4, 1e4, 1e10, 1e30, 1e-310)
SHAPES = ((2, 1, 1, 1), (3, 1, 1, 5), (2, 3, 4, 6), (2, 1, 9, 8), (1, 1, 16, 16))
TV_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"isotropic": True},
    {"coupled": True},
    {"huber": 0.05},
)


def _random_images(random: Random, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    shape = random.choice(SHAPES)
    kind = random.choice(("random", "constant", "zero", "one pixel"))
    x = torch.rand(shape, generator=generator, dtype=torch.float64)
    if kind == "constant":
        x = torch.full_like(x, 0.7)
    elif kind == "zero":
        x = torch.zeros_like(x)
    elif kind == "one pixel":
        x = torch.zeros_like(x)
        x[..., 0, 0] = 1.0
    return (x * random.choice(SCALES)).to(dtype)


def _random_map(random: Random) -> MirrorMap:
    return random.choice(
        (Diagonal(2.0), PNorm(1.3), SquaredPNorm(1.5), HyperbolicEntropy(), Stencil(0.5))
    )


def _random_method(random: Random) -> Method[Any]:
    t = random.choice((1e-3, 0.05, 0.3))
    choices: list[Method[Any]] = [
        md.PDHG(),
        md.DualFISTA(),
        methods.CondatVu(),
        md.GD(t),
        md.Nesterov(t),
        md.Adam(t),
        md.MD(_random_map(random), t),
        md.SMD(_random_map(random), t),
        md.AMD(_random_map(random), t),
        methods.Certified(md.AMD(Diagonal(1.0), t)),
        methods.Safeguarded(md.AMD(Diagonal(1.0), t)),
        methods.Switch(md.AMD(Diagonal(1.0), t), 3, md.PDHG()),
    ]
    return random.choice(choices)


def _random_problem(random: Random, generator: torch.Generator) -> md.TVInpainting:
    dtype = random.choice((torch.float32, torch.float64))
    y = _random_images(random, generator, dtype)
    weight = random.choice((1e-3, 0.15, 3.0))
    mask = (torch.rand(y.shape[-2:], generator=generator) < 0.7).to(dtype)
    mask[0, 0] = 1.0
    options = random.choice(TV_OPTIONS)
    if random.random() < 0.5:
        return md.TVDenoising(y, weight, **options)
    return md.TVInpainting(y, mask, weight, **options)


def _with_images(problem: md.TVInpainting, y: Tensor) -> md.TVInpainting:
    """Return the same problem for other images, such as some of its own or in double precision."""
    options: dict[str, Any] = {
        name: getattr(problem, name) for name in ("isotropic", "coupled", "huber")
    }
    if isinstance(problem, md.TVDenoising):
        return md.TVDenoising(y, problem.weight, problem.scale, **options)
    mask = None
    if problem.mask is not None:
        mask = problem.mask.to(y.dtype)
    return md.TVInpainting(y, mask, problem.weight, problem.scale, **options)


def _upper_bound(problem: md.TVInpainting) -> Tensor:
    """Return values near the optimum, found by PDHG in double precision."""
    precise = _with_images(problem, problem.y.double())
    solution = md.solve(precise, md.PDHG(), iterations=400, progress=False)
    return torch.as_tensor(solution.best_value)


def run(tally: Tally) -> None:
    """Run the campaign."""
    warnings.simplefilter("ignore")
    tally.measure("alone and in a batch", BATCH_NOTE)
    for number in tally.cases():
        generator = torch.Generator().manual_seed(tally.seed * 10**6 + number)
        problem = _random_problem(tally.random, generator)
        method = _random_method(tally.random)
        method.to(problem.y.dtype)
        name = type(method).__name__
        try:
            solve_and_check(tally, problem, method, tally.random.choice((1, 7, 30)))
        except (ValueError, TypeError) as error:
            tally.note(name, f"refused, {type(error).__name__}")
        except Exception as error:
            tally.fault(f"{name}, {type(error).__name__}", error)


def solve_and_check(
    tally: Tally, problem: md.TVInpainting, method: Method[Any], iterations: int
) -> None:
    """Solve one batch, with or without kernels, and check the solution."""
    fused = tally.random.choice((None, False))
    solution = md.solve(problem, method, iterations=iterations, fused=fused, progress=False)
    name = type(method).__name__
    _check_statuses(tally, problem, name, solution)
    if solution.lower is not None:
        _check_bound(tally, problem, name, solution.lower.double())
    if isinstance(method, methods.Safeguarded):
        _check_safeguard(tally, problem, name, solution.value)
    x = torch.as_tensor(solution.x)
    if len(x) > 1 and tally.random.random() < 0.3:
        index = tally.random.randrange(len(x))
        single = _with_images(problem, problem.y[index : index + 1])
        alone = md.solve(single, method, iterations=iterations, fused=fused, progress=False)
        _check_independence(tally, method, torch.as_tensor(alone.x)[0], x[index])
    tally.note(name, "solved")


def _check_statuses(
    tally: Tally, problem: md.TVInpainting, name: str, solution: md.Solution
) -> None:
    """A sample with numbers that are not finite must have failed."""
    x = torch.as_tensor(solution.x)
    for i, status in enumerate(solution.statuses):
        finite = bool(x[i].isfinite().all()) and bool(solution.value[i].isfinite())
        if not finite and not status.failed:
            scale = problem.y.abs().max()
            description = f"{status} with a value of {solution.value[i]}, at scale {scale}"
            tally.fault(f"{name}, status", description)


def _check_bound(tally: Tally, problem: md.TVInpainting, name: str, lower: Tensor) -> None:
    """A lower bound must not exceed the optimum."""
    upper = _upper_bound(problem)
    wrong = (lower > upper * (1 + 1e-12) + 1e-300) & upper.isfinite()
    if bool(wrong.any()):
        kind = f"{problem.y.dtype}, {tuple(problem.y.shape)}"
        tally.fault(f"{name}, bound", f"{lower.tolist()} above {upper.tolist()}, {kind}")
    tally.note(name, "bound below the optimum")


def _check_safeguard(tally: Tally, problem: md.TVInpainting, name: str, value: Tensor) -> None:
    """A safeguarded method must not end above its start."""
    start = problem.value(problem.start())
    if bool((value > start * (1 + 1e-5)).any()):
        description = f"{value.tolist()} above the start {start.tolist()}"
        tally.fault(f"{name}, safeguard", description)


def _check_independence(tally: Tally, method: Method[Any], alone: Tensor, in_batch: Tensor) -> None:
    """A sample must have the same solution alone and in a batch."""
    name = type(method).__name__
    if torch.equal(alone.nan_to_num(), in_batch.nan_to_num()):
        tally.note(name, "the same alone")
        return
    size = max(float(in_batch.abs().max()), 1e-300)
    difference = float((alone - in_batch).abs().max()) / size
    description = f"differ by a share of {difference}, {tuple(in_batch.shape)}, {method.mirror}"
    tally.fault(f"{name}, neighbours", description)
