"""The campaigns of faults, a few cases of each; in full they are python -m campaigns NAME."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from campaigns.__main__ import SMALL
from campaigns.fuzz import Fuzz, damaged
from campaigns.tally import Tally, markdown, write

from mirrordescent.files import read_whole

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(sys.platform != "linux", reason="campaigns fork, and limit processes as Linux does")
def test_a_few_cases_of_every_campaign():
    command = [sys.executable, "-m", "campaigns", "small", "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in SMALL:
        assert f"\n{name}\n" in f"\n{done.stdout}"


def test_a_fault_is_counted_and_shown(tmp_path):
    tally = Tally("test", 3, 1.0, most=2)
    assert list(tally.cases()) == [0, 1]
    tally.note("case", "good")
    tally.fault("case", "this went wrong")
    write(tally, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "2 cases" in page
    assert "1 faults" in page
    assert "this went wrong" in page
    assert markdown(json.loads((tmp_path / "page.json").read_text())) == page


def test_a_silent_change_would_be_noticed(tmp_path, monkeypatch):
    """The campaign itself can fail: where a checksum is not looked at, it says so."""
    tally = Tally("fuzz", 0, 1.0)
    fuzz = Fuzz(tmp_path, tally.random)
    good = fuzz.read[0][0]
    wrong = {name: tensor + 1 for name, tensor in good.items()}
    monkeypatch.setattr("campaigns.fuzz.read_whole", lambda path: (wrong, {}))
    with pytest.raises(AssertionError, match="changed silently"):
        fuzz.entry()
    assert damaged(b"abc" * 50, tally.random) != b"abc" * 50
    assert torch.equal(read_whole(fuzz.entries[0])[0][next(iter(good))], next(iter(good.values())))
