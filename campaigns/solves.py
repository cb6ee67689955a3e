"""Random problems of all sizes and scales: statuses are right, bounds are bounds, samples do not
disturb each other.
"""

from __future__ import annotations

import contextlib
import warnings
from random import Random
from typing import Any

import torch
from torch import Tensor

import mirrordescent as md
from campaigns.tally import Tally
from mirrordescent import kernels, methods
from mirrordescent.methods import Method
from mirrordescent.mirrors import (
    Diagonal,
    HyperbolicEntropy,
    MirrorMap,
    PNorm,
    SquaredPNorm,
    Stencil,
)

ALIKE = (
    "the same bits, with maps that neither multiply by matrices nor convolve; torch rounds "
    "products by the size of a "
    "batch, so that with others nothing of the kind is promised, and they are not tried here"
)
SCALES = (1.0, 1.0, 1.0, 1e-30, 1e-10, 1e-4, 1e4, 1e10, 1e30, 1e-310)


def _images(random: Random, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    shape = random.choice(((2, 1, 1, 1), (3, 1, 1, 5), (2, 3, 4, 6), (2, 1, 9, 8), (1, 1, 16, 16)))
    kind = random.choice(("random", "constant", "zero", "one pixel"))
    x = torch.rand(shape, generator=generator, dtype=torch.float64)
    if kind != "random":
        x = torch.full(shape, 0.0 if kind != "constant" else 0.7, dtype=torch.float64)
    if kind == "one pixel":
        x[..., 0, 0] = 1.0
    return (x * random.choice(SCALES)).to(dtype)


def _map(random: Random) -> MirrorMap:
    return random.choice(
        (Diagonal(2.0), PNorm(1.3), SquaredPNorm(1.5), HyperbolicEntropy(), Stencil(0.5))
    )


def _method(random: Random) -> Method[Any]:
    t = random.choice((1e-3, 0.05, 0.3))
    made: list[Method[Any]] = [
        md.PDHG(),
        md.DualFISTA(),
        methods.CondatVu(),
        md.GD(t),
        md.Nesterov(t),
        md.Adam(t),
        md.MD(_map(random), t),
        md.SMD(_map(random), t),
        md.AMD(_map(random), t),
        methods.Certified(md.AMD(Diagonal(1.0), t)),
        methods.Safeguarded(md.AMD(Diagonal(1.0), t)),
        methods.Switch(md.AMD(Diagonal(1.0), t), 3, md.PDHG()),
    ]
    return random.choice(made)


def _problem(random: Random, generator: torch.Generator) -> md.TVInpainting:
    dtype = random.choice((torch.float32, torch.float64))
    y = _images(random, generator, dtype)
    weight = random.choice((1e-3, 0.15, 3.0))
    mask = (torch.rand(y.shape[-2:], generator=generator) < 0.7).to(dtype)
    mask[0, 0] = 1.0
    forms: dict[str, Any] = random.choice(
        ({}, {}, {"isotropic": True}, {"coupled": True}, {"huber": 0.05})
    )
    made = md.TVDenoising(y, weight, **forms), md.TVInpainting(y, mask, weight, **forms)
    return random.choice(made)


def _like(problem: md.TVInpainting, y: Tensor) -> md.TVInpainting:
    """Return the problem with other images: some of its own, or the same in double precision."""
    forms: dict[str, Any] = {
        name: getattr(problem, name) for name in ("isotropic", "coupled", "huber")
    }
    if isinstance(problem, md.TVDenoising):
        return md.TVDenoising(y, problem.weight, problem.scale, **forms)
    mask = None if problem.mask is None else problem.mask.to(y.dtype)  # one for all images
    return md.TVInpainting(y, mask, problem.weight, problem.scale, **forms)


def _best(problem: md.TVInpainting) -> Tensor:
    """Return values near the optimum, found in double precision; an upper bound, whatever
    happens.
    """
    found = md.solve(_like(problem, problem.y.double()), md.PDHG(), iterations=400, progress=False)
    return torch.as_tensor(found.best_value)


def run(tally: Tally) -> None:
    """Solve."""
    warnings.simplefilter("ignore")
    with contextlib.suppress(kernels.BuildError):  # without a compiler there are none to be tried
        kernels.library()
    tally.measure("alone and in a batch", ALIKE)
    for number in tally.cases():
        generator = torch.Generator().manual_seed(tally.seed * 10**6 + number)
        problem = _problem(tally.random, generator)
        method = _method(tally.random)
        method.to(problem.y.dtype)
        name = type(method).__name__
        steps = tally.random.choice((1, 7, 30))
        try:
            one(tally, problem, method, name, steps)
        except (ValueError, TypeError) as error:
            tally.note(name, f"refused, {type(error).__name__}")
        except Exception as error:
            tally.fault(f"{name}, {type(error).__name__}", error)


def one(tally: Tally, problem: md.TVInpainting, method: Method[Any], name: str, steps: int) -> None:
    """Solve one batch, with kernels or without, and look at what came out."""
    fused = tally.random.choice((None, False))
    found = md.solve(problem, method, iterations=steps, fused=fused, progress=False)
    x = torch.as_tensor(found.x)
    statuses = found.statuses
    for i, status in enumerate(statuses):
        finite = bool(x[i].isfinite().all()) and bool(found.value[i].isfinite())
        if not finite and not status.failed:
            tally.fault(
                f"{name}, status",
                f"{status} with a value of {found.value[i]}, at scale {problem.y.abs().max()}",
            )
    if found.lower is not None:
        best = _best(problem)
        lower = found.lower.double()
        wrong = (lower > best * (1 + 1e-12) + 1e-300) & best.isfinite()
        if bool(wrong.any()):
            tally.fault(
                f"{name}, bound",
                (
                    f"{lower.tolist()} above {best.tolist()}, {problem.y.dtype}, "
                    f"{tuple(problem.y.shape)}"
                ),
            )
        tally.note(name, "bound below the optimum")
    if isinstance(method, methods.Safeguarded):
        start = problem.value(problem.start())
        value = found.value
        if bool((value > start * (1 + 1e-5)).any()):
            tally.fault(f"{name}, safeguard", f"{value.tolist()} above the start {start.tolist()}")
    if len(x) > 1 and tally.random.random() < 0.3:
        index = tally.random.randrange(len(x))
        single = _like(problem, problem.y[index : index + 1])
        alone = torch.as_tensor(
            md.solve(single, method, iterations=steps, fused=fused, progress=False).x
        )[0]
        if torch.equal(alone.nan_to_num(), x[index].nan_to_num()):
            tally.note(name, "the same alone")
        else:
            far = float((alone - x[index]).abs().max()) / max(float(x[index].abs().max()), 1e-300)
            tally.fault(
                f"{name}, neighbours",
                f"differ by a share of {far}, {tuple(x.shape)}, {method.mirror}",
            )
    tally.note(name, "solved")
