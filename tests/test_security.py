"""What files, names and archives of others can do: nothing."""

from __future__ import annotations

import io
import json
import struct
import sys
import tarfile
import zipfile

import pytest
import torch
from PIL import Image
from torch import nn

import mirrordescent as md
from mirrordescent import cli, data, zoo
from mirrordescent._internal.files import read_whole, write_whole
from mirrordescent._internal.memory_limits import Bounded, TooLarge
from mirrordescent.data import image_files
from mirrordescent.mirrors import ConvICNN, Diagonal, LearnedPair
from mirrordescent.restore import read_photo
from mirrordescent.schedules import Prefix


@pytest.fixture
def entry(tmp_path):
    pair = LearnedPair(*(ConvICNN(1, filters=2, layers=1) for _ in range(2)))
    return zoo.save(md.SMD(pair, Prefix([0.1, 0.2])), tmp_path / "entry")


def forged(path, structure=lambda s: s, card=lambda c: c, tensors=lambda t: t):
    """Change an entry, with a checksum that is right."""
    numbers, metadata = read_whole(path)
    changed = {
        "structure": structure(json.loads(metadata["structure"])),
        "card": card(json.loads(metadata["card"])),
    }
    metadata = {key: value for key, value in metadata.items() if key != "sha256"}
    write_whole(
        tensors(numbers),
        metadata | {key: json.dumps(value) for key, value in changed.items()},
        path,
    )


def test_sizes_come_from_the_tensors(entry):
    """3·10⁹ filters are refused before any memory is taken for them."""

    def enlarge(structure):
        text = json.dumps(structure)
        assert '"filters": 2' in text
        return json.loads(text.replace('"filters": 2', '"filters": 3000000000'))

    forged(entry, structure=enlarge)
    with pytest.raises(zoo.EntryDamaged, match="needs more than"):
        zoo.load(entry)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e30])
def test_weights_that_are_no_weights_are_refused(entry, number):
    def spoil(tensors):
        return {
            name: tensor.fill_(number) if "mirror" in name else tensor
            for name, tensor in tensors.items()
        }

    forged(entry, tensors=spoil)
    with pytest.raises(zoo.EntryDamaged, match=r"not finite or larger|NaN"):
        zoo.load(entry)


def nested(depth):
    return {"inner": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    "card",
    [[], None, 3, {"name": 3}, {"name": "x", "stages": 3}, {"name": "x", "use": nested(200)}],
)
def test_a_card_that_is_none_is_one_line(entry, card, monkeypatch, capsys):
    forged(entry, card=lambda _: card)
    monkeypatch.setattr(sys, "argv", ["mirrordescent", "zoo", "show", str(entry)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "has no card that can be read" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_terminals_are_left_alone(entry, monkeypatch, capsys, options):
    forged(entry, card=lambda card: {**card, "description": "\x1b[2J\x9b1m\u202eé"})
    monkeypatch.setattr(sys, "argv", ["mirrordescent", "zoo", "show", str(entry), *options])
    cli.main()
    shown = capsys.readouterr().out
    assert not set("\x1b\x9b\u202e") & set(shown)
    assert "é" in shown


def test_what_lies_beside_an_entry_may_be_anything(tmp_path, monkeypatch, capsys):
    path = zoo.save(md.SMD(Diagonal(nn.Parameter(torch.ones(2))), 0.1), tmp_path / "entry")
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    for text in ("[]", "null", "{", "3", "[" * 5000):
        path.with_suffix(".json").write_text(text)
        assert zoo.verify() == {"entry": False}


def test_a_picture_in_an_archive_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(image_files, "LARGEST_FILE", 1000)
    (tmp_path / "a.png").write_bytes(bytes(2000))
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "a.png", "../../a.png")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "a.png", "../../a.png")
    for name in ("a.zip", "a.tar.gz"):
        with pytest.raises(
            data.DataDamaged, match=r"would be 2000 bytes when unpacked|cannot be unpacked"
        ):
            list(data.read_images(tmp_path / name))
    assert not (tmp_path.parent.parent / "a.png").exists()


@pytest.mark.parametrize("form", ["GIF", "BMP", "TIFF"])
def test_many_pixels_in_a_few_bytes_are_refused(tmp_path, form):
    """The header of a small picture says that it is 6000 pixels wide and high."""
    file = io.BytesIO()
    Image.new("RGB", (77, 77)).save(
        file, form, compression="tiff_adobe_deflate" if form == "TIFF" else None
    )
    where = {"GIF": (6, "<H"), "BMP": (18, "<i"), "TIFF": (None, "<I")}[form]
    content = bytearray(file.getvalue())
    small = struct.pack(where[1], 77)
    large = struct.pack(where[1], 6000)
    if where[0] is None:  # wherever the tags of its sides are
        content = content.replace(small, large)
    else:
        content[where[0] : where[0] + 2 * len(small)] = large * 2
    (tmp_path / "a.png").write_bytes(content[:1000])
    with pytest.raises(data.DataDamaged, match="36 million pixels in a file of"):
        read_photo(tmp_path / "a.png")
    Image.new("1", (6000, 6000)).save(
        tmp_path / "black.png"
    )  # as dense as they come, and what it says it is
    assert read_photo(tmp_path / "black.png").size == (6000, 6000)


@pytest.mark.parametrize(
    "arguments", [["\x1b[2J", "x=", "learn"], ["zoo", "show", "\x1b[2J"], ["\x9b2J"]]
)
def test_arguments_leave_terminals_alone(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mirrordescent", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    shown = "".join(capsys.readouterr())
    assert not set("\x1b\x9b") & set(shown)
    assert "2J" in shown


def test_memory_is_counted_before_it_is_taken():
    with Bounded("a test", memory=1e6):
        torch.zeros(1000)
    with pytest.raises(TooLarge, match="more than 4 GB"), Bounded("a test", memory=1e6):
        torch.zeros(1000, 1000, 1000)
    with pytest.raises(TooLarge, match="too many parts"), Bounded("a test", memory=1e9, calls=5):
        [torch.zeros(1) for _ in range(10)]
