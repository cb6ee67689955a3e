"""Gradients that are not finite, large, missing or sparse, and gradients of penalties."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mirrordescent import optim
from mirrordescent.domains import DomainError
from mirrordescent.mirrors import (
    Diagonal,
    HyperbolicEntropy,
    Logit,
    NegativeEntropy,
    SimplexEntropy,
    SquaredPNorm,
)
from mirrordescent.optim import gradients as looks

sys.path.insert(0, str(Path(__file__).parent))
from steps import OPTIMISERS, parameters, pull, run

SHAPES = [(3, 4), (4,), (90, 60)]  # the last is looked at by itself, the others together
each = pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda o: o.__name__)
maps = pytest.mark.parametrize("mirror", [None, HyperbolicEntropy(), SquaredPNorm(1.5)], ids=str)


def everything(optimizer, params):
    fields = [field.clone() for p in params for field in optimizer.state.get(p, {}).values()]
    return (
        [p.detach().clone() for p in params]
        + fields
        + [torch.tensor(g["k"]) for g in optimizer.param_groups]
    )


def same(first, second):
    return len(first) == len(second) and all(map(torch.equal, first, second))


@each
@maps
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", range(3))
def test_a_bad_gradient_changes_nothing(optimiser, mirror, bad, where):
    params = parameters(*SHAPES)
    names = ["first", "second", "third"]
    optimizer = optimiser(zip(names, params, strict=True), mirror=mirror)
    run(optimizer, params, 2)
    before = everything(optimizer, params)
    pull(params, 5)
    params[where].grad.flatten()[1] = bad
    with pytest.raises(
        FloatingPointError, match=f"parameter {names[where]} is not finite; nothing was changed"
    ):
        optimizer.step()
    assert same(everything(optimizer, params), before)


@each
def test_bad_steps_can_be_skipped(optimiser):
    params = parameters(*SHAPES)
    others = parameters(*SHAPES)
    groups = [{"params": params[:1]}, {"params": params[1:]}]
    optimizer = optimiser(groups, nonfinite="skip")
    undisturbed = optimiser(others)
    for k in range(6):
        pull(params, k)
        params[1].grad.fill_(math.nan)
        optimizer.step()
        run(optimizer, params, 1, first=k)
        run(undisturbed, others, 1, first=k)
    assert optimizer.skipped_steps == 6
    assert same(params, others)


def test_gradients_are_not_checked_with_nonfinite_none():
    (p,) = params = parameters((3,))
    p.grad = torch.full_like(p, math.nan)
    optim.SMD(params, nonfinite=None).step()
    assert p.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_large_gradients_are_not_mistaken_for_bad_ones(dtype):
    """Their sum overflows although every entry is finite."""
    largest = torch.full((100, 100), torch.finfo(dtype).max, dtype=dtype)
    assert looks.all_finite([largest, largest[0]])
    largest[3, 4] = math.inf
    assert not looks.all_finite([largest, largest[0]])
    assert looks.nonfinite_indices([largest[0], largest]) == [1]
    assert looks.all_finite([])
    assert looks.all_finite([torch.zeros(0)])


def test_parameters_without_gradients_stay():
    params = parameters(*SHAPES)
    optimizer = optim.AMD(params)
    pull(params, 0)
    params[1].grad = None
    before = params[1].detach().clone()
    optimizer.step()
    assert torch.equal(params[1], before)
    assert params[1] not in optimizer.state
    optimizer.zero_grad()
    optimizer.step()
    assert optimizer.param_groups[0]["k"] == 1


@each
def test_sparse_gradients_are_refused(optimiser):
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = optimiser(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        optimizer.step()


@each
@maps
def test_clipping_is_that_of_torch(optimiser, mirror):
    ours = parameters(*SHAPES)
    theirs = parameters(*SHAPES)
    clipped = optimiser(
        [{"params": ours[:2]}, {"params": ours[2:]}], mirror=mirror, max_grad_norm=0.5
    )
    plain = optimiser([{"params": theirs[:2]}, {"params": theirs[2:]}], mirror=mirror)
    for k in range(5):
        pull(ours, k)
        kept = [p.grad.clone() for p in ours]
        clipped.step()
        assert same([p.grad for p in ours], kept)
        pull(theirs, k)
        nn.utils.clip_grad_norm_(theirs, 0.5)
        plain.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@each
@pytest.mark.parametrize("max_grad_norm", [1e-3, 1.0, 1e3])
def test_clipping_never_enlarges_gradients(optimiser, max_grad_norm):
    """Gradients below the largest norm are stepped along as they are, bit for bit."""
    ours = parameters(*SHAPES)
    theirs = parameters(*SHAPES)
    clipped = optimiser(ours, max_grad_norm=max_grad_norm)
    plain = optimiser(theirs)
    pull(ours, 0)
    norm = float(nn.utils.get_total_norm([p.grad for p in ours]))
    for p, q in zip(ours, theirs, strict=True):
        p.grad.mul_(0.9 * max_grad_norm / norm)
        q.grad = p.grad.clone()
    clipped.step()
    plain.step()
    assert same(ours, theirs)


@pytest.mark.parametrize("norm", [0.0, 1e-30, 0.5, 0.999, 1.0, 2.0, 1e30])
def test_factors_of_clipping(norm):
    factor = looks.clipping_factor([torch.tensor([norm], dtype=torch.float64)], 1.0)
    assert factor <= 1
    assert factor == (1 if norm < 1 else pytest.approx(1 / norm, rel=2e-6))


@each
@maps
def test_weight_decay_is_a_penalty_on_the_function(optimiser, mirror):
    ours = parameters(*SHAPES)
    theirs = parameters(*SHAPES)
    decayed = optimiser(ours, mirror=mirror, weight_decay=0.3)
    plain = optimiser(theirs, mirror=mirror)
    for k in range(5):
        run(decayed, ours, 1, first=k)
        pull(theirs, k)
        for p in theirs:
            p.grad = p.grad + 0.3 * p.detach()
        plain.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@each
@maps
def test_maximize_is_descent_on_the_negative(optimiser, mirror):
    ours = parameters(*SHAPES)
    theirs = parameters(*SHAPES)
    up = optimiser(ours, mirror=mirror, maximize=True)
    down = optimiser(theirs, mirror=mirror)
    for k in range(5):
        run(up, ours, 1, first=k)
        pull(theirs, k)
        for p in theirs:
            p.grad = -p.grad
        down.step()
    assert same(ours, theirs)


@each
@pytest.mark.parametrize("mirror", [NegativeEntropy(), Logit(0.0, 1.0), SimplexEntropy()], ids=str)
def test_parameters_outside_the_domain_are_refused(optimiser, mirror):
    outside = [
        ("good", nn.Parameter(torch.full((4,), 0.25))),
        ("bad", nn.Parameter(torch.tensor([0.5, 1.5, -0.5, 0.0]))),
    ]
    with pytest.raises(
        DomainError, match=rf"parameter bad is outside the domain of {type(mirror).__name__}"
    ):
        optimiser(outside, mirror=mirror)
    optimizer = optimiser(outside[:1], mirror=mirror)
    run(optimizer, [outside[0][1]], 5)
    assert mirror.primal_domain.contains(outside[0][1].detach()[None], closed=True).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "lr must be positive"),
        ({"lr": -1.0}, "lr must be positive"),
        ({"lr": math.nan}, "lr must be positive"),
        ({"lr": torch.tensor([0.1, 0.2])}, "Tensor lr must be 1-element"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"nonfinite": "ignore"}, "nonfinite"),
        ({"dual_dtype": torch.int32}, "dual_dtype"),
        ({"foreach": True, "mirror": HyperbolicEntropy()}, "foreach=True needs"),
        ({"foreach": True, "dual_dtype": torch.float32}, "foreach=True needs"),
        ({"t": -1.0}, "t must be one positive"),
    ],
)
@each
def test_impossible_settings_are_refused(optimiser, options, message):
    with pytest.raises(ValueError, match=message):
        optimiser(parameters((2,), dtype=torch.float32), **options)


@pytest.mark.parametrize(
    ("options", "message"), [({"r": 2.0}, "r ≥ 3"), ({"cap": 0}, "cap"), ({"gamma": 0.0}, "gamma")]
)
def test_impossible_settings_of_amd_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        optim.AMD(parameters((2,)), **options)


@each
def test_impossible_parameters_are_refused(optimiser):
    with pytest.raises(ValueError, match="empty parameter list"):
        optimiser([])
    with pytest.raises(ValueError, match="floating-point type"):
        optimiser([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    with pytest.raises(TypeError, match="mirror must be"):
        optimiser(parameters((2,)), mirror=3.0)
    with pytest.raises(KeyError, match="of the zoo"):
        optimiser(parameters((2,)), mirror="no-such-map")
    with pytest.raises(ValueError, match="has no mirror map"):
        optimiser(parameters((2,)), mirror="photo-inpaint-lpd")


@each
def test_a_refused_group_leaves_the_optimiser_as_it_was(optimiser):
    params = parameters(*SHAPES)
    optimizer = optimiser(params[:1], mirror=Diagonal(2.0))
    with pytest.raises(ValueError, match="lr"):
        optimizer.add_param_group({"params": params[1:], "lr": -1.0})
    assert len(optimizer.param_groups) == 1
    run(optimizer, params[:1], 2)
