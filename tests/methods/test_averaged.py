"""The ergodic average of Theorem 2."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import AMD, PDHG, SMD, Adam, Averaged, LeastSquares, TVDenoising, solve
from mirrordescent.mirrors import Euclidean, HyperbolicEntropy
from mirrordescent.oracles import Exact
from mirrordescent.schedules import RootReciprocal


@pytest.mark.parametrize(
    "method",
    [
        SMD(HyperbolicEntropy(1.0), RootReciprocal(0.02)),
        AMD(Euclidean(), RootReciprocal(0.01)),
        Adam(RootReciprocal(0.02)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_it_is_the_weighted_mean_of_the_answers(method):
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    b = torch.ones(6, dtype=torch.float64)
    problem = LeastSquares(A, b)
    x0 = torch.ones(2, 3, dtype=torch.float64)
    state = method.init(x0)
    answers = []
    for _ in range(12):
        answers.append(method.answer(state))
        state = method.step(problem, state, Exact())
    answers.append(method.answer(state))
    weights = torch.tensor([method.t(k) for k in range(1, 14)], dtype=torch.float64)
    expected = torch.einsum("k,kbn->bn", weights / weights.sum(), torch.stack(answers))
    averaged = solve(problem, Averaged(method), x0, iterations=12, check_every=5)
    torch.testing.assert_close(averaged.x, expected, rtol=1e-12, atol=1e-12)


def test_primal_dual_methods_can_be_averaged_with_given_weights():
    problem = TVDenoising(torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    solution = solve(problem, Averaged(PDHG(), weights=1.0), iterations=200)
    assert solution.lower is not None
    assert (
        solution.value - solution.lower <= 0.05 * (problem.value(problem.y) - solution.lower)
    ).all()
    with pytest.raises(ValueError, match="give weights="):
        Averaged(PDHG())
