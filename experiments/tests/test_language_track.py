"""The language model with tuned rivals: its size, and claims that can fail."""

from __future__ import annotations

import pytest
import torch

from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent_experiments import language_track
from mirrordescent_experiments.intervals import p_value
from mirrordescent_experiments.language_track import SIZES, claims_of, ends_table, model_of, rivals


def test_the_standard_size_is_that_of_a_track():
    size = SIZES["standard"]
    assert sum(p.numel() for p in model_of(size).parameters()) >= 3e6
    assert (size.steps, size.tuning, size.networks) == (2000, 400, 3)
    assert all(len(rival.settings) >= 3 for rival in rivals())


def test_p_values_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    differences = torch.tensor([0.02, 0.05, 0.03, -0.01])
    assert p_value(differences) == pytest.approx(
        stats.ttest_1samp(differences.numpy(), 0).pvalue, abs=1e-4
    )
    assert p_value(torch.zeros(3)) == 1
    assert p_value(torch.tensor([1.0])) == 1


@pytest.mark.parametrize(
    ("theirs", "holds"),
    [([2.3, 2.35, 2.4], True), ([1.9, 1.95, 2.0], False), ([2.0, 2.3, 2.1], None)],
)
def test_claims_are_judged_by_paired_intervals(theirs, holds):
    ends = {ENTRY: torch.tensor([2.1, 2.16, 2.2]), "AdamW": torch.tensor(theirs)}
    (claim,) = claims_of(ends)
    assert claim.holds is holds
    assert "n = 3" in claim.measured
    rows = ends_table(ends, {"AdamW": (0.003, "cosine")}).rows
    assert [row[:3] for row in rows] == [(ENTRY, "–", "3"), ("AdamW", "0.003", "3")]


def test_an_interrupted_run_continues_with_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(language_track.cache, "directory", lambda: tmp_path)
    monkeypatch.setitem(SIZES, "standard", SIZES["quick"])
    told = []

    def interrupt(line):
        told.append(line)
        if len(told) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        language_track.run("standard", None, interrupt)
    again = []
    language_track.run("standard", None, again.append)
    assert not {line.split(":")[0] for line in told[:4]} & {line.split(":")[0] for line in again}
