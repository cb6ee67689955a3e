"""A solver for a class of problems in one call: what is chosen, what is said, what is refused
before it begins.
"""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import mirrordescent as md
from mirrordescent import zoo
from mirrordescent._internal.files import Damaged, unsealed
from mirrordescent._internal.progress import ProgressBar
from mirrordescent.automatic.candidates import (
    DUAL,
    PLAIN,
    Candidate,
    candidates,
    informative_features,
    method_for,
    variants_of,
)
from mirrordescent.automatic.classical import RATIOS, classical_solvers
from mirrordescent.automatic.family_check import check_family
from mirrordescent.automatic.outcome import attribution, verdict
from mirrordescent.automatic.time_plan import TimePlan
from mirrordescent.automatic.training import Ledger, _leaders
from mirrordescent.cli.problem_files import load_family
from mirrordescent.conditioning import FeatureTable, given
from mirrordescent.domains import Box, PositiveOrthant, Simplex
from mirrordescent.execution import fast_run
from mirrordescent.learn import Descent, Draw, Objective, ProblemFamily, Settings, Validation, learn
from mirrordescent.learn.distributed import broadcast_result
from mirrordescent.learn.families import Pooled, generators
from mirrordescent.learn.trainer import NothingLearned
from mirrordescent.methods import GD, Conditioned
from mirrordescent.mirrors import Diagonal, Euclidean, MirrorMap
from mirrordescent.mirrors.inverse_check import require_inverse
from mirrordescent.oracles import Default, Rounded
from mirrordescent.racing import Contestant, Race, RaceResult, spaced_iterations
from mirrordescent.schedules import Prefix, Schedule

STEEP = torch.tensor([1.0, 30.0, 100.0])


class Valleys(ProblemFamily):
    """Bowls with one steep geometry, and minima of −100."""

    def draw(self, seeds):
        centres = torch.stack(
            [torch.randn(3, generator=generator) for generator in generators(seeds)]
        )
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
    options = {"name": "valleys", "minutes": 0.03, "out": tmp_path, "batch": 4, "rivals": None}
    found = md.auto(Valleys(), say=said.append, **options)
    assert not found.proven  # the minima rest on what Shifted states
    assert any("Shifted" in statement for statement in found.conditional_on)
    assert found.file == tmp_path / "valleys.safetensors"
    assert (tmp_path / "valleys.html").read_text().count(found.words.split(":")[0]) >= 1
    assert {"learned, schedules"} <= {each.name for each in found.contestants}
    assert found.classical.kind == "classical"
    method = zoo.load(found.file)
    problem = Shifted(torch.randn(4, 3, generator=torch.Generator().manual_seed(5)))
    solved = md.solve(problem, method, iterations=300, progress=False)
    assert float((solved.value + 100).max()) < 1e-2 * float(
        (problem.value(problem.start()) + 100).max()
    )
    assert said[-1] == found.words
    assert found.words.startswith("Use this" if found.recommended else "Do not learn")
    choices = unsealed((tmp_path / "valleys.runs" / "choices.json").read_text())
    again = md.auto(Valleys(), **options)
    assert unsealed((tmp_path / "valleys.runs" / "choices.json").read_text()) == choices
    assert {each.name for each in again.contestants} == {each.name for each in found.contestants}
    md.auto(Valleys(), accuracy=0.5, **options)
    other = unsealed((tmp_path / "valleys.runs" / "choices.json").read_text())
    assert other["for"] != choices["for"], (
        "what was chosen for one accuracy is not used for another"
    )


def test_the_fastest_go_on_and_the_best_without_a_map():
    names = ["stencil", "spectrum", "schedules, momentum", "weights", "schedules"]
    order = [Candidate(name, Euclidean) for name in names]
    assert [each.name for each in _leaders(order, 2)] == names[:3]
    assert [each.name for each in _leaders(order, 4)] == names[:4]
    assert [each.name for each in _leaders(order[:1], 2)] == names[:1]


