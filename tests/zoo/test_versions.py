"""Versions of entries, and entries that several threads save."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import mirrordescent as md
from mirrordescent import cli, zoo
from mirrordescent.mirrors import Diagonal
from mirrordescent.zoo import Card

FINGERPRINTS = Path(__file__).parent / "fingerprints.json"


def entry(scale):
    return md.SMD(Diagonal(nn.Parameter(torch.full((2,), scale))), 0.1)


def scale_of(method):
    return float(method.mirror.d[0])


def test_shipped_versions_never_change():
    """An entry that is learned anew gets a new version; add its fingerprint to the file."""
    found = {}
    for name in zoo.list():
        for version in zoo.versions(name):
            found[f"{name}@{version}"] = zoo.fingerprint(f"{name}@{version}")
    assert found == json.loads(FINGERPRINTS.read_text())


def test_an_unversioned_name_is_the_newest_version():
    assert zoo.versions("network-spectral") == [1, 2, 3, 4]
    assert zoo.version("network-spectral") == 4
    assert zoo.version("network-spectral@2") == 2
    assert zoo.versioned("network-spectral") == "network-spectral@4"
    assert zoo.fingerprint("network-spectral") == zoo.fingerprint("network-spectral@4")
    assert zoo.fingerprint("network-spectral") != zoo.fingerprint("network-spectral@2")
    assert type(zoo.load("network-spectral@2")) is md.methods.Preconditioned
    assert zoo.card("network-spectral@1").version == 1
    assert zoo.list().count("network-spectral") == 1
    assert not any("@" in name for name in zoo.list())
    assert zoo.versioned("image-tv") == "image-tv@1"


def test_versions_that_do_not_exist_are_named():
    with pytest.raises(KeyError, match=r"no network-spectral@7, only network-spectral@1, .*@3"):
        zoo.load("network-spectral@7")
    with pytest.raises(KeyError, match="did you mean 'network-spectral'"):
        zoo.load("network-spectrl@2")
    with pytest.raises(KeyError, match="unknown entry"):
        zoo.load("network-spectral@0")
    with pytest.raises(ValueError, match="version of a card must be at least 1, got 0"):
        Card("entry", version=0)


def test_versions_of_own_entries(tmp_path):
    zoo.save(entry(1.0), tmp_path / "mine")
    path = zoo.save(entry(3.0), tmp_path / "mine@3", Card("mine", "a test"))
    zoo.save(entry(10.0), tmp_path / "mine@10.safetensors")
    zoo.save(entry(5.0), tmp_path / "mine-too@20")
    assert path == tmp_path / "mine@3.safetensors"
    assert zoo.card(path) == Card("mine", "a test", "method", stages=[], requires=[], version=3)
    assert zoo.card(tmp_path / "mine@10").name == "mine"
    assert zoo.versions(tmp_path / "mine") == [1, 3, 10]
    assert zoo.versions(path) == [1, 3, 10]
    assert scale_of(zoo.load(tmp_path / "mine")) == 10
    assert scale_of(zoo.load(f"{tmp_path}/mine@3")) == 3
    assert scale_of(zoo.load(tmp_path / "mine.safetensors")) == 1, "a file is that file"
    assert zoo.versioned(tmp_path / "mine") == "mine@10"
    with pytest.raises(KeyError, match=r"no mine@2, only mine@1, mine@3, mine@10"):
        zoo.load(tmp_path / "mine@2")
    with pytest.raises(KeyError, match="has no entry yours"):
        zoo.load(tmp_path / "yours")


def test_a_file_may_have_a_later_version_on_its_card(tmp_path):
    zoo.save(entry(4.0), tmp_path / "mine", Card("mine", version=4))
    zoo.save(entry(3.0), tmp_path / "mine@3")
    assert zoo.versions(tmp_path / "mine") == [3, 4]
    assert scale_of(zoo.load(tmp_path / "mine")) == 4
    assert scale_of(zoo.load(tmp_path / "mine@4")) == 4


def test_every_version_is_verified(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    zoo.save(entry(1.0), tmp_path / "mine")
    path = zoo.save(entry(2.0), tmp_path / "mine@2")
    assert zoo.verify() == {"mine": True}
    path.write_bytes(path.read_bytes()[:-1])
    assert zoo.verify() == {"mine": False}


def test_the_command_line_shows_versions(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["mirrordescent", "zoo", "list"])
    cli.main()
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.split()[0] == "network-spectral"]
    assert "version 4 of 1, 2, 3, 4" in line
    monkeypatch.setattr("sys.argv", ["mirrordescent", "zoo", "show", "network-spectral@2"])
    cli.main()
    assert "version: 2" in capsys.readouterr().out


def test_threads_may_save_one_entry_at_the_same_time(tmp_path):
    """60 calls from three threads succeed, and the file and its card are those of one call."""

    def save(number):
        return zoo.save(entry(1.0 + number), tmp_path / "mine", Card("mine", str(number)))

    with ThreadPoolExecutor(3) as threads:
        paths = list(threads.map(save, range(60)))
    assert set(paths) == {tmp_path / "mine.safetensors"}
    card = zoo.card(paths[0])
    assert scale_of(zoo.load(paths[0])) == 1.0 + int(card.description)
    assert json.loads((tmp_path / "mine.json").read_text())["description"] == card.description
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.json", "mine.safetensors"]
