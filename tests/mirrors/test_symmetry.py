"""Permutation symmetries: invariance of the network's function, and orbits of the group."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from mirrordescent.mirrors import layerwise, symmetries
from mirrordescent.mirrors.symmetry import check_equivariance, permute


def mlp(*widths, activation=nn.ReLU):
    layers = [
        layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), activation())
    ]
    return nn.Sequential(*layers[:-1])


def cnn(channels=8, side=14, classes=10):
    features = channels * ((side - 2) // 2) ** 2
    return nn.Sequential(
        nn.Conv2d(1, channels, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, classes),
    )


class Residual(nn.Module):
    """Two branches over batch-normalised channels, with functions instead of modules."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 5, 3, padding=1)
        self.norm = nn.BatchNorm2d(5)
        self.inner = nn.Conv2d(5, 4, 3, padding=1, bias=False)
        self.outer = nn.Conv2d(4, 5, 1)
        self.square = nn.Conv2d(5, 5, 3, padding=1)
        self.dense = nn.Linear(5, 6)
        self.dense_norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        h = F.relu(self.norm(self.stem(x)))
        h = h + self.outer(torch.tanh(self.inner(h)))
        more = self.square(F.avg_pool2d(h, 3, stride=1, padding=1))
        more += h
        h = self.dense(F.gelu(more).mean((2, 3)))
        return F.log_softmax(self.head(F.dropout(self.dense_norm(h), 0.0)), dim=1)


class Shaped(nn.Module):
    """A flattened convolution, with a given way to flatten."""

    def __init__(self, flatten):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm1d(36)
        self.dense = nn.Linear(36, 2)
        self.flatten = flatten

    def forward(self, x):
        return self.dense(self.norm(self.flatten(F.max_pool2d(self.conv(x).relu(), 2))))


class Scaled(nn.Module):
    """One number for all units, learned, stored or constant."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.last = nn.Linear(4, 2)
        self.gain = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("temperature", torch.tensor([3.0]))

    def forward(self, x):
        return self.last(
            self.gain * torch.tanh(self.first(x / x.shape[1]) / self.temperature)
            + torch.tensor(0.1)
        )


class Shared(nn.Module):
    """One square layer used twice, and two layers that share a weight."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.again = nn.Linear(4, 4)
        self.twin = nn.Linear(4, 4)
        self.twin.weight = self.again.weight
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(
            self.twin(self.again(self.again(self.first(x).sigmoid()).sigmoid()).sigmoid()).sigmoid()
        )


NETWORKS = {
    "mlp": (mlp(3, 7, 6, 5, 2), (3,)),
    "mlp with norms": (
        nn.Sequential(
            nn.Linear(3, 7),
            nn.LayerNorm(7),
            nn.SiLU(),
            nn.Dropout(0.5),
            nn.Linear(7, 7),
            nn.Softmax(1),
        )
        + nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 2)),
        (3,),
    ),
    "cnn": (cnn(4, 8, 3), (1, 8, 8)),
    "convolutions": (
        nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ELU(),
            nn.Conv2d(4, 6, 2, stride=2),
            nn.LeakyReLU(),
        )
        + nn.Sequential(
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 5), nn.Tanh(), nn.Linear(5, 2)
        ),
        (1, 8, 8),
    ),
    "one dimension": (
        nn.Sequential(
            nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Softplus(), nn.MaxPool1d(2), nn.Flatten()
        )
        + nn.Sequential(nn.Linear(12, 3)),
        (2, 8),
    ),
    "residual": (Residual(), (2, 6, 6)),
    "flatten": (Shaped(lambda h: torch.flatten(h, 1)), (1, 8, 8)),
    "flatten method": (Shaped(lambda h: h.flatten(start_dim=1)), (1, 8, 8)),
    "view": (Shaped(lambda h: h.view(h.size(0), -1)), (1, 8, 8)),
    "reshape": (Shaped(lambda h: h.reshape((h.shape[0], -1))), (1, 8, 8)),
    "positions, then channels": (Shaped(lambda h: h.flatten(2).flatten(1)), (1, 8, 8)),
    "shared": (Shared(), (3,)),
    "scaled": (Scaled(), (3,)),
    "no hidden units": (nn.Linear(3, 2), (3,)),
}


