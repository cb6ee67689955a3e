"""The kernels take the steps of the methods."""

from __future__ import annotations

import pytest
import torch

import mirrordescent as md
from mirrordescent import kernels
from mirrordescent.methods import Equipped
from mirrordescent.mirrors import Euclidean, Stencil
from mirrordescent.oracles import Default, Noisy, Rounded
from mirrordescent.schedules import PowerLaws
from mirrordescent.trees import leaves

pytestmark = pytest.mark.usefixtures("compiled")


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
    masks = {
        "one mask": shape[-2:],
        "a mask each": (shape[0], 1, *shape[-2:]),
        "own masks": shape,
        "channels": shape[1:],
        "columns": (1, shape[-1]),
    }
    mask = torch.rand(masks[kind], generator=generator) > 0.3
    mask[..., 0, 0] = True
    return md.TVInpainting(y, mask, weight=0.1)


METHODS = {"AMD": method, "PDHG": lambda dtype: md.PDHG(0.3), "Condat–Vũ": lambda dtype: md.CondatVu(0.3)}
PARTS = {"AMD": ("x", "z"), "PDHG": ("x", "u"), "Condat–Vũ": ("x", "u")}


def close(one, other, tolerance):
    pairs = zip(leaves(one), leaves(other), strict=True)
    return all((a - b).abs().amax() <= tolerance * max(1.0, float(a.abs().max())) for a, b in pairs if a.numel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape", [(2, 3, 9, 13), (1, 1, 150, 70), (3, 1, 1, 8), (2, 2, 8, 1), (1, 1, 1, 1), (1, 2, 65, 2)]
)
@pytest.mark.parametrize("kind", ["denoising", "one mask", "a mask each", "own masks", "channels", "columns"])
@pytest.mark.parametrize("name", METHODS)
def test_the_same_steps(name, kind, shape, dtype):
    task, plain = problem(kind, shape, dtype), METHODS[name](dtype)
    kernel = plain.kernel(task, Default())
    state = plain.init(task.start(), task)
    with torch.no_grad():
        for _ in range(12):
            other, state = kernel(state, 1), plain.step(task, state, Default())
            assert other.k == state.k
            for part in PARTS[name]:
                assert close(getattr(state, part), getattr(other, part), 1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize("name", METHODS)
def test_solve_and_threads(name, monkeypatch):
    task, plain = problem("one mask", (2, 3, 70, 30), torch.float64), METHODS[name](torch.float64)
    one, two = (md.solve(task, plain, iterations=60, fused=fused) for fused in (False, True))
    torch.testing.assert_close(one.value, two.value)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    three = md.solve(task, plain, iterations=60)  # they are compiled, and so used without being asked for
    assert torch.equal(two.x, three.x)
    assert not torch.equal(one.x, three.x)


@pytest.mark.parametrize("name", ["PDHG", "Condat–Vũ"])
def test_primal_dual_methods_stop_on_their_certificate(name):
    task, plain = problem("a mask each", (3, 1, 20, 30), torch.float64), METHODS[name](torch.float64)
    one, two = (
        md.solve(task, plain, iterations=3000, stop=md.gap(1e-6), check_every=20, fused=fused)
        for fused in (False, True)
    )
    assert two.statuses == [md.Status.CONVERGED] * 3
    assert one.steps.tolist() == two.steps.tolist()
    torch.testing.assert_close(one.lower, two.lower)


def test_what_the_kernel_was_told_proves_a_bound():
    task, plain = problem("one mask", (2, 1, 70, 20), torch.float64), method(torch.float64)
    one, two = (md.solve(task, md.Certified(plain), iterations=30, fused=fused) for fused in (False, True))
    torch.testing.assert_close(one.lower, two.lower)
    assert torch.equal(md.solve(task, plain, iterations=30, fused=True).x, two.x)


def test_from_kernel_to_kernel():
    task, plain = problem("own masks", (2, 1, 20, 30), torch.float64), method(torch.float64)
    handed = md.HandOver(plain, 15, md.PDHG(0.4))
    for iterations in (15, 40):
        found, same = (
            md.solve(task, handed, iterations=iterations, check_every=5, fused=fused) for fused in (False, True)
        )
        torch.testing.assert_close(found.x, same.x)
        torch.testing.assert_close(found.lower, same.lower)
    solved = md.solve(task, handed, iterations=3000, stop=md.gap(1e-6), check_every=10, fused=True)
    assert solved.statuses == [md.Status.CONVERGED] * 2


def test_a_hand_over_to_a_method_without_a_kernel():
    task, plain = problem("denoising", (2, 1, 20, 30), torch.float64), method(torch.float64)
    handed = md.HandOver(plain, 7, md.DualFISTA())
    found, same = (md.solve(task, handed, iterations=20, check_every=4, fused=fused) for fused in (False, True))
    torch.testing.assert_close(found.x, same.x)
    torch.testing.assert_close(found.lower, same.lower)


class Identity:
    def A(self, x):
        return x

    def A_adjoint(self, y):
        return y


@pytest.mark.parametrize("name", METHODS)
def test_elsewhere_it_is_the_method(name):
    y = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    task, plain = md.TVInpainting(y, None, operator=Identity()), METHODS[name](torch.float32)
    assert plain.kernel(task, Default()) is None
    assert torch.equal(*(md.solve(task, plain, iterations=5, fused=fused).x for fused in (None, False)))
    with pytest.raises(ValueError, match="has no kernel for TVInpainting"):
        md.solve(task, plain, iterations=5, fused=True)
    x = y.clone().requires_grad_()  # a step makes a graph, kernels or not
    state = plain.step(md.TVDenoising(y), plain.init(x, md.TVDenoising(y)), Default())
    (slope,) = torch.autograd.grad(state.x.sum(), x)
    assert bool(slope.abs().sum() > 0)


def test_a_problem_with_another_objective_is_left_to_the_method():
    class Doubled(md.TVDenoising):
        def prox_F(self, x, tau):
            return super().prox_F(x, 2 * tau)

    task = Doubled(torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0)))
    assert md.PDHG(0.3).kernel(task, Default()) is None


