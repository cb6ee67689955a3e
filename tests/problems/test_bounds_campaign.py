"""The campaign of bounds, with one small batch of every pair of formula and adversarial kind."""

from __future__ import annotations

import warnings

import pytest
import torch
from campaigns import bounds
from campaigns.tally import Tally


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
