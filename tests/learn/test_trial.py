"""Does a solver pay on problems of one's own? Answers that are known beforehand; and the commands
that ask.
"""

from __future__ import annotations

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

import mirrordescent as md
from mirrordescent import zoo
from mirrordescent.automatic.trial import Trial, trial
from mirrordescent.cli import main
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.learn.families import generators
from mirrordescent.methods import GD
from mirrordescent.mirrors import Diagonal
from mirrordescent.racing import Contestant, RaceResult, first_below

STEEP = torch.tensor([1.0, 50.0])
FILE = """
import torch
import mirrordescent as md
from mirrordescent.learn import Draw, ProblemFamily

class Bowls(ProblemFamily):
    def draw(self, seeds):
        centres = 1 + seeds.remainder(5)[:, None].float() * torch.tensor([1.0, -1.0])
        problem = md.Quadratic(torch.tensor([1.0, 50.0]), centres)
        return Draw(problem, problem.start())
"""


class Bowls(ProblemFamily):
    def draw(self, seeds):
        centres = torch.stack(
            [torch.randn(2, generator=generator) for generator in generators(seeds)]
        )
        problem = md.Quadratic(STEEP, centres)
        return Draw(problem, problem.start())


def test_the_right_geometry_pays_and_too_short_steps_do_not():
    """Newton's method needs one step; steps of 1e-6 get nowhere."""
    newton = trial(Bowls(), md.SMD(Diagonal(STEEP), 1.0), name="Newton", count=4, iterations=200)
    assert newton.ours.unseen.iterations.tolist() == [1] * 4
    assert newton.words.startswith("It pays:")
    assert "on 4 of 4 unseen problems" in newton.words
    assert not newton.stalls()[0].any()
    assert newton.failures() == []
    slow = trial(Bowls(), GD(1e-6), name="short steps", count=4, iterations=200)
    assert slow.words.startswith("It does not pay: short steps solves 0 of 4 unseen problems")
    assert slow.stalls()[0].all()
    assert [i for i, _, _ in slow.failures()] == [0, 1, 2, 3]
    assert "fails on 4 problems: 0 (gap 9.8e-01)" in slow.failures_in_words()
    assert len(slow.page().sections) == 2


def test_no_problem_can_be_raced_to_an_accuracy_that_none_reaches():
    with pytest.raises(ValueError, match="no classical solver reaches"):
        trial(Bowls(), GD(0.01), count=2, iterations=1)


def known(gaps, needed, seconds=1.0):
    """A trial of two problems, with gaps at 0, 1, … of the solver; the classical one has solved
    both at 2.
    """
    gaps = torch.tensor(gaps)
    ours = Contestant("mine", GD(1.0), "learned", RaceResult(torch.tensor(needed), seconds))
    ours.unseen = ours.rehearsal
    best = Contestant("PDHG", GD(1.0), "classical", RaceResult(torch.tensor([2, 2]), 2.0))
    best.unseen = best.rehearsal
    return Trial("mine", 1e-2, ours, best, list(range(len(gaps))), (gaps, gaps), [], 1e-4)


def test_where_it_stalls_and_on_which_it_fails():
    found = known(
        [[1.0, 1.0], [0.1, 0.2], [0.05, 1e-2], [0.05, 1e-3], [0.05, 1e-4]], [-1, 3], torch.inf
    )
    stalled, words = found.stalls()
    assert stalled.tolist() == [True, False]
    assert (
        words
        == "It stalls on 1 of 2 problems: their gaps stay at about 5.0e-02 from iteration 2 on."
    )
    assert found.failures() == [(0, pytest.approx(0.05), 2)]
    assert "PDHG fails on 0 of them" in found.failures_in_words()
    assert "solves 1 of 2 unseen problems, and PDHG 2" in found.words
    assert [level for level, *_ in found.levels] == [0.1, 0.01, 0.001]
    assert [ours.tolist() for _, ours, _ in found.levels] == [[1, 2], [-1, 2], [-1, 3]]
    assert found.table().rows[1][:3] == ("0.01", "1 of 2", "2")
    assert (
        "PDHG is faster (mine takes 1.25 times as long)"
        in known([[1.0, 1.0], [0.0, 0.0]], [1, 1], 2.5).words
    )


def test_the_first_look_below():
    gaps = torch.tensor([[1.0, 1.0], [0.5, 0.9], [0.6, 0.8]])
    assert first_below(gaps, [0, 5, 9], 0.5).tolist() == [5, -1]
    assert first_below(gaps, [0, 5, 9], torch.tensor([0.1, 0.8])).tolist() == [-1, 9]


# The commands


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_bowls.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_bowls", None)


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["mirrordescent", *arguments])
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code or 0
    return code, capsys.readouterr().out


def test_problems_of_a_file_are_solved(folder, monkeypatch, capsys):
    code, out = run(monkeypatch, capsys, "solve", "own_bowls.py", "--seeds", "3", "4", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["proven"]
    assert report["solver"] == "FISTA with restarts"
    assert [each["problem"] for each in report["problems"]] == ["3", "4"]
    found = load_file(folder / "out" / "solve" / "own_bowls.safetensors")
    centres = torch.tensor([[4.0, -2.0], [5.0, -3.0]])
    start = (STEEP * centres.square()).sum(1) / 2
    assert bool((found["value"] <= 1e-2 * start).all())
    torch.testing.assert_close((STEEP * (found["x"] - centres).square()).sum(1) / 2, found["value"])
    code, out = run(
        monkeypatch, capsys, "solve", "own_bowls.py", "--iterations", "1", "--accuracy", "1e-6"
    )
    assert code == 1
    assert "budget" in out


def test_a_learned_solver_is_used_where_it_is_there_and_diagnosed(folder, monkeypatch, capsys):
    (folder / "out" / "zoo").mkdir(parents=True)
    path = zoo.save(md.SMD(Diagonal(STEEP), 1.0), folder / "out" / "zoo" / "own_bowls")
    code, out = run(monkeypatch, capsys, "solve", "own_bowls.py", "--count", "2", "--no-prove")
    assert code == 0
    assert "solver: out/zoo/own_bowls.safetensors" in out
    code, out = run(
        monkeypatch,
        capsys,
        "diagnose",
        str(path),
        "--problem",
        "own_bowls.py",
        "--count",
        "4",
        "--json",
    )
    report = json.loads(out)
    assert code == 0
    assert report["verdict"].startswith("It pays:")
    assert report["failures"] == []
    assert any(line.startswith("f is convex: holds") for line in report["assumptions"])
    assert "Is own_bowls any good?" in (folder / "out" / "diagnosis" / "own_bowls.html").read_text()


def test_mistakes_are_one_line(folder, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["mirrordescent", "diagnose", "image-tv", "--problem", "inpant"]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "did you mean 'inpaint'?" in capsys.readouterr().err
    zoo.save(Diagonal(STEEP), folder / "map")
    monkeypatch.setattr(
        sys, "argv", ["mirrordescent", "solve", "own_bowls.py", "--solver", "map.safetensors"]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "must be a solver" in error
    assert "it is a Diagonal" in error
