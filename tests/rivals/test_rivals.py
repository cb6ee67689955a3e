"""Every installed rival finds the minimum of problems that have its form."""

import numpy as np
import pytest
import torch

import mirrordescent as md
from mirrordescent.automatic.outside import Entry, OutsideResult
from mirrordescent.domains import Box, PositiveOrthant, Simplex
from mirrordescent.problems import L1
from mirrordescent.rivals import Rival, as_rival, known_rivals, program_of, quadratic_of

DOUBLE = torch.float64


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


class Markowitz(md.problems.Problem):
    """A quadratic function of a user, of which only value and gradient are known."""

    convex = True
    domain = Simplex()

    def __init__(self, R, m):
        super().__init__(len(R), m.shape[1:], R=R, m=m)

    def value(self, x):
        return 0.5 * torch.einsum("bij,bj->bi", self.R, x).square().mean(1) - (self.m * x).sum(1)

    def grad(self, x):
        product = torch.einsum("bij,bj->bi", self.R, x)
        return torch.einsum("bij,bi->bj", self.R, product) / self.R.shape[1] - self.m


LABELS = torch.tensor([1.0, -1.0], dtype=DOUBLE).repeat(20)
PROBLEMS = {
    "program": lambda: md.QP(
        torch.eye(4, dtype=DOUBLE),
        normal(3, 4),
        torch.cat([torch.ones(1, 4, dtype=DOUBLE), torch.eye(4, dtype=DOUBLE)]),
        torch.tensor([1.0, 0, 0, 0, 0], dtype=DOUBLE),
        torch.tensor([1.0, 0.5, 0.5, 0.5, 0.5], dtype=DOUBLE),
    ),
    "linear program": lambda: md.QP(
        None,
        normal(3, 4),
        torch.cat([torch.ones(1, 4, dtype=DOUBLE), torch.eye(4, dtype=DOUBLE)]),
        torch.tensor([1.0, 0, 0, 0, 0], dtype=DOUBLE),
        torch.tensor([1.0, 0.5, 0.5, 0.5, 0.5], dtype=DOUBLE),
    ),
    "portfolio": lambda: Markowitz(normal(3, 20, 5), normal(3, 5, seed=1)),
    "orthant": lambda: md.LeastSquares(normal(3, 9, 4), normal(3, 9), PositiveOrthant()),
    "box": lambda: md.LeastSquares(normal(3, 9, 4), normal(3, 9), Box(-0.1, 0.2)),
    "free": lambda: md.LeastSquares(normal(3, 9, 4), normal(3, 9)),
    "lasso": lambda: md.Composite(md.LeastSquares(normal(3, 9, 4), normal(3, 9)), [L1(0.5)]),
    "sparse logistic": lambda: md.Composite(
        md.LogisticRegression(normal(3, 40, 4), LABELS), [L1(0.02)]
    ),
    "transport": lambda: md.EntropicTransport(
        normal(3, 6, 8).square(), normal(3, 6, seed=1).square() + 0.1, torch.ones(8), 0.5
    ),
    "ridge logistic": lambda: md.LogisticRegression(normal(3, 40, 4), LABELS, ridge=0.1),
}
FITTING = {
    "program": {"DAQP", "OSQP", "Clarabel", "HiGHS", "SCS"},
    "linear program": {"DAQP", "OSQP", "Clarabel", "HiGHS", "PDLP", "SCS"},
    "portfolio": {"DAQP", "OSQP", "Clarabel", "HiGHS", "SCS", "SciPy trust-constr"},
    "orthant": {"DAQP", "OSQP", "Clarabel", "HiGHS", "SCS", "SciPy L-BFGS-B"},
    "box": {"DAQP", "OSQP", "Clarabel", "HiGHS", "SCS", "SciPy L-BFGS-B"},
    "free": {
        "DAQP", "OSQP", "Clarabel", "HiGHS", "SciPy L-BFGS-B", "batched Newton",
        "whitened Nesterov",
    },
    "lasso": {"DAQP", "OSQP", "Clarabel", "HiGHS", "SCS"},
    "sparse logistic": {"liblinear", "SAGA"},
    "transport": {
        "Sinkhorn", "POT", "POT in batches", "SciPy L-BFGS-B", "batched Newton",
        "whitened Nesterov",
    },
    "ridge logistic": {
        "liblinear", "SAGA", "SciPy L-BFGS-B", "batched Newton", "whitened Nesterov",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_rivals_fit_and_find_the_minimum(name):
    problem = PROBLEMS[name]()
    x0 = problem.start(3)
    best = md.solve(
        problem,
        md.ADMM() if isinstance(problem, md.QP) else md.FISTA(),
        x0,
        iterations=5000,
        progress=False,
    ).best_value
    tried = set()
    for rival in known_rivals():
        if not rival.installed:
            continue
        solve = rival.prepare(problem, x0)
        if solve is None:
            continue
        tried.add(rival.name)
        x = problem.domain.project(solve(rival.tolerances[-1]))
        gap = (problem.value(x) - best) / (problem.value(x0) - best)
        assert float(gap.abs().max()) < 1e-4, rival.name
    installed = {rival.name for rival in known_rivals() if rival.installed}
    assert tried == FITTING[name] & installed


def test_a_quadratic_form_is_read_off_gradients():
    R = normal(3, 20, 5)
    m = normal(3, 5, seed=1)
    problem = Markowitz(R, m)
    P, q = quadratic_of(problem, problem.start())
    expected = torch.einsum("bij,bik->bjk", R, R) / 20
    torch.testing.assert_close(torch.tensor(P), expected)
    torch.testing.assert_close(torch.tensor(q), -m)
    assert quadratic_of(PROBLEMS["ridge logistic"](), torch.zeros(3, 4, dtype=DOUBLE)) is None
    assert program_of(PROBLEMS["ridge logistic"](), torch.zeros(3, 4, dtype=DOUBLE)) is None


def test_functions_of_users_are_rivals():
    problem = md.Quadratic(torch.ones(2), torch.ones(3, 2))
    rival = as_rival(lambda problem, x0: problem.centre)
    assert torch.equal(rival.prepare(problem, problem.start())(0.0), torch.ones(3, 2))
    assert as_rival(rival) is rival
    with pytest.raises(TypeError, match="functions of a problem and its starts, got int"):
        as_rival(3)


def test_missing_packages_are_known():
    assert not Rival("none", lambda problem, x0: None, "no_such_package").installed
    assert Rival("own", lambda problem, x0: None).installed


def test_a_search_recommends_a_function_of_the_user_that_is_faster(tmp_path):
    """The centre of a bowl is known: no iteration can be faster than to look it up."""
    from mirrordescent.learn import Draw, ProblemFamily
    from mirrordescent.learn.families import generators

    class Bowls(ProblemFamily):
        def draw(self, seeds):
            centres = torch.stack([torch.rand(2, generator=each) for each in generators(seeds)])
            problem = md.Quadratic(torch.tensor([1.0, 20.0]), centres)
            return Draw(problem, problem.start(), torch.zeros(len(seeds)))

    def look_up(problem, x0):
        return problem.centre

    found = md.auto(Bowls(), minutes=0.02, out=tmp_path, batch=4, rivals=[look_up])
    assert found.words.startswith("Use look_up: ")
    assert found.outside.fastest(1e-2).name == "look_up"
    assert found.outside.fastest(1e-6).name == "look_up"
    assert set(found.outside.single) == {1e-2, 1e-6}
    page = (tmp_path / "my-problem.html").read_text()
    assert "Solvers of other packages" in page
    alone = md.auto(Bowls(), minutes=0.02, out=tmp_path, batch=4, rivals=None)
    assert alone.outside is None


def test_what_no_solver_reaches_is_said():
    entries = [Entry("POT", 1e-2, True, lambda: None, 6, 2e-3)]
    words = OutsideResult({1e-2: entries, 1e-6: []}, {}, 8, ["OSQP"]).words
    assert words == (
        "To 0.01, the fastest of all for 8 problems is POT (2 ms) (no solver solves more than 6 of "
        "them). No solver reaches 1e-06. Not installed, so not compared: OSQP."
    )


def test_sparse_programs_have_the_rivals_of_dense_ones():
    sp = pytest.importorskip("scipy.sparse")
    random = np.random.default_rng(0)
    A = random.normal(size=(6, 8)) * (random.random((6, 8)) < 0.5)
    P = np.diag(random.random(8))
    data = (random.normal(size=(3, 8)), -np.ones(6), np.ones(6))
    dense = md.QP(P, data[0], A, *data[1:])
    sparse = md.QP(sp.csr_matrix(P), data[0], sp.csr_matrix(A), *data[1:])
    for name in ("OSQP", "Clarabel"):
        rival = next(each for each in known_rivals() if each.name == name)
        if rival.installed:
            solutions = [rival.prepare(each, each.start(3))(1e-8) for each in (dense, sparse)]
            torch.testing.assert_close(*solutions)
