"""Certificates are verified from their witnesses, by a second implementation."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from dataclasses import replace

import pytest
import torch

import mirrordescent as md
from mirrordescent.domains import Box, PositiveOrthant, Simplex
from mirrordescent.problems import (
    L1,
    TV,
    Blur,
    Composite,
    Counts,
    Fourier,
    Haar,
    Matrix,
    Ridge,
    Roughness,
    Sampling,
    SquaredError,
    radial_mask,
)
from mirrordescent.problems.beam import ParallelBeam
from mirrordescent.problems.tomography import PoissonTomography
from mirrordescent.references import certificate, certify
from mirrordescent.references.verification import recompute
from mirrordescent.references.witnesses import witness_of_point

DOUBLE = torch.float64


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


IMAGES = data(2, 2, 7, 6).abs()
MASK = (data(7, 6, seed=3) > -0.5).double()
SQUARE = data(2, 2, 6, 6, seed=4).abs()
KERNEL = torch.tensor([[0.1, 0.2, 0.0], [0.0, 0.5, 0.1], [0.0, 0.1, 0.0]], dtype=DOUBLE)
LASSO_WEIGHTS = torch.tensor([0.1, 0.4], dtype=DOUBLE)
BEAM = ParallelBeam(4, angles=5, detectors=7)
COUNTS = (10 * data(2, 1, 5, 7, seed=5).abs()).round()

PROBLEMS = {
    "least squares": lambda: md.LeastSquares(data(3, 9, 4), data(3, 9, seed=1)),
    "on a simplex": lambda: md.LeastSquares(data(3, 4, 9), data(3, 4, seed=1), Simplex()),
    "in a box": lambda: md.LeastSquares(data(3, 4, 9), data(3, 4, seed=1), Box(-0.1, 0.2)),
    "non-negative": lambda: md.LeastSquares(data(3, 9, 4), data(3, 9, seed=1), PositiveOrthant()),
    "non-negative, underdetermined": lambda: md.LeastSquares(
        data(3, 4, 9).abs(), data(3, 4, seed=1), PositiveOrthant()
    ),
    "logistic regression": lambda: md.LogisticRegression(
        data(3, 30, 4), data(3, 30, seed=1).sign(), 1e-2
    ),
    "game": lambda: md.MatrixGame(data(3, 5, 4)),
    "quadratic": lambda: md.Quadratic(data(4).abs() + 0.1, data(3, 4, seed=1)),
    "quadratic, full": lambda: md.Quadratic(data(9, 4).T @ data(9, 4), data(3, 4, seed=1)),
    "denoising": lambda: md.TVDenoising(IMAGES, 0.2),
    "isotropic": lambda: md.TVDenoising(IMAGES, 0.2, isotropic=True, coupled=True),
    "coupled": lambda: md.TVDenoising(IMAGES, torch.tensor([0.1, 0.3], dtype=DOUBLE), coupled=True),
    "huber": lambda: md.TVDenoising(IMAGES, 0.2, isotropic=True, huber=0.1),
    "inpainting": lambda: md.TVInpainting(IMAGES, MASK, 0.2),
    "machine": lambda: md.SVM(data(2, 20, 3), data(2, 20, seed=1).sign(), 2.0),
    "deblurring": lambda: md.TVInpainting(IMAGES, None, 0.2, operator=Blur(KERNEL)),
    "masked deblurring, isotropic": lambda: md.TVInpainting(
        IMAGES, MASK, 0.2, operator=Blur(KERNEL), isotropic=True, coupled=True
    ),
    "lasso": lambda: Composite(
        SquaredError(data(2, 6, seed=1), Matrix(data(6, 9))), [L1(LASSO_WEIGHTS)]
    ),
    "wavelets": lambda: Composite(SquaredError(SQUARE), [L1(0.1, Haar(1))]),
    "wavelets, group norm": lambda: Composite(SquaredError(SQUARE), [L1(0.1, coupled=True)]),
    "wavelets and TV of a blurred image": lambda: Composite(
        SquaredError(SQUARE, Blur(KERNEL)), [TV(0.05, huber=0.1), L1(0.02, Haar(1))]
    ),
    "resonance": lambda: Composite(
        SquaredError(
            Fourier(radial_mask(6, 4).double()).A(SQUARE), Fourier(radial_mask(6, 4).double())
        ),
        [TV(0.05, isotropic=True, coupled=True)],
    ),
    "ridge": lambda: Composite(SquaredError(data(2, 6, seed=1), Matrix(data(6, 9))), [Ridge(0.3)]),
    "roughness": lambda: Composite(SquaredError(SQUARE, Blur(KERNEL)), [Roughness(0.1)]),
    "a volume": lambda: md.GridTV(
        data(2, 1, 3, 4, 5), 0.3, axis_weights=(0.5, 1, 2), isotropic=True, huber=0.05
    ),
    "signals": lambda: md.GridTV(data(2, 2, 9), 0.3, coupled=True),
    "a masked volume": lambda: Composite(
        SquaredError(data(2, 1, 3, 4, 5), mask=data(3, 4, 5, seed=3) > -0.5),
        [TV(0.3, axis_weights=(0.5, 1, 2))],
    ),
    "trends": lambda: md.TrendFiltering(data(2, 1, 4, 7), 0.3, axis_weights=(1, 0.5)),
    "non-negative fit": lambda: Composite(
        SquaredError(data(2, 6, seed=1).abs() + 1, Matrix(data(6, 4).abs())), [PositiveOrthant()]
    ),
    "non-negative wavelets": lambda: Composite(
        SquaredError(data(2, 6, seed=1), Matrix(data(6, 9))), [L1(0.3), PositiveOrthant()]
    ),
    "box": lambda: Composite(SquaredError(SQUARE, Blur(KERNEL)), [TV(0.05), Box(0.0, 0.8)]),
    "sampled, box": lambda: Composite(
        SquaredError(SQUARE, Sampling(torch.eye(6, dtype=DOUBLE))), [TV(0.05), Box(0.0, 0.8)]
    ),
    "direct, box": lambda: Composite(SquaredError(SQUARE), [TV(0.1), Box(0.3, 0.8)]),
    "on a simplex, L1": lambda: Composite(
        SquaredError(data(2, 6)), [L1(0.1, Matrix(data(3, 6, seed=2))), Simplex()]
    ),
    "observed, on a simplex": lambda: Composite(
        SquaredError(data(2, 6), Matrix(data(6, 4))), [Simplex()]
    ),
    "counts": lambda: Composite(Counts(3 * SQUARE, background=0.1), [TV(0.2)]),
    "counts of a matrix": lambda: Composite(
        Counts(data(2, 8, seed=1).abs(), Matrix(data(8, 3).abs()), 0.1), [Ridge(0.1)]
    ),
    "classifier": lambda: Composite(
        md.LogisticRegression(data(1, 20, 3), data(1, 20, seed=1).sign(), 0.1), [L1(0.05)]
    ),
    "least squares with a term": lambda: Composite(
        md.LeastSquares(data(2, 9, 4), data(2, 9, seed=1)), [L1(0.1)]
    ),
    "smooth composite": lambda: Composite(
        md.LogisticRegression(data(1, 20, 3), data(1, 20, seed=1).sign()), [Ridge(0.1)]
    ),
    "composite without terms": lambda: Composite(md.LeastSquares(data(2, 9, 4), data(2, 9))),
    "tomography": lambda: PoissonTomography(COUNTS, BEAM, background=0.3, weight=0.5),
    "tomography without roughness": lambda: PoissonTomography(COUNTS, BEAM, background=0.3),
}

KNOWN_FROM_DATA = ("quadratic", "quadratic, full")
"""Problems whose minimum follows from the data, for every witness."""


@functools.cache
def certified(name):
    """Return a problem and its certificate."""
    problem = PROBLEMS[name]()
    with warnings.catch_warnings():
        # If the start is optimal, f(x₀) − lower is a rounding error.
        warnings.filterwarnings("ignore", "certified to a relative gap")
        return problem, certify(problem, 1e-5, cache=False)


def changed(found, change):
    """Return a certificate with other tensors in its witness."""
    tensors = {name: change(tensor) for name, tensor in found.witness.tensors.items()}
    return replace(found, witness=replace(found.witness, tensors=tensors))


@pytest.mark.parametrize("name", PROBLEMS)
def test_certificates_are_confirmed(name):
    problem, found = certified(name)
    checked = found.verify(problem)
    assert found.proven
    assert found.proof
    assert checked.confirmed, checked
    assert (checked.lower <= found.value * (1 + 1e-15)).all()
    assert "confirmed" in str(checked)


@pytest.mark.parametrize("name", PROBLEMS)
def test_certificates_in_single_precision_are_confirmed(name):
    problem = copy.deepcopy(PROBLEMS[name]()).float()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "certified to a relative gap")
        found = certify(problem, 1e-3, cache=False)
    assert found.proven
    assert found.verify(problem).confirmed


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_verification_is_tight(name):
    """Verified bounds are not far below the values, so that certificates are of use."""
    _, found = certified(name)
    size = found.start_value.abs() + found.value.abs()
    assert (
        found.value - found.lower <= 2e-5 * (found.start_value - found.lower) + 1e-9 * size
    ).all()


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("excess", [1e-6, 1e-2, 1e6, math.inf])
def test_a_raised_bound_is_not_confirmed(name, excess):
    """A bound above a value of f, for one sample of the batch."""
    problem, found = certified(name)
    lower = found.lower.clone()
    lower[0] = found.value[0] + excess * (1 + found.value[0].abs())
    checked = replace(found, lower=lower).verify(problem)
    assert not checked.confirmed
    assert "not confirmed" in checked.words


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_prove_nothing(name, number):
    problem, found = certified(name)

    def spoil(tensor):
        spoiled = tensor.clone()
        spoiled.flatten(1)[-1, 0] = number
        return spoiled

    forged = changed(found, spoil)
    assert not forged.verify(problem).confirmed
    lower = found.lower.clone()
    lower[0] = math.nan
    assert not replace(found, lower=lower).verify(problem).confirmed


@pytest.mark.parametrize("name", PROBLEMS)
def test_forged_witnesses_do_not_prove_the_bound(name):
    """The witness is scaled, perturbed, without one sample, and without one block."""
    problem, found = certified(name)
    forged = {
        "half": changed(found, lambda tensor: 0.5 * tensor),
        "twice": changed(found, lambda tensor: 2 * tensor),
        "opposite": changed(found, torch.neg),
        "perturbed": changed(found, lambda tensor: tensor + data(*tensor.shape, seed=9)),
    }
    if name not in KNOWN_FROM_DATA:
        refused = [kind for kind, each in forged.items() if not each.verify(problem).confirmed]
        multiples_are_equal = name == "game"  # they are the same mixed strategy
        assert len(refused) >= (2 if multiples_are_equal else 3)
    assert not changed(found, lambda tensor: tensor[:, :0]).verify(problem).confirmed
    two = changed(found, lambda tensor: torch.cat([tensor, tensor]))
    assert not two.verify(problem).confirmed or problem.batch is None
    fewer = dict(found.witness.tensors)
    del fewer[next(iter(fewer))]
    fewer["other"] = found.x
    forgery = replace(found, witness=replace(found.witness, tensors=fewer))
    assert not forgery.verify(problem).confirmed
    assert not replace(found, witness=None).verify(problem).confirmed


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_any_witness_proves_a_valid_bound(name, scale):
    """However bad it is."""
    problem, found = certified(name)
    for seed in range(5):
        forged = changed(found, lambda t, seed=seed: t + scale * data(*t.shape, seed=seed))
        bound = recompute(forged.witness, problem)
        assert (bound <= found.value * (1 + 1e-15)).all()


OTHERS = [
    ("denoising", "isotropic"),
    ("deblurring", "masked deblurring, isotropic"),
    ("lasso", "ridge"),
    ("tomography", "tomography without roughness"),
    ("game", "machine"),
    ("wavelets", "box"),
    ("classifier", "smooth composite"),
    ("least squares", "on a simplex"),
]


@pytest.mark.parametrize(("first", "second"), OTHERS)
def test_a_witness_of_another_problem_proves_nothing_about_this_one(first, second):
    problem, found = certified(first)
    _, other = certified(second)
    assert (
        not replace(found, witness=other.witness, lower=other.value + 1).verify(problem).confirmed
    )
    assert not found.verify(certified(second)[0]).confirmed


def test_a_witness_of_other_data_proves_a_bound_on_these_only():
    _, found = certified("denoising")
    other = md.TVDenoising(0.5 * IMAGES.flip(-1), 0.2)
    checked = found.verify(other)
    assert not checked.confirmed
    assert (checked.lower <= certify(other, 1e-5, cache=False).value).all()
    _, found = certified("deblurring")
    other = md.TVInpainting(0.5 * IMAGES.flip(-1), None, 0.2, operator=Blur(KERNEL))
    checked = found.verify(other)
    assert not checked.confirmed
    assert (checked.lower <= certify(other, 1e-5, cache=False).value).all()


def test_data_that_are_changed_in_place_need_another_certificate():
    problem = md.TVInpainting(IMAGES.clone(), None, 0.2, operator=Blur(KERNEL))
    found = certify(problem, 1e-5, cache=False)
    assert found.verify(problem).confirmed
    problem.y.mul_(0.5)
    assert not found.verify(problem).confirmed


def test_the_verification_does_not_use_the_bounds_of_the_class(monkeypatch):
    names = ("in a box", "denoising", "deblurring", "wavelets and TV of a blurred image")
    cases = [certified(name) for name in (*names, "counts", "tomography", "machine", "classifier")]
    forbidden = ("bound_at", "minimiser", "grad", "lower_bound", "bound_of_pair", "K_adjoint")
    classes = (
        Composite,
        md.TVInpainting,
        PoissonTomography,
        md.LeastSquares,
        md.SVM,
        md.LogisticRegression,
        SquaredError,
        Counts,
        TV,
        L1,
        Roughness,
    )
    more = ("proving_points", "minimiser_and_dual", "conjugate", "add_adjoint", "dual_gauge")
    for cls in classes:
        for name in (*forbidden, *more):
            monkeypatch.setattr(cls, name, None, raising=False)
    for operator in (Blur, Haar, Matrix, ParallelBeam):
        monkeypatch.setattr(operator, "A_adjoint", None)
    for problem, found in cases:
        assert found.verify(problem).confirmed


def test_a_class_that_changes_f_is_not_verified_by_the_formula_of_its_parent():
    class Lower(md.TVDenoising):
        def value(self, x):
            return super().value(x) - 1

    class LowerFit(SquaredError):
        def value(self, x):
            return super().value(x) / 2

        def misfit(self, z):
            return super().misfit(z) / 2

    class LowerTerm(TV):
        def value(self, x):
            return super().value(x) / 2

    _, found = certified("denoising")
    assert not found.verify(Lower(IMAGES, 0.2)).confirmed
    fit = SquaredError(SQUARE, Blur(KERNEL))
    found = certify(Composite(fit, [TV(0.1)]), 1e-3, cache=False)
    assert found.verify(Composite(fit, [TV(0.1)])).confirmed
    assert not found.verify(Composite(LowerFit(SQUARE, Blur(KERNEL)), [TV(0.1)])).confirmed
    assert not found.verify(Composite(fit, [LowerTerm(0.1)])).confirmed


def test_pixels_without_data_cost_nothing():
    """x ≥ 0 bounds masked entries from one side only, and the dual point is 0 there."""
    mask = torch.eye(6, dtype=DOUBLE)
    problem = Composite(SquaredError(SQUARE - 0.5, mask=mask), [PositiveOrthant()])
    x = problem.start()
    bound = recompute(witness_of_point(problem, x), problem)
    assert torch.allclose(bound, problem.value(x), rtol=1e-12, atol=0)
    assert (bound <= problem.value(x)).all()


def test_an_unverified_bound_is_not_called_proven(monkeypatch):
    """A dual point without any verification."""
    monkeypatch.setattr(certificate, "recompute", lambda witness, problem: None)
    found = certify(PROBLEMS["denoising"](), 1e-3, cache=False)
    assert not found.proven
    assert not found.conditional_on
    assert "witness" in found.proof


def test_conditions_are_part_of_the_words():
    class Mine(md.problems.Problem):
        convex = True

        def __init__(self):
            super().__init__(1, (3,), centre=torch.ones(1, 3, dtype=DOUBLE))

        def value(self, x):
            return (x - self.centre).square().sum(-1)

        def grad(self, x):
            return 2 * (x - self.centre)

        def strong_convexity(self):
            return 2.0

    found = certify(Mine(), cache=False)
    assert not found.proven
    assert "if f is convex" in found.verify(Mine()).words


def test_a_stored_certificate_keeps_its_witness():
    problem = PROBLEMS["game"]()
    first = certify(problem, 1e-5)
    second = certify(problem, 1e-5)
    assert torch.equal(first.witness.tensors["u"], second.witness.tensors["u"])
    assert second.verify(problem).confirmed
    assert second.proof == first.proof
