"""Norms of matrices are computed once, not at every step."""

import pytest
import torch

import mirrordescent as md
from mirrordescent.problems import L1, Matrix

STEPS = 50


def _normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


CASES = {
    "game": lambda: (md.MatrixGame(_normal(3, 6, 5)), md.PDHG(1.0)),
    "logistic regression": lambda: (
        md.Composite(md.LogisticRegression(_normal(3, 20, 5), torch.ones(3, 20)), [L1(0.1)]),
        md.CondatVu(1.0),
    ),
    "least squares": lambda: (
        md.Composite(md.LeastSquares(_normal(3, 8, 5), _normal(3, 8)), [L1(0.1)]),
        md.CondatVu(1.0),
    ),
    "quadratic": lambda: (
        md.Composite(md.Quadratic(torch.eye(5), _normal(3, 5)), [L1(0.1)]),
        md.CondatVu(1.0),
    ),
    "matrix": lambda: (
        md.Composite(md.SquaredError(_normal(3, 8), Matrix(_normal(8, 5))), [L1(0.1)]),
        md.CondatVu(1.0),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_steps_do_not_decompose_matrices(case, monkeypatch):
    problem, method = case()
    state = method.init(problem.start(), problem)
    calls = []

    def counted(function):
        def call(*args, **kwargs):
            calls.append(function.__name__)
            return function(*args, **kwargs)

        return call

    for name in ("matrix_norm", "eigh", "svd", "svdvals", "eigvalsh"):
        monkeypatch.setattr(torch.linalg, name, counted(getattr(torch.linalg, name)))
    for _ in range(STEPS):
        state = method.step(problem, state, md.oracles.Exact())
    assert len(calls) <= 6, calls


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_changed_matrix_has_another_norm(case):
    problem, _ = case()
    part = getattr(problem, "smooth", problem)
    measure = getattr(part, "smoothness", None)
    if problem.__class__ is md.MatrixGame:
        before = problem.K_norm
        problem.A.mul_(2)
        assert problem.K_norm == pytest.approx(2 * before)
        return
    before = measure()
    data = next(part.buffers())
    data.mul_(2)
    factor = {"Quadratic": 2, "SquaredError": 1}.get(type(part).__name__, 4)
    assert measure() == pytest.approx(factor * before, rel=1e-6)
