"""A search keeps its time, survives errors of users, and says what its numbers mean."""

import math
import re
import time

import pytest
import torch
from scipy.stats import beta

import mirrordescent as md
from mirrordescent._internal.progress import ProgressBar
from mirrordescent.automatic.attempts import limited
from mirrordescent.automatic.classical import race_classical_solvers, typical_step
from mirrordescent.automatic.guarantees import least_share, tail_of
from mirrordescent.automatic.outcome import attribution
from mirrordescent.automatic.time_plan import TimePlan
from mirrordescent.automatic.training import CandidateTraining
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.bounds import bounds_within
from mirrordescent.learn.families import generators
from mirrordescent.methods import NeverWorse, WithinRange
from mirrordescent.racing import Race, Timing, best_setting, clock_for, speedup, time_in_turn
from mirrordescent.references import certify


def game(batch=2, size=30):
    """A game whose proof to 1e-9 takes long."""
    return md.MatrixGame(torch.randn(batch, size, size, generator=torch.Generator().manual_seed(0)))


def test_certification_keeps_its_time_and_counts_estimates():
    problem = game()
    began = time.perf_counter()
    bounds = bounds_within(problem, problem.start(), 1e-9, seconds=1.0)
    assert time.perf_counter() - began < 4.0
    assert bounds.estimated == 2
    assert bounds.conditions is None
    proven = certify(problem, 1e-3, cache=False)
    scale = (proven.start_value - proven.lower).abs()
    # How good an estimate is depends on the speed of the machine.
    assert bool(((bounds.lower - proven.lower).abs() <= 0.1 * scale).all())


def test_without_a_limit_bounds_are_proven():
    problem = game()
    bounds = bounds_within(problem, problem.start(), 1e-2)
    assert bounds.estimated == 0
    assert bounds.conditions == []


class Fragile(md.Quadratic):
    """A gradient that raises an error far from the solution, as decompositions do."""

    def grad(self, x):
        if float(x.abs().max()) > 3:
            raise RuntimeError("cholesky: the input is not positive-definite")
        return super().grad(x)


class FragileFamily(ProblemFamily):
    def draw(self, seeds):
        centres = torch.stack([torch.rand(2, generator=each) for each in generators(seeds)])
        problem = Fragile(torch.tensor([1.0, 20.0]), centres)
        return Draw(problem, problem.start(), torch.zeros(len(seeds)))


class Bowls(ProblemFamily):
    def draw(self, seeds):
        centres = torch.stack([torch.rand(2, generator=each) for each in generators(seeds)])
        problem = md.Quadratic(torch.tensor([1.0, 20.0]), centres)
        return Draw(problem, problem.start(), torch.zeros(len(seeds)))


def test_an_error_at_one_setting_disqualifies_that_setting():
    draw = FragileFamily().draw(torch.arange(3))
    said = []
    found = race_classical_solvers(Race(draw, 1e-2, 200), typical_step(draw), said.append)
    assert any("disqualified: RuntimeError: cholesky" in line for line in said)
    assert min(each.rehearsal.seconds for each in found) < math.inf


def test_a_search_survives_errors_of_a_gradient(tmp_path):
    found = md.auto(FragileFamily(), minutes=0.02, out=tmp_path, batch=4)
    assert found.classical.unseen.solved == 8


def test_a_learned_solver_says_when_it_is_done(tmp_path):
    found = md.auto(Bowls(), minutes=0.02, out=tmp_path, batch=4)
    card = md.zoo.card(found.file)
    assert card.use["accuracy"] == 1e-2
    assert card.use["iterations"] >= 1
    problem = Bowls().draw(torch.arange(5)).problem
    method = md.zoo.load(found.file)
    solution = md.solve(problem, method, stop=md.gap(1e-2), iterations=500, check_every=5)
    assert set(solution.statuses) == {md.Status.CONVERGED}
    gaps = solution.value / problem.value(problem.start())
    assert float(gaps.max()) <= 1e-2
    if found.speedup is not None:
        assert found.speedup.low <= found.speedup.median <= found.speedup.high
        factors = attribution(found.contestants, found.classical, found.learned)
        ratio = found.classical.unseen.seconds / found.learned.unseen.seconds
        if factors and math.isfinite(math.prod(factors.values())):
            assert math.prod(factors.values()) == pytest.approx(ratio)


