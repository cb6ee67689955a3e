"""The solve loop: statuses, freezing, looks, traces, memory, errors."""

from __future__ import annotations

import gc
from typing import ClassVar

import pytest
import torch

from mirrordescent import (
    AMD,
    GD,
    MD,
    PDHG,
    SMD,
    SVM,
    Adam,
    DomainError,
    DualFISTA,
    Function,
    LeastSquares,
    ProjectedGradient,
    Quadratic,
    Status,
    TVDenoising,
    TVInpainting,
    gap,
    gradient_norm,
    relative_change,
    solve,
    solving,
    wall_clock,
)
from mirrordescent.domains import Simplex
from mirrordescent.mirrors import Burg, Diagonal, Euclidean, Logit, NegativeEntropy, SimplexEntropy
from mirrordescent.oracles import Minibatch, Noisy
from mirrordescent.trees import is_finite


def bowl(*curvatures):
    """One bowl ½c‖x‖² per sample."""
    A = torch.stack([c * torch.eye(2, dtype=torch.float64) for c in curvatures])
    return Quadratic(A, torch.zeros(2, dtype=torch.float64))


ONES = torch.ones(3, 2, dtype=torch.float64)


def test_converged_budget_and_diverged():
    solution = solve(
        bowl(1.0, 1e-4, 1e3), GD(0.5), ONES, iterations=60, stop=gradient_norm(1e-6), check_every=1
    )
    assert solution.statuses == [Status.CONVERGED, Status.BUDGET, Status.DIVERGED]
    assert not solution.ok
    assert torch.equal(solution.x[2], ONES[2])  # nothing better was seen than the start


def test_non_finite_and_left_domain():
    explode = Function(lambda x: (x**4).sum(-1))
    solution = solve(explode, GD(10.0), torch.full((1, 1), 10.0), iterations=50, check_every=50)
    assert solution.statuses == [Status.NON_FINITE]
    assert solution.x.isfinite().all()
    falling = Function(lambda x: -x.sum(-1))
    for method in (
        MD(Burg(), 0.3),
        SMD(Burg(), 0.3),
    ):  # y grows by 0.3 a step and passes 0 at the fourth
        solution = solve(falling, method, torch.ones(1, 1), iterations=10, check_every=1)
        assert solution.statuses == [Status.LEFT_DOMAIN]
        assert solution.steps.tolist() == [4]
        assert float(solution.x) == pytest.approx(
            10, rel=1e-3
        )  # the last iterate inside: 1/(1 − 0.9)


@pytest.mark.parametrize(
    "method",
    [GD(0.3), AMD(Euclidean(), 0.3), SMD(Diagonal(1.0).double(), 0.3), Adam(0.05)],
    ids=lambda m: type(m).__name__,
)
def test_a_bad_sample_never_changes_its_neighbours(method):
    good = solve(bowl(1.0, 0.5, 2.0), method, ONES, iterations=40, check_every=7)
    mixed = solve(bowl(1.0, 1e9, 2.0), method, ONES, iterations=40, check_every=7)
    if not isinstance(method, Adam):
        assert mixed.statuses[1].failed
    for sample in (0, 2):
        assert torch.equal(good.x[sample], mixed.x[sample])
        assert torch.equal(good.trace.values[:, sample], mixed.trace.values[:, sample])
        assert good.statuses[sample] == mixed.statuses[sample]


def test_a_frozen_sample_keeps_its_numbers():
    problem = bowl(1.0, 0.01, 0.1)
    method = AMD(Euclidean(), 0.5)
    whole = solve(problem, method, ONES, iterations=100, stop=gradient_norm(0.02), check_every=1)
    first = int(whole.steps[0])
    assert whole.steps.min() < whole.steps.max()
    alone = solve(problem, method, ONES, iterations=first, check_every=1)
    assert torch.equal(whole.x[0], alone.x[0])
    assert torch.equal(whole.state.z[0], alone.state.z[0])
    assert (whole.trace.values[first:, 0] == whole.value[0]).all()


