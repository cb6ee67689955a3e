"""A solver for a class of problems in one call: what is chosen, what is said, what is refused before it begins."""

from __future__ import annotations

import sys

import pytest
import torch

import mirrordescent as md
from mirrordescent import zoo
from mirrordescent.auto import pipeline
from mirrordescent.auto.candidates import PLAIN, candidates
from mirrordescent.auto.classical import fitting
from mirrordescent.auto.outcome import Contestant, verdict
from mirrordescent.auto.race import Race, Result, moments
from mirrordescent.auto.soundness import require_inverse, require_sound
from mirrordescent.cli.learning import family_in
from mirrordescent.domains import Box, PositiveOrthant, Simplex
from mirrordescent.files import Damaged, unsealed
from mirrordescent.learn import Descent, Draw, ProblemFamily, Settings, Validation, learn
from mirrordescent.learn.families import generators
from mirrordescent.methods import GD
from mirrordescent.mirrors import Diagonal, Euclidean, MirrorMap
from mirrordescent.schedules import Prefix

STEEP = torch.tensor([1.0, 30.0, 100.0])


class Valleys(ProblemFamily):
    """Bowls with one steep geometry, and minima of −100."""

    def draw(self, seeds):
        centres = torch.stack([torch.randn(3, generator=generator) for generator in generators(seeds)])
        problem = Shifted(centres)
        return Draw(problem, problem.start())


class Shifted(md.Quadratic):
    never_below = None

    def __init__(self, centre):
        super().__init__(STEEP, centre)

    def value(self, x):
        return super().value(x) - 100

    def minimiser(self, tolerance):
        x, lower = super().minimiser(tolerance)
        return x, lower - 100

    def config(self):
        return {"centre": self.centre}


def test_a_search_finds_the_geometry_and_says_so(tmp_path):
    said = []
    found = md.auto(Valleys(), name="valleys", minutes=0.03, out=tmp_path, batch=4, say=said.append)
    assert found.proven
    assert found.file == tmp_path / "valleys.safetensors"
    assert (tmp_path / "valleys.html").read_text().count(found.words.split(":")[0]) >= 1
    assert {"learned, schedules"} <= {each.name for each in found.contestants}
    assert found.classical.kind == "classical"
    method = zoo.load(found.file)
    problem = Shifted(torch.randn(4, 3, generator=torch.Generator().manual_seed(5)))
    solved = md.solve(problem, method, iterations=300, progress=False)
    assert float((solved.value + 100).max()) < 1e-2 * float((problem.value(problem.start()) + 100).max())
    assert said[-1] == found.words
    assert found.words.startswith("Use this" if found.recommended else "Do not learn")
    choices = unsealed((tmp_path / "valleys.runs" / "choices.json").read_text())
    again = md.auto(Valleys(), name="valleys", minutes=0.03, out=tmp_path, batch=4)
    assert unsealed((tmp_path / "valleys.runs" / "choices.json").read_text()) == choices
    assert {each.name for each in again.contestants} == {each.name for each in found.contestants}
    md.auto(Valleys(), name="valleys", minutes=0.03, out=tmp_path, batch=4, accuracy=0.1)
    other = unsealed((tmp_path / "valleys.runs" / "choices.json").read_text())
    assert other["for"] != choices["for"], "what was chosen for one accuracy is not used for another"


def test_choices_that_were_damaged_are_not_followed(tmp_path):
    ledger = pipeline._Ledger(tmp_path / "choices.json", True)
    assert ledger.once("step", lambda: 0.25) == 0.25
    assert pipeline._Ledger(ledger.path, True).once("step", lambda: 3.0) == 0.25
    ledger.path.write_text(ledger.path.read_text().replace("0.25", "0.75"))
    with pytest.raises(Damaged, match=r"choices.json: its content differs from its checksum. To search afresh"):
        pipeline._Ledger(ledger.path, True)
    ledger.path.write_bytes(b"\xff{")
    with pytest.raises(Damaged, match="cannot be read"):
        pipeline._Ledger(ledger.path, True)
    assert pipeline._Ledger(ledger.path, False).kept == {}


def test_values_below_zero_are_learned_on():
    """The score is a relative gap: shifting f by −100 changes nothing."""

    class Bowls(Valleys):
        def draw(self, seeds):
            drawn = super().draw(seeds)
            return Draw(md.Quadratic(STEEP, drawn.problem.centre), drawn.x0)

    scores = []
    for family in (Valleys(), Bowls()):
        settings = Settings(meta_steps=20, batch=4, horizon=4, optimiser=Descent(learning_rate=3e-2),
                            validation=Validation(every=5, batch=4, horizons=(1.0,)))  # fmt: skip
        method = md.SMD(Diagonal(torch.nn.Parameter(STEEP.clone())), Prefix([0.3] * 4))
        found = learn(family, method, settings, progress=False)
        assert found.best_step > 0
        scores.append(found.best_validation)
    assert scores[0] == pytest.approx(scores[1], rel=1e-2)


def names(problem):
    return {solver.name for solver in fitting(problem, 0.1)}


def test_solvers_that_fit():
    A, b = torch.ones(2, 3, 2), torch.ones(2, 3)
    assert {"L-BFGS", "Nesterov", "gradient descent"} <= names(md.LeastSquares(A, b))
    assert "L-BFGS" not in names(md.LeastSquares(A, b, Simplex()))
    assert "exponentiated gradient" in names(md.LeastSquares(A, b, Simplex()))
    assert "hyperbolic entropy" in names(md.LeastSquares(A, b, PositiveOrthant()))
    assert {"PDHG", "Condat–Vũ", "dual FISTA"} <= names(md.TVDenoising(torch.rand(1, 1, 4, 4)))