def test_gap_asks_the_problem_if_a_learned_method_proves_nothing():
    problem = Bowls().draw(torch.arange(3)).problem
    method = WithinRange(md.GD(0.05), md.GD(0.04), {})
    solution = md.solve(problem, method, stop=md.gap(1e-2), iterations=500, check_every=5)
    assert solution.statuses == [md.Status.CONVERGED] * 3


def test_estimates_are_far_below_the_start_even_without_time():
    """An estimate near f(x₀) would make every point look optimal."""
    A = torch.randn(2, 20, 4, generator=torch.Generator().manual_seed(0))
    signs = torch.ones(2, 20)
    signs[:, ::2] = -1
    problem = md.LogisticRegression(A, signs)  # neither strongly convex nor on a bounded set
    bounds = bounds_within(problem, problem.start(), 1e-4, seconds=0.0)
    assert bounds.estimated == 2
    best = md.solve(problem, md.FISTA(), iterations=300, progress=False).best_value
    decrease = problem.value(problem.start()) - best
    assert bool(((bounds.lower - best).abs() <= 1e-2 * decrease).all())


def test_settings_are_tried_until_the_time_is_over_and_one_is_good():
    tried = []

    def cost(setting):
        tried.append(setting)
        return {1: 100.0, 2: 5.0}.get(setting, 1.0)

    limit = limited(cost, time.perf_counter() - 1, unsolved=50.0)
    assert best_setting([1, 2, 3, 4], limit) == 2
    assert tried == [1, 2]
    assert best_setting([1, 2, 3], limited(cost, math.inf)) == 3


def test_a_race_gives_no_more_iterations_to_a_method_that_would_take_too_long():
    draw = Bowls().draw(torch.arange(2))
    enough = md.GD(1e-4)  # needs a few hundred iterations
    assert Race(draw, 0.5, 10_000).run(enough).solved == 2
    race = Race(draw, 0.5, 10_000, patience=0.0)
    assert race.run(enough).solved == 0


def test_the_bar_follows_the_clock_while_problems_are_solved(capsys, monkeypatch):
    monkeypatch.setattr("mirrordescent._internal.progress.FIRST_LINE", 0.0)
    monkeypatch.setattr("mirrordescent._internal.progress.INTERVAL", 0.0)
    monkeypatch.setattr("mirrordescent.automatic.time_plan.TICK", 0.0)
    problem = Bowls().draw(torch.arange(2)).problem
    with ProgressBar("searching", 100, True, estimate=False) as bar:
        plan = TimePlan(1e-9, bar)
        with plan.stage("certifying", 1e-9):
            md.solve(problem, md.GD(0.01), iterations=3, progress=False)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 3
    assert all("certifying" in line for line in lines)


def test_gap_stops_methods_without_bounds_where_the_problem_has_some():
    A = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    problem = md.LeastSquares(A, torch.ones(2, 8, dtype=torch.float64))
    solution = md.solve(problem, md.GD(0.02), stop=md.gap(1e-3), iterations=5000, check_every=10)
    assert solution.statuses == [md.Status.CONVERGED] * 2
    least = problem.value(torch.linalg.lstsq(A, problem.b[..., None]).solution[..., 0])
    assert bool((solution.lower <= least + 1e-12).all())
    gaps = (solution.value - least) / (problem.value(problem.start()) - least)
    assert float(gaps.max()) <= 1e-3


class Slow(md.Quadratic):
    """Every evaluation sleeps, so that the search has to save evaluations."""

    def value(self, x):
        time.sleep(5e-4)
        return super().value(x)

    def grad(self, x):
        time.sleep(5e-4)
        return super().grad(x)


class SlowFamily(ProblemFamily):
    def draw(self, seeds):
        centres = torch.stack([torch.rand(6, generator=each) for each in generators(seeds)])
        problem = Slow(torch.logspace(0, 2, 6), centres)
        return Draw(problem, problem.start())


