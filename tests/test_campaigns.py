"""The campaigns of faults, a few cases of each; in full they are python -m campaigns NAME."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from campaigns import mutants
from campaigns.__main__ import SMALL
from campaigns.fuzz import Fuzz, damage_bytes
from campaigns.tally import Tally, markdown, write

from mirrordescent._internal.files import read_whole
from mirrordescent_experiments.provenance import recorded

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(
    sys.platform != "linux", reason="campaigns fork, and limit processes as Linux does"
)
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
    with recorded("3") as tally.provenance:
        pass
    write(tally, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "2 cases" in page
    assert "1 faults" in page
    assert "this went wrong" in page
    assert tally.provenance["commit"] in page
    assert markdown(json.loads((tmp_path / "page.json").read_text())) == page


def test_an_empty_campaign_does_not_replace_another(tmp_path):
    with pytest.raises(ValueError, match="had none"):
        write(Tally("test", 3, 1.0), tmp_path / "page.md")
    assert not list(tmp_path.iterdir())


def test_a_silent_change_would_be_noticed(tmp_path, monkeypatch):
    """The campaign itself can fail: where a checksum is not looked at, it says so."""
    tally = Tally("fuzz", 0, 1.0)
    fuzz = Fuzz(tmp_path, tally.random)
    good = fuzz.read[0][0]
    wrong = {name: tensor + 1 for name, tensor in good.items()}
    monkeypatch.setattr("campaigns.fuzz.read_whole", lambda path: (wrong, {}))
    with pytest.raises(AssertionError, match="changed silently"):
        fuzz.entry()
    assert damage_bytes(b"abc" * 50, tally.random) != b"abc" * 50
    assert torch.equal(read_whole(fuzz.entries[0])[0][next(iter(good))], next(iter(good.values())))


def test_mutants_of_kernels_are_changes_of_code_in_c():
    drawn = mutants.sample(300, seed=1, parts=["kernels"])
    assert len(drawn) == 300
    for mutant in drawn:
        text = (mutants.SOURCE.parent / mutant.file).read_text()
        changed = mutant.applied(text)
        assert changed != text
        comments = [match[0] for match in mutants.C_COMMENT.finditer(text)]
        assert [match[0] for match in mutants.C_COMMENT.finditer(changed)] == comments
        assert changed.count("(") - changed.count(")") == text.count("(") - text.count(")")
    assert any(mutant.becomes == ";" for mutant in drawn)
    assert any(mutant.becomes == "-" for mutant in drawn)
    test = "tests/problems/test_holes.py::test"
    assert mutants.tests_of(drawn[0], {"seconds": {test: 1.0, "other": 1.0}, "lines": {}}) == [test]


def test_mutants_are_small_changes_that_can_be_compiled():
    drawn = mutants.sample(40, seed=1)
    assert drawn == mutants.sample(60, seed=1)[:40], "a larger sample goes on with the same"
    assert len({mutant.name for mutant in drawn}) == 40
    for mutant in drawn:
        text = (mutants.SOURCE.parent / mutant.file).read_text()
        changed = mutant.applied(text)
        assert changed != text
        compile(changed, mutant.file, "exec")
        assert any(
            mutant.file.startswith(f"mirrordescent/{part.split('.')[0]}")
            for part in mutants.DEFAULT_PARTS
        )


def test_the_tests_of_a_mutant_are_those_that_reach_its_line():
    mutant = mutants.sample(1, seed=1)[0]
    lines = {str(mutant.line): ["slow", "quick", "too slow"], str(mutant.line + 1): ["another"]}
    reached = {
        "seconds": {"slow": 3.0, "quick": 1.0, "too slow": 1e3, "another": 1.0},
        "lines": {mutant.file: lines},
    }
    assert mutants.tests_of(mutant, reached) == ["quick", "slow"]
    del lines[str(mutant.line)]
    assert mutants.tests_of(mutant, reached) == ["another"], (
        "a statement over several lines is counted at another one"
    )
    far = {"seconds": {"a": 1.0}, "lines": {mutant.file: {str(mutant.line + 50): ["a"]}}}
    assert mutants.tests_of(mutant, far) == ["a"], (
        "what is run on import concerns all tests of the module"
    )


def test_of_many_cases_of_one_test_some_make_way_for_other_tests():
    mutant = mutants.sample(1, seed=1)[0]
    seconds = {
        **{f"alike[{i}]": 0.001 * i for i in range(500)},
        "other": 2.0,
        "third[a]": 3.0,
        "long": 59.0,
    }
    reached = {"lines": {mutant.file: {str(mutant.line): list(seconds)}}, "seconds": seconds}
    chosen = mutants.tests_of(mutant, reached)
    assert len(chosen) == mutants.MOST_TESTS
    assert chosen == sorted(chosen, key=seconds.__getitem__)
    assert {"alike[0]", "other", "third[a]"} <= set(chosen)
    assert "long" not in chosen, "all together take no longer than is allowed"
    assert mutants.tests_of(mutant, {"seconds": {}, "lines": {}}) == []


def test_wilsons_interval():
    """Against numbers from Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20."""
    for successes, trials, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
    ):
        assert mutants.wilson(successes, trials) == pytest.approx((low, high), abs=5e-4)