@pytest.mark.parametrize("method", [PDHG(0.5), DualFISTA()], ids=lambda m: type(m).__name__)
def test_primal_dual_states_freeze_too(method):
    y = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y[0] = 0.5  # already optimal
    problem = TVDenoising(y)
    solution = solve(
        problem, method, y, iterations=400, stop=gap(1e-5, lower=torch.zeros(2)), check_every=10
    )
    assert solution.steps.tolist() == [0, 400]
    assert solution.statuses[0] is Status.CONVERGED


def test_the_best_iterate_is_kept():
    problem = bowl(1.0)

    def steps(k):
        return 0.5 if k < 5 else 2.2  # good steps first, then ever worse ones

    solution = solve(problem, GD(steps), ONES[:1], iterations=12, check_every=1, diverge_factor=1e9)
    assert solution.best_value.item() == solution.trace.values.min().item() < solution.value.item()
    assert problem.value(solution.best_x).item() == solution.best_value.item()


def test_looks_and_traces():
    seen = []

    def record(look):
        return seen.append(look.k)

    solution = solve(
        bowl(1.0),
        GD(0.1),
        ONES[:1],
        iterations=25,
        check_every=10,
        trace=[0, 3, 25],
        callbacks=[record],
    )
    assert seen == [0, 10, 20, 25]
    assert solution.trace.iterations == [0, 3, 25]
    for k in (0, 3, 25):  # GD on ½‖x‖² multiplies x by 0.9
        assert solution.trace.at(k).item() == pytest.approx(0.9 ** (2 * k), rel=1e-12)
    with pytest.raises(KeyError, match="iteration 10 was not recorded"):
        solution.trace.at(10)
    spaced = solve(bowl(1.0), GD(0.1), ONES[:1], iterations=1000, trace=10).trace
    assert spaced.iterations[0] == 0
    assert spaced.iterations[-1] == 1000
    assert len(spaced.iterations) == 10
    assert spaced.seconds == sorted(spaced.seconds)


def test_recording_changes_nothing():
    problem = Quadratic(torch.tensor([1.0, 0.01]), torch.zeros(2))
    rule = relative_change(1e-2)
    runs = [
        solve(problem, GD(1.0), torch.ones(1, 2), iterations=1000, stop=rule, trace=trace)
        for trace in (None, 20, [61])
    ]
    assert len({int(run.steps) for run in runs}) == 1
    assert all(torch.equal(run.x, runs[0].x) for run in runs)


def test_a_run_that_stops_early_still_has_its_trace():
    solution = solve(bowl(1.0), GD(0.5), ONES[:1], stop=gradient_norm(1e-3), trace=[0, 1000])
    assert solution.trace.iterations == [0, 1000]
    assert solution.trace.at(1000) == solution.value


def test_a_point_outside_is_never_the_best():
    problem = LeastSquares(
        torch.eye(2, dtype=torch.float64), torch.tensor([[-3.0, 3.0]], dtype=torch.float64)
    )
    method = AMD(NegativeEntropy(), 0.5, regulariser=Euclidean())  # leaves the orthant
    solution = solve(problem, method, ONES[:1], iterations=50, check_every=1)
    assert solution.statuses == [Status.LEFT_DOMAIN]
    assert (solution.x > 0).all()
    assert (solution.best_x > 0).all()


def test_the_domain_of_a_problem_is_kept_to():
    problem = LeastSquares(torch.eye(3), torch.full((1, 3), 5.0), domain=Simplex())
    assert solve(problem, GD(0.1), iterations=20).statuses == [Status.LEFT_DOMAIN]
    assert solve(problem, ProjectedGradient(Simplex(), 0.1), iterations=20).ok
    with pytest.raises(DomainError, match="x0 is outside the domain of LeastSquares"):
        solve(problem, GD(0.1), torch.full((1, 3), -7.0))


@pytest.mark.parametrize(
    "make", [lambda t: ProjectedGradient(Simplex(), t), lambda t: AMD(SimplexEntropy(), t)]
)
def test_a_sample_that_explodes_on_the_simplex_leaves_the_others_alone(make):
    problem = LeastSquares(
        torch.stack([torch.eye(3), 1e9 * torch.eye(3)]), torch.tensor([[1.0, 0.0, 0.0]] * 2)
    )
    x0 = torch.full((2, 3), 1 / 3)
    both = solve(problem, make(0.5), x0, iterations=20)
    alone = solve(
        LeastSquares(torch.eye(3), torch.tensor([[1.0, 0.0, 0.0]])),
        make(0.5),
        x0[:1],
        iterations=20,
    )
    torch.testing.assert_close(both.x[:1], alone.x)


