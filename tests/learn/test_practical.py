"""Families and solvers survive processes, ranges and folders, as users have them."""

import inspect
import pickle

import cloudpickle
import joblib
import torch

import mirrordescent as md
from mirrordescent.cli.own_problems import LEARNED
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators
from mirrordescent.methods import NeverWorse, WithinRange
from mirrordescent.methods.within_range import feature_ranges


def test_functions_that_use_the_library_run_in_other_processes():
    """A lambda that refers to ``md`` itself is pickled by value."""

    def solve_one(seed):
        centre = torch.randn(1, 3, generator=torch.Generator().manual_seed(seed))
        problem = md.Function(lambda x: (x - centre).square().sum(-1) + 0 * len(md.__version__))
        return md.solve(problem, md.GD(0.25), torch.zeros(1, 3), iterations=30, progress=False).x

    expected = [solve_one(seed) for seed in range(2)]
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(solve_one)(seed) for seed in range(2))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_family_defined_in_a_function_is_pickled():
    class Bowls(ProblemFamily):
        def draw(self, seeds):
            centres = torch.stack([torch.randn(2, generator=g) for g in generators(seeds)])
            problem = md.Quadratic(torch.ones(2), centres)
            return Draw(problem, problem.start())

    copy = cloudpickle.loads(cloudpickle.dumps(Bowls()))
    torch.testing.assert_close(
        copy.draw(range(3)).problem.centre, Bowls().draw(range(3)).problem.centre
    )


def test_solvers_and_programs_are_pickled_and_run_by_joblib():
    """A solver as a search writes it, and a cone program with the caches of a first run."""
    law = md.schedules.PowerLaws([1, 8], [0.1, 0.2])
    rest = md.GD(0.1)
    followed = md.Switch(NeverWorse(md.GD(law)), 5, rest, certified=False, dual_start=False)
    quadratic = md.Quadratic(torch.ones(3), torch.randn(2, 3))
    solver = WithinRange(followed, rest, feature_ranges(quadratic, quadratic.start()))
    rows = torch.cat([torch.zeros(1, 3), torch.eye(3)])
    q = torch.randn(2, 3)
    ball = md.QP(torch.eye(3), q, rows, torch.tensor([-1.0, 0, 0, 0]), cones=[4])
    admm = md.ADMM(torch.ones(1), md.schedules.PowerLaws([1], [1.5], bound=2.0))
    admm.requires_grad_(False)

    def run(problem, method):
        return md.solve(problem, method, iterations=12, progress=False).x

    for problem, method in ((quadratic, solver), (ball, admm)):
        expected = run(problem, method)
        for package in (pickle, cloudpickle):
            copy, same = package.loads(package.dumps((problem, method)))
            torch.testing.assert_close(run(copy, same), expected)
        jobs = [joblib.delayed(run)(problem, method)] * 2
        for found in joblib.Parallel(n_jobs=2)(jobs):
            torch.testing.assert_close(found, expected)


def test_generators_of_ranges_and_tensors_are_the_same():
    ours = [torch.rand(1, generator=each) for each in generators(range(4))]
    theirs = [torch.rand(1, generator=each) for each in generators(torch.arange(4))]
    torch.testing.assert_close(ours, theirs)


def test_a_search_writes_where_solvers_are_looked_for():
    assert str(inspect.signature(md.auto).parameters["out"].default) == str(LEARNED)


def test_a_search_on_programs_is_solved_to_its_accuracy(tmp_path):
    """The solver of the verdict reaches the minima of an active-set method."""

    class Plans(ProblemFamily):
        def draw(self, seeds):
            q = torch.stack([torch.randn(4, generator=each) for each in generators(seeds)])
            rows = torch.cat([torch.ones(1, 4), torch.eye(4)]).double()
            lower = torch.tensor([1.0, 0, 0, 0, 0]).double()
            program = md.QP(torch.eye(4).double(), q.double(), rows, lower, torch.ones(5).double())
            return Draw(program, program.start())

    found = md.auto(Plans(), minutes=0.05, out=tmp_path, batch=8, rivals=None)
    unseen = Plans().draw(torch.arange(100, 108))
    solution = md.solve(unseen.problem, found.method, unseen.x0, iterations=2000, stop=md.gap(1e-4))
    assert all(status is md.Status.CONVERGED for status in solution.statuses)
    # the projection of −q onto the simplex
    exact = md.domains.Simplex().project(-unseen.problem.q)
    torch.testing.assert_close(solution.x, exact, rtol=0, atol=0.03)
