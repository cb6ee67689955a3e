"""Others' images, operators, files, hubs and benchmarks."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import mirrordescent as md
from mirrordescent import zoo
from mirrordescent._internal.image_arrays import as_images, as_mask
from mirrordescent.zoo import hub


def pixels(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def test_pillow_numpy_and_torch_images_are_alike():
    rgb = pixels(5, 4, 3)
    expected = torch.from_numpy(rgb).permute(2, 0, 1).float()[None] / 255
    for given in (
        rgb,
        rgb[None],
        rgb.astype(np.float32) / 255,
        Image.fromarray(rgb),
        [Image.fromarray(rgb)],
        torch.from_numpy(rgb).permute(2, 0, 1),
        expected,
    ):
        torch.testing.assert_close(as_images(given), expected)
    assert (
        as_images(rgb[..., 0]).shape
        == as_images(Image.fromarray(rgb[..., 0])).shape
        == (1, 1, 5, 4)
    )
    deep = pixels(5, 4, dtype=np.uint16)
    torch.testing.assert_close(as_images(deep), as_images(Image.fromarray(deep)))
    assert as_images([rgb, rgb]).shape == (2, 3, 5, 4)
    assert as_images(rgb.astype(np.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (np.zeros((3, 5, 6)), ValueError, r"a NumPy image must be \(height, width, channels\)"),
        (np.zeros(3), ValueError, "an image must have 2 dimensions"),
        (np.zeros((3, 3), np.int64), TypeError, "floating-point numbers, bytes or 16-bit numbers"),
        ([np.zeros((3, 3)), np.zeros((3, 4))], ValueError, "must have the same shape"),
        ([], ValueError, "must have the same shape, got none"),
        ("photo.png", TypeError, "got str"),
    ],
)
def test_what_is_no_image_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        as_images(given)


def test_problems_take_images_and_masks_of_all_kinds():
    rgb = pixels(6, 5, 3)
    known = np.random.default_rng(1).random((6, 5)) > 0.3
    expected = md.TVInpainting(as_images(rgb), torch.from_numpy(known))
    x = torch.rand(1, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    for image in (rgb, Image.fromarray(rgb), [Image.fromarray(rgb)]):
        for mask in (
            known,
            known.astype(np.uint8),
            Image.fromarray(known),
            Image.fromarray(np.uint8(255) * known),
        ):
            torch.testing.assert_close(md.TVInpainting(image, mask).value(x), expected.value(x))
    torch.testing.assert_close(md.TVDenoising(rgb).y, as_images(rgb))
    assert as_mask(Image.fromarray(np.array([[100, 200]], np.uint8))).tolist() == [[False, True]]


class Physics(nn.Module):
    """As deepinv has them: A, A_adjoint, keyword arguments, no norm; here, halving the size."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor))

    def A(self, x, **options):
        return self.factor * nn.functional.avg_pool2d(x, 2)

    def A_adjoint(self, y, **options):
        return self.factor * nn.functional.interpolate(y, scale_factor=2, mode="nearest") / 4


def test_a_physics_object_is_an_operator():
    """Its norm is estimated, and the optimum certified, in double precision too."""
    y = torch.rand(2, 1, 4, 3, generator=torch.Generator().manual_seed(0))
    problem = md.TVInpainting(y, None, weight=0.05, operator=Physics(3.0))
    assert problem.sample_shape == (1, 8, 6)
    assert 1.5**2 <= problem.K_norm**2 - 8 <= 1.12 * 1.5**2  # averaging four pixels has norm ½
    reference = md.certify(problem, 1e-4, cache=False)
    solution = md.solve(problem, md.PDHG(1.5), iterations=2000)
    assert (solution.value.double() >= reference.lower - 1e-5).all()
    assert (
        md.relative_gap(solution.value.double(), reference.lower, reference.start_value) < 1e-3
    ).all()


def test_operators_that_are_none_are_refused():
    class Twisted(Physics):
        def A_adjoint(self, y, **options):
            return super().A_adjoint(y).flip(-1)

    class Blind(Physics):
        def __init__(self):
            super().__init__(0.0)

    y = torch.rand(1, 1, 4, 3)
    with pytest.raises(ValueError, match="A_adjoint of Twisted is not the adjoint of A"):
        md.TVInpainting(y, None, operator=Twisted())
    with pytest.raises(ValueError, match="Blind maps a test image to 0"):
        md.TVInpainting(y, None, operator=Blind())


