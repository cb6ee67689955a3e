"""The stored state of the optimisers, and checkpoints."""

from __future__ import annotations

import copy
import io
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mirrordescent import optim
from mirrordescent.domains import Simplex
from mirrordescent.mirrors import (
    Burg,
    Conjugate,
    DenseICNN,
    Diagonal,
    Euclidean,
    HyperbolicEntropy,
    LearnedPair,
    Logit,
    Multipliers,
    NegativeEntropy,
    PNorm,
    Spline,
    SquaredPNorm,
)

sys.path.insert(0, str(Path(__file__).parent))
from steps import OPTIMISERS, parameters, run

SHAPES = [(3, 4), (4,)]
each = pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda o: o.__name__)


def stored(optimizer):
    """Tensors that are stored with each parameter."""
    return [sorted(fields) for fields in optimizer.state_dict()["state"].values() if fields]


EVERYWHERE_INVERTIBLE = [
    None,
    Diagonal(2.0),
    Multipliers(torch.tensor(0)),
    Spline(torch.tensor(0)),
    HyperbolicEntropy(),
    PNorm(3.0),
    NegativeEntropy(),
    Burg(),
]


@pytest.mark.parametrize("mirror", EVERYWHERE_INVERTIBLE, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize(
    ("optimiser", "fields"),
    [(optim.MD, None), (optim.SMD, None), (optim.AMD, ["z"]), (optim.ASMD, ["y"])],
    ids=["MD", "SMD", "AMD", "ASMD"],
)
def test_exact_elementwise_maps_need_no_dual(optimiser, fields, mirror):
    params = parameters(*SHAPES, dtype=torch.float32, positive=True)
    optimizer = optimiser(params, lr=0.01, mirror=mirror)
    run(optimizer, params, 2)
    assert stored(optimizer) == ([] if fields is None else [fields] * len(params))
    assert optimizer.param_groups[0]["k"] == 2


def learned_pair():
    return LearnedPair(DenseICNN(4, layers=1), DenseICNN(4, layers=1))


@pytest.mark.parametrize(
    "mirror",
    [
        SquaredPNorm(1.5),
        Euclidean(Simplex()),
        Logit(0.0, 2.0),
        learned_pair(),
        Conjugate(DenseICNN(4, layers=1)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_smd_stores_the_dual_where_the_primal_does_not_tell_it(mirror):
    params = [nn.Parameter(torch.full((4,), 0.25))]
    optimizer = optim.SMD(params, lr=0.01, mirror=mirror)
    run(optimizer, params, 2)
    assert stored(optimizer) == [["y"]]
    other = optim.MD(params := [nn.Parameter(torch.full((4,), 0.25))], lr=0.01, mirror=mirror)
    run(other, params, 2)
    assert stored(other) == []


def test_smd_leaves_the_end_of_a_box_that_md_stays_at():
    """In float32 sigmoid(20) is 1, which does not determine y; the stored dual does."""
    ends = []
    for optimiser in (optim.SMD, optim.MD):
        (p,) = params = [nn.Parameter(torch.tensor([0.5]))]
        optimizer = optimiser(params, lr=1.0, mirror=Logit(0.0, 1.0))
        for slope in (-20.0, 20.0):
            p.grad = torch.tensor([slope])
            optimizer.step()
        ends.append(p.item())
    assert ends == [0.5, 1.0]


@each
@pytest.mark.parametrize(
    "mirror",
    [None, Diagonal(2.0), HyperbolicEntropy(), SquaredPNorm(1.5), Logit(-3.0, 3.0)],
    ids=str,
)
@pytest.mark.parametrize("dual_dtype", [None, torch.float64])
def test_a_run_goes_on_from_a_file_bit_for_bit(optimiser, mirror, dual_dtype):
    options = {"lr": 0.05, "mirror": mirror, "dual_dtype": dual_dtype, "t": lambda k: 1 / k}
    whole = parameters(*SHAPES, dtype=torch.float32)
    expected = run(optimiser(whole, **options), whole, 10)
    params = parameters(*SHAPES, dtype=torch.float32)
    optimizer = optimiser(params, **options)
    run(optimizer, params, 4)
    file = io.BytesIO()
    torch.save(
        {"parameters": [p.detach() for p in params], "optimizer": optimizer.state_dict()}, file
    )
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    params = [nn.Parameter(p) for p in saved["parameters"]]
    optimizer = optimiser(params, **options)
    optimizer.load_state_dict(saved["optimizer"])
    for ours, theirs in zip(run(optimizer, params, 6, first=4), expected[4:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_loaded_state_is_a_copy():
    params = parameters(*SHAPES)
    optimizer = optim.AMD(params)
    run(optimizer, params, 2)
    saved = optimizer.state_dict()
    kept = copy.deepcopy(saved["state"])
    other = optim.AMD(params)
    other.load_state_dict(saved)
    run(other, params, 2)
    assert all(torch.equal(saved["state"][i]["z"], kept[i]["z"]) for i in kept)


def test_a_state_holds_plain_data_only():
    params = parameters(*SHAPES)
    optimizer = optim.AMD(
        [("w", params[0]), ("b", params[1])], mirror=HyperbolicEntropy(), t=lambda k: 1.0
    )
    (group,) = optimizer.state_dict()["param_groups"]
    plain = (int, float, bool, str, type(None), list)
    assert all(isinstance(value, plain) for value in group.values())
    assert group["method"] == "AMD"
    assert group["mirror"] == "HyperbolicEntropy"
    assert group["param_names"] == ["w", "b"]


def saved_by(optimizer, params):
    run(optimizer, params, 1)
    return optimizer.state_dict()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda p: optim.SMD(p), "state of SMD.* where method is AMD"),
        (lambda p: torch.optim.SGD(p, lr=0.1), "state of another optimiser.* where method is AMD"),
        (lambda p: optim.AMD(p, mirror=PNorm(3.0)), "state of PNorm.* where mirror is Diagonal"),
        (lambda p: optim.AMD(p[:1], mirror=Diagonal(2.0)), "match the size"),
        (
            lambda p: optim.AMD([{"params": p[:1]}, {"params": p[1:]}], mirror=Diagonal(2.0)),
            "number of parameter groups",
        ),
    ],
)
def test_states_of_others_are_refused(other, message):
    params = parameters(*SHAPES)
    state = saved_by(other(params), params)
    optimizer = optim.AMD(params, mirror=Diagonal(2.0))
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state)


def test_states_of_another_precision_or_shape_are_refused():
    params = parameters(*SHAPES, dtype=torch.float32)
    state = saved_by(optim.SMD(params, dual_dtype=torch.float64), params)
    with pytest.raises(
        ValueError, match="stores y with the parameters, and this optimiser stores nothing"
    ):
        optim.SMD(params).load_state_dict(state)
    others = parameters((2, 4), (4,))
    with pytest.raises(ValueError, match="other shapes"):
        optim.AMD(others).load_state_dict(saved_by(optim.AMD(params), params))


def test_copies_go_their_own_way():
    params = parameters(*SHAPES)
    optimizer = optim.AMD(
        params, mirror=Diagonal(2.0), gamma=0.5, max_grad_norm=1.0, nonfinite="skip"
    )
    run(optimizer, params, 3)
    twin = copy.deepcopy(optimizer)
    twins = twin.param_groups[0]["params"]
    assert all(a is not b for a, b in zip(twins, params, strict=True))
    kept = [p.detach().clone() for p in twins]
    first = run(optimizer, params, 3, first=3)
    assert all(torch.equal(a, b) for a, b in zip(twins, kept, strict=True))
    second = run(twin, twins, 3, first=3)
    assert all(
        torch.equal(a, b)
        for x, y in zip(first, second, strict=True)
        for a, b in zip(x, y, strict=True)
    )
    twin.add_param_group({"params": parameters((2,))})
    assert len(twin.param_groups) == 2


def test_a_state_that_is_thrown_away_is_made_anew():
    params = parameters(*SHAPES)
    optimizer = optim.AMD(params, lr=0.1)
    run(optimizer, params, 5)
    optimizer.state.clear()
    run(optimizer, params, 1)
    assert stored(optimizer) == [["z"]] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each
def test_small_steps_are_not_lost_in_low_precision(optimiser, dtype):
    """Steps of a tenth of the spacing below 1 vanish one by one, but their sum does not."""
    spacing = torch.finfo(dtype).eps / 2

    def end(dtype, dual_dtype):
        (p,) = params = [nn.Parameter(torch.ones(3, dtype=dtype))]
        mirror = Diagonal(torch.tensor([1.0, 1.0, 2.0]))
        optimizer = optimiser(params, lr=spacing / 10, mirror=mirror, dual_dtype=dual_dtype)
        for _ in range(200):
            p.grad = torch.ones_like(p)
            optimizer.step()
        types = {field.dtype for fields in optimizer.state.values() for field in fields.values()}
        assert p.dtype == dtype
        assert types <= {dual_dtype or dtype}
        return p.detach().double()

    expected = end(torch.float64, None)
    rounded = end(dtype, None)
    precise = end(dtype, torch.float32)
    assert (precise - expected).abs().max() <= spacing
    assert optimiser is optim.AMD or (rounded == 1).all()


@pytest.mark.parametrize(
    ("name", "odd"), [("lr", None), ("lr", -1.0), ("weight_decay", True), ("k", -3), ("k", 0.5)]
)
def test_numbers_that_are_none_are_refused(name, odd):
    p = nn.Parameter(torch.ones(3))
    optimizer = optim.SMD([p], lr=0.1)
    state = optimizer.state_dict()
    state["param_groups"][0][name] = odd
    with pytest.raises(ValueError, match=f"the state has {name} = "):
        optimizer.load_state_dict(state)
    state["param_groups"][0] |= {
        "lr": 0.0,
        "weight_decay": 0.0,
        "k": 3,
    }  # as at the end of a schedule
    optimizer.load_state_dict(state)
    p.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(p.detach(), torch.ones(3))


def test_what_is_no_tensor_is_refused():
    p = nn.Parameter(torch.ones(3))
    optimizer = optim.AMD([p], lr=0.1, mirror=HyperbolicEntropy())
    p.grad = torch.ones(3)
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][0]["z"] = [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="of other shapes"):
        optimizer.load_state_dict(state)
