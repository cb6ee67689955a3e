"""The language model: looks along a run, and claims that can fail."""

from __future__ import annotations

import pytest
import torch

from mirrordescent.recipes.architectures import small_resnet
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.recipes.training_tasks import Task
from mirrordescent_experiments import charlm, contestants
from mirrordescent_experiments.result import Curve, Panel


def test_looking_changes_nothing():
    """Neither minibatches nor what batch norms remember."""
    task = Task("tiny", lambda: small_resnet(2), "digits-28", 5, 16, evaluated=40)
    make = contestants.adamw(1e-2, "cosine")
    seen = dict(task.along(make, 3, every=2))
    assert list(seen) == [0, 2, 4, 5]
    assert seen[5][:3] == task.train(make, 3)[:3]
    assert seen[0].seconds == 0 < seen[2].seconds < seen[5].seconds
    assert seen[5].loss < seen[0].loss


@pytest.mark.parametrize(
    ("ours", "holds"), [([2.0, 2.1, 2.2], True), ([2.5, 2.6, 2.8], False), ([2.0, 2.3, 2.6], None)]
)
def test_claims_are_judged_over_the_same_networks(ours, holds):
    theirs = torch.tensor([2.3, 2.35, 2.4], dtype=torch.float64)
    mine = torch.tensor(ours, dtype=torch.float64)
    curves = [
        Curve(name, [0, 1], [0.0, 1.0], ends.expand(2, -1))
        for name, ends in ((ENTRY, mine), ("AdamW (1)", theirs))
    ]
    panels = {quantity: Panel(curves, meaning) for quantity, meaning in charlm.QUANTITIES.items()}
    claims = charlm.equal_steps_claims(panels, ["AdamW"])
    both = (dict.fromkeys(charlm.QUANTITIES, each) for each in (mine, theirs))
    claims += charlm.equal_seconds_claims(next(both), {"AdamW": next(both)})
    assert [claim.holds for claim in claims] == [holds] * 4
    assert len({claim.statement for claim in claims}) == 4


def test_everybody_but_the_entry_is_tuned_over_several_settings():
    tuned = {each.name: len(each.settings) for each in charlm.entrants()}
    assert tuned.pop(ENTRY) == 1
    assert {"AdamW", "Muon with AdamW", "SGD with momentum", charlm.HAND, charlm.CONTROL} <= set(
        tuned
    )
    assert min(tuned.values()) >= 3
