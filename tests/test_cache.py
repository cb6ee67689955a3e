"""The cache on disk: keyed by content, whole or absent, never in the way."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
import torch

from mirrordescent import TVDenoising, TVInpainting, certify
from mirrordescent._internal import cache, files
from mirrordescent._internal.files import read_whole, write_whole
from mirrordescent._internal.user_cache import user_cache_directory, writable_by_others
from mirrordescent.data.directory import data_directory
from mirrordescent.problems import Blur, gaussian_kernel
from mirrordescent.problems.fingerprint import code_digest, fingerprint


@pytest.fixture
def problem():
    return TVDenoising(torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0)))


def full_disk(*_):
    raise OSError(28, "No space left on device")


def entries():
    return list(cache.directory().glob("*"))


def test_a_second_call_reads_the_first(problem, monkeypatch):
    first = certify(problem)
    monkeypatch.setattr("mirrordescent.references.certificate._compute", None)
    second = certify(problem)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.lower, second.lower)


def test_content_decides(problem):
    y = problem.y
    keys = set()
    variants = [
        problem,
        TVDenoising(y + 1e-6),
        TVDenoising(y, weight=0.2),
        TVDenoising(y, scale=1.0),
        TVDenoising(y.double()),
        TVInpainting(y, torch.eye(6)),
        TVInpainting(y, torch.eye(6), operator=Blur(gaussian_kernel(1.0))),
        TVInpainting(y, torch.eye(6), operator=Blur(gaussian_kernel(0.5, radius=3))),
    ]
    for variant in variants:
        keys.add(fingerprint(variant, "test"))
    assert len(keys) == len(variants)
    assert fingerprint(problem, "test") == fingerprint(TVDenoising(y.clone()), "test")
    assert fingerprint(problem, "another purpose") not in keys


def test_buffers_that_are_not_saved_count_too():
    def gain(value):
        module = Blur(gaussian_kernel(1.0))
        module.register_buffer("gain", torch.tensor(value), persistent=False)
        return module

    assert fingerprint(gain(1.0), "test") != fingerprint(gain(2.0), "test")


def test_an_operator_that_hides_its_content_is_not_cached(problem):
    class Opaque:
        norm = 1.0

        def A(self, x):
            return x

        def A_adjoint(self, y):
            return y

    hidden = TVInpainting(problem.y, torch.eye(6), operator=Opaque())
    assert fingerprint(hidden, "test") is None
    certify(hidden, 1e-3)
    assert entries() == []


def test_a_damaged_entry_is_computed_again(problem):
    first = certify(problem)
    (entry,) = entries()
    content = entry.read_bytes()
    flipped = content[:-5] + bytes([content[-5] ^ 4]) + content[-4:]
    for damage in (b"", b"garbage", content[:-20], flipped):
        entry.write_bytes(damage)
        assert torch.equal(certify(problem).x, first.x)
        assert len(entry.read_bytes()) > 100


def test_what_cannot_be_of_the_problem_is_computed_again(problem):
    """Though its checksum is right."""
    first = certify(problem)
    (entry,) = entries()
    kept = read_whole(entry)[0]
    batch = len(kept["value"])
    for wrong in (
        {"lower": kept["value"] + 1.0},
        {"value": kept["lower"] - 1.0},
        {"value": torch.full_like(kept["value"], torch.nan)},
        {"x": kept["x"][..., :-1]},
        {"lower": torch.zeros(batch + 1)},
        {"more": torch.zeros(1)},
        {"proven": torch.ones(2)},
    ):
        write_whole({**kept, **wrong}, {}, entry)
        found = certify(problem)
        assert torch.equal(found.x, first.x)
        assert torch.equal(found.lower, first.lower)
    write_whole({"x": kept["x"]}, {}, entry)
    assert torch.equal(certify(problem).value, first.value)


@pytest.mark.skipif(os.name == "nt", reason="needs /dev/null as a file")
def test_a_folder_that_cannot_be_written_does_no_harm(problem, monkeypatch):
    monkeypatch.setenv("MIRRORDESCENT_CACHE", "/dev/null/cache")
    assert certify(problem).relative_gap <= 1e-6


@pytest.fixture
def no_home(monkeypatch):
    """A user without a home folder, as in many containers."""
    for variable in ("MIRRORDESCENT_CACHE", "MIRRORDESCENT_DATA", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)

    def missing(*_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", missing)


def test_without_a_home_folder_nothing_is_cached(problem, no_home):
    assert certify(problem).relative_gap <= 1e-6
    with pytest.raises(OSError, match=r"no home folder: set HOME, or set MIRRORDESCENT_CACHE"):
        cache.directory()
    with pytest.raises(OSError, match="MIRRORDESCENT_DATA"):
        data_directory()
    assert data_directory("somewhere") == Path("somewhere")


@pytest.mark.skipif(os.name == "nt", reason="HOME is a variable of POSIX")
@pytest.mark.parametrize("home", ["", "relative"])
def test_a_home_folder_that_is_no_absolute_path(problem, home, tmp_path, monkeypatch):
    """The current folder must not become a cache."""
    monkeypatch.delenv("MIRRORDESCENT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", home)
    monkeypatch.chdir(tmp_path)
    certify(problem)
    assert list(tmp_path.iterdir()) == []


def test_a_relative_cache_variable_of_the_system_is_ignored(tmp_path, monkeypatch):
    monkeypatch.delenv("MIRRORDESCENT_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache_directory("linux") == tmp_path / ".cache" / "mirrordescent"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs owners of files")
@pytest.mark.parametrize("part", ["the folder", "a sticky folder", "its parent"])
def test_a_cache_that_everybody_can_write_to_is_not_used(problem, part, tmp_path, monkeypatch):
    folder = tmp_path / "open" / "cache"
    folder.mkdir(parents=True)
    monkeypatch.setenv("MIRRORDESCENT_CACHE", str(folder))
    certify(problem)
    assert len(entries()) == 1
    changed = folder.parent if part == "its parent" else folder
    changed.chmod(0o1777 if part == "a sticky folder" else 0o777)
    monkeypatch.setattr(cache, "read_whole", None)
    with pytest.warns(UserWarning, match=rf"every user can write to {changed}.*chmod o-w"):
        assert certify(problem).relative_gap <= 1e-6
    assert len(entries()) == 1


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs owners of files")
def test_a_folder_of_a_stranger_in_a_shared_folder_is_not_used(tmp_path, monkeypatch):
    shared = tmp_path / "tmp"
    folder = shared / "cache"
    folder.mkdir(parents=True)
    shared.chmod(0o1777)
    assert writable_by_others(folder) is None
    if os.getuid() == 0:  # folders of root are always trusted
        os.chown(folder, 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert writable_by_others(folder) == shared


def test_a_new_cache_folder_is_private(problem):
    certify(problem)
    assert cache.directory().stat().st_mode & 0o077 == 0 or os.name == "nt"


def test_an_interrupted_write_leaves_nothing(problem, monkeypatch):
    monkeypatch.setattr(files.os, "fsync", full_disk)
    certify(problem)
    assert entries() == []


# Code: a problem is more than its data.

OWN = """
import torch
import helper
from mirrordescent.domains import Box
from mirrordescent.learn import Draw, ProblemFamily
from mirrordescent.problems import Problem

