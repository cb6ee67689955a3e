"""The zoo: what is shipped is whole, and what is saved comes back the same."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import mirrordescent as md
from mirrordescent import zoo
from mirrordescent._internal.files import checksum
from mirrordescent.mirrors import (
    Conjugate,
    ConvICNN,
    DenseICNN,
    Diagonal,
    Euclidean,
    LearnedPair,
    OrthantEntropy,
    Spectral,
    Stencil,
)
from mirrordescent.oracles import Exact, InTurn, Minibatch, Relative, Rounded
from mirrordescent.parts import PartMissing
from mirrordescent.schedules import Polynomial, PowerLaws, Prefix
from mirrordescent.zoo import Card, storage

CARD = Card("entry", "a test")

SOURCES_OF_GAIN = (
    "geometry",
    "mixed",
    "no learned control",
    "schedules",
    "unknown",
    "not measured by this rule",
)


def methods():
    generator = torch.Generator().manual_seed(0)

    def image():
        return ConvICNN(1, 4, quadratic=True, generator=generator)

    def dense():
        return DenseICNN(3, 5, layers=3, activation="leaky_relu", generator=generator)

    steps = Prefix([0.3, 0.1], "mean", scale=2.0, monotone=True)
    stencil = Stencil(0.6)
    shared = md.AMD(
        stencil, steps, regulariser=stencil, storage="primal", dual_weight=PowerLaws([2], [0.3])
    )
    return {
        "pair": md.MD(LearnedPair(image(), image()), steps),
        "conjugate": md.SMD(Conjugate(image(), start="scaled"), Polynomial(0.1, 1.0)),
        "dense": md.AMD(LearnedPair(dense(), dense()), steps),
        "diagonal": md.ASMD(Diagonal(nn.Parameter(torch.rand(3) + 0.5)), steps),
        "euclidean": md.AMD(Euclidean(), steps),
        "double": md.SMD(
            Conjugate(dense().double()), Prefix(torch.tensor([0.1], dtype=torch.float64))
        ),
        "lpd": md.LPD(),
        "spectral": md.AMD(
            Spectral(0.3, 4), steps, mixing=PowerLaws([1, 3], [0.9, 0.5], power=1.0, bound=1.0)
        ),
        "all angles": md.methods.Equipped(md.MD(OrthantEntropy(0.3), steps), Relative(Exact())),
        "angles in turn": md.methods.Equipped(
            md.MD(OrthantEntropy(0.3), steps), Relative(InTurn())
        ),
        "random angles": md.methods.Equipped(
            md.MD(OrthantEntropy(0.3), steps), Relative(Minibatch(2))
        ),
        "equipped": md.methods.Equipped(shared, Rounded(PowerLaws([1, 2], [1.0, 4.0], power=-1.0))),
    }


@pytest.mark.parametrize("name", methods())
def test_a_saved_method_comes_back_the_same(tmp_path, name):
    method = methods()[name]
    with torch.no_grad():
        for p in method.parameters():
            p.add_(0.1 * torch.rand(p.shape, dtype=p.dtype))
    zoo.save(
        method, tmp_path / "entry", replace(CARD, family="λ = 0.15", stages=[{"best_meta_step": 3}])
    )
    again = zoo.load(tmp_path / "entry.safetensors")
    assert type(again) is type(method)
    assert str(again) == str(method)
    for key, tensor in method.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[key])
    assert zoo.card(tmp_path / "entry.safetensors") == Card(
        "entry", "a test", "method", "λ = 0.15", stages=[{"best_meta_step": 3}], requires=[]
    )
    assert not any(p.requires_grad for p in again.parameters())


def test_the_card_states_the_checksum(tmp_path):
    zoo.save(md.LPD(), tmp_path / "entry", CARD)
    path = tmp_path / "entry.safetensors"
    assert storage.intact(path)
    assert json.loads((tmp_path / "entry.json").read_text())["description"] == "a test"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert not storage.intact(path)
    with pytest.raises(zoo.EntryDamaged, match="differs from its checksum"):
        zoo.load(path)


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b[:-1], lambda b: b"\x80" + b]
)
def test_damaged_files_are_refused(tmp_path, damage):
    zoo.save(md.LPD(), tmp_path / "entry", CARD)
    path = tmp_path / "entry.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        zoo.EntryDamaged,
        match=r"entry\.safetensors (cannot be read|is damaged).*Fetch or save it again",
    ):
        zoo.load(path)


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    save_file({"x": torch.ones(2)}, path)
    with pytest.raises(zoo.EntryDamaged, match="has no checksum"):
        zoo.load(path)
    save_file({"x": torch.ones(2)}, path, {"blueprint": "{}", "card": "{}"})
    with pytest.raises(
        zoo.EntryDamaged, match=r"saved by version 0\.1.*mirrordescent_experiments\.upgrade"
    ):
        zoo.load(path)
    for structure, message in (
        ({"type": "os.system"}, r"there is no part 'os\.system' in this version"),
        ({"type": "os:system"}, "import os, then load"),
    ):
        metadata = {
            "format": storage.FORMAT,
            "structure": json.dumps(structure),
            "card": '{"name": "other"}',
        }
        tensors = {"x": torch.ones(2)}
        save_file(tensors, path, metadata | {"sha256": checksum(tensors, metadata)})
        with pytest.raises(PartMissing, match=message):
            zoo.load(path)
        assert zoo.card(path).name == "other"
    with pytest.raises(FileNotFoundError):
        zoo.load(tmp_path / "absent.safetensors")


def test_a_full_disk_leaves_the_old_entry(tmp_path, monkeypatch):
    zoo.save(md.LPD(), tmp_path / "entry", CARD)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("mirrordescent._internal.files.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        zoo.save(methods()["pair"], tmp_path / "entry", CARD)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_mistakes_are_named(tmp_path):
    with pytest.raises(KeyError, match="did you mean 'photo-inpaint-pair'"):
        zoo.load("photo-inpant-pair")
    with pytest.raises(TypeError, match="Linear cannot be stored"):
        zoo.save(nn.Linear(1, 1), tmp_path / "entry", CARD)
    with pytest.raises(TypeError, match="a function is neither data nor a part"):
        zoo.save(md.GD(lambda k: 0.1), tmp_path / "entry", CARD)
    with pytest.raises(
        ValueError, match="unknown entry of a card 'descripton'; did you mean 'description'"
    ):
        Card.from_data({"name": "entry", "descripton": "a test"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("old", "new"), zoo.RENAMED.items())
def test_names_of_the_first_version_are_errors_that_name_the_new_ones(old, new):
    with pytest.raises(KeyError, match=f"the entry {old} was renamed in version 0.2: load '{new}'"):
        zoo.card(old)
    assert zoo.card(new).name == new


def test_everything_shipped_is_whole():
    assert len(zoo.list()) > 0
    assert all(zoo.verify().values())
    for name in zoo.list():
        entry = zoo.load(name)
        card = zoo.card(name)
        assert card.name == name
        if card.kind == "initialisation":
            assert all(leaf.isfinite().all() for leaf in entry.network.values())
            continue
        if card.kind == "prior":
            rows = [row for table in card.held_out.values() for row in table.values()]
            assert all(row["prior"] > row.get("noisy", row.get("start")) for row in rows)
            continue
        assert isinstance(entry, md.methods.Method)
        held_out = {key: value for key, value in card.held_out.items() if key != "control"}
        has_map = any(isinstance(part, md.mirrors.MirrorMap) for part in entry.modules())
        attributed = has_map and not name.endswith("-control")
        assert card.gain in SOURCES_OF_GAIN if attributed else card.gain == "", name
        if "gap" in held_out:
            assert held_out["gap"]["10"] < held_out["gap"]["start"]
        elif "statuses" in held_out:
            assert set(held_out["statuses"]) == {"converged"}
        elif held_out:
            losses = held_out["accelerated" if "accelerated" in held_out else "descent"]["loss"]
            assert losses[-1] < losses[0] / 5
        else:
            (stage,) = card.stages
            scores = stage["mean score on validation tasks"]
            assert scores[stage["chosen"]] == min(scores.values()) < scores["the start"]


@pytest.mark.parametrize("name", [name for name in zoo.list() if name.startswith("photo-inpaint")])
def test_shipped_image_methods_work_at_any_size(name):
    method = zoo.load(name)
    for size in ((24, 40), (48, 48)):
        y = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(0))
        problem = md.TVInpainting(
            y, torch.rand(size, generator=torch.Generator().manual_seed(1)) > 0.2
        )
        solution = md.solve(problem, method, iterations=10)
        assert solution.value < problem.value(problem.start())


def test_a_map_for_other_images_says_so():
    denoising = [name for name in zoo.list() if name.startswith("ellipse-denoise")]
    names = [name for name in denoising if not name.endswith(("lpd", "stencil", "control"))]
    for name in names:
        with pytest.raises(ValueError, match=r"images \(batch, 1, height, width\)"):
            md.solve(md.TVDenoising(torch.rand(1, 3, 8, 8)), zoo.load(name), iterations=1)
    assert names


def test_loading_an_entry_does_not_import_the_compiler_of_torch():
    """Importing it takes longer than everything else that loading does."""
    code = (
        "import sys, torch, mirrordescent as md; before = 'torch._dynamo' in sys.modules; "
        "md.zoo.load('image-tv'); print(before, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
