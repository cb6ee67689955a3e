"""Learning: it finds a known geometry, survives being killed, and is the same in two processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import mirrordescent as md
from mirrordescent._internal import files
from mirrordescent._internal.files import read_whole, write_whole
from mirrordescent.learn import Descent, Objective, Settings, Validation, learn
from mirrordescent.learn.checkpoint import RunBusy, RunDamaged
from mirrordescent.learn.trainer import NothingLearned
from mirrordescent.mirrors import Diagonal
from mirrordescent.oracles import Noisy
from mirrordescent.schedules import Prefix

sys.path.insert(0, str(Path(__file__).parent))
import bowls

AT_THE_HORIZON = Validation(horizons=(1.0,))
SCRIPT = str(Path(__file__).parent / "bowls.py")


def test_it_finds_the_geometry_of_the_family():
    """One step of SMD solves the bowls if t/d is the inverse curvature: t/d must come to (1, 1/25)
    up to a factor.
    """
    method = bowls.untrained()
    settings = Settings(
        meta_steps=400,
        batch=16,
        horizon=3,
        optimiser=Descent(learning_rate=0.05),
        validation=AT_THE_HORIZON,
    )
    result = learn(bowls.Bowls(), method, settings, progress=False)
    ratio = method.mirror.d[1] / method.mirror.d[0]
    assert float(ratio.detach()) == pytest.approx(25, rel=0.2)
    assert result.best_validation < 1e-2
    assert result.method is method


@pytest.mark.parametrize(
    "make",
    [md.MD, md.AMD, md.ASMD, lambda mirror, t: md.Averaged(md.SMD(mirror, t))],
    ids=["MD", "AMD", "ASMD", "Averaged"],
)
def test_any_method_can_be_learned(make):
    method = make(bowls.untrained().mirror, Prefix(torch.full((3,), 0.02, dtype=torch.float64)))
    before = solved(method)
    settings = Settings(meta_steps=60, horizon=3, optimiser=Descent(learning_rate=0.05))
    learn(bowls.Bowls(), method, settings, progress=False)
    assert solved(method) < 0.7 * before


def solved(method):
    draw = bowls.Bowls().validation(20)
    return float(md.solve(draw.problem, method, draw.x0, iterations=3).value.mean())


def test_oracles_are_learned_too():
    class Scaled(Noisy):
        def __init__(self):
            super().__init__(0.01)
            self.factor = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

        def forward(self, *args):
            return self.factor * super().forward(*args)

    oracle = Scaled()
    method = md.SMD(Diagonal(1.0).double(), 0.02)
    settings = Settings(meta_steps=30, horizon=3, optimiser=Descent(learning_rate=0.05))
    learn(bowls.Bowls(), method, settings, oracle=oracle, progress=False)
    assert float(oracle.factor.detach()) > 1.1


def test_settings_are_kept_to():
    settings = Settings(
        meta_steps=20,
        horizon=6,
        curriculum=[(5, 2), (10, 4)],
        optimiser=Descent(learning_rate=0.5, decay="cosine"),
        step_bounds=(0.02, 0.04),
    )
    assert [settings.horizon_at(k) for k in (0, 4, 5, 9, 10, 19)] == [2, 2, 4, 4, 6, 6]
    assert settings.optimiser.learning_rate_at(0, 20) == 0.5
    assert settings.optimiser.learning_rate_at(10, 20) == pytest.approx(0.25)
    assert replace(settings.optimiser, decay="constant").learning_rate_at(10, 20) == 0.5
    method = bowls.untrained()
    slower = replace(settings, optimiser=Descent(learning_rate=0.05), validation=AT_THE_HORIZON)
    with pytest.warns(UserWarning, match="learned steps have reached 0.04"):
        assert learn(bowls.Bowls(), method, slower, progress=False).best_step > 0
    assert ((method.t.values >= 0.02) & (method.t.values <= 0.04)).all()


def test_early_stopping_keeps_the_best(tmp_path):
    """Validated against a problem that learning makes worse: the first score is the best."""

    class Misleading(bowls.Bowls):
        def validation(self, count):
            draw = super().validation(count)
            draw.problem.A = torch.tensor(
                [25.0, 1.0], dtype=torch.float64
            )  # the axes are exchanged
            return draw

    settings = Settings(
        meta_steps=500,
        optimiser=Descent(learning_rate=0.05),
        validation=Validation(every=2, patience=3),
        horizon=3,
        step_bounds=None,
    )
    method = bowls.untrained()
    result = learn(Misleading(), method, settings, folder=tmp_path, progress=False)
    scores = [entry["validation"] for entry in entries(tmp_path) if "validation" in entry]
    assert len(scores) < 250
    assert result.best_validation == min(scores)
    assert scores.index(min(scores)) == len(scores) - 1 - 3
    assert result.best_step == 2 * scores.index(min(scores))


def test_non_finite_steps_are_skipped_and_counted():
    class Sometimes(bowls.Bowls):
        def draw(self, seeds):
            draw = super().draw(seeds)
            if seeds[0] % 2:
                draw.x0[0, 0] = 1e200  # overflows in the value
            return draw

    method = bowls.untrained()
    settings = Settings(meta_steps=20, horizon=3, validation=AT_THE_HORIZON)
    result = learn(Sometimes(), method, settings, progress=False)
    assert 0 < result.skipped < 20
    assert all(p.isfinite().all() for p in method.parameters())


def entries(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_killed_run_resumes_to_the_identical_result(tmp_path, fresh_python):
    """Killed twice by SIGKILL, at meta-steps that are no checkpoints."""

    def run(*args):
        return fresh_python.script(SCRIPT, *args).returncode

    assert run(tmp_path / "whole", tmp_path / "whole.out") == 0
    assert run(tmp_path / "cut", tmp_path / "cut.out", 11) == -signal.SIGKILL
    assert run(tmp_path / "cut", tmp_path / "cut.out", 18) == -signal.SIGKILL
    assert run(tmp_path / "cut", tmp_path / "cut.out") == 0
    whole = load_file(tmp_path / "whole.out")
    cut = load_file(tmp_path / "cut.out")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert entries(tmp_path / "whole") == entries(tmp_path / "cut")


def test_two_processes_give_the_result_of_one(tmp_path, fresh_python):
    done = fresh_python.script(SCRIPT, tmp_path / "one", tmp_path / "one.out")
    assert done.returncode == 0, done.stderr
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        SCRIPT,
    ]
    done = subprocess.run(
        [*command, str(tmp_path / "two"), str(tmp_path / "two.out")],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    one = load_file(tmp_path / "one.out")
    two = load_file(tmp_path / "two.out")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-6, atol=1e-6)


def test_a_finished_run_is_read_back(tmp_path):
    first = bowls.train(tmp_path)
    again = bowls.train(tmp_path, callback=lambda step: pytest.fail("nothing was left to do"))
    assert torch.equal(first.method.mirror.d, again.method.mirror.d)
    assert (first.best_step, first.best_validation) == (again.best_step, again.best_validation)


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    bowls.train(tmp_path, steps=30)
    good = (tmp_path / "checkpoint.safetensors").read_bytes()

    def full_disk(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(files.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        bowls.train(tmp_path, steps=30, resume=False)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == good
    assert [path.name for path in tmp_path.glob(".*.partial")] == []


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    bowls.train(tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    (tmp_path / "checkpoint.before.safetensors").write_bytes(path.read_bytes())
    with pytest.raises(RunDamaged, match="cannot be resumed"):
        bowls.train(tmp_path)


@pytest.mark.parametrize(
    "odd",
    [
        {"meta_step": -1},
        {"meta_step": "x"},
        {"best_validation": None},
        {"finished": 1},
        {"log_bytes": 0.5},
        {"more": 1},
    ],
    ids=str,
)
def test_progress_that_is_none_is_refused(tmp_path, odd):
    """Though the checksum is right."""
    bowls.train(tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    tensors, told = read_whole(path)
    write_whole(tensors, {"progress": json.dumps({**json.loads(told["progress"]), **odd})}, path)
    (tmp_path / "checkpoint.before.safetensors").unlink(missing_ok=True)
    with pytest.raises(RunDamaged, match="cannot be resumed"):
        bowls.train(tmp_path)


@pytest.mark.parametrize("name", ["best", "optimiser", "generator"])
def test_tensors_of_another_run_are_refused(tmp_path, name):
    bowls.train(tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    tensors, told = read_whole(path)
    wrong = {
        key: torch.zeros(7) if key.startswith(f"{name}.") else tensor
        for key, tensor in tensors.items()
    }
    write_whole(wrong, {"progress": told["progress"]}, path)
    with pytest.raises(RunDamaged, match="it holds another run"):
        bowls.train(tmp_path)


@pytest.mark.parametrize("position", [0.02, 0.3, 0.6, 0.98])
def test_after_damage_the_checkpoint_before_serves_and_says_so(tmp_path, position):
    whole = bowls.train(tmp_path / "whole").method.state_dict()
    bowls.train(tmp_path / "damaged")
    path = tmp_path / "damaged" / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 8
    path.write_bytes(content)
    with pytest.warns(
        UserWarning, match=r"cannot be resumed.*Continuing from the previous checkpoint"
    ):
        again = bowls.train(tmp_path / "damaged")
    for name, tensor in again.method.state_dict().items():
        assert torch.equal(tensor, whole[name])
    assert entries(tmp_path / "damaged") == entries(tmp_path / "whole")


def test_a_run_started_afresh_does_not_fall_back_to_the_old_one(tmp_path):
    bowls.train(tmp_path)
    bowls.train(tmp_path, steps=4, resume=False)
    assert not (tmp_path / "checkpoint.before.safetensors").exists()


def test_a_run_that_ended_before_its_first_checkpoint_leaves_no_lines(tmp_path):
    bowls.train(tmp_path / "whole")

    def end(step):
        if step == 2:
            raise RuntimeError("ended")

    with pytest.raises(RuntimeError, match="ended"):
        bowls.train(tmp_path / "cut", callback=end)
    assert len(entries(tmp_path / "cut")) > 0
    bowls.train(tmp_path / "cut")
    assert entries(tmp_path / "cut") == entries(tmp_path / "whole")


def test_two_learners_in_one_folder_are_one_too_many(tmp_path):
    def second(step):
        if step == 3:
            with pytest.raises(RunBusy, match="another process is learning"):
                bowls.train(tmp_path)

    assert bowls.train(tmp_path, callback=second).meta_steps == 30


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_learned_is_kept_when_asked_to_stop(tmp_path, number, request):
    """At a meta-step that is no checkpoint; the run then ends as one that was left alone."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}[number]
    before = signal.signal(number, usual)  # in the background of a shell SIGINT is ignored
    request.addfinalizer(lambda: signal.signal(number, before))
    whole = bowls.train(tmp_path / "whole").method.state_dict()
    with pytest.raises(
        KeyboardInterrupt, match=r"at meta-step 7 of 30. The run is saved; start it again"
    ):
        bowls.train(
            tmp_path / "cut", callback=lambda step: step == 7 and signal.raise_signal(number)
        )
    steps = []
    again = bowls.train(tmp_path / "cut", callback=steps.append).method.state_dict()
    assert steps[0] == 8
    assert all(torch.equal(tensor, whole[name]) for name, tensor in again.items())
    assert entries(tmp_path / "cut") == entries(tmp_path / "whole")