def test_a_subclass_with_another_step_does_not_inherit_the_kernel():
    class Slower(md.PDHG):
        def step_sizes(self, saddle):
            tau, sigma = super().step_sizes(saddle)
            return tau / 2, sigma / 2

    class Halved(md.AMD):
        def update(self, state, grad):
            return super().update(state, grad / 2)

    task, mirror = problem("denoising", (1, 1, 6, 6), torch.float32), Stencil(0.5)
    for other in (Slower(0.3), Halved(mirror, 0.1, regulariser=mirror, storage="primal")):
        assert other.kernel(task, Rounded(1.0)) is None


def test_noise_goes_around_the_oracle_of_the_method_and_past_the_kernel():
    task = problem("denoising", (1, 1, 6, 6), torch.float32)
    random = [torch.Generator().manual_seed(0) for _ in range(2)]
    noisy = md.solve(task, method(), iterations=5, oracle=Noisy(0.1), generator=random[0])
    own = method()
    same = md.solve(task, own.method, iterations=5, oracle=Noisy(0.1, own.oracle), generator=random[1])
    assert torch.equal(noisy.x, same.x)
    assert not torch.equal(noisy.x, md.solve(task, method(), iterations=5).x)


def test_other_methods_have_no_kernel():
    task = problem("denoising", (1, 1, 6, 6), torch.float32)
    euclidean = Equipped(md.AMD(Euclidean(), 0.1), Rounded(1.0))
    for other in (md.GD(0.1), euclidean, md.AMD(Stencil(0.5), 0.1), md.DualFISTA()):
        assert other.kernel(task, Default()) is None


def test_c_functions_are_called_by_the_names_of_their_arguments():
    function = kernels.Function("md_scaled", torch.float32)
    assert function.names == ["count", "sizes", "periods", "x", "g", "w", "t", "threads"]
    with pytest.raises(TypeError, match="takes count, sizes, periods, x, g, w, t, threads; wrong or missing: sizes, z"):
        function(count=0, periods=None, x=None, g=None, w=None, t=0.1, z=None)
    with pytest.raises(ValueError, match="one shape and type, on the CPU"):
        kernels.amd_stencil(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 3), None, None)
