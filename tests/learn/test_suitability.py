"""The check before learning: what speaks for it, and what against it."""

import pytest
import torch

import mirrordescent as md
from mirrordescent.automatic import check_suitability
from mirrordescent.automatic.outside import Entry, OutsideResult
from mirrordescent.automatic.suitability import assess
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators
from mirrordescent.racing import Contestant, Race, RaceResult


class Bowls(ProblemFamily):
    """Quadratics whose curvatures differ by a given factor."""

    def __init__(self, factor=1.0):
        self.factor = factor

    def draw(self, seeds):
        matrices = []
        centres = []
        for generator in generators(seeds):
            scale = self.factor ** float(torch.rand((), generator=generator))
            matrices.append(scale * torch.diag(torch.linspace(1, 30, 20)))
            centres.append(torch.rand(20, generator=generator))
        problem = md.Quadratic(torch.stack(matrices), torch.stack(centres))
        return Draw(problem, problem.start(), torch.zeros(len(seeds)))


def race(accuracy=1e-2, factor=1.0):
    return Race(Bowls(factor).draw(torch.arange(8)), accuracy, 2000)


def contestant(iterations):
    return Contestant("GD", md.GD(0.1), "classical", RaceResult(torch.tensor([iterations]), 0.1))


def found(suitability, aspect):
    return next(each for each in suitability.findings if each.aspect == aspect)


def test_every_aspect_can_speak_against_learning():
    assert not found(assess(race(1e-7), contestant(50)), "accuracy is moderate").good
    assert found(assess(race(), contestant(50)), "accuracy is moderate").good
    assert not found(assess(race(), contestant(3)), "iterations can be saved").good
    assert found(assess(race(), contestant(50)), "problems are alike").good
    unlike = assess(race(factor=1e6), contestant(50))
    assert not found(unlike, "problems are alike").good
    assert "features()" in str(unlike)
    assert not unlike.suitable


@pytest.mark.parametrize(("seconds", "good"), [(1.0, False), (9.0, True)])
def test_a_package_that_is_far_ahead_speaks_against_learning(seconds, good):
    entries = [
        Entry("exact", 1e-2, True, lambda: None, 8, seconds),
        Entry("GD", 1e-2, False, lambda: None, 8, 10.0),
    ]
    outside = OutsideResult({1e-2: entries}, {}, 8, [])
    finding = found(assess(race(), contestant(50), outside), "no other package is far ahead")
    assert finding.good == good


def test_the_check_runs_on_a_family():
    checked = check_suitability(Bowls(), batch=4, seconds=0.5, rivals=None)
    assert len(checked.rows()) == 4
    assert found(checked, "accuracy is moderate").good
