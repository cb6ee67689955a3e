"""Maps and methods of a user's own train networks like those of the library."""

from __future__ import annotations

import copy
import io
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from mirrordescent import kernels, methods, optim, zoo
from mirrordescent.execution.foreach import DIAGONAL_STEPS, DiagonalSteps, md_step, md_step_sizes
from mirrordescent.methods import GradientMethod
from mirrordescent.mirrors import (
    Diagonal,
    Euclidean,
    HyperbolicEntropy,
    Layerwise,
    MirrorMap,
    Multipliers,
    NegativeEntropy,
    PNorm,
    SpectralPower,
    SquaredPNorm,
)
from mirrordescent.mirrors.by_kind import ScaledMap
from mirrordescent.oracles import Exact
from mirrordescent.schedules import Interpolated, PowerLaws, as_schedule

sys.path.insert(0, str(Path(__file__).parent))
from steps import choices, parameters, run, run_pure


class Quartic(MirrorMap):
    """ψ(x) = Σ ½x² + ¼ a x⁴:  ∇ψ(x) = x + a x³, whose inverse is Cardano's."""

    elementwise = True

    def __init__(self, a: float = 1.0) -> None:
        super().__init__()
        self.a = a

    def _potential(self, x: Tensor) -> Tensor:
        return (x.square() / 2 + self.a * x.pow(4) / 4).flatten(1).sum(1)

    def _to_dual(self, x: Tensor) -> Tensor:
        return x + self.a * x.pow(3)

    def _to_primal(self, y: Tensor) -> Tensor:
        root = 2 / (3 * self.a) ** 0.5
        return root * ((1.5 * (3 * self.a) ** 0.5 * y).asinh() / 3).sinh()


class Halved(MirrorMap):
    """∇ψ(x) = 2x with ``diagonal``, so that foreach functions and kernels can be used."""

    elementwise = True

    def diagonal(self) -> float:
        return 2.0

    def _to_dual(self, x: Tensor) -> Tensor:
        return 2 * x

    def _to_primal(self, y: Tensor) -> Tensor:
        return y / 2


class HeavyState(NamedTuple):
    k: int
    x: Any
    y: Any
    previous: Any
    length: float


