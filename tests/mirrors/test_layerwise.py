"""Layer-wise maps: values per leaf, ties at three levels, and transfer to other networks."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.func import functional_call

import mirrordescent as md
from mirrordescent import zoo
from mirrordescent.domains import DomainError
from mirrordescent.mirrors import (
    Burg,
    Conjugate,
    DenseICNN,
    Diagonal,
    Euclidean,
    HyperbolicEntropy,
    Layerwise,
    Logit,
    Multipliers,
    NegativeEntropy,
    PNorm,
    SimplexEntropy,
    Spline,
    SquaredPNorm,
    layerwise,
    transfer,
)


def mlp(*widths):
    layers = [
        layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())
    ]
    return nn.Sequential(*layers[:-1])


def moons():
    return mlp(2, 50, 1)


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 10)
    )


def digits():
    return nn.Sequential(nn.Flatten(), *mlp(784, 50, 40, 30, 20, 10))


def stacked(model, batch=3, seed=0):
    """Return a batch of random parameters as a dict."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(batch, *p.shape, generator=generator, dtype=p.dtype)
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def learned(mirror, seed=0):
    """Return the map with randomly perturbed parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in mirror.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return mirror


def size(mirror):
    return sum(p.numel() for p in mirror.parameters())


@pytest.mark.parametrize(
    ("model", "kind", "ties", "count"),
    [
        (moons, "diagonal", "orbit", 5),
        (moons, "diagonal", "paper", 5),
        (moons, "diagonal", "tensor", 4),
        (cnn, "diagonal", "orbit", 9 + 1 + 360 + 10),
        (cnn, "diagonal", "paper", 30),
        (cnn, "diagonal", "tensor", 4),
        (digits, "diagonal", "orbit", 784 + 7 + 10 + 10),
        (digits, "diagonal", "paper", 784 + 7 + 10 + 10),
        (digits, "spline", "tensor", 400),
        (moons, "spline", "orbit", 200),
    ],
)
def test_the_numbers_of_the_paper(model, kind, ties, count):
    mirror = layerwise(model(), kind, ties)
    assert size(mirror) == count
    assert mirror.exact
    assert mirror.elementwise
    assert {type(part) for part in mirror.maps} == {Multipliers if kind == "diagonal" else Spline}


@pytest.mark.parametrize("kind", ["diagonal", "spline"])
@pytest.mark.parametrize("ties", ["orbit", "paper", "tensor"])
def test_each_leaf_goes_through_its_own_map(kind, ties):
    model = cnn()
    mirror = learned(layerwise(model, kind, ties))
    x = stacked(model)
    v = stacked(model, seed=1)
    y = mirror.to_dual(x)
    z = mirror.step(x, v, 0.1)
    for name, leaf in x.items():
        own = mirror[name]
        assert torch.equal(y[name], own.to_dual(leaf))
        assert torch.equal(mirror.dual_start(x)[name], own.dual_start(leaf))
        assert torch.equal(mirror.to_primal(y)[name], own.to_primal(y[name]))
        assert torch.equal(z[name], own.step(leaf, v[name], 0.1))
        torch.testing.assert_close(mirror.to_primal(y)[name], leaf, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        mirror.potential(x), sum(mirror[name].potential(leaf) for name, leaf in x.items())
    )
    divergence = sum(mirror[name].divergence(leaf, v[name]) for name, leaf in x.items())
    torch.testing.assert_close(mirror.divergence(x, v), divergence)
    assert mirror.potential(x).shape == (3,)
    assert mirror.strong_convexity == min(part.strong_convexity for part in mirror.maps)


def test_every_method_runs_with_it():
    model = mlp(2, 4, 1).double()
    inputs = torch.randn(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    x0 = stacked(model)
    loss = torch.vmap(lambda z: functional_call(model, z, inputs).square().mean())
    for method in (
        md.MD(layerwise(model, initial=0.5), 0.02),
        md.SMD(layerwise(model, "spline"), 0.02),
        md.AMD(layerwise(model, "spline"), 0.02),
        md.ASMD(layerwise(model), 0.02),
    ):
        state = method.init(x0)
        for _ in range(30):
            x = {name: leaf.detach().requires_grad_() for name, leaf in state.x.items()}
            gradients = torch.autograd.grad(loss(x).sum(), list(x.values()))
            state = method.update(state, dict(zip(x, gradients, strict=True)))
        assert (loss(method.answer(state)) < 0.5 * loss(x0)).all()


def test_starts_as_gradient_descent():
    model = cnn()
    x = stacked(model)
    v = stacked(model, seed=1)
    for kind in ("diagonal", "spline"):
        for name, leaf in layerwise(model, kind).step(x, v, 0.1).items():
            torch.testing.assert_close(leaf, x[name] - 0.1 * v[name], rtol=1e-4, atol=1e-4)


def test_trees_of_other_models_are_refused():
    mirror = layerwise(mlp(2, 4, 1))
    x = stacked(mlp(2, 4, 1))
    with pytest.raises(
        ValueError,
        match=r"made for another model: '0\.weight' must have shape \(4, 2\) .* got \(5, 2\)",
    ):
        mirror.to_dual(stacked(mlp(2, 5, 1)))
    with pytest.raises(ValueError, match=r"made for another model: this one has no '2\.bias'"):
        mirror.step(x, {name: leaf for name, leaf in x.items() if name != "2.bias"})
    with pytest.raises(ValueError, match=r"made for another model: this one also has '4\.weight'"):
        mirror.potential(stacked(mlp(2, 4, 1, 1)))
    with pytest.raises(ValueError, match=r"leading batch dimension"):
        mirror.to_dual({name: leaf[0] for name, leaf in x.items()})
    with pytest.raises(TypeError, match="a dict of tensors by name; got one tensor"):
        mirror.to_dual(x["0.weight"])
    any_shape = Layerwise({"a": Euclidean()})
    assert any_shape.to_dual({"a": torch.ones(2, 7)})["a"].shape == (2, 7)


def test_domains_are_those_of_the_leaves():
    mirror = Layerwise({"w": Logit(-1, 1), "b": Euclidean(), "s": Burg()})
    x = {
        "w": torch.tensor([[0.5], [1.5]]),
        "b": torch.full((2, 1), 9.0),
        "s": torch.tensor([[1.0], [1.0]]),
    }
    assert mirror.primal_domain.contains(x).tolist() == [True, False]
    with pytest.raises(
        DomainError, match=r"(?s)x0\['w'\] is outside .* its part of Layerwise.*samples 1\b"
    ):
        md.MD(mirror, 0.1).init(x)
    inside = mirror.primal_domain.project(x)
    assert (inside["w"] == torch.tensor([[0.5], [1.0]])).all()
    assert mirror.primal_domain.contains(mirror.primal_domain.inner_point(x)).all()
    state = md.SMD(mirror, 0.1).init({**x, "w": 0.1 * x["w"]})
    assert md.SMD(mirror, 0.1).inside(state).all()
    assert not mirror.dual_domain.contains({**state.y, "s": -state.y["s"]}).any()
    assert mirror.strong_convexity == (0.0, 2.0)  # because of the barrier
    assert Layerwise({"w": Logit(-1, 1), "b": Diagonal(3.0)}).strong_convexity == (2.0, 2.0)
    assert (
        Layerwise({"w": SquaredPNorm(1.5), "b": Euclidean()}).strong_convexity is None
    )  # two norms
    with pytest.raises(TypeError, match="got one tensor"):
        mirror.primal_domain.contains(torch.ones(1, 2))


def test_which_maps_are_elementwise():
    one = torch.tensor(0)
    for mirror in (
        *(
            Euclidean(),
            Diagonal(1.0),
            Multipliers(one),
            Spline(one),
            HyperbolicEntropy(),
            NegativeEntropy(),
            PNorm(3),
        ),
        *(Burg(), Logit()),
    ):
        assert mirror.elementwise
        x = torch.rand(2, 6, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1
        assert torch.equal(mirror.to_dual(x)[:, 3:], mirror.to_dual(x[:, 3:]))
        assert Layerwise({"a": mirror}).elementwise
    for mirror in (
        SimplexEntropy(),
        SquaredPNorm(1.5),
        Conjugate(DenseICNN(2)),
        Euclidean(md.domains.Simplex()),
    ):
        assert not mirror.elementwise
        assert not Layerwise({"a": mirror, "b": Euclidean()}).elementwise


def test_frozen_parameters_have_no_map():
    model = mlp(2, 4, 3, 1)
    model[0].requires_grad_(False)
    mirror = layerwise(model, ties="orbit")
    assert mirror.names == ("2.weight", "2.bias", "4.weight", "4.bias")
    assert mirror["2.weight"].count == 4  # the frozen units below can be told apart
    assert mirror["4.weight"].count == 1


def test_what_is_not_understood_is_untied_and_said():
    model = nn.Sequential(
        nn.Linear(2, 4), nn.GroupNorm(2, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)
    )
    with pytest.warns(UserWarning, match=r"1 \(GroupNorm\) are unknown: .* left untied"):
        mirror = layerwise(model, ties="orbit")
    assert [part.count for part in mirror.maps] == [8, 4, 4, 4, 4, 1, 1, 1]
    assert (
        size(layerwise(model, ties="tensor")) == 8
    )  # ties by tensor need no symmetries, so there is no warning


def test_maps_take_the_dtype_of_the_parameters():
    model = mlp(2, 4, 1).double()
    for kind in ("diagonal", "spline"):
        mirror = layerwise(model, kind)
        assert {p.dtype for p in mirror.parameters()} == {torch.float64}
        assert {leaf.dtype for leaf in mirror.to_dual(stacked(model)).values()} == {torch.float64}


def test_options_reach_the_maps():
    assert layerwise(moons(), initial=0.25)["0.bias"].multipliers.item() == pytest.approx(0.25)
    mirror = layerwise(moons(), "spline", knots=3, reach=2.0)["0.bias"]
    assert (mirror.knots, mirror.reach) == (3, 2.0)
    with pytest.raises(
        ValueError, match="unknown kind of map 'quadratic'; known: diagonal, spline"
    ):
        layerwise(moons(), "quadratic")
    with pytest.raises(ValueError, match="unknown ties 'none'; known: orbit, paper, tensor"):
        layerwise(moons(), ties="none")
    with pytest.raises(ValueError, match="at least one tensor"):
        layerwise(nn.ReLU())


@pytest.mark.parametrize("kind", ["diagonal", "spline"])
@pytest.mark.parametrize("ties", ["orbit", "paper", "tensor"])
def test_a_saved_map_comes_back_the_same(tmp_path, kind, ties):
    model = cnn().double()
    options = {} if kind == "diagonal" else {"knots": 3, "reach": 2.0, "slope": 3.0, "floor": 1.5}
    mirror = learned(layerwise(model, kind, ties, **options))
    zoo.save(mirror, tmp_path / "entry", zoo.Card("entry", "a test"))
    again = zoo.load(tmp_path / "entry.safetensors")
    x = stacked(model)
    v = stacked(model, seed=1)
    for name, leaf in mirror.step(x, v, 0.1).items():
        assert torch.equal(again.step(x, v, 0.1)[name], leaf)
        assert torch.equal(again[name].groups, mirror[name].groups)
    assert str(again) == str(mirror)
    with pytest.raises(ValueError, match="another model"):
        again.to_dual(stacked(moons()))


def test_a_method_with_a_map_without_shapes_comes_back(tmp_path):
    method = md.SMD(
        Layerwise({"0.weight": Diagonal(nn.Parameter(torch.rand(3) + 1)), "b": Euclidean()}), 0.1
    )
    method.t = md.schedules.Prefix([0.1])
    zoo.save(method, tmp_path / "entry", zoo.Card("entry", "a test"))
    again = zoo.load(tmp_path / "entry.safetensors")
    assert torch.equal(again.mirror["0.weight"].d, method.mirror["0.weight"].d)
    assert again.mirror.shapes is None


def test_transfer_matches_layers_by_role():
    mirror = layerwise(mlp(2, 8, 8, 8, 3), ties="orbit")
    with torch.no_grad():
        for i, part in enumerate(mirror.maps):
            part.log_multiplier.copy_(i + 0.1 * torch.arange(part.count))
    again = transfer(mirror, mlp(2, 30, 30, 30, 30, 30, 3), ties="orbit")
    # Six layers from four: first, hidden, hidden, hidden, hidden, last.
    sources = [0, 2, 2, 4, 4, 6]  # the weights; every other tensor is a bias
    for i, source in enumerate(sources):
        for kind, offset in (("weight", 0), ("bias", 1)):
            made = again[f"{2 * i}.{kind}"]
            old = mirror.maps[source + offset]
            torch.testing.assert_close(made.log_multiplier, old.log_multiplier)
    x = stacked(mlp(2, 30, 30, 30, 30, 30, 3))
    assert again.to_dual(x).keys() == x.keys()


def test_transfer_to_other_inputs_takes_the_mean():
    mirror = learned(layerwise(mlp(2, 8, 1), ties="orbit"))
    again = transfer(mirror, mlp(5, 4, 3), ties="orbit")
    geometric = mirror["0.weight"].log_multiplier.mean().expand(5)
    torch.testing.assert_close(again["0.weight"].log_multiplier, geometric)
    torch.testing.assert_close(again["2.bias"].multipliers, mirror["2.bias"].multipliers.expand(3))
    splines = learned(layerwise(mlp(2, 8, 1), "spline", "orbit"))
    slopes = splines["0.weight"].slopes.mean(0).expand(5, -1)
    torch.testing.assert_close(
        transfer(splines, mlp(5, 4, 3)).by_name["0.weight"].slopes, slopes, rtol=1e-4, atol=1e-6
    )


def test_transfer_to_the_same_network_changes_nothing():
    for kind, ties in itertools.product(("diagonal", "spline"), ("orbit", "paper", "tensor")):
        model = cnn().double()
        mirror = learned(layerwise(model, kind, ties))
        x = stacked(model)
        for name, leaf in transfer(mirror, model, ties).to_dual(x).items():
            torch.testing.assert_close(leaf, mirror.to_dual(x)[name], rtol=1e-10, atol=1e-10)


def test_transfer_says_what_it_lacks():
    mirror = layerwise(
        nn.Sequential(nn.Linear(2, 4, bias=False), nn.ReLU(), nn.Linear(4, 1, bias=False))
    )
    with pytest.raises(ValueError, match=r"a tensor with the role of '0\.bias'"):
        transfer(mirror, moons())
    with pytest.raises(ValueError, match="constructed with shapes"):
        transfer(Layerwise({"0.weight": Euclidean()}), moons())
    mixed = Layerwise(
        {"0.weight": Euclidean(), "0.bias": Diagonal(2.0)}, {"0.weight": (1, 2), "0.bias": (1,)}
    )
    assert isinstance(transfer(mixed, moons())["2.weight"], Euclidean)