def test_two_processes_share_the_candidates(tmp_path):
    """Each teaches its own, and both end with the same solver, numbers and times; the first one
    writes.
    """
    script = str(Path(__file__).parent / "searching.py")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        script,
    ]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    first, second = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert zoo.card(tmp_path / "bowls.safetensors").description == first["words"]
    choices = [
        unsealed((tmp_path / "bowls.runs" / f"choices{who}.json").read_text()) for who in ("", "-1")
    ]
    taught = [{key for key in each if key.endswith(", first")} for each in choices]
    assert taught[0]
    assert taught[1]
    assert not taught[0] & taught[1]


def test_a_failure_of_one_process_is_that_of_all(monkeypatch):
    """What the first process is asked to choose, the others wait for."""
    sent = []
    monkeypatch.setattr("mirrordescent.learn.distributed._send", sent.append)
    monkeypatch.setattr("mirrordescent.learn.distributed._receive", lambda: sent[0])

    def fail():
        raise ValueError("no problems")

    assert broadcast_result(lambda: 3, 0, 1) == 3
    with pytest.raises(ValueError, match="no problems"):
        broadcast_result(fail, 0, 2)
    with pytest.raises(RuntimeError, match="the first process failed: no problems"):
        broadcast_result(fail, 1, 2)


def test_parts_of_a_gain_multiply_to_the_whole():
    best = Contestant("PDHG", GD(1.0), "classical", result([5, 5], 2.0))
    plain = Contestant(
        "learned, schedules", GD(1.0), PLAIN, result([3, 3], 1.7), bare=result([3, 3], 1.6)
    )
    slow = Contestant(
        "learned, schedules of steps alone", GD(1.0), f"{PLAIN} of steps alone", result([9, 9], 5.0)
    )
    ours = Contestant("learned, map", GD(1.0), "map", result([2, 2], 0.5), bare=result([2, 2], 0.4))
    shares = attribution([best, slow, plain, ours], best, ours)
    assert shares == pytest.approx({"schedules": 1.25, "map": 4.0, "safeguard": 0.8})
    ours.bare = result([2, -1], torch.inf)
    assert attribution([best, plain, ours], best, ours)["safeguard"] == torch.inf
    assert attribution([best, ours], best, ours) == {}


def test_a_course_knows_how_long_it_will_take(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(
        sys.modules["mirrordescent.automatic.time_plan"], "perf_counter", lambda: now[0]
    )
    monkeypatch.setattr("mirrordescent._internal.progress.INTERVAL", -1.0)
    with ProgressBar("searching", 100, True, estimate=False) as bar:
        plan = TimePlan(600.0, bar)
        with plan.stage("tuning", 200.0):
            now[0] = 100.0
            plan.update(0.5)
        now[0] = 400.0  # twice as long as planned: what is left is as it was
        with plan.stage("learning", 400.0):
            pass
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "searching 0/100, tuning, about 10 min left",
        "searching 16/100, tuning, about 8 min left",
        "searching 50/100, learning, about 7 min left",
    ]


# Forms of steps, and schedules that depend on what problems tell


def test_momentum_with_learned_numbers_may_become_chebyshev():
    """On a quadratic with curvatures in [a, b] the gap after n steps is at most 1/T_n((b + a)/(b −
    a))², the best.
    """
    a = 1.0
    b = 25.0
    n = 8
    curvatures = torch.linspace(a, b, 40, dtype=torch.float64)
    problem = md.Quadratic(curvatures, torch.zeros(1, 40, dtype=torch.float64))
    x0 = torch.ones(1, 40, dtype=torch.float64)
    method = method_for(Euclidean(), problem, 0.05, n, "momentum").double()
    assert isinstance(method, md.ASMD)
    method.t, method.mixing, method.dual_weight = Listed(*chebyshev(a, b, n))
    found = md.solve(problem, method, x0, iterations=n)
    centre = (b + a) / (b - a)
    x = (b + a - 2 * curvatures) / (b - a)
    expected = torch.special.chebyshev_polynomial_t(x, n) / np.polynomial.chebyshev.chebval(
        centre, [0] * n + [1]
    )
    torch.testing.assert_close(found.x[0], expected, atol=1e-9, rtol=1e-6)


