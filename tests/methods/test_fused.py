"""The kernel for AMD with a stencil takes the steps of the method."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent import kernels
from mirrordescent.kernels import BuildError
from mirrordescent.methods import Equipped, Fused
from mirrordescent.mirrors import Euclidean, Stencil
from mirrordescent.oracles import Exact, Rounded
from mirrordescent.schedules import PowerLaws


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRRORDESCENT_CACHE", str(tmp_path_factory.mktemp("kernels")))
        kernels.library.cache_clear()
        try:
            kernels.library()
        except BuildError as error:
            pytest.skip(f"kernels cannot be built here: {error}")
        yield


def method(dtype=torch.float32):
    mirror = Stencil(0.6)
    amd = md.AMD(
        mirror, PowerLaws([1, 10], [0.3, 0.05], power=1.0), regulariser=mirror, storage="primal", gamma=0.8,
        mixing=PowerLaws([1, 10], [0.8, 0.3], power=1.0, bound=1.0),
        dual_weight=PowerLaws([1, 10], [1.5, 6.0], power=-1.0),
    )  # fmt: skip
    return Equipped(amd, Rounded(PowerLaws([1, 10], [0.5, 20.0], power=-1.0))).to(dtype).requires_grad_(False)


def problem(kind, shape, dtype):
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(shape, generator=generator, dtype=dtype)
    if kind == "denoising":
        return md.TVDenoising(y, weight=0.2, scale=0.7)
    mask = torch.rand(shape if kind == "own masks" else shape[-2:], generator=generator) > 0.3
    mask[..., 0, 0] = True
    return md.TVInpainting(y, mask, weight=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape", [(2, 3, 9, 13), (1, 1, 150, 70), (3, 1, 1, 8), (2, 2, 8, 1), (1, 1, 1, 1), (1, 2, 65, 2)]
)
@pytest.mark.parametrize("kind", ["denoising", "one mask", "own masks"])
def test_the_same_steps(kind, shape, dtype):
    task, plain = problem(kind, shape, dtype), method(dtype)
    fused = Fused(plain)
    state = plain.init(task.start())
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    with torch.no_grad():
        for _ in range(12):
            other, state = fused.step(task, state, Exact()), plain.step(task, state, Exact())
            for a, b in ((state.x, other.x), (state.z, other.z)):
                assert float((a - b).abs().max()) <= tolerance * max(1.0, float(a.abs().max()))


def test_solve_and_threads(monkeypatch):
    task, plain = problem("one mask", (2, 3, 40, 30), torch.float64), method(torch.float64)
    one, two = (md.solve(task, each, iterations=60) for each in (plain, Fused(plain)))
    torch.testing.assert_close(one.value, two.value)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    three = md.solve(task, Fused(plain), iterations=60)
    assert torch.equal(two.x, three.x)


def test_elsewhere_it_is_the_method():
    class Identity:
        def A(self, x):
            return x

        def A_adjoint(self, y):
            return y

    y = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    task = md.TVInpainting(y, None, operator=Identity())
    one, two = (md.solve(task, each, iterations=5) for each in (method(), Fused(method())))
    assert torch.equal(one.x, two.x)


def test_other_methods_have_no_kernel():
    for other in (md.GD(0.1), Equipped(md.AMD(Euclidean(), 0.1), Rounded(1.0)), md.AMD(Stencil(0.5), 0.1)):
        with pytest.raises(TypeError, match="there is a kernel for"):
            Fused(other)