def test_stop_rules():
    problem = bowl(1.0, 0.1, 0.01)
    x0 = ONES
    by_norm = solve(problem, GD(0.5), x0, iterations=5000, stop=gradient_norm(1e-3), check_every=1)
    assert (problem.grad(by_norm.x).norm(dim=1) <= 1e-3).all()
    before = by_norm.x / torch.tensor([[0.5], [0.95], [0.995]], dtype=torch.float64)
    assert (problem.grad(before).norm(dim=1) > 1e-3).all()

    by_gap = solve(problem, GD(0.5), x0, iterations=5000, stop=gap(1e-2, lower=0.0), check_every=1)
    assert (by_gap.value <= 1e-2 * problem.value(x0)).all()
    assert by_gap.statuses == [Status.CONVERGED] * 3

    by_change = solve(problem, GD(0.5), x0, iterations=9, stop=relative_change(0.06), check_every=1)
    assert by_change.statuses == [Status.BUDGET, Status.CONVERGED, Status.CONVERGED]

    timed = solve(problem, GD(1e-6), x0, iterations=10**7, stop=wall_clock(0.05), check_every=100)
    assert timed.statuses == [Status.BUDGET] * 3
    assert 0.05 <= timed.seconds < 2

    either = solve(
        problem,
        GD(0.5),
        x0,
        iterations=5000,
        stop=[gradient_norm(1e-3), gap(0.5, lower=0.0)],
        check_every=1,
    )
    assert (either.steps <= by_norm.steps).all()


def test_gap_needs_a_bound():
    unknown = Function(lambda x: x.square().sum(-1))
    with pytest.raises(ValueError, match="neither GD nor Function gives one"):
        solve(unknown, GD(0.1), ONES[:1], iterations=5, stop=gap(0.1))
    found = solve(bowl(1.0), GD(0.1), ONES[:1], iterations=500, stop=gap(0.1))
    assert found.statuses == [Status.CONVERGED], "the problem proves its minimum"
    for rule in (gap, gradient_norm, relative_change, wall_clock):
        with pytest.raises(ValueError, match="must be > 0"):
            rule(0.0)


def test_randomness_is_explicit_and_repeatable():
    generator = torch.Generator().manual_seed(0)
    problem = SVM(
        torch.randn(50, 3, generator=generator), torch.randn(50, generator=generator).sign()
    )

    def run(seed):
        return solve(
            problem,
            SMD(Euclidean(), 0.1),
            iterations=20,
            oracle=Noisy(0.1, Minibatch(10)),
            generator=torch.Generator().manual_seed(seed),
        ).x

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


def test_memory_does_not_grow_with_iterations():
    class Counting(GD):
        alive: ClassVar[list[int]] = []

        def update(self, state, grad):
            if state.k % 100 == 99:
                gc.collect()
                self.alive.append(sum(type(o) is torch.Tensor for o in gc.get_objects()))
            return super().update(state, grad)

    method = Counting(0.1)
    solve(bowl(1.0), method, ONES[:1].requires_grad_(), iterations=500, trace=[0, 500])
    assert max(method.alive) - min(method.alive) <= 10  # two looks lie between the counts


def test_no_graph_is_kept():
    x0 = torch.ones(1, 2, requires_grad=True)
    solution = solve(
        Function(lambda x: x.square().sum(-1)),
        MD(Diagonal(torch.nn.Parameter(torch.ones(2))), 0.1),
        x0,
    )
    assert not solution.x.requires_grad
    assert solution.x.grad_fn is None


def test_progress_is_shown_when_asked_for(capsys):
    solve(bowl(1.0), GD(0.1), ONES[:1], iterations=10, progress=True)
    assert "solving" in capsys.readouterr().err
    solve(bowl(1.0), GD(0.1), ONES[:1], iterations=10)
    assert capsys.readouterr().err == ""


