"""Roles of the tensors of a network, and maps by the kinds of layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mirrordescent import zoo
from mirrordescent.execution.matrices import UnitDirections
from mirrordescent.mirrors import (
    ByKind,
    Euclidean,
    PNorm,
    SpectralPower,
    roles,
    roles_of,
    spectral_by_kind,
)
from mirrordescent.mirrors.by_kind import KINDS, ScaledMap
from mirrordescent.mirrors.roles import Role
from mirrordescent.recipes.architectures import mlp, small_cnn, small_resnet
from mirrordescent.recipes.training_tasks import Recurrent, Transformer


def kinds(model):
    return {name: role.kind for name, role in roles_of(model).items()}


def test_a_dense_network():
    found = [role.kind for name, role in roles_of(mlp()).items() if name.endswith("weight")]
    assert found == ["input", "hidden", "hidden", "hidden", "output"]
    assert set(kinds(mlp()).values()) == {"input", "hidden", "output", "vector"}
    assert {role.depth for role in roles_of(mlp()).values()} == {5}


def test_convolutions_come_before_an_output():
    assert [role.kind for role in roles_of(small_cnn()).values()] == [
        "conv",
        "vector",
        "output",
        "vector",
    ]
    assert roles_of(small_cnn())["0.weight"].fan_in == 9
    assert "input" not in kinds(small_resnet()).values()


def test_a_transformer():
    found = kinds(Transformer(16, 1, 2, 8))
    assert found["embedding.weight"] == found["position_embedding"] == "embedding"
    assert found["blocks.0.query.weight"] == "hidden"
    assert found["head.weight"] == "output"
    assert found["norm.weight"] == "vector"


@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
def test_recurrent_layers_are_divided_into_gates(layer, gates):
    found = roles_of(Recurrent(layer, 8, 12))
    assert found["recurrent.weight_ih_l0"] == Role("hidden", gates, 8, 3)
    assert found["recurrent.weight_hh_l0"] == Role("hidden", gates, 12, 3)


def test_only_a_model_knows_embeddings_by_other_names_and_groups_of_convolutions():
    model = nn.Sequential(
        nn.Embedding(7, 4), nn.Linear(4, 4), nn.Conv1d(4, 8, 3, groups=2), nn.Linear(8, 2)
    )
    by_shape = roles({name: tuple(p.shape) for name, p in model.named_parameters()})
    assert by_shape["0.weight"].kind == "input"
    assert by_shape["2.weight"].parts == 1
    assert roles_of(model)["0.weight"].kind == "embedding"
    assert roles_of(model)["2.weight"].parts == 2


def test_attention_with_one_matrix_for_three():
    assert roles_of(nn.MultiheadAttention(8, 2))["in_proj_weight"] == Role("hidden", 3, 8, 2)


def test_each_leaf_has_the_map_of_its_kind_with_its_scale():
    mirror = ByKind(
        {kind: SpectralPower(0.5) if kind == "hidden" else Euclidean() for kind in KINDS},
        {"hidden": 0.3, "vector": 2.0},
        width=0.5,
        depth=1.0,
    ).requires_grad_(False)
    tree = {name: torch.randn(2, *p.shape) for name, p in mlp().named_parameters()}
    found = mirror.to_primal(tree)
    depth = (5 / 4) ** -1
    hidden = found["3.weight"]
    expected = 0.3 * (50 / 64) ** -0.5 * depth * SpectralPower(0.5).to_primal(tree["3.weight"])
    torch.testing.assert_close(hidden, expected)
    torch.testing.assert_close(found["1.bias"], 2.0 * depth * tree["1.bias"])
    back = mirror.to_dual(found)
    for name, leaf in tree.items():
        torch.testing.assert_close(back[name], leaf, rtol=1e-3, atol=1e-3)


def test_the_potential_is_that_of_its_gradient():
    mirror = (
        ByKind({kind: PNorm(1.5) for kind in KINDS}, {"output": 0.2}).requires_grad_(False).double()
    )
    tree = {
        "0.weight": torch.randn(1, 3, 4),
        "2.weight": torch.randn(1, 2, 3),
        "2.bias": torch.randn(1, 2),
    }
    tree = {name: leaf.double().requires_grad_() for name, leaf in tree.items()}
    gradients = torch.autograd.grad(mirror.potential(tree).sum(), list(tree.values()))
    for gradient, ours in zip(gradients, mirror.to_dual(tree).values(), strict=True):
        torch.testing.assert_close(ours, gradient, rtol=1e-6, atol=1e-8)


def test_stored_and_loaded(tmp_path):
    mirror = spectral_by_kind(0.3, width=0.4)
    mirror.log_scales.data[0] = 0.7
    loaded = zoo.load(zoo.save(mirror, tmp_path / "geometry"))
    tree = {name: torch.randn(1, *p.shape) for name, p in small_cnn().named_parameters()}
    for name, direction in loaded.direction(tree).items():
        torch.testing.assert_close(direction, mirror.requires_grad_(False).direction(tree)[name])


def test_a_rotation_of_hidden_units_rotates_the_direction():
    generator = torch.Generator().manual_seed(0)
    P = torch.linalg.qr(torch.randn(50, 50, generator=generator))[0]
    tree = {
        name: torch.randn(1, *p.shape, generator=generator) for name, p in mlp().named_parameters()
    }
    mirror = spectral_by_kind().requires_grad_(False)
    plain = mirror.direction(tree)
    rotated = mirror.direction(
        {**tree, "1.weight": P @ tree["1.weight"], "3.weight": tree["3.weight"] @ P.T}
    )
    torch.testing.assert_close(rotated["1.weight"], P @ plain["1.weight"], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(rotated["3.weight"], plain["3.weight"] @ P.T, rtol=1e-3, atol=1e-3)


def test_directions_of_many_tensors_with_maps_of_all_sorts():
    mirror = spectral_by_kind().requires_grad_(False)
    known = roles_of(small_cnn())
    maps = [mirror.of(role) for role in known.values()]
    maps[1] = ScaledMap(maps[1], 3.0)
    ys = [torch.randn(p.shape) for p in small_cnn().parameters()]
    together = UnitDirections(maps)
    for each, y, u, length in zip(maps, ys, together(ys), together.sizes, strict=True):
        torch.testing.assert_close(length * u, each.direction(y[None])[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(u.square().mean(), torch.tensor(1.0), rtol=1e-4, atol=0)


def test_every_kind_may_have_its_own_width():
    maps = {kind: Euclidean() for kind in KINDS}
    mirror = ByKind(maps, width={"output": 0.25})
    lengths = [mirror.of(Role(kind, 1, 16 * 64)).c for kind in ("output", "hidden", "vector")]
    assert lengths == pytest.approx([16**-0.25, 16**-0.5, 1.0])
    with pytest.raises(ValueError, match="'bias' is not a kind of layer"):
        ByKind(maps, width={"bias": 1.0})


def test_networks_that_normalise_have_a_depth_exponent_of_their_own():
    mirror = ByKind({kind: Euclidean() for kind in KINDS}, depth=1.0, depth_normed=0.25)
    alike = ByKind({kind: Euclidean() for kind in KINDS}, depth=1.0)
    for normed, c in ((False, 1 / 16), (True, 0.5)):
        role = Role("vector", depth=64, normed=normed)
        assert mirror.of(role).c == pytest.approx(c)
        assert alike.of(role).c == pytest.approx(1 / 16)
    assert "depth_normed" not in alike.config()


@pytest.mark.parametrize(
    ("layer", "normed"),
    [
        (nn.LayerNorm(6), True),
        (nn.RMSNorm(6), True),
        (nn.BatchNorm1d(6), True),
        (nn.GroupNorm(2, 6), True),
        (nn.PReLU(), False),
        (nn.GELU(), False),
        (nn.PReLU(6), None),
    ],
    ids=lambda each: type(each).__name__,
)
def test_layers_that_normalise_are_seen_by_names_and_by_the_model(layer, normed):
    model = nn.Sequential(nn.Linear(4, 6), layer, nn.Linear(6, 2))
    by_name = roles({name: tuple(p.shape) for name, p in model.named_parameters()})
    assert {role.normed for role in roles_of(model).values()} == {bool(normed)}
    if normed is not None:  # by its name alone, a slope for every channel is like a gain
        assert {role.normed for role in by_name.values()} == {normed}


def test_norms_without_gains_are_seen_by_the_model():
    model = nn.Sequential(
        nn.Linear(4, 6), nn.LayerNorm(6, elementwise_affine=False), nn.Linear(6, 2)
    )
    assert {role.normed for role in roles_of(model).values()} == {True}


def test_wrong_kinds_are_named():
    with pytest.raises(ValueError, match="missing: vector"):
        ByKind({kind: Euclidean() for kind in KINDS if kind != "vector"})
    with pytest.raises(ValueError, match="'bias' is not a kind of layer"):
        ByKind({kind: Euclidean() for kind in KINDS}, {"bias": 1.0})
    with pytest.raises(TypeError, match="a dict of tensors by name"):
        spectral_by_kind().to_primal(torch.ones(1, 2))
