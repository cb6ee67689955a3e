"""Faults that a diagnosis must find: wrong potentials, wrong inverses, diverging runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mirrordescent import AMD, ASMD, MD, SMD, Quadratic
from mirrordescent.diagnosis.diagnosis_page import markdown
from mirrordescent.domains import Box, PositiveOrthant, Simplex, WholeSpace
from mirrordescent.mirrors import (
    Conjugate,
    DenseICNN,
    Diagonal,
    Euclidean,
    HyperbolicEntropy,
    LearnedPair,
    Logit,
    NegativeEntropy,
    PNorm,
    SimplexEntropy,
    SquaredPNorm,
)
from mirrordescent.oracles import Exact, Noisy
from mirrordescent.schedules import Polynomial
from mirrordescent.solving import Status
from mirrordescent.theory import Record, diagnose, observe
from mirrordescent.theory.assumptions import sample_nearby_points
from mirrordescent.theory.bound_checks import check_below_bound, check_energy_decrease
from mirrordescent.theory.diagnosis_results import BoundCheck
from mirrordescent.theory.geometry import Coupling, NewtonInverse
from mirrordescent.theory.prior_bounds import sample_prior_constants

POTENTIAL = "∇ of the potential is the map"
BELOW = "the run stays below its bound"


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def quadratic():
    return Quadratic(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64), random(2, 3))


def verdicts(diagnosis, assumption):
    found = [v for v in diagnosis.verdicts if v.assumption.startswith(assumption)]
    assert found, f"no verdict on {assumption!r}"
    return {v.answer for v in found}


class Wrong(Diagonal):
    """A diagonal map whose potential is something else."""

    factor = 3.0
    off = 0.0
    only = None

    def _potential(self, x):
        if self.only is not None:
            x = x[:, self.only]
            return 0.5 * (self.d[self.only] * x.square()).sum(1)
        return self.factor * super()._potential(x) + self.off * x.sum(1)


@pytest.mark.parametrize(
    "fault",
    [
        {"factor": 3.0},
        {"factor": 0.0},
        {"factor": 1.0, "off": 0.1},
        {"only": slice(0, 2)},
        {"factor": torch.nan},
    ],
)
def test_a_potential_that_is_not_the_maps_is_found(quadratic, fault):
    mirror = Wrong(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
    for name, value in fault.items():
        setattr(mirror, name, value)
    diagnosis = diagnose(mirror, quadratic, random(2, 3, seed=1), iterations=5)
    assert verdicts(diagnosis, POTENTIAL) == {"does not hold"}


@pytest.mark.parametrize(
    "mirror",
    [
        Euclidean(),
        Euclidean(Simplex()),
        Euclidean(Box(0.0, 1.0)),
        Diagonal(torch.tensor([0.5, 1.0, 2.0]).double()),
        PNorm(1.5),
        SquaredPNorm(1.5),
        NegativeEntropy(),
        SimplexEntropy(),
        HyperbolicEntropy(),
        Logit(0.0, 2.0),
        LearnedPair(
            *(DenseICNN(3, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1))
        ),
        Conjugate(DenseICNN(3).double()),
    ],
    ids=lambda mirror: f"{type(mirror).__name__} {type(mirror.primal_domain).__name__}",
)
def test_potentials_of_sound_maps_pass(mirror):
    u = random(2, 3).softmax(-1)
    problem = Quadratic(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64), u)
    diagnosis = diagnose(
        mirror, problem, random(2, 3, seed=1).softmax(-1), minimiser=u, iterations=3
    )
    assert "does not hold" not in verdicts(diagnosis, POTENTIAL)


def test_a_potential_without_derivatives_is_not_known(quadratic):
    class Opaque(Diagonal):
        def _potential(self, x):
            return super()._potential(x).detach()

    diagnosis = diagnose(
        Opaque(torch.ones(3, dtype=torch.float64)), quadratic, random(2, 3, seed=1), iterations=3
    )
    assert verdicts(diagnosis, POTENTIAL) == {"not known"}


class Boastful(Euclidean):
    """Says that it is exact, and its inverse is off."""

    exact = True

    def _to_primal(self, y):
        return y + 0.02


@pytest.mark.parametrize("explicit", [False, True])
def test_observe_tests_whether_a_map_is_exact(quadratic, explicit):
    """If the claim were trusted, the errors would be zero by definition."""
    mirror = Boastful()
    if explicit:
        with pytest.raises(ValueError, match="does not invert"):
            observe(
                quadratic,
                MD(mirror, 0.1),
                minimiser=quadratic.centre,
                iterations=3,
                geometry=mirror,
            )
        return
    record = observe(quadratic, MD(mirror, 0.1), minimiser=quadratic.centre, iterations=5).record
    torch.testing.assert_close(
        record["error"], torch.full_like(record["error"], 0.02 * 3**0.5 / 0.1)
    )
    amd = observe(
        quadratic, AMD(mirror, 0.1, storage="primal"), minimiser=quadratic.centre, iterations=5
    ).record
    assert (amd["error"] != 0).all()


def test_a_dual_stored_run_is_exact_only_in_its_own_geometry(quadratic):
    """Compared with another map, the errors of a dual-stored run are not zero."""
    method = SMD(Diagonal(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)), 0.1)
    own = observe(
        quadratic, method, random(2, 3, seed=1), minimiser=quadratic.centre, iterations=5
    ).record
    assert not own["error"].any()
    other = observe(
        quadratic,
        method,
        random(2, 3, seed=1),
        minimiser=quadratic.centre,
        iterations=5,
        geometry=Euclidean(),
    ).record
    assert (other["error"] > 0).all()
    shifted = observe(
        quadratic,
        ASMD(Boastful(), 0.1),
        minimiser=quadratic.centre,
        iterations=5,
        geometry=NewtonInverse(Boastful()),
    ).record
    assert (shifted["error"] != 0).any()


def test_a_diverged_run_is_not_below_its_bound(quadratic):
    diagnosis = diagnose(MD(Euclidean(), 0.6), quadratic, random(2, 3, seed=1), iterations=10)
    (run,) = diagnosis.runs.values()
    assert float(run.record["gap"][-1].max()) > 100 * float(run.record["gap"][0].max())
    assert (
        run.bound_check.measured <= run.bound_check.pathwise + 1e-6 * run.bound_check.pathwise.abs()
    ).all(), "f is convex"
    assert verdicts(diagnosis, BELOW) == {"does not hold"}


def test_a_run_that_was_stopped_for_diverging_is_not_below_its_bound(quadratic):
    diagnosis = diagnose(MD(Euclidean(), 5.0), quadratic, random(2, 3, seed=1), iterations=400)
    (run,) = diagnosis.runs.values()
    assert "diverged" in {str(status) for status in run.solution.statuses}
    (verdict,) = [v for v in diagnosis.verdicts if v.assumption == BELOW]
    assert verdict.answer == "does not hold"
    assert "2 of 2 problems failed" in verdict.reason


def test_a_descending_run_is_below_both_bounds_and_the_page_names_them(quadratic):
    diagnosis = diagnose(
        Diagonal(torch.ones(3, dtype=torch.float64)), quadratic, random(2, 3, seed=1), iterations=20
    )
    for run in diagnosis.runs.values():
        assert (run.bound_check.measured <= run.bound_check.bound).all()
    assert verdicts(diagnosis, BELOW) == {"holds"}
    page = markdown(diagnosis)
    for words in ("a-priori bound", "pathwise bound", "Theorem 2, case 2", "Theorem 3"):
        assert words in page


def test_noise_counts_in_the_second_moment():
    """σ² = E‖G‖² contains the noise, here n·s² = 3·4 at every point, times 1.25.

    The gradients themselves are small.
    """
    problem = Quadratic(torch.full((3,), 1e-6, dtype=torch.float64), random(2, 3))
    method = SMD(Euclidean(), Polynomial(0.05, 0.5))
    bound = (
        diagnose(method, problem, problem.centre, iterations=10, oracle=Noisy(2.0))
        .runs["SMD"]
        .bound_check.bound
    )
    t = torch.tensor([0.05 / (k + 1) ** 0.5 for k in range(10)], dtype=torch.float64)
    second_moment = bound / (t.square().cumsum(0) / (2 * t.cumsum(0)))[:, None]
    assert (second_moment > 10).all()
    assert (second_moment < 30).all()


@pytest.mark.parametrize(
    ("ends", "words"), [((0.9, 0.9), "0.9 times the identity within 0 %"), ((0.98, 1.06), "3.9 %")]
)
def test_a_map_that_is_nearly_a_multiple_of_the_identity_is_called_so(quadratic, ends, words):
    mirror = Diagonal(torch.tensor([ends[0], sum(ends) / 2, ends[1]], dtype=torch.float64))
    diagnosis = diagnose(mirror, quadratic, random(2, 3, seed=1), iterations=3)
    for text in (markdown(diagnosis), str(diagnosis)):
        assert words in text
        assert "a step size could gain" in text


def test_a_geometry_is_not_called_a_multiple_of_the_identity(quadratic):
    mirror = Diagonal(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
    page = markdown(diagnose(mirror, quadratic, random(2, 3, seed=1), iterations=3))
    assert "no multiple of the identity: its curvatures lie between 0.5 and 2" in page
    conjugate = Conjugate(DenseICNN(3).double())
    found = diagnose(
        conjugate,
        quadratic,
        random(2, 3, seed=1),
        methods={"SMD": SMD(conjugate, 0.1)},
        iterations=3,
    )
    lowest = found.geometries["dual"].identity_comparison.lowest
    highest = found.geometries["dual"].identity_comparison.highest
    assert 0 < lowest <= highest


class Off(Euclidean):
    """An inverse that is off by e = 0.02 in every entry, and says so."""

    exact = False

    def _to_primal(self, y):
        return y + 0.02


def test_what_is_known_of_an_inexact_inverse_before_the_run():
    """U = −e/t at every point.

    C' = n e²/t² with the shortest step, and C is the largest ⟨e, x − u⟩/t; both times 1.25.
    """
    u = random(4, 3)
    problem = Quadratic(torch.ones(3, dtype=torch.float64), u)
    points = [u + 1, u - 2]
    method = MD(Off(), Polynomial(0.5, 1.0))
    mirror = Off()
    generator = torch.Generator().manual_seed(0)
    known = sample_prior_constants(
        method,
        problem,
        Coupling(NewtonInverse(mirror), u),
        points,
        Exact(),
        generator,
        5,
        exact=False,
    )
    shortest = 0.1
    expected = {
        "squared_error": 1.25 * 3 * (0.02 / shortest) ** 2,
        "pairing": 1.25
        * 3
        * 0.02
        * 1
        / shortest,  # −⟨U, x − u⟩ = ⟨e, x − u⟩/t, largest where x − u = 1
        "squared_distance": 1.25 * 3 * 4,
        "second_moment": 1.25 * 3 * (2 + 0.02 / shortest) ** 2,  # g = −2 and U = −e/t
        "variance": 0.0,
        "squared_gradient": 0.0,
    }
    for name, value in expected.items():
        torch.testing.assert_close(
            getattr(known, name), torch.full((4,), value, dtype=torch.float64)
        )
    exact = sample_prior_constants(
        method, problem, Coupling(Euclidean(), u), points, Exact(), generator, 5, exact=True
    )
    assert not any(
        getattr(exact, name).any() for name in ("squared_error", "pairing", "energy_error")
    )


def judged_below(measured, bound, stochastic, slack=None):
    bounded = BoundCheck(
        "f", "Theorem", torch.tensor(measured), torch.tensor(bound), torch.tensor(bound), slack
    )
    solution = SimpleNamespace(
        statuses=[Status.BUDGET] * len(measured[0]), value=torch.zeros(len(measured[0]))
    )
    return check_below_bound(bounded, solution, stochastic)


def test_with_noise_a_bound_is_one_on_the_mean():
    measured = [[1.0, 1.0], [3.0, 0.5]]
    bound = [[2.0, 2.0], [2.0, 2.0]]
    assert judged_below(measured, bound, stochastic=True).answer == "holds"
    exact = judged_below(measured, bound, stochastic=False)
    assert exact.answer == "does not hold"
    assert "first after 2 steps" in exact.reason
    assert judged_below([[5.0, 5.0]], [[2.0, 2.0]], stochastic=True).answer == "does not hold"


def test_lemma_1_is_judged_by_the_smallest_slack():
    slack = torch.tensor([[0.5, 2.0], [-0.25, 1.0]])
    bounded = BoundCheck("f", "Theorem 1", slack, slack, slack, slack)
    record = Record(torch.ones(2), {"energy": torch.ones(3, 2)}, {})
    (verdict,) = check_energy_decrease("accelerated", bounded, record)
    assert verdict.answer == "does not hold"
    assert "smallest slack is -0.25; 1 of 2 steps" in verdict.reason
    assert check_energy_decrease("descent", bounded, record) == []


def test_nearby_points_have_distances_of_the_size_of_the_start():
    generator = torch.Generator().manual_seed(0)
    for size, distance in ((1e9, 1e9), (10.0, 10.0), (0.1, 0.1), (1e-9, 1e-9), (0.0, 3e-7)):
        x0 = torch.full((1, 4000), size, dtype=torch.float64)
        start, near = sample_nearby_points(x0, WholeSpace(), generator, 1, length=3e-7)
        assert torch.equal(start, x0)
        assert float((near - x0).std()) == pytest.approx(distance, rel=0.05)


@pytest.mark.parametrize("units", [1e-9, 1e-3, 1.0, 1e9])
def test_nearby_points_of_a_cone_are_pulled_inside_by_their_own_size(units):
    x0 = units * torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64)
    points = sample_nearby_points(x0, PositiveOrthant(), torch.Generator().manual_seed(0), 5)
    plain = sample_nearby_points(x0 / units, PositiveOrthant(), torch.Generator().manual_seed(0), 5)
    for point, expected in zip(points, plain, strict=True):
        torch.testing.assert_close(point / units, expected, rtol=1e-12, atol=1e-12)