SHIFT = 0.0


class Base(Problem):
    height = 0.0


class Mine(Base):
    convex = True
    domain = Box(-1.0, 1.0)

    def __init__(self, batch):
        super().__init__(batch, (2,), c=torch.full((batch, 2), 0.5))

    def value(self, x):
        return (x - self.c - SHIFT).square().sum(-1) + self.height + helper.more(x)

    def grad(self, x):
        return 2 * (x - self.c - SHIFT)


class Family(ProblemFamily):
    def draw(self, seeds):
        problem = Mine(len(seeds))
        return Draw(problem, problem.start())
"""
HELPER = """
def more(x):
    return LEVEL


LEVEL = 0.0
"""
EDITS = {
    "a global variable": (OWN.replace("SHIFT = 0.0", "SHIFT = 0.25"), HELPER),
    "a method": (OWN.replace("self.height +", "self.height + 37 +"), HELPER),
    "an attribute of a base class": (OWN.replace("height = 0.0", "height = 37.0"), HELPER),
    "a function in another module": (OWN, HELPER.replace("return LEVEL", "return LEVEL + 37")),
    "a global variable of another module": (OWN, HELPER.replace("LEVEL = 0.0", "LEVEL = 37.0")),
}


def load(folder, own, helper):
    """Import both files as a new process would."""
    for name, text in (("helper", helper), ("own", own)):
        path = folder / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        exec(compile(text, str(path), "exec"), vars(sys.modules[name]))
    return sys.modules["own"].Mine(2)


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    for name in ("helper", "own"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_class_is_certified_again(edit, folder):
    """The documented way to work on one's own problems: edit the file, and run it again."""
    first = certify(load(folder, OWN, HELPER), 1e-3)
    assert len(entries()) == 1
    torch.testing.assert_close(first.value, torch.zeros(2, dtype=torch.float64))
    edited = load(folder, *EDITS[edit])
    found = certify(edited, 1e-3)
    assert torch.equal(found.value, edited.double().value(found.x))
    assert len(entries()) == 2, "the key has changed"
    assert (found.lower <= found.value).all()
    again = certify(load(folder, OWN, HELPER), 1e-3)
    assert torch.equal(again.lower, first.lower)
    assert len(entries()) == 2, "the first entry is used again"


