"""Files on disk: whole or absent, the same bytes for the same content, readable by others."""

from __future__ import annotations

import os
import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mirrordescent as md
from mirrordescent import kernels, zoo
from mirrordescent._internal.files import Damaged, read_whole, whole, write_whole
from mirrordescent.kernels import BuildError, build

TENSORS = {
    "b": torch.arange(5.0),
    "a": torch.ones(2, 3, dtype=torch.float64),
    "flag": torch.tensor([True]),
}


def test_the_same_content_gives_the_same_bytes(tmp_path):
    written = set()
    for number in range(4):
        path = tmp_path / f"{number}.safetensors"
        write_whole(TENSORS, {f"key {i}": str(i) for i in range(12)}, path)
        written.add(path.read_bytes())
    assert len(written) == 1
    tensors, metadata = read_whole(path)
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert metadata["key 3"] == "3"


def test_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "file.safetensors"
    write_whole(TENSORS, {"card": "x"}, path)
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(
            content[:position]
            + bytes([content[position] ^ 1 << position % 8])
            + content[position + 1 :]
        )
        try:
            tensors, metadata = read_whole(path)
        except Damaged:
            continue
        # A space between the numbers of the header means nothing.
        assert metadata["card"] == "x"
        assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.skipif(os.name == "nt", reason="needs modes of files")
def test_files_are_as_readable_as_the_user_wants_them(tmp_path):
    before = os.umask(0o022)
    try:
        zoo.save(md.PDHG(), tmp_path / "entry")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o644}


def test_what_a_killed_process_left_is_removed_and_what_others_write_is_not(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    strays = [
        tmp_path / f".a.png.{platform.node()}.{ended.pid}.partial",
        tmp_path / f".a.png.{platform.node()}.{ended.pid}-3.partial",
    ]
    others = [
        tmp_path / f".a.png.{platform.node()}.{os.getppid()}.partial",
        tmp_path / f".a.png.{platform.node()}.{os.getppid()}-3.partial",
        tmp_path / f".a.png.elsewhere.{ended.pid}.partial",
        tmp_path / "mine.partial",
    ]
    for path in (*strays, *others):
        path.write_bytes(b"half")
    with whole(tmp_path / "b.png") as partial:
        partial.write_bytes(b"all")
    assert not any(path.exists() for path in strays)
    assert all(path.exists() for path in others)
    assert (tmp_path / "b.png").read_bytes() == b"all"


def test_names_of_any_length(tmp_path):
    path = tmp_path / ("ä" * 120)
    with whole(path) as partial:
        partial.write_bytes(b"all")
    assert path.read_bytes() == b"all"


@pytest.fixture(scope="module")
def content(compiled):
    return Path(kernels.library()._name).read_bytes()


@pytest.fixture
def library(content, tmp_path, monkeypatch):
    """The file of a library in a cache of its own."""
    monkeypatch.setenv("MIRRORDESCENT_CACHE", str(tmp_path))
    path = build._path()
    path.parent.mkdir(mode=0o700)
    path.write_bytes(content)
    path.chmod(0o700)
    kernels.library.cache_clear()
    yield path
    path.write_bytes(content)  # what was loaded from there stays mapped
    kernels.library.cache_clear()


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:999] + b"?" + b[1000:]]
)
def test_a_damaged_library_is_not_loaded_but_built_again(library, damage, monkeypatch):
    whole = library.read_bytes()
    library.write_bytes(damage(whole))
    assert not kernels.available()
    monkeypatch.setattr(
        build, "_run", lambda command: Path(command[-2]).write_bytes(whole[: -build._SEAL_LENGTH])
    )
    assert kernels.library() is not None
    assert library.read_bytes() == whole


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs owners of files")
@pytest.mark.parametrize("which", ["folder", "file"])
def test_what_others_can_write_is_not_run(library, which, monkeypatch):
    assert build._trusted(library)
    changed = library if which == "file" else library.parent
    changed.chmod(0o777)
    assert not kernels.available()
    with pytest.raises(BuildError, match=r"can be written to by others.*MIRRORDESCENT_CACHE"):
        kernels.library()
    changed.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(BuildError, match="belongs to another user"):
        kernels.library()


def test_a_compiler_may_have_arguments(tmp_path, monkeypatch):
    monkeypatch.setenv("MIRRORDESCENT_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", f"{sys.executable} -c 'raise SystemExit(3)'")
    kernels.library.cache_clear()
    with pytest.raises(BuildError, match=r"raise SystemExit.* failed"):
        kernels.library()


def test_a_cache_that_cannot_be_written_has_a_cure(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MIRRORDESCENT_CACHE", str(tmp_path / "file"))
    kernels.library.cache_clear()
    with pytest.raises(BuildError, match="set MIRRORDESCENT_CACHE to a writable folder"):
        kernels.library()
    assert not kernels.available()


def test_two_writers_of_one_file_do_not_share_a_partial_file(tmp_path):
    path = tmp_path / "a.txt"
    with whole(path) as outer:
        outer.write_text("outer")
        with whole(path) as inner:
            inner.write_text("inner")
        assert path.read_text() == "inner"
    assert path.read_text() == "outer"
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]