def test_the_summary_can_be_read():
    text = str(solve(bowl(1.0, 1e9), GD(0.1), ONES[:2], iterations=10))
    assert "2 problems" in text
    assert "1 budget" in text
    assert "1 diverged" in text or "1 non finite" in text


def test_bad_arguments_are_named():
    problem = bowl(1.0, 2.0, 3.0)
    method = GD(0.1)
    cases = [
        (
            lambda: solve(problem, method, ONES, iterations=0),
            ValueError,
            "iterations must be a whole number",
        ),
        (
            lambda: solve(problem, method, ONES, iterations=10.0),
            ValueError,
            "iterations must be a whole number",
        ),
        (lambda: solve(problem, method, [1.0, 2.0]), TypeError, "x0 must be a tensor or a dict"),
        (
            lambda: solve(problem, method, {"a": ONES}),
            TypeError,
            "x0 must be a tensor for Quadratic",
        ),
        (
            lambda: solve(problem, AMD(Euclidean(), 0.1, regulariser=Logit()), 5 * ONES),
            DomainError,
            "Logit",
        ),
        (lambda: solve(problem, method, ONES, check_every=0), ValueError, "check_every"),
        (lambda: solve(problem, method, ONES, trace=1), ValueError, "trace"),
        (
            lambda: solve(problem, method, ONES, trace=[5000]),
            ValueError,
            "trace must name iterations",
        ),
        (
            lambda: solve(problem, method, ONES[:2]),
            ValueError,
            r"\(3, 2\) for Quadratic, got \(2, 2\)",
        ),
        (lambda: solve(problem, method, ONES[:, :1]), ValueError, "x0 must have shape"),
        (
            lambda: solve(problem, method, ONES.float()),
            TypeError,
            r"x0 is torch.float32, but the data of Quadratic",
        ),
        (lambda: solve(problem, method, ONES.long()), TypeError, "floating-point"),
        (lambda: solve(problem, method, ONES * float("nan")), ValueError, "x0 has NaN"),
        (lambda: solve(problem, method, ONES[:0]), ValueError, "non-empty leading batch"),
        (
            lambda: solve(problem, MD(Diagonal(torch.ones(2)), 0.1), ONES),
            TypeError,
            "mirror.d of MD is torch.float32",
        ),
        (
            lambda: solve(problem, MD(NegativeEntropy(), 0.1), -ONES),
            DomainError,
            "x0 is outside .* NegativeEntropy",
        ),
        (lambda: solve(problem, method, ONES, oracle=Noisy(0.1)), ValueError, "pass generator"),
        (lambda: solve(Function(lambda x: x), method, {}), ValueError, "empty dict"),
        (
            lambda: solve(Function(lambda x: x), method, {"a": ONES, "b": ONES[:1]}),
            ValueError,
            "must have the same batch size",
        ),
        (lambda: AMD(Euclidean(), 0.1, r=2.9), ValueError, "r ≥ 3"),
        (
            lambda: AMD(Euclidean(), 0.1, storage="both"),
            ValueError,
            "storage must be one of 'primal', 'dual'",
        ),
        (lambda: PDHG(0.0), ValueError, "ratio"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()


def test_everything_runs_on_the_device(device):
    y = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(device)
    problem = TVInpainting(y, torch.eye(8, device=device))
    for method in (GD(0.1), AMD(Euclidean(), 0.1), PDHG()):
        assert solve(problem, method, iterations=5).x.device.type == device.type


def test_the_old_name_of_a_snapshot_warns():
    with pytest.warns(DeprecationWarning, match="Look was renamed to .*Snapshot"):
        assert solving.Look is solving.Snapshot


def test_an_overflowing_sum_of_finite_numbers_is_finite():
    large = torch.full((3, 4), torch.finfo(torch.float32).max)
    large[1, 2] = torch.inf
    large[2, 0] = torch.nan
    assert is_finite(large).tolist() == [True, False, False]
    assert is_finite({"a": torch.ones(2, 3), "b": torch.zeros(2)}).tolist() == [True, True]
    assert is_finite(torch.tensor([[torch.inf, -torch.inf], [1.0, 2.0]])).tolist() == [False, True]