def test_a_file_is_solved_again_after_an_edit(folder, capsys, monkeypatch):
    """It used to print a gap of −4.1e+06 and "0 iterations, converged"."""
    from mirrordescent.cli import main

    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    shown = {}
    for height in ("0.0", "37.0"):
        for name in ("helper", "own"):
            sys.modules.pop(name, None)
        (folder / "helper.py").write_text(HELPER)
        (folder / "own.py").write_text(OWN.replace("height = 0.0", f"height = {height}"))
        monkeypatch.setattr(
            sys, "argv", ["mirrordescent", "solve", "own.py", "--count", "1", "--json"]
        )
        with contextlib.suppress(SystemExit):
            main()
        (shown[height],) = json.loads(capsys.readouterr().out)["problems"]
    assert float(shown["37.0"]["value"]) == pytest.approx(37, abs=0.1)
    assert 0 <= float(shown["37.0"]["gap"]) <= 0.01


def test_a_hit_evaluates_f_again(problem, monkeypatch):
    """Whatever the key does not know of: here, a method that was replaced."""
    first = certify(problem)
    original = TVDenoising.value
    monkeypatch.setattr(TVDenoising, "value", lambda self, x: original(self, x) + 1)
    with pytest.warns(UserWarning, match="only"):  # the bound is that of the other function
        second = certify(problem)
    torch.testing.assert_close(second.value, first.value + 1)


def test_code_of_unknown_content_is_not_cached():
    def reading(thing):
        return lambda x: x + thing

    assert code_digest(reading(1)) == code_digest(reading(1))
    assert code_digest(reading(1)) != code_digest(reading(2))
    tensors = [torch.zeros(3), torch.ones(3)]
    assert code_digest(reading(tensors[0])) != code_digest(reading(tensors[1]))
    assert code_digest(reading([1, (2, {"a": 3})])) != code_digest(reading([1, (2, {"a": 4})]))
    assert code_digest(reading(object())) is None
    assert code_digest(lambda x: x + 1) != code_digest(lambda x: x + 2)
