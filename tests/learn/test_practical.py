"""Families and solvers survive processes, ranges and folders, as users have them."""

import inspect

import cloudpickle
import joblib
import torch

import mirrordescent as md
from mirrordescent.cli.own_problems import LEARNED
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators


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


def test_generators_of_ranges_and_tensors_are_the_same():
    ours = [torch.rand(1, generator=each) for each in generators(range(4))]
    theirs = [torch.rand(1, generator=each) for each in generators(torch.arange(4))]
    torch.testing.assert_close(ours, theirs)


def test_a_search_writes_where_solvers_are_looked_for():
    assert str(inspect.signature(md.auto).parameters["out"].default) == str(LEARNED)