def prepare(model, shape, seed=0):
    """Return a copy in double precision with distinct parameters, and a batch of inputs."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data.copy_(
                torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype) - 0.4
            )
    for name, tensor in model.named_buffers():
        if name.endswith("running_var"):
            tensor.add_(1.0)
    return model, torch.randn(4, *shape, generator=generator, dtype=torch.float64)


def state(model):
    return dict(model.named_parameters()) | dict(model.named_buffers())


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("with_example", [False, True])
def test_renumbered_networks_are_the_same_function(name, with_example, generator):
    model, inputs = prepare(*NETWORKS[name])
    symmetry = symmetries(model, inputs if with_example else None)
    assert not symmetry.not_understood
    assert symmetry.sizes or name == "no hidden units"
    before = functional_call(model, state(model), inputs)
    for _ in range(3):
        permuted = permute(state(model), symmetry.random(generator), symmetry)
        torch.testing.assert_close(
            functional_call(model, permuted, inputs), before, rtol=1e-12, atol=1e-12
        )
        moved = [key for key in permuted if not torch.equal(permuted[key], state(model)[key])]
        assert moved or name == "no hidden units"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mlp", [7, 6, 5]),
        ("mlp with norms", [7, 7]),
        ("cnn", [4]),
        ("convolutions", [4, 6, 5]),
        ("residual", [5, 4, 6]),  # the sums tie three layers to one group
        ("view", [4]),
        ("shared", [4]),
        ("scaled", [4]),
        ("no hidden units", []),
    ],
)
def test_all_hidden_units_are_found(name, sizes):
    assert sorted(symmetries(NETWORKS[name][0]).sizes.values()) == sorted(sizes)


def test_the_action_is_that_of_the_notes(generator):
    model = mlp(2, 4, 3, 1)
    symmetry = symmetries(model)
    z = {name: p.detach() for name, p in model.named_parameters()}
    g = symmetry.random(generator)
    first, second = (g[symmetry.axes[name][0][0].group] for name in ("0.bias", "2.bias"))
    assert len(first) == 4
    expected = {
        "0.weight": z["0.weight"][first],
        "0.bias": z["0.bias"][first],
        "2.weight": z["2.weight"][second][:, first],
        "2.bias": z["2.bias"][second],
        "4.weight": z["4.weight"][:, second],
        "4.bias": z["4.bias"],
    }
    for name, tensor in permute(z, g, symmetry).items():
        assert torch.equal(tensor, expected[name])
    batched = {name: torch.stack([tensor, 2 * tensor]) for name, tensor in z.items()}
    for name, tensor in permute(batched, g, symmetry).items():
        assert torch.equal(tensor[1], 2 * expected[name])


def brute_force_orbits(name, shape, symmetry):
    """The orbits of one tensor under all elements of the group, as sets of positions."""
    positions = torch.arange(shape.numel()).reshape(shape)
    groups = symmetry.sizes
    elements = itertools.product(*(itertools.permutations(range(size)) for size in groups.values()))
    orbits = {position: {position} for position in range(shape.numel())}
    for element in elements:
        g = {group: torch.tensor(rho) for group, rho in zip(groups, element, strict=True)}
        for here, there in zip(
            positions.flatten().tolist(),
            permute({name: positions}, g, symmetry)[name].flatten().tolist(),
            strict=True,
        ):
            orbits[here].add(there)
    return {frozenset(orbit) for orbit in orbits.values()}


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 2)
        self.square = nn.Conv2d(3, 3, (1, 2), padding="same")
        self.mix = nn.Conv2d(3, 2, 1)
        self.norm = nn.BatchNorm2d(3)
        self.dense = nn.Linear(8, 2)

    def forward(self, x):
        h = self.conv(x)
        h = h + torch.tanh(self.square(self.norm(h)))
        return self.dense(torch.flatten(self.mix(h), 1))


@pytest.mark.parametrize(
    "model", [Tiny(), mlp(2, 3, 4, 2), cnn(3, 4, 2), Shared()], ids=["conv", "mlp", "cnn", "shared"]
)
def test_orbits_are_those_of_the_group(model):
    symmetry = symmetries(model)
    assert not symmetry.not_understood
    for name, tensor in state(model).items():
        groups = symmetry.orbits(name)
        assert groups.ndim == tensor.ndim
        assert groups.unique().tolist() == list(range(int(groups.max()) + 1))
        full = groups.expand(tensor.shape).flatten()
        found = {frozenset((full == group).nonzero().flatten().tolist()) for group in full.unique()}
        assert found == brute_force_orbits(name, tensor.shape, symmetry)


def test_orbits_come_in_the_smallest_shape():
    symmetry = symmetries(cnn())
    shapes = {name: tuple(symmetry.orbits(name).shape) for name in symmetry.axes}
    assert shapes == {
        "0.weight": (1, 1, 3, 3),
        "0.bias": (1,),
        "4.weight": (10, 288),
        "4.bias": (10,),
    }
    assert symmetry.orbits("4.weight", whole_axes=True).shape == (10, 1)


class Odd(nn.Module):
    """A stream that is cut up in the middle, beside one that is not."""

    def __init__(self, cut):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 4)
        self.third = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.rand(4))
        self.cut = cut

    def forward(self, x):
        return self.third(torch.relu(self.second(self.cut(self, torch.relu(self.first(x))))))


@pytest.mark.parametrize(
    ("cut", "named"),
    [
        (lambda self, h: h.cumsum(1), "cumsum"),
        (lambda self, h: torch.cat([h[:, 2:], h[:, :2]], 1), "getitem"),
        (lambda self, h: self.scale * h, "mul"),
        (lambda self, h: h + torch.arange(4), "add"),
        (lambda self, h: h.mean(1, keepdim=True) + h, "mean"),
        (lambda self, h: h.reshape(-1, 2).reshape(-1, 4), "reshape"),
        (lambda self, h: torch.linalg.vector_norm(h, dim=1, keepdim=True) * h, "vector_norm"),
    ],
)
def test_what_is_not_understood_keeps_its_order_and_is_named(cut, named, generator):
    model, inputs = prepare(Odd(cut), (3,))
    symmetry = symmetries(model)
    assert any(named in what for what in symmetry.not_understood)
    assert list(symmetry.sizes.values()) == [4]  # the units of the second layer
    assert (
        symmetry.orbits("first.weight").numel()
        == symmetry.orbits("first.weight").unique().numel()
        == 12
    )
    permuted = permute(state(model), symmetry.random(generator), symmetry)
    torch.testing.assert_close(
        functional_call(model, permuted, inputs), model(inputs), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(
    ("model", "shape", "understood"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2)), (3,), False),
        (
            nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 2, 3)),
            (2, 6, 6),
            False,
        ),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(4, 3)), (1, 6, 6), False),
        (nn.Sequential(nn.Linear(3, 4), nn.MaxPool1d(2), nn.Linear(2, 2)), (3,), False),
        (nn.Sequential(nn.Linear(3, 4), nn.PReLU(4), nn.Linear(4, 2)), (3,), False),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), (3,), False),
        (nn.Sequential(nn.Linear(3, 4), nn.Flatten(0), nn.Linear(16, 2)), (3,), False),
        (
            nn.Sequential(
                nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2)
            ),
            (3, 4),
            True,
        ),
    ],
)
def test_layers_beyond_the_rules(model, shape, understood, generator):
    model, inputs = prepare(model, shape)
    symmetry = symmetries(model)
    assert (symmetry.not_understood == ()) == understood
    permuted = permute(state(model), symmetry.random(generator), symmetry)
    torch.testing.assert_close(
        functional_call(model, permuted, inputs), model(inputs), rtol=1e-12, atol=1e-12
    )


class Sequences(nn.Module):
    """Dense layers on (batch, time, features), which are flattened as time × units."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.last = nn.Linear(20, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)).flatten(1))


