"""The campaign of bounds, with one small batch of every pair of formula and adversarial kind."""

from __future__ import annotations

import warnings

import mpmath
import pytest
import torch
from campaigns import bounds, verification
from campaigns.tally import Tally

import mirrordescent as md
from mirrordescent.references import Certificate, Verification, certify


@pytest.mark.parametrize("formula", bounds.FORMULAS)
def test_no_bound_exceeds_the_minimum_and_no_status_is_false(formula, monkeypatch):
    monkeypatch.setattr(bounds, "STEPS", 20)
    monkeypatch.setattr(bounds, "REFERENCE_STEPS", 40)
    monkeypatch.setattr(bounds, "BATCH", 2)
    tally = Tally("bounds", 3, 1.0)
    for number, kind in enumerate(bounds.KINDS):
        generator = torch.Generator().manual_seed(number)
        draw = bounds.Draw(tally.random, generator, kind)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bounds.check(tally, kind, bounds.FORMULAS[formula](draw))
    assert not tally.examples


def test_a_bound_above_the_minimum_is_a_fault():
    draw = bounds.Draw(Tally("bounds", 0, 1.0).random, torch.Generator(), "mixed signs")
    case = bounds.FORMULAS["least squares"](draw)
    tally = Tally("bounds", 0, 1.0)
    minimum = torch.tensor([float(case.minimum(i)) for i in range(bounds.BATCH)]).double()
    case.bounds = lambda: iter([minimum + 1e-9])
    bounds.check(tally, "raised", case)
    assert tally.faults["raised"] == bounds.BATCH


def test_a_verification_that_accepts_too_much_is_a_fault(monkeypatch):
    """The recomputed bounds are raised above the minima, and then everything is confirmed."""
    problem = md.TVDenoising(torch.rand(2, 1, 3, 3, dtype=torch.float64), 0.1)
    value = certify(problem, 1e-9, cache=False).value
    minima = [mpmath.mpf(float(each)) for each in value]
    honest = Tally("bounds", 0, 1.0)
    verification.check_verification(honest, "TV", problem, minima)
    assert not honest.faults
    raised = value + 1e-6
    monkeypatch.setattr(verification, "recompute", lambda witness, problem: raised)
    tally = Tally("bounds", 0, 1.0)
    verification.check_verification(tally, "TV", problem, minima)
    assert tally.faults["TV, verification"] == 1 + verification.FORGERIES
    monkeypatch.undo()
    confirmed = Verification(value, True, "confirmed")
    monkeypatch.setattr(Certificate, "verify", lambda self, problem: confirmed)
    tally = Tally("bounds", 0, 1.0)
    verification.check_verification(tally, "TV", problem, minima)
    assert tally.faults["TV, verification"] == 1 + verification.FORGERIES
