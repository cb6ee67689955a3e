"""The kernels take the steps of the methods, on every level of the processor."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

import mirrordescent as md
from mirrordescent import kernels
from mirrordescent.execution import fast_run
from mirrordescent.kernels import call
from mirrordescent.methods import Equipped, ScheduledPrimalDual
from mirrordescent.mirrors import Euclidean, Stencil
from mirrordescent.oracles import Default, Noisy, Rounded
from mirrordescent.schedules import PowerLaws
from mirrordescent.trees import leaves

pytestmark = pytest.mark.usefixtures("compiled")


def method(dtype=torch.float32):
    mirror = Stencil(0.6)
    amd = md.AMD(
        mirror,
        PowerLaws([1, 10], [0.3, 0.05], power=1.0),
        regulariser=mirror,
        storage="primal",
        gamma=0.8,
        mixing=PowerLaws([1, 10], [0.8, 0.3], power=1.0, bound=1.0),
        dual_weight=PowerLaws([1, 10], [1.5, 6.0], power=-1.0),
    )
    return (
        Equipped(amd, Rounded(PowerLaws([1, 10], [0.5, 20.0], power=-1.0)))
        .to(dtype)
        .requires_grad_(False)
    )


def problem(kind, shape, dtype, **variant):
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(shape, generator=generator, dtype=dtype)
    if variant.pop("weights", False):
        variant["weight"] = torch.linspace(0.05, 0.4, shape[0], dtype=dtype)
    if kind == "denoising":
        return md.TVDenoising(y, **{"weight": 0.2, "scale": 0.7, **variant})
    masks = {
        "one mask": shape[-2:],
        "a mask each": (shape[0], 1, *shape[-2:]),
        "own masks": shape,
        "channels": shape[1:],
        "columns": (1, shape[-1]),
    }
    mask = torch.rand(masks[kind], generator=generator) > 0.3
    mask[..., 0, 0] = True
    return md.TVInpainting(y, mask, **{"weight": 0.1, **variant})


def falling(dtype):
    """A relaxation that falls from 1.9 to 1.4."""
    laws = PowerLaws([1, 12], [1.9, 1.4], bound=2.0)
    return laws.to(dtype).requires_grad_(False)


def scheduled(dtype, **options):
    """A scheduled method whose numbers all change from step to step."""
    laws = (
        PowerLaws([1, 12], values) for values in ([0.5, 0.2], [0.7, 0.9], [0.6, 1.0], [0.3, 0.6])
    )
    return ScheduledPrimalDual(*laws, **options).to(dtype).requires_grad_(False)


METHODS = {
    "AMD": method,
    "PDHG": lambda dtype: md.PDHG(0.3),
    "Condat–Vũ": lambda dtype: md.CondatVu(0.3),
    "dual FISTA": lambda dtype: md.DualFISTA(),
    "PDHG, relaxed": lambda dtype: md.PDHG(0.3, relaxation=1.8),
    "Condat–Vũ, relaxed": lambda dtype: md.CondatVu(0.3, relaxation=falling(dtype)),
    "scheduled": lambda dtype: scheduled(dtype, implicit=False),
    "scheduled, implicit": lambda dtype: scheduled(dtype, implicit=True),
    "scheduled, relaxed": lambda dtype: scheduled(
        dtype, mirror=Stencil(0.6), relaxation=falling(dtype)
    ),
}
PARTS = {
    "AMD": ("x", "z"),
    "dual FISTA": ("x", "u", "v", "theta"),
    "scheduled": ("x", "u", "move"),
    "scheduled, implicit": ("x", "u", "move"),
    "scheduled, relaxed": ("x", "u", "move"),
}
KINDS = ["denoising", "one mask", "a mask each", "own masks", "channels", "columns"]
WITHIN = {torch.float32: 1e-6, torch.float64: 1e-14}
VARIANTS = {
    "isotropic": {"isotropic": True},
    "coupled": {"coupled": True},
    "both": {"isotropic": True, "coupled": True},
    "Huber": {"huber": 0.05},
    "weights": {"weights": True},
    "isotropic, Huber": {"isotropic": True, "huber": 0.3},
    "coupled, weights": {"coupled": True, "weights": True},
    "all": {"isotropic": True, "coupled": True, "huber": 0.1, "weights": True},
}


def pairs(*kinds):
    """All methods, and what to try them on: FISTA only on problems without masks, where the dual is
    smooth.
    """
    return [
        (name, kind)
        for name in METHODS
        for kind in (["denoising"] if name == "dual FISTA" else kinds)
    ]


def on_every_level(run, *arguments, **options):
    """Yield each level of the processor, and the result of a function there."""
    for level in kernels.supported_levels():
        with mock.patch.object(call, "level", new=lambda level=level: level):
            yield level, run(*arguments, **options)


def compare(name, task, dtype, steps=12):
    """Take every step in both ways, from the same state, on all levels."""
    plain = METHODS[name](dtype)
    kernel = fast_run(plain, task, Default())
    state = plain.init(task.start(), task)
    with torch.no_grad():
        for _ in range(steps):
            others = list(on_every_level(kernel, state, 1))
            state = plain.step(task, state, Default())
            relaxed = getattr(state, "relaxed", None)
            assert (relaxed is not None) == ("relaxed" in name)
            names = [*PARTS.get(name, ("x", "u")), *(["relaxed"] if relaxed is not None else [])]
            expected = [leaf for part in names for leaf in numbers(getattr(state, part))]
            limits = [
                WITHIN[dtype] * leaf.abs().amax().clamp(min=1).expand(leaf.numel())
                for leaf in expected
                if leaf.numel()
            ]
            for level, other in others:
                assert other.k == state.k
                found = [leaf for part in names for leaf in numbers(getattr(other, part))]
                assert [leaf.shape for leaf in found] == [leaf.shape for leaf in expected]
                error = (flat(found) - flat(expected)).abs()
                assert bool((error <= torch.cat(limits)).all()), level
            yield state


def both(one, other):
    """The tensors of two trees, side by side."""
    return zip(leaves(one), leaves(other), strict=True)


def numbers(part):
    """Return the tensors of a part of a state; those of relaxed iterates are x and u."""
    trees = (part.x, part.u) if hasattr(part, "u") else (part,)
    return (tensor for tree in trees for tensor in leaves(tree))


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize(
    "shape",
    [(2, 3, 9, 13), (1, 1, 150, 70), (3, 1, 1, 8), (2, 2, 8, 1), (1, 1, 1, 1), (1, 2, 65, 2)],
)
@pytest.mark.parametrize(("name", "kind"), pairs(*KINDS))
def test_the_same_steps(name, kind, shape, dtype):
    assert len(list(compare(name, problem(kind, shape, dtype), dtype))) == 12


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize(
    "shape", [(3, 3, 9, 13), (1, 2, 70, 33), (2, 3, 1, 8), (2, 2, 8, 1), (1, 1, 1, 1)]
)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("name", "kind"), pairs("denoising", "own masks"))
def test_the_same_steps_for_every_total_variation(name, kind, variant, shape, dtype):
    task = problem(kind, shape, dtype, **VARIANTS[variant])
    assert len(list(compare(name, task, dtype))) == 12
    if min(shape[1:]) > 1:  # or else the variant may be none
        x = task.start()
        plain = problem(kind, shape, dtype)
        assert not torch.allclose(task.value(x), plain.value(x))


@pytest.mark.parametrize("variant", [{}, *VARIANTS.values()])
def test_samples_restart_by_themselves(variant):
    task = problem("denoising", (4, 2, 12, 9), torch.float64, **variant)
    restarts = torch.stack(
        [state.theta == 1 for state in compare("dual FISTA", task, torch.float64, steps=60)]
    )
    assert int(restarts.any(0).sum()) > 1
    assert bool((restarts.any(1) & ~restarts.all(1)).any())  # some without the others


@pytest.mark.parametrize(
    "shape",
    [(1, 2, 40, 9), (2, 3, 5, 30), (1, 1, 3, 3), (1, 1, 70, 4), (1, 2, 130, 140), (1, 1, 2, 9000)],
)
@pytest.mark.parametrize(
    "variant", [{}, {"isotropic": True, "coupled": True, "huber": 0.1, "weights": True}]
)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("name", "kind"), pairs("own masks"))
def test_many_steps_in_one_call_are_the_same_as_one_by_one(
    name, kind, threads, variant, shape, monkeypatch
):
    task = problem(kind, shape, torch.float32, **variant)
    plain = METHODS[name](torch.float32)
    kernel = fast_run(plain, task, Default())
    start = plain.init(task.start(), task)

    def one_by_one():
        state = start
        for _ in range(37):
            state = kernel(state, 1)
        return state

    def in_two_calls():
        return kernel(kernel(start, 5), 32)

    single = dict(on_every_level(one_by_one))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for level, many in on_every_level(in_two_calls):
        one = single[level]
        assert one.k == many.k == 37
        for part in PARTS.get(name, ("x", "u")):
            sides = both(getattr(one, part), getattr(many, part))
            assert all(torch.equal(a, b) for a, b in sides), (level, part)
        if "relaxed" in name:
            assert torch.equal(one.relaxed.x, many.relaxed.x)
            assert all(torch.equal(a, b) for a, b in both(one.relaxed.u, many.relaxed.u))


@pytest.mark.parametrize(("name", "kind"), pairs("one mask"))
def test_solve_and_threads(name, kind, monkeypatch):
    task = problem(kind, (2, 3, 90, 70), torch.float64)
    plain = METHODS[name](torch.float64)
    one = md.solve(task, plain, iterations=60, fused=False)
    two = dict(on_every_level(md.solve, task, plain, iterations=60, fused=True))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    # Kernels are used by default.
    for level, three in on_every_level(md.solve, task, plain, iterations=60):
        torch.testing.assert_close(one.value, two[level].value)
        assert torch.equal(two[level].x, three.x)
        assert not torch.equal(one.x, three.x)


@pytest.mark.parametrize(
    "variant", [{}, {"isotropic": True}, {"coupled": True, "huber": 0.1, "weights": True}]
)
@pytest.mark.parametrize(
    ("name", "kind"),
    [pair for pair in pairs("a mask each")[1:] if "scheduled" not in pair[0]],
)
def test_primal_dual_methods_stop_on_their_certificate(name, kind, variant):
    task = problem(kind, (3, 1, 20, 30), torch.float64, **variant)
    plain = METHODS[name](torch.float64)
    options = {"iterations": 3000, "stop": md.gap(1e-6), "check_every": 20}
    one = md.solve(task, plain, fused=False, **options)
    for _, two in on_every_level(md.solve, task, plain, fused=True, **options):
        assert two.statuses == [md.Status.CONVERGED] * 3
        assert one.steps.tolist() == two.steps.tolist()
        torch.testing.assert_close(one.lower, two.lower)


@pytest.mark.parametrize("variant", [{}, {"isotropic": True}, {"coupled": True, "weights": True}])
def test_what_the_kernel_was_told_proves_a_bound(variant):
    task = problem("one mask", (2, 2, 70, 20), torch.float64, **variant)
    plain = method(torch.float64)
    one = md.solve(task, md.Certified(plain), iterations=30, fused=False)
    alone = dict(on_every_level(md.solve, task, plain, iterations=30, fused=True))
    certified = on_every_level(md.solve, task, md.Certified(plain), iterations=30, fused=True)
    for level, two in certified:
        torch.testing.assert_close(one.lower, two.lower)
        assert torch.equal(alone[level].x, two.x)


@pytest.mark.usefixtures("every_level")
def test_a_bound_that_needs_the_points_is_left_to_the_method():
    task = problem("one mask", (2, 1, 20, 20), torch.float64, huber=0.1)
    plain = method(torch.float64)
    assert fast_run(plain, task, Default()) is not None
    assert fast_run(md.Certified(plain), task, Default()) is None
    handed = md.Switch(plain, 5, md.PDHG(0.4))  # whose second half is compiled nevertheless
    found, same = (
        md.solve(task, handed, iterations=9, check_every=3, fused=fused) for fused in (False, True)
    )
    torch.testing.assert_close(found.lower, same.lower)


@pytest.mark.usefixtures("every_level")
def test_from_kernel_to_kernel():
    task = problem("own masks", (2, 1, 20, 30), torch.float64)
    plain = method(torch.float64)
    handed = md.Switch(plain, 15, md.PDHG(0.4))
    for iterations in (15, 40):
        found, same = (
            md.solve(task, handed, iterations=iterations, check_every=5, fused=fused)
            for fused in (False, True)
        )
        torch.testing.assert_close(found.x, same.x)
        torch.testing.assert_close(found.lower, same.lower)
    solved = md.solve(task, handed, iterations=3000, stop=md.gap(1e-6), check_every=10, fused=True)
    assert solved.statuses == [md.Status.CONVERGED] * 2


@pytest.mark.usefixtures("every_level")
@pytest.mark.parametrize("then", [md.DualFISTA, md.LPD])  # with a kernel, and without one
def test_a_hand_over_to_another_method(then):
    task = problem("denoising", (2, 1, 20, 30), torch.float64)
    plain = method(torch.float64)
    handed = md.Switch(plain, 7, then().double().requires_grad_(False))
    assert (fast_run(handed.then, task, Default()) is None) == (then is md.LPD)
    found, same = (
        md.solve(task, handed, iterations=20, check_every=4, fused=fused) for fused in (False, True)
    )
    torch.testing.assert_close(found.x, same.x)
    torch.testing.assert_close(found.lower, same.lower)


class Identity:
    def A(self, x):
        return x

    def A_adjoint(self, y):
        return y


@pytest.mark.parametrize("name", ["AMD", "PDHG", "Condat–Vũ"])
def test_elsewhere_it_is_the_method(name):
    y = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    task = md.TVInpainting(y, None, operator=Identity())
    plain = METHODS[name](torch.float32)
    assert fast_run(plain, task, Default()) is None
    assert torch.equal(
        *(md.solve(task, plain, iterations=5, fused=fused).x for fused in (None, False))
    )
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
    assert fast_run(md.PDHG(0.3), task, Default()) is None


def test_a_subclass_with_another_step_does_not_inherit_the_kernel():
    class Slower(md.PDHG):
        def step_sizes(self, saddle):
            tau, sigma = super().step_sizes(saddle)
            return tau / 2, sigma / 2

    class Halved(md.AMD):
        def update(self, state, grad):
            return super().update(state, grad / 2)

    class Shorter(md.DualFISTA):
        def dual_step(self, problem):
            return super().dual_step(problem) / 2

    task = problem("denoising", (1, 1, 6, 6), torch.float32)
    mirror = Stencil(0.5)
    for other in (
        Slower(0.3),
        Shorter(),
        Halved(mirror, 0.1, regulariser=mirror, storage="primal"),
    ):
        assert fast_run(other, task, Rounded(1.0)) is None


def test_noise_goes_around_the_oracle_of_the_method_and_past_the_kernel():
    task = problem("denoising", (1, 1, 6, 6), torch.float32)
    random = [torch.Generator().manual_seed(0) for _ in range(2)]
    noisy = md.solve(task, method(), iterations=5, oracle=Noisy(0.1), generator=random[0])
    own = method()
    same = md.solve(
        task, own.method, iterations=5, oracle=Noisy(0.1, own.oracle), generator=random[1]
    )
    assert torch.equal(noisy.x, same.x)
    assert not torch.equal(noisy.x, md.solve(task, method(), iterations=5).x)


def test_other_methods_have_no_kernel():
    task = problem("denoising", (1, 1, 6, 6), torch.float32)
    euclidean = Equipped(md.AMD(Euclidean(), 0.1), Rounded(1.0))
    for other in (md.GD(0.1), euclidean, md.AMD(Stencil(0.5), 0.1), md.LPD()):
        assert fast_run(other, task, Default()) is None
    assert (
        fast_run(md.DualFISTA(), problem("one mask", (1, 1, 6, 6), torch.float32), Default())
        is None
    )


def test_c_functions_are_called_by_the_names_of_their_arguments():
    function = kernels.KernelFunction("md_scaled", torch.float32)
    assert function.names == ["count", "sizes", "periods", "x", "g", "w", "t", "threads"]
    with pytest.raises(
        TypeError,
        match="takes count, sizes, periods, x, g, w, t, threads; wrong or missing: sizes, z",
    ):
        function(count=0, periods=None, x=None, g=None, w=None, t=0.1, z=None)
    x = torch.zeros(1, 1, 2, 2)
    y = torch.zeros(1, 1, 2, 3)
    numbers = kernels.numbers(*[1.0] * 8)
    with pytest.raises(ValueError, match="one shape and type, on the CPU"):
        kernels.amd_stencil(x, x, y, None, None, numbers, steps=1)
    with pytest.raises(ValueError, match=r"needs a table .* of curvature, bound, .*; got"):
        kernels.amd_stencil(x, x, x, None, None, numbers[..., 1:], steps=1)