@pytest.mark.parametrize(
    ("domain", "wanted"),
    [
        (None, "a full matrix"), (Simplex(), "weighted entropy"), (PositiveOrthant(), "weighted hyperbolic entropy"),
        (Box(-1, 1), "weighted logit"),
    ],
    ids=["everywhere", "simplex", "orthant", "box"],
)  # fmt: skip
def test_maps_that_fit(domain, wanted):
    problem = md.LeastSquares(torch.rand(2, 3, 2), torch.ones(2, 3), domain)
    draw = Draw(problem, problem.start())
    found = candidates(draw)
    assert found[0].name == PLAIN
    assert wanted in {each.name for each in found}
    for each in found:
        require_inverse(each.geometry(), problem.start())


def test_a_race_counts_to_the_accuracy():
    """Gradient descent on ½x² from 1 has the gap (1 − t)^2k."""
    problem = md.Quadratic(torch.ones(1), torch.zeros(2, 1))
    draw = Draw(problem, torch.tensor([[1.0], [3.0]]), torch.zeros(2))
    found = Race(draw, 1e-2, 100).run(GD(0.5))
    assert found.iterations.tolist() == [4, 4]  # ½^8 < 1e-2 < ½^6
    assert found.seconds > 0
    assert Race(draw, 1e-2, 100).run(GD(1e-4)).seconds == torch.inf
    assert moments(150)[:101] == list(range(101))


def result(iterations, seconds):
    return Result(torch.tensor(iterations), seconds)


def test_the_verdict_in_words():
    best = Contestant("PDHG", GD(1.0), "classical", result([5, 5], 2.0), result([5, 5], 2.0))
    ours = Contestant("learned, map", GD(1.0), "map", result([2, 2], 0.5), result([2, -1], 0.5))
    tied = Contestant("PDHG", GD(1.0), "classical", result([5, 5], 2.0), result([5, -1], 2.0))
    assert "4.0 times faster than PDHG" in verdict(1e-2, tied, ours, True, True)
    assert "fails on 1, which fall back to PDHG" in verdict(1e-2, tied, ours, True, True)
    assert "estimates" in verdict(1e-2, tied, ours, True, False)
    assert "solves 1 of 2 unseen problems, and PDHG 2" in verdict(1e-2, best, ours, False, True)
    slower = Contestant("learned, map", GD(1.0), "map", result([2, 2], 3.0), result([2, 2], 3.0))
    assert "PDHG is as fast" in verdict(1e-2, best, slower, False, True)
    assert "nothing learned" in verdict(1e-2, best, None, False, True)
    never = Contestant("learned, map", GD(1.0), "map", result([2, 2], 3.0), result([-1, -1], torch.inf))
    assert "solves 0 of 2 unseen problems" in verdict(1e-2, best, never, False, True)
    assert not ours.unseen.beats(best.unseen)
    assert result([2, 2], 1.0).beats(best.unseen, 1.5)


# What is refused before learning begins


class Wrong(Shifted):
    def grad(self, x):
        return 1.1 * super().grad(x)


def test_a_wrong_gradient_is_named():
    problem = Wrong(torch.randn(2, 3, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(ValueError, match="grad\\(\\) is not the gradient of value\\(\\)"):
        require_sound(Draw(problem, problem.start()))
    right = Shifted(problem.centre)
    require_sound(Draw(right, right.start()))
    for kinked in (md.TVDenoising(torch.rand(2, 1, 5, 5)), md.MatrixGame(torch.randn(2, 3, 4)),
                   md.LeastSquares(torch.rand(2, 3, 4), torch.ones(2, 3), PositiveOrthant())):  # fmt: skip
        require_sound(Draw(kinked, kinked.start()))


def test_nan_in_what_is_drawn_is_named():
    problem = md.Function(lambda x: x.sum(-1) * torch.nan)
    with pytest.raises(ValueError, match="not finite at the start"):
        require_sound(Draw(problem, torch.zeros(2, 3)))


class Tripled(Euclidean):
    def _potential(self, x):
        return 3 * super()._potential(x)


class NoInverse(MirrorMap):
    def _to_dual(self, x):
        return 2 * x

    def _to_primal(self, y):
        return y


def test_wrong_maps_are_named():
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="to_dual of Tripled is not the gradient of its potential"):
        require_inverse(Tripled(), x)
    with pytest.raises(ValueError, match="to_primal of NoInverse is not the inverse"):
        require_inverse(NoInverse(), x)
    require_inverse(Euclidean(), x)


# Files with problems


FILE = """
import torch
import mirrordescent as md
from mirrordescent.learn import Draw, ProblemFamily

class Mine(ProblemFamily):
    def draw(self, seeds):
        problem = md.Quadratic(torch.ones(2), seeds[:, None].float().expand(-1, 2))
        return Draw(problem, problem.start())
"""


def test_the_family_of_a_file(tmp_path, monkeypatch):
    path = tmp_path / "my_own_problems.py"
    with pytest.raises(FileNotFoundError):
        family_in(path)
    path.write_text(FILE)
    monkeypatch.delitem(sys.modules, "my_own_problems", raising=False)
    assert type(family_in(path)).__name__ == "Mine"
    path.write_text(FILE + "\nclass Other(Mine): ...\n")
    with pytest.raises(ValueError, match="must have one class of problems"):
        family_in(path)
    path.write_text(FILE + "\nclass Other(Mine): ...\nfamily = Other()\n")
    assert type(family_in(path)).__name__ == "Other"
    sys.modules.pop("my_own_problems", None)
