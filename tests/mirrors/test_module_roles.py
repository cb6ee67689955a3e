"""Roles of parameters from the layers of a model, and from names if there is no model."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from mirrordescent.mirrors import Role, SpectralPower, roles, roles_by_name, roles_of
from mirrordescent.mirrors.data_flow import data_flow
from mirrordescent.mirrors.singular_values import MatrixLayout
from mirrordescent.recipes import training_tasks
from mirrordescent.recipes.training_tasks import Transformer


def kinds(model, **options):
    return {name: role.kind for name, role in roles_of(model, **options).items()}


def shapes_of(model):
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 4 * d)
        self.proj = nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.proj(F.gelu(self.up(self.norm(x))))


class TiedTransformer(nn.Module):
    """Ends with the transpose of its embedding."""

    def __init__(self, d=8, traceable=True, module=False):
        super().__init__()
        self.traceable = traceable
        self.wte = nn.Embedding(50, d)
        self.blocks = nn.ModuleList([Block(d) for _ in range(2)])
        self.head = nn.Linear(d, 50, bias=False) if module else None
        if module:
            self.head.weight = self.wte.weight

    def forward(self, x):
        if not self.traceable and x.sum() > 0:  # torch.fx cannot trace a decision by values
            x = x + 0
        x = self.wte(x)
        for block in self.blocks:
            x = block(x)
        return F.linear(x, self.wte.weight) if self.head is None else self.head(x)


@pytest.mark.parametrize("traceable", [True, False])
@pytest.mark.parametrize("module", [True, False])
def test_a_tied_embedding_leaves_the_last_projection_hidden(traceable, module):
    model = TiedTransformer(traceable=traceable, module=module)
    assert (data_flow(model) is not None) == traceable
    found = kinds(model)
    assert found["wte.weight"] == "embedding"
    assert found["blocks.1.proj.weight"] == "hidden"
    assert "output" not in found.values()
    by_name = roles_by_name(shapes_of(model))
    assert by_name["blocks.1.proj.weight"].kind == "hidden"


class Experts(nn.Module):
    def __init__(self, count=4, d=6, h=10):
        super().__init__()
        self.router = nn.Linear(d, count)
        self.first = nn.Parameter(torch.randn(count, d, h))
        self.second = nn.Parameter(torch.randn(count, h, d))
        self.head = nn.Linear(d, 3)

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        hidden = torch.einsum("bd,edh->beh", x, self.first).relu()
        return self.head(torch.einsum("beh,ehd,be->bd", hidden, self.second, weights))


def test_a_stack_of_experts_is_as_many_matrices():
    found = roles_of(Experts())
    assert found["first"] == Role("hidden", 4, 6, 4, row_axes=2)
    assert found["second"] == Role("hidden", 4, 10, 4, row_axes=2)
    assert roles_by_name(shapes_of(Experts()))["first"] == found["first"]


@pytest.mark.parametrize("products", [None, 4])
def test_matrices_of_a_stack_have_the_directions_they_have_alone(products):
    mirror = SpectralPower(0.4, products=products)
    stack = torch.randn(1, 3, 5, 7, dtype=torch.float64)
    together = mirror.with_layout(Role("hidden", 3, 5, row_axes=2).layout)
    for method in ("to_primal", "to_dual"):
        found = getattr(together, method)(stack)
        for i in range(3):
            torch.testing.assert_close(found[:, i], getattr(mirror, method)(stack[:, i]))
    alone = torch.stack([mirror.direction(stack[:, i])[0] for i in range(3)])
    # Every matrix is normalised by itself, and the stack as a whole to mean square 1.
    found = together.direction(stack)[0]
    for i in range(3):
        ratio = found[i] / alone[i]
        torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-5, atol=0)
    assert float(found.square().mean()) == pytest.approx(1)


@pytest.mark.parametrize("products", [None, 4])
def test_parts_of_columns_are_parts_of_rows_of_the_transpose(products):
    mirror = SpectralPower(0.4, products=products)
    X = torch.randn(2, 5, 12, dtype=torch.float64)
    columns = mirror.with_layout(MatrixLayout(3, transposed=True))
    rows = mirror.with_layout(MatrixLayout(3))
    for method in ("to_primal", "to_dual", "direction"):
        found = getattr(columns, method)(X)
        torch.testing.assert_close(found, getattr(rows, method)(X.mT).mT)
    torch.testing.assert_close(columns.potential(X), rows.potential(X.mT))


class Conv1D(nn.Module):
    """As in Hugging Face's transformers: x @ weight + bias."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)


