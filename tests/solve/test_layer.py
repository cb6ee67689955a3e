"""A solver as a layer: its derivatives against closed forms and finite differences."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent.domains import PositiveOrthant
from mirrordescent.methods import PDHG, ProjectedGradient

DOUBLE = torch.float64


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def test_ridge_regression_by_its_closed_form():
    """dx*/db of ½‖Ax − b‖² is the pseudoinverse of A."""
    A, b = data(6, 3), data(1, 6, seed=1).requires_grad_()
    problem = md.LeastSquares(A, b)
    x = md.layer(problem, md.GD(1 / problem.smoothness()), iterations=3000, last=1000)
    rows = torch.stack([torch.autograd.grad(x[0, i], b, retain_graph=True)[0][0] for i in range(3)])
    torch.testing.assert_close(rows, torch.linalg.pinv(A))


def test_total_variation_by_finite_differences():
    """With respect to the picture and to λ, through PDHG with its dual variables."""
    y, weight = data(1, 1, 3, 2).requires_grad_(), torch.tensor([0.3], dtype=DOUBLE, requires_grad=True)

    def solved(y, weight):
        return md.layer(md.TVInpainting(y, None, weight), PDHG(0.3), iterations=700, last=250)

    assert torch.autograd.gradcheck(solved, (y, weight), eps=1e-5, atol=1e-4, rtol=1e-3)


def test_constraints_that_are_active_pass_nothing_on():
    A, b = torch.eye(2, dtype=DOUBLE), torch.tensor([[1.0, -1.0]], dtype=DOUBLE, requires_grad=True)
    x = md.layer(md.LeastSquares(A, b, PositiveOrthant()), ProjectedGradient(PositiveOrthant(), 0.5), last=40)
    (gradient,) = torch.autograd.grad(x.sum(), b)
    torch.testing.assert_close(gradient, torch.tensor([[1.0, 0.0]], dtype=DOUBLE))


def test_inside_a_network():
    """The weight of a total variation is learned by a loss on its solutions."""
    clean = torch.zeros(1, 1, 8, 8, dtype=DOUBLE)
    clean[..., 2:6, 2:6] = 1
    noisy, log_weight = clean + 0.2 * data(1, 1, 8, 8), torch.tensor([-5.0], dtype=DOUBLE, requires_grad=True)
    optimiser, losses = torch.optim.Adam([log_weight], 0.3), []
    for _ in range(10):
        loss = (md.layer(md.TVInpainting(noisy, None, log_weight.exp()), PDHG(0.3)) - clean).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_counts_that_make_no_sense():
    with pytest.raises(ValueError, match="1 ≤ last ≤ iterations"):
        md.layer(md.LeastSquares(data(2, 2), data(1, 2)), md.GD(0.1), iterations=5, last=6)