class Given(Schedule):
    def __init__(self, values):
        super().__init__()
        self.numbers = values

    def forward(self, k):
        return self.numbers[min(k, len(self.numbers)) - 1]


def Listed(*sequences):
    return [Given(values) for values in sequences]


def chebyshev(a, b, n):
    """t, w and s of ASMD that make it Chebyshev's iteration, by the recursion of the heavy ball.

    Δ_{k+1} = w_{k+1}(1/w_k − 1) Δ_k − w_{k+1} s_k g: so w follows from the momentum, and s from the
    length.
    """
    d = (b + a) / 2
    c = (b - a) / 2
    lengths = [1 / d]
    momenta = [0.0]
    for k in range(1, n):
        alpha = 1 / (d - c**2 * lengths[-1] / 4) if k > 1 else 1 / (d - c**2 / (2 * d))
        lengths.append(alpha)
        momenta.append(alpha * d - 1)
    w = [0.5, 0.5]  # w_1 for the start, where nothing has moved; w_2 for the first step
    for momentum in momenta[1:]:
        w.append(momentum / (1 / w[-1] - 1))
    return [1.0] * n, w, [length / each for length, each in zip(lengths, w[1:], strict=True)]


class Telling(md.Quadratic):
    """½s(x − c)² with an s of each one's own, of which it tells the logarithm."""

    def features(self, x0=None):
        return {"steep": self.A[:, 0, 0].log(), "same": torch.ones(len(self.A))}


class OfManyScales(ProblemFamily):
    def draw(self, seeds):
        numbers = torch.stack(
            [torch.rand(2, generator=generator) for generator in generators(seeds)]
        )
        A = (10 ** (3 * numbers[:, :1]))[..., None] * torch.eye(2)
        problem = Telling(A, numbers + 1)
        return Draw(problem, problem.start(), torch.zeros(len(seeds)))


def test_schedules_that_depend_on_features_are_tried_where_there_are_some():
    draw = OfManyScales().draw(torch.arange(16))
    assert list(informative_features(draw)) == ["steep"]
    found = {each.name: each for each in candidates(draw)}
    each = found[f"{PLAIN}, by features"]
    assert each.plain
    method = method_for(each.geometry(), draw.problem, 1e-3, 8, each.form, each.features)
    assert isinstance(method, Conditioned)
    blind = method_for(each.geometry(), draw.problem, 1e-3, 8)
    scores = []
    for learner in (method, blind):
        settings = Settings(
            meta_steps=120,
            batch=16,
            horizon=8,
            step_bounds=None,
            optimiser=Descent(learning_rate=5e-2),
            objective=Objective("log_gap", floor=1e-4),
            validation=Validation(every=20, batch=16, horizons=(1.0,), geometric=True),
        )
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", NothingLearned
            )  # one step length for all is as good as it can be
            scores.append(learn(OfManyScales(), learner, settings, progress=False).best_validation)
    assert scores[0] < 0.1 * scores[1]
    plain = md.Quadratic(torch.ones(2), torch.ones(3, 2))
    assert not any(each.features for each in candidates(Draw(plain, plain.start())))


