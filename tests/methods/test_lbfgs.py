"""L-BFGS in batches whose samples stop at different times."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent.methods import LBFGS
from mirrordescent.solving import Status, gradient_norm

DOUBLE = torch.float64


def bowls(*curvatures):
    A = torch.stack([torch.diag(torch.tensor(c, dtype=DOUBLE)) for c in curvatures])
    return md.Quadratic(A, torch.ones(2, dtype=DOUBLE))


@pytest.mark.parametrize("memory", [1, 3, 10])
def test_a_sample_that_stops_early_leaves_the_others_alone(memory):
    """Once this raised an error, because a frozen sample had fewer pairs than a running one."""
    x0 = torch.tensor([[3.0, -2.0]] * 2, dtype=DOUBLE)
    stop = gradient_norm(1e-8)
    method = LBFGS(memory)
    both = md.solve(
        bowls([1.0, 1.0], [1.0, 300.0]), method, x0, stop=stop, check_every=1, iterations=500
    )
    assert both.statuses == [Status.CONVERGED] * 2
    assert both.steps[0] < both.steps[1]
    alone = md.solve(bowls([1.0, 300.0]), method, x0[:1], stop=stop, check_every=1, iterations=500)
    assert torch.equal(both.x[1:], alone.x)
    assert both.steps[1:].tolist() == alone.steps.tolist()
    first = int(both.steps[0])
    frozen = md.solve(bowls([1.0, 1.0]), method, x0[:1], iterations=first, check_every=1)
    for pair, kept in zip(both.state.pairs, frozen.state.pairs, strict=True):
        assert torch.equal(pair.s[:1], kept.s)
        assert torch.equal(pair.rho[:1], kept.rho)


def test_certificates_of_batches_with_an_easy_sample():
    features = torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    problem = Smooth(features.mean(1))
    assert (md.certify(problem, 1e-8, cache=False).relative_gap <= 1e-8).all()


class Smooth(md.problems.Problem):
    """Σ log cosh(40(x − c)) + ½‖x‖², with c = 0 in the first sample, which starts there."""

    convex = True

    def __init__(self, centre):
        super().__init__(2, (3,), centre=centre * torch.tensor([[0.0], [5.0]], dtype=DOUBLE))

    def strong_convexity(self):
        return 1.0

    def value(self, x):
        return ((40 * (x - self.centre)).cosh().log() + x.square() / 2).sum(1)

    def grad(self, x):
        return 40 * (40 * (x - self.centre)).tanh() + x


@pytest.mark.parametrize("scale", [2.0**-60, 2.0**60])
def test_objectives_in_other_units_are_minimised_too(scale):
    """The first step is as long as it must be, whatever the size of the gradient."""
    problem = md.Function(lambda x: scale * ((x - 1).square() + (x - 1) ** 4).sum(1))
    x0 = torch.zeros(1, 3, dtype=DOUBLE)
    solution = md.solve(problem, LBFGS(), x0, iterations=60)
    torch.testing.assert_close(solution.x, torch.ones_like(x0), rtol=1e-6, atol=0)
