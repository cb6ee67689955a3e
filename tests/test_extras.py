"""The library without its optional dependencies: one sentence says which extra to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mirrordescent import data, zoo
from mirrordescent._internal.extras import ExtraMissing
from mirrordescent._internal.user_cache import user_cache_directory
from mirrordescent.data.moons import half_circles
from mirrordescent.data.random_masks import writing
from mirrordescent.report import Comparison, Page, Picture, Section, Table
from mirrordescent.restore.outcome import similarity

OPTIONAL = (
    "PIL",
    "huggingface_hub",
    "jinja2",
    "matplotlib",
    "pooch",
    "rich",
    "skimage",
    "sklearn",
    "tifffile",
    "tyro",
)
CORE = f"""
import sys
for name in {OPTIONAL}:
    sys.modules[name] = None
import json, torch
import mirrordescent as md
from mirrordescent import contests, data, diagnosis, learn, optim, recipes, restore, theory, zoo
solution = md.solve(md.TVDenoising(torch.rand(1, 1, 8, 8)), zoo.load("image-tv"), iterations=5)
family = learn.moons_family(8)
x = torch.nn.Parameter(torch.ones(3, 3))
optimizer = optim.Preconditioned([("weight", x)])
x.grad = torch.ones(3, 3)
optimizer.step()
print(json.dumps([solution.ok, len(family.problem.inputs)]))
"""


def test_the_core_needs_no_extra():
    done = subprocess.run([sys.executable, "-c", CORE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, 8]


def bundled_photographs():
    data.bundled_photographs()


def bundled_digits():
    data.digits()


def reading():
    data.read_image(Path("photo.png"))


def mask_of_writing():
    writing(16, torch.Generator().manual_seed(0))


def ssim():
    similarity(torch.rand(3, 8, 8), torch.rand(3, 8, 8))


def page():
    Page("title", sections=[Section("table", Table(["a"], [["1"]]))]).html()


def pictures_on_a_page():
    picture = Picture(torch.rand(3, 8, 8))
    Page("title", sections=[Section("p", Comparison({"s": {"a": picture, "b": picture}}))]).html()


def hub():
    zoo.load("hf://owner/maps/photo")


@pytest.mark.parametrize(
    ("module", "call", "message"),
    [
        ("PIL", reading, "Reading photographs needs Pillow: {}[pictures]'"),
        ("PIL", mask_of_writing, "Masks in the shape of writing needs Pillow: {}[pictures]'"),
        ("PIL", pictures_on_a_page, "Showing pictures on a page needs Pillow: {}[pictures]'"),
        ("skimage", bundled_photographs, "bundled photographs needs scikit-image: {}[pictures]'"),
        ("skimage.metrics", ssim, "structural similarity needs scikit-image: {}[pictures]'"),
        ("sklearn.datasets", bundled_digits, "bundled digits needs scikit-learn: {}[digits]'"),
        ("jinja2", page, "Writing a page needs Jinja2: {}[pages]'"),
        ("huggingface_hub", hub, "needs huggingface_hub: {}[hub]'"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_absent_extra_is_named(monkeypatch, module, call, message):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ExtraMissing) as caught:
        call()
    assert message.format("pip install 'mirrordescent") in str(caught.value)


def test_moons_are_those_of_scikit_learn():
    make_moons = pytest.importorskip("sklearn.datasets").make_moons
    for count, noise, seed in ((500, 0.05, 0), (7, 0.2, 3)):
        points, labels = make_moons(count, noise=noise, random_state=seed)
        ours, our_labels = half_circles(count, noise, seed)
        np.testing.assert_allclose(ours, points, rtol=1e-6)
        assert our_labels.tolist() == labels.tolist()


def test_caches_are_where_the_system_keeps_them(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert user_cache_directory("linux") == tmp_path / ".cache" / "mirrordescent"
    assert user_cache_directory("darwin") == tmp_path / "Library" / "Caches" / "mirrordescent"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert user_cache_directory("linux") == tmp_path / "xdg" / "mirrordescent"
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    expected = tmp_path / "local" / "mirrordescent" / "mirrordescent" / "Cache"
    assert user_cache_directory("win32") == expected
