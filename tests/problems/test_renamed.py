"""Old names of problems and of hooks of terms and fits keep working, with a warning."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import L1, Composite, SquaredError, problems
from mirrordescent.problems.fits import Fit
from mirrordescent.problems.network_training import Initialisation
from mirrordescent.problems.operators import LinearOperator


@pytest.mark.parametrize("moved", [Fit, Initialisation, LinearOperator])
def test_names_that_left_the_package(moved):
    with pytest.warns(DeprecationWarning, match=rf"{moved.__module__}\.{moved.__name__}"):
        assert getattr(problems, moved.__name__) is moved


def old_term() -> type[L1]:
    class Old(L1):
        absorbs = True
        absorbs_constants = True

        def excess(self, u):
            return L1.dual_gauge(self, u)

        def absorb(self, w, one_sided):
            return L1.solve_adjoint(self, w, one_sided)

        def charge(self, w, level):
            return L1.residual_bound(self, w, level)

    return Old


def test_a_term_with_old_hooks_proves_the_same_bound():
    with pytest.warns(DeprecationWarning, match=r"Old\.\w+ was renamed to"):
        old = old_term()
    y = torch.tensor([[3.0, -0.5, 1.0]])
    x = torch.tensor([[2.0, 0.0, 0.5]])
    expected = Composite(SquaredError(y), [L1(1.0)]).bound_at(x)
    assert torch.equal(Composite(SquaredError(y), [old(1.0)]).bound_at(x), expected)
    assert old(2.0).height == old(2.0).scaled_weight == 2.0


def test_a_fit_with_old_hooks():
    with pytest.warns(DeprecationWarning, match="Old.slope was renamed to misfit_gradient"):

        class Old(SquaredError):
            def slope(self, z):
                return 2 * SquaredError.misfit_gradient(self, z)

    y = torch.ones(1, 2)
    assert torch.equal(Old(y).grad(torch.zeros(1, 2)), -2 * y)
