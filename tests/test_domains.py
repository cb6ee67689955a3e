"""Projections against their optimality condition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from mirrordescent.domains import Box, NegativeOrthant, PositiveOrthant, Simplex, WholeSpace

DOMAINS = [WholeSpace(), PositiveOrthant(), NegativeOrthant(), Box(-1.0, 0.5), Simplex()]


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda d: type(d).__name__)
@settings(max_examples=40)
@given(n=st.integers(1, 30), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 10**6))
def test_projection_satisfies_its_variational_inequality(domain, n, scale, seed):
    """P is the projection of x iff P is in the set and ⟨x − P, c − P⟩ ≤ 0 for all c in it."""
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(1, n, generator=generator, dtype=torch.float64)
    projected = domain.project(x)
    assert domain.contains(projected, closed=True).all()
    others = domain.project(scale * torch.randn(50, n, generator=generator, dtype=torch.float64))
    assert (((x - projected) * (others - projected)).sum(1) <= 1e-9 * (1 + scale) ** 2).all()


def test_interior_and_closure_differ_on_the_boundary():
    boundary = torch.tensor([[0.0, 1.0]])
    for domain in (PositiveOrthant(), Simplex(), Box(0.0, 1.0)):
        assert domain.contains(boundary, closed=True).all()
        assert not domain.contains(boundary).any()


def test_nan_is_outside():
    nan = torch.tensor([[float("nan"), 1.0]])
    for domain in (PositiveOrthant(), Simplex(), Box(0.0, 1.0)):
        assert not domain.contains(nan, closed=True).any()


def test_many_offenders_are_listed_briefly():
    with pytest.raises(ValueError, match=r"samples 0, 1, 2, 3, 4, 5, 6, 7, … 20 in all"):
        PositiveOrthant().require(-torch.ones(20, 1), "x0", "Burg()")


def test_projections_survive_huge_and_broken_entries():
    x = torch.tensor([[5e7, 0.0], [0.2, 0.3], [float("nan"), 1.0]])
    projected = Simplex().project(x)
    torch.testing.assert_close(projected[:2], torch.tensor([[1.0, 0.0], [0.45, 0.55]]))
    assert projected[2].isnan().any()


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda d: type(d).__name__)
def test_inner_points_are_inside(domain):
    assert domain.contains(domain.inner_point(torch.empty(2, 3))).all()