def test_layers_of_hugging_face_are_stored_the_other_way_round():
    model = nn.ModuleDict({"c_attn": Conv1D(24, 8), "c_fc": Conv1D(32, 8), "c_proj": Conv1D(8, 32)})
    found = roles_of(model)
    assert found["c_attn.weight"] == Role("hidden", 3, 8, 3, transposed=True)
    assert found["c_attn.weight"].layout.block_shape((24, 8)) == (3, 8, 8)
    assert found["c_fc.weight"].fan_in == 8
    assert found["c_proj.weight"].fan_in == 32
    by_name = roles_by_name(shapes_of(model))
    assert by_name["c_attn.weight"] == found["c_attn.weight"]
    assert by_name["c_proj.weight"].fan_in == 32
    other_way = {"c_attn.weight": (24, 8), "c_fc.weight": (32, 8), "c_proj.weight": (8, 32)}
    assert roles_by_name(other_way)["c_attn.weight"] == Role("hidden", 3, 8, 3)
    assert roles_by_name(other_way)["c_proj.weight"].fan_in == 32


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 8))
        self.patches = nn.Linear(16, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)
        self.norm = nn.LayerNorm((5, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.patches(x) + self.pos_embed
        x = self.norm(self.attention(x, x, x)[0])
        return self.head(x[:, 0] + self.cls_token[:, 0])


def test_tokens_and_positions_are_not_convolutions():
    found = kinds(Patches())
    assert found["cls_token"] == "vector"
    assert found["pos_embed"] == "embedding"
    assert found["patches.weight"] == "input"
    assert found["attention.in_proj_weight"] == found["attention.out_proj.weight"] == "hidden"
    assert found["attention.bias_k"] == "vector"
    assert found["norm.weight"] == "vector"
    assert found["head.weight"] == "output"
    assert roles_of(Patches())["attention.in_proj_weight"].parts == 3
    by_name = roles_by_name(shapes_of(Patches()))
    assert (by_name["cls_token"].kind, by_name["pos_embed"].kind) == ("vector", "embedding")
    assert by_name["patches.weight"].kind == "hidden"  # an embedding comes before it


class Agent(nn.Module):
    def __init__(self, traceable=True):
        super().__init__()
        self.traceable = traceable
        self.value_head = nn.Linear(8, 1)
        self.policy = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        self.body = nn.Linear(3, 8)

    def forward(self, x):
        if not self.traceable and x.sum() > 0:
            x = x + 0
        x = self.body(x).tanh()
        return self.policy(x), self.value_head(x)


@pytest.mark.parametrize("traceable", [True, False])
def test_every_head_is_an_output_wherever_it_is_registered(traceable):
    found = kinds(Agent(traceable))
    assert found["policy.2.weight"] == found["value_head.weight"] == "output"
    assert found["policy.0.weight"] == "hidden"
    # Without a graph, the first layer that is registered is a head, and none is the input.
    assert found["body.weight"] == ("input" if traceable else "hidden")
    assert roles_by_name(shapes_of(Agent()))["policy.2.weight"].kind == "output"


class Adapter(nn.Module):
    """A dense layer with a low-rank adapter, with the names of PEFT."""

    def __init__(self):
        super().__init__()
        self.base_layer = nn.Linear(6, 6)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(6, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 6, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def test_adapters_are_hidden_and_not_layers_of_their_own():
    model = nn.Sequential(Adapter(), nn.ReLU(), Adapter(), nn.Linear(6, 3))
    for found in (roles_of(model), roles_by_name(shapes_of(model))):
        assert found["0.lora_A.default.weight"] == Role("hidden", 1, 6, 3)
        assert found["2.lora_B.default.weight"] == Role("hidden", 1, 2, 3)
        assert found["3.weight"].kind == "output"


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_weight_normalisation_keeps_the_role_of_the_weight():
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Conv1d(4, 6, 3, groups=2)),
        nn.Flatten(),
        nn.utils.weight_norm(nn.Linear(12, 5)),
        nn.Linear(5, 2),
    )
    found = roles_of(model)
    assert found["0.parametrizations.weight.original0"].kind == "vector"
    assert found["0.parametrizations.weight.original1"] == Role("conv", 2, 6, 3)
    assert found["2.weight_g"].kind == "vector"
    assert found["2.weight_v"] == Role("hidden", 1, 12, 3)
    by_name = roles_by_name(shapes_of(model))
    assert by_name["0.parametrizations.weight.original0"].kind == "vector"
    assert by_name["2.weight_g"].kind == "vector"


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(30, 4)
        self.items = nn.Embedding(20, 4)
        self.out = nn.Linear(8, 1)

    def forward(self, user, item):
        return self.out(torch.cat([self.users(user), self.items(item)], -1))


def test_tables_of_users_and_items_are_embeddings():
    for found in (roles_of(Recommender()), roles_by_name(shapes_of(Recommender()))):
        assert found["users.weight"].kind == found["items.weight"].kind == "embedding"
        assert found["out.weight"].kind == "output"


@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_and_cells(layer, gates):
    found = roles_of(layer(5, 8))
    assert {found[name].parts for name in ("weight_ih_l0", "weight_hh_l0")} == {gates}
    cell = getattr(nn, f"{layer.__name__}Cell")(5, 8)
    assert roles_of(cell)["weight_hh"] == Role("hidden", gates, 8, 2)


def test_a_projected_recurrent_layer():
    found = roles_of(nn.LSTM(5, 8, proj_size=3))
    assert found["weight_hh_l0"] == Role("hidden", 4, 3, 3)
    assert found["weight_hr_l0"] == Role("hidden", 1, 8, 3)


def test_a_transposed_convolution_counts_the_inputs_of_an_output():
    found = roles_of(nn.Sequential(nn.ConvTranspose2d(8, 4, 4, stride=2), nn.Conv2d(4, 1, 3)))
    assert found["0.weight"].fan_in == 8 * 16 // 4


class OwnLayer(nn.Module):
    def __init__(self, rows, columns, traceable=True):
        super().__init__()
        self.traceable = traceable
        self.matrix = nn.Parameter(torch.randn(rows, columns))
        self.out = nn.Linear(columns, 2)

    def forward(self, x):
        if not self.traceable and x.sum() > 0:
            x = x + 0
        return self.out(x @ self.matrix)


def test_products_tell_how_a_matrix_is_stored():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert roles_of(OwnLayer(3, 9))["matrix"].fan_in == 3
        assert roles_of(OwnLayer(3, 9))["matrix"].kind == "input"
    with pytest.warns(UserWarning, match=r"uncertain: matrix .taken as input with 9 inputs"):
        roles_of(OwnLayer(3, 9, traceable=False))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated")
def test_a_wrapped_model_has_the_roles_of_the_model():
    model = Agent()
    assert roles_of(nn.DataParallel(model)) == roles_of(model)
    assert roles_of(torch.compile(model)) == roles_of(model)


def test_tracing_does_not_change_the_model():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.calls = []

        def forward(self, x):
            self.last = self.layer(x)
            self.calls.append(1)
            return self.last

    model = Remembers().train()
    state = torch.get_rng_state()
    assert data_flow(model).last == {"layer.weight"}
    assert not hasattr(model, "last")
    assert model.calls == []
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("task", training_tasks.LEARNING, ids=lambda task: task.name)
def test_models_that_geometries_were_learned_on_have_the_roles_of_their_names(task):
    model = task.model()
    assert roles_of(model) == roles_by_name(shapes_of(model))


def test_the_rule_of_stored_versions_does_not_change():
    found = roles(shapes_of(Experts()))
    assert found["first"] == Role("conv", 1, 60, 4)
    assert roles(shapes_of(Transformer(16, 1, 2, 8)))["head.weight"].kind == "output"