def test_other_settings_are_refused(tmp_path):
    bowls.train(tmp_path, steps=30)
    with pytest.raises(RunDamaged, match="other settings"):
        bowls.train(tmp_path, steps=40)
    assert bowls.train(tmp_path, steps=40, resume=False).best_step > 0


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="GD has no parameters to learn"):
        learn(bowls.Bowls(), md.GD(0.1))
    for kind, bad in (
        (Settings, {"meta_steps": 0}),
        (Settings, {"batch": 0}),
        (Settings, {"horizon": 0}),
        (Settings, {"save_every": 0}),
        (Descent, {"learning_rate": 0.0}),
        (Descent, {"decay": "linear"}),
        (Validation, {"every": 0}),
        (Validation, {"batch": 0}),
    ):
        with pytest.raises(ValueError, match=next(iter(bad))):
            kind(**bad)
    with pytest.raises(ValueError, match="log_gap"):
        learn(
            NoBounds(),
            bowls.untrained(),
            Settings(objective=Objective(weights="log_gap")),
            progress=False,
        )


def test_steps_outside_their_bounds_are_not_moved_without_a_word():
    """The default bounds would have made steps of 20 into steps of 10."""
    method = md.SMD(
        Diagonal(nn.Parameter(torch.full((2,), 500.0, dtype=torch.float64))),
        Prefix([20.0] * 3).double(),
    )
    settings = Settings(meta_steps=2, horizon=3, validation=AT_THE_HORIZON)
    with pytest.raises(ValueError, match="initial steps must be within step_bounds"):
        learn(bowls.Bowls(), method, settings, progress=False)
    learn(bowls.Bowls(), method, replace(settings, step_bounds=None), progress=False)
    assert float(method.t.values.detach().min()) > 19