def test_pictures_with_weights_of_their_own_have_geometries_of_their_own():
    weights = torch.tensor([0.01, 0.1, 1.0])
    problem = md.TVDenoising(
        torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(0)), weights
    )
    draw = Draw(problem, problem.start())
    assert "weight" in informative_features(draw)
    each = next(each for each in candidates(draw) if each.name == "a stencil by features")
    method = method_for(each.geometry(), problem, 0.1, 8, each.form, each.features)
    law = method.mirror.law
    with torch.no_grad():
        law.slopes[:, law.features.index("weight")] = 1.0
    assert bool(
        (given(method.mirror, FeatureTable(problem.features(draw.x0))).damping.diff() > 0).all()
    )
    twins = variants_of(each, draw)
    assert [twin.form for twin in twins] == ["momentum", "primal-dual"]
    assert md.solve(problem, method, iterations=20).ok
    dual = method_for(
        copy.deepcopy(method.mirror), problem, 0.3, 8, twins[1].form, twins[1].features
    )
    assert md.solve(problem, dual, iterations=20).ok


class Rough(ProblemFamily):
    """½‖x − y‖² + 50‖Dx‖², whose curvatures go with the squares of frequencies."""

    def draw(self, seeds):
        y = torch.stack(
            [torch.rand(1, 8, 8, generator=generator) for generator in generators(seeds)]
        )
        problem = md.Composite(md.SquaredError(y), [md.problems.Roughness(100.0)])
        return Draw(problem, problem.start(), md.certify(problem, 1e-6, cache=False).lower.float())


def test_a_spectrum_is_learned_for_curvatures_of_frequencies():
    """With a few numbers it is far ahead of schedules that were learned alike."""
    draw = Rough().draw(torch.arange(4))
    scores = {}
    for each in candidates(draw):
        if each.name in (PLAIN, "a spectrum"):
            method = method_for(each.geometry(), draw.problem, 1e-3, 10, each.form, each.features)
            settings = Settings(
                meta_steps=25,
                batch=4,
                horizon=10,
                step_bounds=None,
                optimiser=Descent(learning_rate=1e-1),
                objective=Objective("log_gap", floor=1e-6),
                validation=Validation(every=25, batch=4, horizons=(1.0,)),
            )
            scores[each.name] = learn(Rough(), method, settings, progress=False).best_validation
    assert scores["a spectrum"] < 0.3 * scores[PLAIN]


class Blurred(ProblemFamily):
    """Blurred steps, to be found again by total variation: f has kinks."""

    def draw(self, seeds):
        steps = torch.stack(
            [torch.rand(1, 2, 2, generator=generator) for generator in generators(seeds)]
        )
        blur = md.problems.Blur(md.problems.gaussian_kernel(1.0, radius=2))
        seen = blur.A(steps.repeat_interleave(4, -1).repeat_interleave(4, -2))
        problem = md.Composite(md.SquaredError(seen, blur), [md.TV(0.01, isotropic=True)])
        return Draw(problem, problem.start())


def test_a_primal_dual_method_is_learned_where_there_are_kinks():
    """With a few numbers of its own for every count it is far ahead of Condat and Vũ's with the
    best ratio.
    """
    family = Pooled(Blurred(), 8, 1e-3)
    draw = Pooled(Blurred(), 4, 1e-3, seed=1).draw(torch.arange(4))
    dual = next(each for each in candidates(draw) if each.form == "primal-dual")
    assert dual.plain
    assert [each.form for each in candidates(draw) if each.form in DUAL] == [
        "primal-dual",
        "proximal",
    ]
    method = method_for(dual.geometry(), draw.problem, 3.0, 12, dual.form)
    race = Race(draw, 1e-2, 12)
    classical = min(float(race.curve(md.CondatVu(ratio)).gaps[-1].log().mean()) for ratio in RATIOS)
    settings = Settings(
        meta_steps=40,
        batch=4,
        horizon=12,
        step_bounds=None,
        optimiser=Descent(learning_rate=3e-2),
        objective=Objective("log_gap", floor=1e-3),
        validation=Validation(every=20, batch=4, horizons=(1.0,)),
    )
    learn(family, method, settings, progress=False)
    assert float(race.curve(method).gaps[-1].log().mean()) < classical - math.log(2)
    smooth = Rough().draw(torch.arange(2))
    assert not any(each.form in DUAL for each in candidates(smooth)), "there are no kinks"


