"""Files on disk: whole or absent, the same bytes for the same content, readable by others."""

from __future__ import annotations

import os
import platform
import stat
import subprocess
import sys

import pytest
import torch

import mirrordescent as md
from mirrordescent import zoo
from mirrordescent._internal.files import Damaged, read_whole, whole, write_whole

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


def test_two_writers_of_one_file_do_not_share_a_partial_file(tmp_path):
    path = tmp_path / "a.txt"
    with whole(path) as outer:
        outer.write_text("outer")
        with whole(path) as inner:
            inner.write_text("inner")
        assert path.read_text() == "inner"
    assert path.read_text() == "outer"
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]
