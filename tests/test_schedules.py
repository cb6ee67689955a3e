"""Schedules against their formulas."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch

from mirrordescent import AMD, GD, MD, LeastSquares
from mirrordescent.mirrors import Euclidean
from mirrordescent.schedules import (
    Constant,
    Interpolated,
    Polynomial,
    PowerLaws,
    Prefix,
    Reciprocal,
    RootReciprocal,
    admissible_step,
    as_schedule,
)

STEPS = [0.4, 0.3, 0.05]


def test_formulas():
    for k in (1, 2, 7, 100):
        assert Constant(0.3)(k) == 0.3
        assert Reciprocal(0.3)(k) == pytest.approx(0.3 / k)
        assert RootReciprocal(0.3)(k) == pytest.approx(0.3 / math.sqrt(k))
        assert Polynomial(0.3, 0.25)(k) == pytest.approx(0.3 / k**0.25)


@pytest.mark.parametrize(
    ("extension", "expected"),
    [
        ("mean", lambda k: sum(STEPS) / 3),
        ("min", lambda k: 0.05),
        ("last", lambda k: 0.05),
        ("reciprocal", lambda k: (1 * 0.4 + 2 * 0.3 + 3 * 0.05) / 3 / k),
        ("root_reciprocal", lambda k: (0.4 + 2**0.5 * 0.3 + 3**0.5 * 0.05) / 3 / k**0.5),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_extensions(extension, expected, scale):
    t = Prefix(STEPS, extension, scale)
    assert [t(k).item() for k in (1, 2, 3)] == pytest.approx(STEPS)
    for k in (4, 50):
        assert t(k).item() == pytest.approx(scale * expected(k), rel=1e-6)


@pytest.mark.parametrize("extension", ["mean", "reciprocal", "root_reciprocal"])
def test_monotone_removes_the_jump(extension):
    jumping = [Prefix(STEPS, extension)(k).item() for k in range(1, 30)]
    assert jumping[3] > jumping[2]
    steady = [Prefix(STEPS, extension, monotone=True)(k).item() for k in range(1, 30)]
    assert all(a >= b for a, b in itertools.pairwise(steady))
    assert all(s <= j for s, j in zip(steady, jumping, strict=True))


def test_prefix_can_be_learned():
    t = Prefix(STEPS, "reciprocal")
    (t(2) + t(10)).backward()
    assert t.values.grad.tolist() == pytest.approx([1 / 30, 1 + 2 / 30, 3 / 30])


def test_admissible_step_is_that_of_lemma_1():
    problem = LeastSquares(torch.diag(torch.tensor([1.0, 3.0])), torch.zeros(1, 2))
    assert admissible_step(problem.smoothness(), gamma=2.0) == pytest.approx(1 / 18)
    with pytest.raises(ValueError, match="smoothness"):
        admissible_step(0.0)


@pytest.mark.parametrize("bad", [-0.1, 0.0, float("nan"), float("inf")])
def test_bad_step_sizes_name_the_argument(bad):
    with pytest.raises(ValueError, match="t must be one positive, finite number"):
        GD(bad)
    with pytest.raises(ValueError, match="gamma"):
        AMD(Euclidean(), 0.1, gamma=bad)
    with pytest.raises(ValueError, match="positive"):
        Prefix([0.1, bad])


def test_bad_prefixes():
    with pytest.raises(ValueError, match="non-empty"):
        Prefix([])
    with pytest.raises(ValueError, match="unknown extension 'linear'; known: mean, min"):
        Prefix([0.1], "linear")
    with pytest.raises(ValueError, match="scale"):
        Prefix([0.1], scale=0)
    with pytest.raises(TypeError, match="t must be a number"):
        as_schedule("fast", "t")


def test_a_parameter_is_learned():
    t = torch.nn.Parameter(torch.tensor(0.1))
    method = GD(t)
    assert list(method.parameters()) == [t]
    method.update(method.init(torch.ones(1, 2)), torch.ones(1, 2)).x.sum().backward()
    assert t.grad == -2
    with pytest.raises(ValueError, match="t must be one positive"):
        GD(torch.tensor([0.1, 0.2]))


def test_iterations_count_from_one():
    seen = []
    method = MD(Euclidean(), lambda k: seen.append(k) or 0.1)
    state = method.init(torch.zeros(1, 1))
    for _ in range(3):
        state = method.update(state, torch.zeros(1, 1))
    assert seen == [1, 2, 3]


def test_interpolation_is_geometric_and_learned():
    t = Interpolated([2, 6, 7], [0.1, 1.6, 0.4])
    assert [t(k).item() for k in (1, 2, 4, 6, 7, 100)] == pytest.approx([0.1, 0.1, 0.4, 1.6, 0.4, 0.4])
    (slope,) = torch.autograd.grad(t(3), t.log_values)  # d/d log t_i = weight_i · t
    torch.testing.assert_close(slope, t(3).detach() * torch.tensor([0.75, 0.25, 0.0]))
    for counts, values in (([], []), ([2, 2], [1.0, 1.0]), ([1, 2], [1.0])):
        with pytest.raises(ValueError, match="increasing counts"):
            Interpolated(counts, values)
    with pytest.raises(ValueError, match="positive"):
        Interpolated([1], [0.0])


def test_power_laws_between_and_beyond():
    t = PowerLaws([2, 8, 32], [4.0, 1.0, 2.0], power=-1.5).requires_grad_(False)
    expected = {1: 4.0, 2: 4.0, 4: 2.0, 8: 1.0, 16: 2**0.5, 32: 2.0, 128: 2.0 * 4**1.5}
    assert [t(k) for k in expected] == pytest.approx(list(expected.values()), rel=1e-6)
    assert isinstance(t(4), float)


def test_power_laws_stay_below_their_bound():
    t = PowerLaws([1, 10], [0.9, 0.3], power=1.0, bound=1.0).requires_grad_(False)
    assert [t(k) for k in (1, 10)] == pytest.approx([0.9, 0.3])
    t.raw.add_(3.0)
    assert all(0 < t(k) < 1 for k in range(1, 200))
    assert t(40) / (1 - t(40)) == pytest.approx(t(10) / (1 - t(10)) / 4, rel=1e-4)


@pytest.mark.parametrize("k", [1, 3, 9])
def test_power_laws_are_learned(k):
    t = PowerLaws([1, 4], [0.5, 0.25], power=1.0)
    (slope,) = torch.autograd.grad(t(k), t.raw)
    share = min(math.log(k) / math.log(4), 1.0)
    torch.testing.assert_close(slope, t(k).detach() * torch.tensor([1 - share, share]))


def test_numbers_follow_what_is_learned_by_whatever_way_it_changes():
    """Values are kept in a table: against the formula, after every kind of change."""
    t = PowerLaws([1, 4], [0.5, 2.0]).requires_grad_(False)
    copied = copy.deepcopy(t)

    def expected(part):
        return [float(part._value(part._raw(k))) for k in (1, 2, 3, 4, 9)]

    def found(part):
        return [part(k) for k in (1, 2, 3, 4, 9)]

    assert found(t) == pytest.approx(expected(t))
    late = copy.deepcopy(t)
    t.raw.data.add_(1.0)
    assert found(t) == pytest.approx(expected(t))
    with torch.no_grad():
        t.raw.mul_(0.5)
    assert found(t) == pytest.approx(expected(t))
    t.raw.data = torch.zeros(2)
    assert found(t) == pytest.approx([1.0] * 5)
    t.load_state_dict(copied.state_dict())
    assert found(t) == found(copied) == found(late) == pytest.approx(expected(copied))
    late.raw.data.add_(1.0)
    assert found(late) == pytest.approx(expected(late))
    assert found(late.double()) == pytest.approx(expected(late))
    assert isinstance(t.requires_grad_()(2), torch.Tensor)


def test_power_laws_refuse():
    for counts in ([], [0, 1], [2, 2]):
        with pytest.raises(ValueError, match="increasing counts"):
            PowerLaws(counts, torch.ones(len(counts)))
    for value in (0.0, 1.0, math.inf):
        with pytest.raises(ValueError, match="between 0 and its bound"):
            PowerLaws([1], [value], bound=1.0)


def test_whole_numbers_are_step_sizes_too():
    """As in a TOML: step = 1."""
    assert Prefix([1, 2])(2).item() == 2.0
    assert Prefix([1, 2]).values.is_floating_point()