def test_images_are_rounded_as_kernels_round_them():
    problem = md.TVDenoising(torch.rand(2, 1, 6, 6), torch.tensor([0.1, 0.3]))
    method = method_for(Euclidean(), problem, 0.1, 8)
    assert isinstance(method.oracle, Rounded)
    assert fast_run(method, problem, Default()) is not None
    smooth = Rough().draw(torch.arange(2)).problem
    assert method_for(Euclidean(), smooth, 0.1, 8).oracle is None, "there is nothing to round"


def test_choices_that_were_damaged_are_not_followed(tmp_path):
    ledger = Ledger(tmp_path / "choices.json", True)
    assert ledger.once("step", lambda: 0.25) == 0.25
    assert Ledger(ledger.path, True).once("step", lambda: 3.0) == 0.25
    ledger.path.write_text(ledger.path.read_text().replace("0.25", "0.75"))
    with pytest.raises(
        Damaged, match=r"choices.json: its content differs from its checksum. To start a new search"
    ):
        Ledger(ledger.path, True)
    ledger.path.write_bytes(b"\xff{")
    with pytest.raises(Damaged, match="cannot be read"):
        Ledger(ledger.path, True)
    assert Ledger(ledger.path, False).choices == {}


def test_values_below_zero_are_learned_on():
    """The score is a relative gap: shifting f by −100 changes nothing."""

    class Bowls(Valleys):
        def draw(self, seeds):
            drawn = super().draw(seeds)
            return Draw(md.Quadratic(STEEP, drawn.problem.centre), drawn.x0)

    scores = []
    for family in (Valleys(), Bowls()):
        settings = Settings(
            meta_steps=20,
            batch=4,
            horizon=4,
            optimiser=Descent(learning_rate=3e-2),
            validation=Validation(every=5, batch=4, horizons=(1.0,)),
        )
        method = md.SMD(Diagonal(torch.nn.Parameter(STEEP.clone())), Prefix([0.3] * 4))
        found = learn(family, method, settings, progress=False)
        assert found.best_step > 0
        scores.append(found.best_validation)
    assert scores[0] == pytest.approx(scores[1], rel=1e-2)


def names(problem):
    return {solver.name for solver in classical_solvers(problem, 0.1)}


def test_solvers_that_fit():
    A = torch.ones(2, 3, 2)
    b = torch.ones(2, 3)
    assert {"L-BFGS", "Nesterov", "gradient descent"} <= names(md.LeastSquares(A, b))
    assert "L-BFGS" not in names(md.LeastSquares(A, b, Simplex()))
    assert "exponentiated gradient" in names(md.LeastSquares(A, b, Simplex()))
    assert "hyperbolic entropy" in names(md.LeastSquares(A, b, PositiveOrthant()))
    assert {"PDHG", "Condat–Vũ", "dual FISTA"} <= names(md.TVDenoising(torch.rand(1, 1, 4, 4)))


@pytest.mark.parametrize(
    ("domain", "wanted"),
    [
        (None, "a full matrix"),
        (Simplex(), "weighted entropy"),
        (PositiveOrthant(), "weighted hyperbolic entropy"),
        (Box(-1, 1), "weighted logit"),
    ],
    ids=["everywhere", "simplex", "orthant", "box"],
)
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
    assert spaced_iterations(150)[:101] == list(range(101))


def result(iterations, seconds):
    return RaceResult(torch.tensor(iterations), seconds)


