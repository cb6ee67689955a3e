"""Certificates are verified from their witnesses, by a second implementation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mirrordescent as md
from mirrordescent.domains import Box, PositiveOrthant, Simplex
from mirrordescent.references import certify
from mirrordescent.references.verification import recompute

DOUBLE = torch.float64


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


IMAGES = data(2, 2, 7, 6).abs()
MASK = (data(7, 6, seed=3) > -0.5).double()

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
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_certificates_are_confirmed(name):
    problem = PROBLEMS[name]()
    found = certify(problem, 1e-5, cache=False)
    checked = found.verify(problem)
    assert found.proven
    assert found.proof
    assert checked.confirmed, checked
    assert (checked.lower <= found.value).all()
    assert "confirmed" in str(checked)


@pytest.mark.parametrize("name", PROBLEMS)
def test_wrong_certificates_are_not_confirmed(name):
    """A bound above the minimum, and a witness of other data."""
    problem = PROBLEMS[name]()
    found = certify(problem, 1e-5, cache=False)
    raised = replace(found, lower=found.value + 1e-6 * (1 + found.value.abs()))
    checked = raised.verify(problem)
    assert not checked.confirmed
    assert "not confirmed" in checked.words
    assert not replace(found, witness=None).verify(problem).confirmed


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_any_witness_proves_a_valid_bound(name, scale):
    """However bad it is."""
    problem = PROBLEMS[name]()
    found = certify(problem, 1e-5, cache=False)
    for seed in range(5):
        tensors = {}
        for block, tensor in found.witness.tensors.items():
            tensors[block] = tensor + scale * data(*tensor.shape, seed=seed)
        if found.witness.kind == "tangent":
            tensors = {"x": problem.domain.project(tensors["x"])}
        bound = recompute(replace(found.witness, tensors=tensors), problem)
        assert (bound <= found.value).all()


def test_a_witness_of_other_data_proves_nothing_about_these():
    found = certify(md.TVDenoising(IMAGES, 0.2), 1e-5, cache=False)
    other = md.TVDenoising(0.5 * IMAGES.flip(-1), 0.2)
    checked = found.verify(other)
    assert not checked.confirmed
    assert (checked.lower <= certify(other, 1e-5, cache=False).value).all()


def test_the_verification_does_not_use_the_bounds_of_the_class(monkeypatch):
    problem = PROBLEMS["in a box"]()
    found = certify(problem, 1e-5, cache=False)
    for name in ("bound_at", "minimiser", "grad"):
        monkeypatch.setattr(md.LeastSquares, name, None)
    assert found.verify(problem).confirmed
    image = PROBLEMS["denoising"]()
    found = certify(image, 1e-5, cache=False)
    for name in ("lower_bound", "bound_of_pair", "grad", "K", "K_adjoint"):
        monkeypatch.setattr(md.TVInpainting, name, None)
    assert found.verify(image).confirmed


def test_a_stored_certificate_keeps_its_witness():
    problem = PROBLEMS["game"]()
    first = certify(problem, 1e-5)
    second = certify(problem, 1e-5)
    assert torch.equal(first.witness.tensors["u"], second.witness.tensors["u"])
    assert second.verify(problem).confirmed
    assert second.proof == first.proof