class HeavyBall(GradientMethod[HeavyState]):
    """y⁺ = y − t_k g + β(∇ψ(x) − ∇ψ(previous x)),  x⁺ = ∇ψ*(y⁺).

    The state has a dual point, the previous x, and a number: the summed norms of the gradients.
    """

    def __init__(self, mirror, t, momentum=0.8):
        super().__init__(mirror)
        self.t = as_schedule(t, "t")
        self.momentum = momentum

    def init(self, x0, problem=None):
        return HeavyState(0, x0, self.mirror.to_dual(x0), x0, 0.0)

    def update(self, state, grad):
        t = self.t(state.k + 1)
        kept = self.mirror.to_dual(state.x) - self.mirror.to_dual(state.previous)
        y = state.y - t * grad + self.momentum * kept
        return HeavyState(
            state.k + 1, self.mirror.to_primal(y), y, state.x, state.length + float(grad.norm())
        )


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def fit(model, optimizer, steps, first=0):
    losses = []
    for k in range(first, first + steps):
        generator = torch.Generator().manual_seed(k)
        inputs = torch.randn(32, 4, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


METHODS = {
    "own": HeavyBall,
    "own with settings": lambda mirror, t: HeavyBall(mirror, t, momentum=0.5),
    "SMD": methods.SMD,
    "AMD": lambda mirror, t: methods.AMD(mirror, t, cap=9),
    "Adam": lambda mirror, t: methods.Adam(t),
    "Nesterov": lambda mirror, t: methods.Nesterov(t),
}
MAPS = {
    "own": Quartic,
    "own diagonal": Halved,
    "Euclidean": Euclidean,
    "p-norm": lambda: SquaredPNorm(1.8),
}
each_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
each_map = pytest.mark.parametrize("mirror", MAPS.values(), ids=MAPS)


@each_method
@each_map
def test_training_brings_the_loss_down(make, mirror):
    model = network()
    rate = 0.02 if "Adam" in str(make(Euclidean(), 1.0)) else 0.1
    losses = fit(model, optim.MirrorOptimizer(model.parameters(), rate, mirror(), method=make), 150)
    assert losses[-1] < 0.7 * losses[0]


@each_method
@each_map
def test_they_are_the_pure_methods(make, mirror):
    params = parameters((3, 4), (4,), (2, 3, 4))
    expected = run_pure(make(mirror(), 0.05), params, 12)
    optimizer = optim.MirrorOptimizer(params, 0.05, mirror(), method=make, fused=False)
    for ours, theirs in zip(run(optimizer, params, 12), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@each_method
@each_map
@pytest.mark.parametrize("dual_dtype", [None, torch.float64])
def test_a_run_goes_on_from_a_file_bit_for_bit(make, mirror, dual_dtype):
    def begin(weights):
        model = network().to(torch.float32 if dual_dtype else torch.float64)
        if weights:
            model.load_state_dict(weights)
        options = {
            "method": make,
            "dual_dtype": dual_dtype,
            "weight_decay": 0.01,
            "t": lambda k: 1 / k**0.5,
        }
        return model, optim.MirrorOptimizer(model.parameters(), 0.05, mirror(), **options)

    def train(model, optimizer, first, last):
        return fit(_Cast(model) if dual_dtype else model, optimizer, last - first, first)

    model, optimizer = begin(None)
    train(model, optimizer, 0, 7)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again, resumed = begin(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    assert train(model, optimizer, 7, 15) == train(again, resumed, 7, 15)
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    twin = copy.deepcopy(resumed)
    assert twin.state_dict()["param_groups"] == resumed.state_dict()["param_groups"]


class _Cast(nn.Module):
    """A model in single precision on data in double."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs):
        return self.model(inputs.float())


def test_what_is_stored():
    (p,) = params = parameters((3,))
    optimizer = optim.MirrorOptimizer(params, 0.1, Quartic(), method=HeavyBall)
    run(optimizer, params, 1)
    before = p.detach().clone()
    run(optimizer, params, 1, first=1)
    stored = optimizer.state[p]
    assert list(stored) == ["y", "previous", "length"]
    assert torch.equal(stored["previous"], before)
    assert isinstance(stored["length"], float)
    assert stored["length"] > 0
    assert optimizer.param_groups[0]["method"] == "HeavyBall"
    other = optim.MirrorOptimizer(params, 0.1, Quartic(), method=methods.SMD)
    with pytest.raises(
        ValueError, match="state of HeavyBall, and cannot be loaded where method is SMD"
    ):
        other.load_state_dict(optimizer.state_dict())
    shorter = optim.MirrorOptimizer(parameters((2,)), 0.1, Quartic(), method=HeavyBall)
    with pytest.raises(ValueError, match="other shapes"):
        shorter.load_state_dict(optimizer.state_dict())


@each_method
def test_groups_and_weight_decay(make):
    a, b, c = parameters((3,), (4,), (3,))
    with torch.no_grad():
        c.copy_(a)
    optimizer = optim.MirrorOptimizer([b], 0.1, Quartic(), method=make)
    run(optimizer, [b], 2)
    optimizer.add_param_group(
        {"params": [a], "lr": 0.05, "mirror": Quartic(0.5), "weight_decay": 0.3}
    )
    alone = optim.MirrorOptimizer([c], 0.05, Quartic(0.5), method=make)
    for k in range(2, 8):
        run(optimizer, [a, b], 1, first=k)
        c.grad = a.grad.clone() + 0.3 * c.detach()
        alone.step()
        torch.testing.assert_close(a.detach(), c.detach(), rtol=1e-12, atol=1e-14)
    assert [group["k"] for group in optimizer.param_groups] == [8, 6]


def test_adam_is_that_of_torch():
    ours = parameters((3, 4), (4,))
    theirs = parameters((3, 4), (4,))
    optimizer = optim.MirrorOptimizer(ours, 0.01, method=lambda mirror, t: methods.Adam(t))
    for first, second in zip(
        run(optimizer, ours, 20), run(torch.optim.Adam(theirs, 0.01), theirs, 20), strict=True
    ):
        torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-12)


# Fast forms


class Faster(methods.MD):
    """Twice the step, with fast forms of its own."""

    def update(self, state, grad):
        return super().update(state, 2 * grad)


FASTER = DiagonalSteps(
    lambda method, count: (2 * md_step_sizes(method, count)[0],), md_step, kernel="md"
)


class Slower(methods.MD):
    """Half the step; the fast forms of the parent class must not be used."""

    def update(self, state, grad):
        return super().update(state, grad / 2)


class Reweighted(methods.AMD):
    """Depends on x̃, which is not among the carried fields of AMD."""

    def update(self, state, grad):
        return super().update(state._replace(x=(state.x + state.x_tilde) / 2), grad)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("method", [Faster, Slower, Reweighted])
@pytest.mark.parametrize("mirror", [Halved, Euclidean])
def test_fast_forms_are_used_where_they_belong_to_the_method(method, mirror, monkeypatch):
    monkeypatch.setitem(DIAGONAL_STEPS, Faster, FASTER)
    params = parameters((3, 4), (4,), dtype=torch.float32)
    expected = run_pure(method(mirror(), 0.05), params, 8)
    optimizer = optim.MirrorOptimizer(params, 0.05, mirror(), method=method)
    assert kernels.available()
    assert [choice.kernel is not None for choice in choices(optimizer)] == [method is Faster] * 2
    for ours, theirs in zip(run(optimizer, params, 8), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    unfused = optim.MirrorOptimizer(params, 0.05, mirror(), method=method, fused=False)
    assert [choice.foreach for choice in choices(unfused)] == [method is Faster] * 2


class Tilted(Halved):
    def _to_primal(self, y):
        return super()._to_primal(y) + 1


class Scaled(Multipliers):
    @property
    def multipliers(self):
        return 3 * super().multipliers


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "mirror", [Tilted(), Scaled(torch.tensor(0)).double()], ids=["other map", "other numbers"]
)
@pytest.mark.parametrize("optimiser", [optim.MD, optim.AMD])
def test_fast_forms_are_used_where_they_belong_to_the_map(optimiser, mirror):
    params = parameters((3, 4), (4,))
    options = {"cap": 27} if optimiser is optim.AMD else {}
    expected = run_pure(getattr(methods, optimiser.__name__)(mirror, 0.05, **options), params, 8)
    for ours, theirs in zip(run(optimiser(params, 0.05, mirror), params, 8), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


class Signed(SpectralPower):
    """A map of matrices with its own directions."""

    def _direction(self, y):
        return 2 * y.sign()


class Doubled(PNorm):
    """An elementwise map with its own directions."""

    def _direction(self, y):
        return 2 * super()._direction(y)


class Ascending(methods.AdaptivePreconditioned):
    def update(self, state, grad):
        return super().update(state, -grad)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("fused", [False, None])
@pytest.mark.parametrize(
    ("make", "mirror"),
    [
        (methods.Preconditioned, Signed(0.0, products=4)),
        (methods.Preconditioned, ScaledMap(Signed(0.0, products=4), 0.5)),
        (methods.Preconditioned, Doubled(3.0)),
        (methods.AdaptivePreconditioned, PNorm(3.0)),
        (Ascending, PNorm(3.0)),
    ],
    ids=["matrices", "scaled matrices", "entries", "second moments", "other method"],
)
def test_fast_forms_of_preconditioned_methods_are_not_inherited(make, mirror, fused):
    options = {"normalised": True} if make is methods.Preconditioned else {}

    def method(mirror, t):
        return make(mirror, t, momentum=0.8, **options)

    params = parameters((6, 4), (4,), (3, 5))
    expected = run_pure(method(mirror, 0.05), params, 6)
    optimizer = optim.MirrorOptimizer(params, 0.05, mirror, method=method, fused=fused)
    assert [choice.shared for choice in choices(optimizer)] == [make is not Ascending] * 3
    for ours, theirs in zip(run(optimizer, params, 6), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("fused", [False, None])
def test_methods_with_other_numbers_are_not_stepped_together(fused):
    """A method may take numbers from its map, so that those of two tensors differ."""

    def make(mirror, t):
        return methods.AMD(mirror, t, cap=9, gamma=float(mirror.diagonal()[0]))

    maps = {
        "a": Diagonal(torch.tensor([0.5])).double(),
        "b": Diagonal(torch.tensor([2.0])).double(),
    }
    params = parameters((3,), (4,))
    expected = [
        run_pure(make(maps[name], 0.05), [p], 8) for name, p in zip("ab", params, strict=True)
    ]
    optimizer = optim.MirrorOptimizer(
        zip("ab", params, strict=True), 0.05, Layerwise(maps), method=make, fused=fused
    )
    for k in range(8):
        before = [p.detach().clone() for p in params]
        for p in params:
            run_seed(p, k)
        optimizer.step()
        assert not any(map(torch.equal, before, params))
    for p, points in zip(params, expected, strict=True):
        torch.testing.assert_close(p.detach(), points[-1][0], rtol=1e-10, atol=1e-12)


def run_seed(p, k):
    """Set the gradient that ``run_pure`` uses for a single parameter."""
    generator = torch.Generator().manual_seed(k)
    p.grad = p.detach() - torch.randn(p.shape, generator=generator, dtype=torch.float64)


# Learned methods of the zoo


def saved(method, tmp_path):
    return zoo.save(method, tmp_path / "entry")


def test_an_entry_of_ones_own_class_is_that_method(tmp_path):
    entry = saved(
        HeavyBall(Quartic(0.7), PowerLaws([1, 4], [0.2, 0.1]), momentum=0.3).double(), tmp_path
    )
    params = parameters((3, 4), (4,))
    expected = run_pure(zoo.load(entry), params, 10)
    for options in ({}, {"method": HeavyBall}):
        ours = parameters((3, 4), (4,))
        optimizer = optim.MirrorOptimizer(ours, 1.0, entry, **options)
        assert optimizer._executors[0].updates[0].method.momentum == 0.3
        for first, second in zip(run(optimizer, ours, 10), expected, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("correction", ["euclidean", "mirror"])
@pytest.mark.parametrize("storage", ["primal", "dual"])
def test_an_amd_with_all_its_settings(tmp_path, correction, storage):
    """Against the pure method on each parameter; the domains of their maps differ."""

    def make(mirror):
        return methods.AMD(
            mirror,
            Interpolated([1, 5], [0.05, 0.02]),
            r=4.0,
            gamma=Interpolated([1, 5], [1.0, 0.5]),
            cap=6,
            regulariser=mirror if correction == "mirror" else None,
            storage=storage,
            weight_offset=1,
            mixing=PowerLaws([1, 4], [0.9, 0.5], bound=1.0),
        ).double()

    maps = {"w": NegativeEntropy(), "b": HyperbolicEntropy(0.5)}
    params = weights()
    entry = saved(make(Layerwise(maps)), tmp_path)
    pure = [make(mirror) for mirror in maps.values()]
    states = [method.init(p.detach()[None]) for method, p in zip(pure, params, strict=True)]
    optimizer = optim.AMD(zip(maps, params, strict=True), 0.5, entry, r=7.0, gamma=9.0)
    for k in range(8):
        generator = torch.Generator().manual_seed(k)
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            states[i] = pure[i].update(states[i], p.grad[None] / 2)  # lr = ½
        optimizer.step()
    for p, state in zip(params, states, strict=True):
        torch.testing.assert_close(p.detach(), state.x[0].detach(), rtol=1e-10, atol=1e-12)


def weights():
    (w,) = parameters((3, 2), positive=True)
    return [w, *parameters((2,), seed=1)]


def test_a_map_and_schedule_of_another_method(tmp_path):
    entry = saved(
        methods.AMD(Quartic(0.7), PowerLaws([1, 4], [0.2, 0.1]), gamma=0.5).double(), tmp_path
    )
    params = parameters((3, 4))
    expected = run_pure(methods.SMD(zoo.load(entry).mirror, zoo.load(entry).t), params, 5)
    for first, second in zip(run(optim.SMD(params, 1.0, entry), params, 5), expected, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-12)


def test_methods_that_cannot_be_honoured_are_refused(tmp_path):
    params = parameters((3,))
    with pytest.raises(
        ValueError, match=r"'ellipse-denoise-stencil' in the zoo brings its own oracle, Rounded"
    ):
        optim.AMD(params, mirror="ellipse-denoise-stencil")
    with pytest.raises(ValueError, match="the method brings its own oracle, Exact"):
        optim.MirrorOptimizer(
            params, method=lambda mirror, t: methods.Equipped(methods.GD(t), Exact())
        )
    with pytest.raises(TypeError, match=r"needs a GradientMethod; got Averaged from .* in the zoo"):
        optim.SMD(params, mirror=saved(methods.Averaged(methods.GD(0.1)), tmp_path))
    with pytest.raises(TypeError, match="got PDHG from the method"):
        optim.MirrorOptimizer(params, method=lambda mirror, t: methods.PDHG())
    with pytest.raises(TypeError, match="give a method"):
        optim.MirrorOptimizer(params, mirror=Quartic())


def test_unknown_arguments_are_refused():
    for wrong in ("weight_decai", "capp", "answer"):
        with pytest.raises(TypeError, match=f"unknown option of an optimiser '{wrong}'"):
            optim.AMD(parameters((3,)), **{wrong: 1})