class NoInverse(Diagonal):
    def _to_primal(self, y):
        return y


class Tripled(Diagonal):
    def _potential(self, x):
        return 3 * super()._potential(x)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (NoInverse, "is not the inverse of to_dual"),
        (Tripled, "is not the gradient of its potential"),
    ],
)
@pytest.mark.parametrize("around", [lambda method: method, md.Averaged], ids=["bare", "wrapped"])
def test_a_map_that_is_not_what_it_says_is_not_learned(kind, words, around):
    """Also where problems start at 0, at which every map looks like its own inverse."""
    mirror = kind(nn.Parameter(torch.full((2,), 3.0, dtype=torch.float64)))
    method = around(md.SMD(mirror, Prefix([0.03] * 3).double()))
    with pytest.raises(ValueError, match=f"{kind.__name__} {words}"):
        learn(bowls.Bowls(), method, Settings(meta_steps=2, horizon=3), progress=False)
    mirror.exact = False
    if kind is NoInverse:
        learn(
            bowls.Bowls(),
            method,
            Settings(meta_steps=2, horizon=3, validation=AT_THE_HORIZON),
            progress=False,
        )


def diverging(draw):
    draw.x0[:] = 1e200  # overflows in the value
    return draw


class Broken(bowls.Bowls):
    def draw(self, seeds):
        return diverging(super().draw(seeds))

    def validation(self, count):
        return bowls.Bowls().validation(count)


class Unjudged(bowls.Bowls):
    def validation(self, count):
        return diverging(super().validation(count))


@pytest.mark.parametrize(
    ("family", "rate", "reason"),
    [
        (Broken(), 0.05, "all 4 meta-steps were skipped"),
        (Unjudged(), 0.05, "no validation score was finite"),
        (bowls.Bowls(), 5.0, "best_step is 0"),
    ],
    ids=["skipped", "not validated", "no better"],
)
def test_a_run_in_which_nothing_was_learned_says_so(family, rate, reason):
    settings = Settings(
        meta_steps=4, horizon=3, optimiser=Descent(learning_rate=rate), validation=AT_THE_HORIZON
    )
    with pytest.warns(NothingLearned, match=f"SMD was not learned: .*{reason}"):
        result = learn(family, bowls.untrained(), settings, progress=False)
    assert reason in result.failure
    assert issubclass(NothingLearned, UserWarning)


class NoBounds(bowls.Bowls):
    def draw(self, seeds):
        draw = super().draw(seeds)
        return type(draw)(draw.problem, draw.x0)