def test_a_saved_map_can_be_read_without_this_package(tmp_path):
    """By safetensors alone: the structure and the card as JSON, and all numbers."""
    potential = md.mirrors.DenseICNN(3, 5, layers=2, generator=torch.Generator().manual_seed(0))
    method = md.SMD(md.mirrors.Conjugate(potential), md.schedules.Prefix([0.3, 0.2]))
    zoo.save(method, tmp_path / "map", zoo.Card("map", "a test"))
    script = """
import json, sys
from safetensors import safe_open
with safe_open(sys.argv[1], framework="numpy") as file:
    metadata = file.metadata()
    tensors = {name: file.get_tensor(name) for name in file.keys()}
assert "mirrordescent" not in sys.modules and "torch" not in sys.modules
print(json.dumps({
    "structure": json.loads(metadata["structure"]),
    "card": json.loads(metadata["card"]),
    "tensors": {name: tensor.tolist() for name, tensor in tensors.items()},
}))
"""
    command = [sys.executable, "-c", script, str(tmp_path / "map.safetensors")]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["card"]["description"] == "a test"
    assert found["structure"]["type"] == "SMD"
    assert found["structure"]["mirror"]["potential"]["type"] == "DenseICNN"
    assert found["structure"]["t"]["values"] == {"tensor": "t.values", "learned": True}
    assert found["tensors"].keys() == method.state_dict().keys()
    for name, tensor in method.state_dict().items():
        torch.testing.assert_close(torch.tensor(found["tensors"][name], dtype=tensor.dtype), tensor)


class Hub(SimpleNamespace):
    """A folder that behaves like the hub."""

    def __init__(self, folder):
        super().__init__(folder=folder, HfApi=lambda: self)

    def create_repo(self, repository, exist_ok):
        (self.folder / repository).mkdir(parents=True, exist_ok=exist_ok)

    def upload_file(self, path_or_fileobj, path_in_repo, repo_id, commit_message):
        shutil.copy(path_or_fileobj, self.folder / repo_id / path_in_repo)

    def hf_hub_download(self, repository, name):
        if not (self.folder / repository / name).exists():
            raise RuntimeError(f"404: {repository}/{name}")
        return str(self.folder / repository / name)


@pytest.fixture
def the_hub(tmp_path, monkeypatch):
    there = Hub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", there)
    return there


def test_entries_go_to_the_hub_and_come_back(the_hub, tmp_path):
    assert zoo.push("photo-inpaint-lpd", "owner/maps") == "hf://owner/maps/photo-inpaint-lpd"
    assert zoo.card("hf://owner/maps/photo-inpaint-lpd") == zoo.card("photo-inpaint-lpd")
    again = zoo.load("hf://owner/maps/photo-inpaint-lpd.safetensors")
    assert torch.equal(again.theta, zoo.load("photo-inpaint-lpd").theta)
    assert zoo.pull("hf://owner/maps/photo-inpaint-lpd").is_file()


def test_what_the_hub_gives_is_checked(the_hub, tmp_path):
    zoo.push("photo-inpaint-lpd", "owner/maps")
    path = the_hub.folder / "owner" / "maps" / "photo-inpaint-lpd.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(zoo.EntryDamaged, match="its checksum is wrong"):
        zoo.load("hf://owner/maps/photo-inpaint-lpd")
    with pytest.raises(OSError, match=r"hf://owner/maps/absent cannot be fetched: 404"):
        zoo.load("hf://owner/maps/absent")
    with pytest.raises(ValueError, match="hf://owner/repository/name"):
        zoo.load("hf://owner/maps")
    with pytest.raises(ValueError, match="owner/name"):
        zoo.push("photo-inpaint-lpd", "maps")
    with pytest.raises(zoo.EntryDamaged, match="its card is missing"):
        hub.push(tmp_path / "absent.safetensors", "owner/maps")


def test_without_its_library_the_hub_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install 'mirrordescent\[hub\]'"):
        zoo.load("hf://owner/maps/photo")


def test_the_benchopt_solver(monkeypatch):
    """Its objective, as the benchmark computes it, falls to the certified optimum."""
    benchopt = ModuleType("benchopt")
    benchopt.BaseSolver = object
    monkeypatch.setitem(sys.modules, "benchopt", benchopt)
    path = Path(__file__).parents[1] / "benchmarks" / "benchopt" / "mirrordescent.py"
    spec = importlib.util.spec_from_file_location("a_solver", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = np.random.default_rng(0)
    A = np.eye(8) + 0.3 * np.eye(8, k=1)
    y = rng.random((8, 6))
    reg = 0.05

    def objective(u):
        variation = np.abs(np.diff(u, axis=0)).sum() + np.abs(np.diff(u, axis=1)).sum()
        return 0.5 * np.linalg.norm(y - A @ u) ** 2 + reg * variation

    for method in module.Solver.parameters["method"]:
        solver = module.Solver()
        solver.method = method
        assert solver.skip(isotropy="anisotropic", data_fit="lsq", A=A) == (False, None)
        assert solver.skip(isotropy="isotropic", data_fit="lsq", A=A)[0]
        assert solver.skip(isotropy="anisotropic", data_fit="huber", A=A)[0]
        solver.set_objective(A=A, y=y, reg=reg, delta=0.9, data_fit="lsq", isotropy="anisotropic")
        solver.run(0)
        first = objective(solver.get_result()["u"])
        solver.run(1000)
        reference = md.certify(solver.problem, 1e-6, cache=False)
        last = objective(solver.get_result()["u"])
        assert (
            float(reference.lower) - 1e-9
            <= last
            < float(reference.value) + 0.05 * (first - float(reference.value))
        )