def test_the_verdict_in_words():
    best = Contestant("PDHG", GD(1.0), "classical", result([5, 5], 2.0), result([5, 5], 2.0))
    ours = Contestant("learned, map", GD(1.0), "map", result([2, 2], 0.5), result([2, -1], 0.5))
    tied = Contestant("PDHG", GD(1.0), "classical", result([5, 5], 2.0), result([5, -1], 2.0))
    assert "4.0 times faster than PDHG" in verdict(1e-2, tied, ours, True, [])
    assert "fails on 1, which fall back to PDHG" in verdict(1e-2, tied, ours, True, [])
    assert "estimates" in verdict(1e-2, tied, ours, True, None)
    assert "solves 1 of 2 unseen problems, and PDHG 2" in verdict(1e-2, best, ours, False, [])
    slower = Contestant("learned, map", GD(1.0), "map", result([2, 2], 3.0), result([2, 2], 3.0))
    assert "PDHG is faster (the best" in verdict(1e-2, best, slower, False, [])
    equal = Contestant("learned, map", GD(1.0), "map", result([2, 2], 2.0), result([2, 2], 2.0))
    assert "PDHG is as fast (the best" in verdict(1e-2, best, equal, False, [])
    assert "nothing learned" in verdict(1e-2, best, None, False, [])
    never = Contestant(
        "learned, map", GD(1.0), "map", result([2, 2], 3.0), result([-1, -1], torch.inf)
    )
    assert "solves 0 of 2 unseen problems" in verdict(1e-2, best, never, False, [])
    assert not ours.unseen.beats(best.unseen)
    assert result([2, 2], 1.0).beats(best.unseen, 1.5)


# What is refused before learning begins


class Wrong(Shifted):
    def grad(self, x):
        return 1.1 * super().grad(x)


def test_a_wrong_gradient_is_named():
    problem = Wrong(torch.randn(2, 3, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(ValueError, match="grad\\(\\) is not the gradient of value\\(\\)"):
        check_family(Draw(problem, problem.start()))
    right = Shifted(problem.centre)
    check_family(Draw(right, right.start()))
    for kinked in (
        md.TVDenoising(torch.rand(2, 1, 5, 5)),
        md.MatrixGame(torch.randn(2, 3, 4)),
        md.LeastSquares(torch.rand(2, 3, 4), torch.ones(2, 3), PositiveOrthant()),
    ):
        check_family(Draw(kinked, kinked.start()))


@pytest.mark.parametrize("units", [1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("start", [0.0, 1.0])
def test_the_check_of_a_gradient_does_not_depend_on_units(units, start):
    """An error of a tenth is found, and right gradients are accepted, in all units of the data."""
    centre = units * torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).double()
    x0 = start * units * torch.ones(2, 3).double()
    steepness = torch.tensor([1.0, 2.0, 5.0]).double()

    class Steeper(md.Quadratic):
        def grad(self, x):
            return 1.1 * super().grad(x)

    with pytest.raises(ValueError, match="grad\\(\\) is not the gradient of value\\(\\)"):
        check_family(Draw(Steeper(steepness, centre), x0))
    check_family(Draw(md.Quadratic(steepness, centre), x0))
    images = units * torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(1)).double()
    for problem in (
        md.TVDenoising(images, 0.1 * units),
        md.TVDenoising(images, 0.1 * units, huber=0.01 * units),
        md.LeastSquares(torch.rand(2, 3, 4).double(), units * torch.ones(2, 3).double()),
    ):
        check_family(Draw(problem, problem.start()))


def test_nan_in_what_is_drawn_is_named():
    problem = md.Function(lambda x: x.sum(-1) * torch.nan)
    with pytest.raises(ValueError, match="not finite at the start"):
        check_family(Draw(problem, torch.zeros(2, 3)))


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
        load_family(path)
    path.write_text(FILE)
    monkeypatch.delitem(sys.modules, "my_own_problems", raising=False)
    assert type(load_family(path)).__name__ == "Mine"
    path.write_text(FILE + "\nclass Other(Mine): ...\n")
    with pytest.raises(ValueError, match="must define one subclass of"):
        load_family(path)
    path.write_text(FILE + "\nclass Other(Mine): ...\nfamily = Other()\n")
    assert type(load_family(path)).__name__ == "Other"
    sys.modules.pop("my_own_problems", None)
