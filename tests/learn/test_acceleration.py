"""Learning through acceleration: everything in a step of AMD is learned, by the right gradients."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import AMD
from mirrordescent.learn import (
    Descent,
    InpaintingFamily,
    Objective,
    Pooled,
    Settings,
    Validation,
    learn,
)
from mirrordescent.methods import Equipped
from mirrordescent.mirrors import Spectral, Stencil
from mirrordescent.oracles import Rounded
from mirrordescent.schedules import PowerLaws

COUNTS = [1, 2, 4]
STEP = 1e-6  # of difference quotients


def family(fill="alternate"):
    generator = torch.Generator().manual_seed(0)
    pictures = [
        torch.rand(3, 5, 6, generator=generator).repeat_interleave(4, 1).repeat_interleave(4, 2)
    ] * 2
    return Pooled(InpaintingFamily(pictures, pictures, size=12, fill=fill), 4, tolerance=1e-2)


def accelerated(mirror):
    method = AMD(
        mirror,
        PowerLaws(COUNTS, [0.3, 0.1, 0.05], power=1.0),
        regulariser=mirror,
        storage="primal",
        mixing=PowerLaws(COUNTS, [0.8, 0.6, 0.4], power=1.0, bound=1.0),
        dual_weight=PowerLaws(COUNTS, [2.0, 2.0, 3.0], power=-1.0),
    )
    return Equipped(method, Rounded(PowerLaws(COUNTS, [0.5, 2.0, 8.0], power=-1.0)))


@pytest.mark.parametrize("mirror", [Stencil(0.6), Spectral(0.5, 3)], ids=lambda m: type(m).__name__)
def test_meta_gradients_of_map_schedules_and_oracle(mirror):
    drawn = family().draw(torch.arange(3))
    problem = drawn.problem.double()
    x0 = drawn.x0.double()
    lower = drawn.lower.double()
    draw = type(drawn)(problem, x0, lower)
    method = accelerated(mirror).double()
    objective = Objective(weights="log_gap")

    def loss():
        return objective.losses(method, draw, 6, 0)[0].mean()

    gradients = torch.autograd.grad(loss(), list(method.parameters()))
    for (name, parameter), gradient in zip(method.named_parameters(), gradients, strict=True):
        assert gradient.abs().max() > 0, name
        with torch.no_grad():
            parameter.add_(STEP)
            ahead = loss()
            parameter.sub_(2 * STEP)
            behind = loss()
            parameter.add_(STEP)
        assert float((ahead - behind) / (2 * STEP)) == pytest.approx(
            float(gradient.sum()), rel=1e-3, abs=1e-5
        ), name


def test_what_was_learned_is_better_from_both_starts():
    method = accelerated(Stencil(0.6))
    objective = Objective(weights="log_gap")
    held_out = {fill: family(fill).validation(4) for fill in (False, True)}

    def losses():
        with torch.no_grad():
            return {
                fill: objective.losses(method, draw, 6, 0)[0].mean()
                for fill, draw in held_out.items()
            }

    before = losses()
    settings = Settings(
        meta_steps=25,
        batch=4,
        horizon=6,
        optimiser=Descent(learning_rate=5e-2),
        step_bounds=None,
        objective=objective,
        validation=Validation(every=25, horizons=(1.0,)),
    )
    learn(family(), method, settings, progress=False)
    after = losses()
    assert all(after[fill] < before[fill] - 1 for fill in before)