def test_a_search_on_slow_problems_ends_in_time_or_says_how_long_it_takes(tmp_path):
    with pytest.raises(ValueError, match="a search needs about 10000 evaluations") as refusal:
        md.auto(SlowFamily(), minutes=0.01, out=tmp_path, batch=8)
    seconds = 60 * float(re.search(r"minutes=([\d.]+) or more", str(refusal.value))[1])
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.Adam([parameter]).step()  # imports much of torch when it is first called
    began = time.perf_counter()
    found = md.auto(SlowFamily(), minutes=seconds / 60, out=tmp_path, batch=8)
    assert time.perf_counter() - began <= 1.3 * seconds
    assert found.classical.unseen.solved == 16


def test_a_search_starts_from_an_earlier_solver(tmp_path, monkeypatch):
    """Its learned numbers are found below its fallback, range and safeguard, and go on learning."""
    monkeypatch.setattr(CandidateTraining, "_affordable_steps", lambda *_: (5, 5))
    law = md.schedules.PowerLaws([1, 8], [0.02, 0.02])
    whole = md.Switch(NeverWorse(md.GD(law)), 20, md.GD(0.04), certified=False, dual_start=False)
    solver = WithinRange(whole, md.GD(0.04), {})
    before = [each.detach().clone() for each in law.parameters()]
    file = md.zoo.save(solver, tmp_path / "earlier", md.zoo.Card("earlier", "bowls"))
    said = []
    found = md.auto(
        Bowls(), minutes=0.02, out=tmp_path, batch=4, rivals=None, say=said.append, start=file
    )
    assert any(line.startswith("the earlier solver, first: 5 meta-steps") for line in said)
    after = next(each for each in found.contestants if each.kind == "the earlier solver")
    learned = list(after.method.parameters())
    assert [each.shape for each in learned] == [each.shape for each in before]
    assert any(not torch.equal(a, b) for a, b in zip(learned, before, strict=True))
    with pytest.raises(ValueError, match="start must be a learned solver, got GD"):
        md.auto(Bowls(), minutes=0.02, out=tmp_path, start=md.GD(0.1))


def test_the_first_line_comes_before_the_first_problem(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mirrordescent._internal.progress.FIRST_LINE", 0.0)
    monkeypatch.setattr("mirrordescent._internal.progress.INTERVAL", 0.0)
    seen = []

    def draw(self, seeds):
        seen.append(capsys.readouterr().err)
        raise KeyboardInterrupt

    monkeypatch.setattr(Bowls, "draw", draw)
    with pytest.raises(KeyboardInterrupt):
        md.auto(Bowls(), minutes=1, out=tmp_path, progress=True)
    assert re.search(r"searching 0/100, drawing problems, about 60 s left", seen[0])


def test_runs_are_timed_in_turn():
    order = []
    timings = time_in_turn({name: lambda name=name: order.append(name) for name in "ab"}, rounds=4)
    assert order == list("ababbaabba")[:2] + list("ab") + list("ba") + list("ab") + list("ba")
    assert [len(each.wall) for each in timings.values()] == [4, 4]


def test_a_speedup_has_an_interval_for_its_median():
    slow = Timing([2.0 + 0.1 * i for i in range(15)], [2.0] * 15)
    fast = Timing([1.0] * 15, [1.0] * 15)
    found = speedup(slow, fast)
    assert (found.low, found.median, found.high) == pytest.approx((2.3, 2.7, 3.1))
    assert speedup(slow, fast, "cpu").median == 2.0


def test_a_busy_machine_is_noticed():
    busy = Timing([2.0] * 5, [1.0] * 5)
    quiet = Timing([1.0] * 5, [0.99] * 5)
    assert busy.busy
    assert not quiet.busy
    assert clock_for({"a": busy, "b": quiet}) == "cpu"
    assert clock_for({"b": quiet}) == "wall"
    assert clock_for({"a": busy}, cuda=True) == "wall"


@pytest.mark.parametrize(("solved", "count"), [(64, 64), (63, 64), (1, 5), (20, 40)])
def test_the_share_of_solved_problems_is_that_of_clopper_and_pearson(solved, count):
    expected = beta.ppf(0.05, solved, count - solved + 1)
    assert least_share(solved, count) == pytest.approx(expected, abs=1e-9)


def test_the_tail_of_times():
    tail = tail_of(torch.tensor([-1, *range(1, 101)]), 2.0)
    assert (tail.median, tail.worst) == (101.0, 200.0)
    assert tail.most == pytest.approx(190.1)
    assert least_share(0, 3) == 0
    assert tail_of(torch.tensor([-1]), 1.0) is None