def test_an_example_tells_shapes(generator):
    model, inputs = prepare(Sequences(), (5, 3))
    assert symmetries(model).not_understood == ("last (Linear)",)
    symmetry = symmetries(model, inputs)
    assert symmetry.not_understood == ()
    assert [(f.size, f.group) for f in symmetry.axes["last.weight"][1]] == [(5, None), (4, 0)]
    permuted = permute(state(model), symmetry.random(generator), symmetry)
    torch.testing.assert_close(
        functional_call(model, permuted, inputs), model(inputs), rtol=1e-12, atol=1e-12
    )


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x


def test_models_that_cannot_be_traced_have_no_symmetries():
    symmetry = symmetries(Branching())
    assert "Branching, which torch.fx cannot trace" in symmetry.not_understood[0]
    assert symmetry.sizes == {}
    assert symmetry.orbits("layer.weight").unique().numel() == 4


def test_frozen_parameters_keep_their_order():
    model = mlp(2, 4, 3, 1)
    model[2].bias.requires_grad_(False)
    assert list(symmetries(model).sizes.values()) == [4]


def test_the_model_is_left_alone():
    class WithConstant(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return F.dropout(self.layer(x) + torch.ones(()), training=self.training)

    model = WithConstant()
    before = (
        set(vars(model)),
        {name: id(p) for name, p in model.named_parameters()},
        torch.get_rng_state().tolist(),
    )
    assert symmetries(model, torch.zeros(1, 2)).not_understood == ()
    after = (
        set(vars(model)),
        {name: id(p) for name, p in model.named_parameters()},
        torch.get_rng_state().tolist(),
    )
    assert before == after
    assert model.training


def descent(model, inputs, update):
    """Return Ω for a regression: one step of a gradient method."""

    def step(z):
        z = {name: p.clone().requires_grad_() for name, p in z.items()}
        loss = functional_call(model, z, inputs).square().mean()
        return update(z, dict(zip(z, torch.autograd.grad(loss, list(z.values())), strict=True)))

    return step


@pytest.mark.parametrize("name", ["mlp", "cnn", "residual"])
def test_which_methods_are_equivariant(name, generator):
    model, inputs = prepare(*NETWORKS[name])
    model.train()  # statistics of the batch, which need no permuting
    plain = descent(model, inputs, lambda z, g: {key: z[key] - 0.1 * g[key] for key in z})
    assert check_equivariance(plain, model, generator) < 1e-12

    def multiplied(mirror):
        with torch.no_grad():
            for p in mirror.parameters():
                p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype))

        def update(z, g):
            after = mirror.step(
                {key: p[None] for key, p in z.items()}, {key: p[None] for key, p in g.items()}, 0.1
            )
            return {key: p[0] for key, p in after.items()}

        return check_equivariance(descent(model, inputs, update), model, generator)

    for ties in ("orbit", "paper", "tensor"):
        assert multiplied(layerwise(model, "diagonal", ties)) < 1e-12
    assert multiplied(layerwise(model, "spline", "orbit", knots=3)) < 1e-12
    weights = {
        key: torch.rand(p.shape, generator=generator, dtype=p.dtype)
        for key, p in model.named_parameters()
    }
    untied = descent(model, inputs, lambda z, g: {key: z[key] - weights[key] * g[key] for key in z})
    assert check_equivariance(untied, model, generator) > 0.1
