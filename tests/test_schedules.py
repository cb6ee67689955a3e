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
    TABULATED,
    Constant,
    Interpolated,
    OpenEnded,
    OverRun,
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
    assert [t(k).item() for k in (1, 2, 4, 6, 7, 100)] == pytest.approx(
        [0.1, 0.1, 0.4, 1.6, 0.4, 0.4]
    )
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


SCHEDULES = {
    "constant": (lambda: Constant(0.3), lambda k: 0.3),
    "power": (lambda: Polynomial(0.3, 0.75), lambda k: 0.3 / k**0.75),
    "prefix": (lambda: Prefix([0.3, 0.1, 0.2], "last"), lambda k: [0.3, 0.1, 0.2][min(k, 3) - 1]),
    "over a run": (
        lambda: OverRun(20, warmup=0.25, power=2.0),
        lambda k: min(1.0, (k - 0.5) / 5) * (1 - (k - 0.5) / 20) ** 2 if k <= 20 else 0.01,
    ),
    "open-ended": (
        lambda: OpenEnded(power=2.0, length=0.5, warmup=4),
        lambda k: min(1.0, (k - 0.5) / 4) * (max(k, 4) / 100) ** -0.5 / 3,
    ),
    "power laws": (
        lambda: PowerLaws([3, 12], [0.8, 0.2], power=1.5),
        lambda k: 0.8 * (min(max(k, 3), 12) / 3) ** -1.0 * (max(k, 12) / 12) ** -1.5,
    ),
    # by powers of t/(b − t): from 4 to ¼ over a factor of 16 in k, then like 1/k
    "bounded power laws": (
        lambda: PowerLaws([1, 16], [1.6, 0.4], power=1.0, bound=2.0),
        lambda k: 2 / (1 + 1 / (4 * min(k, 16) ** -1.0 * 16 / max(k, 16))),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_single_values_and_sequences_are_those_of_the_formula(name):
    """Learned, as numbers from a table, and all at once; also where the table ends."""
    make, formula = SCHEDULES[name]
    counts = [1, 2, 3, 4, 7, 12, 13, 16, 17, 100, TABULATED - 1, TABULATED, TABULATED + 1, 2000]
    schedule = make().double()
    learned = [torch.as_tensor(schedule(k)).item() for k in counts]
    assert learned == pytest.approx([formula(k) for k in counts], rel=1e-6)
    schedule.requires_grad_(False)
    for _ in range(2):  # the second time from a table
        assert [float(schedule(k)) for k in counts] == pytest.approx(
            [formula(k) for k in counts], rel=1e-6
        )
    for first, count in ((1, 5), (9, 12), (TABULATED - 1, 4)):
        found = schedule.sequence(first, count)
        assert (found.dtype, tuple(found.shape)) == (torch.float64, (count, 1))
        assert found[:, 0].tolist() == pytest.approx(
            [formula(k) for k in range(first, first + count)], rel=1e-6
        )


@pytest.mark.parametrize("bound", [math.inf, 1.0])
def test_power_laws_of_a_batch_are_those_of_its_samples(bound):
    values = torch.tensor([[0.8, 0.2], [0.3, 0.6]], dtype=torch.float64)
    laws = [
        PowerLaws([3, 12], each, power=1.5, bound=bound).double().requires_grad_(False)
        for each in values
    ]
    both = PowerLaws([3, 12], values[0], power=1.5, bound=bound).double().requires_grad_(False)
    both.raw = torch.nn.Parameter(torch.stack([law.raw for law in laws]), requires_grad=False)
    found = both.sequence(1, 40)
    assert tuple(found.shape) == (40, 2)
    torch.testing.assert_close(found, torch.cat([law.sequence(1, 40) for law in laws], 1))
    both.raw.requires_grad_(True)
    for k in (1, 3, 5, 12, 30):
        torch.testing.assert_close(
            both(k), torch.tensor([law(k) for law in laws], dtype=torch.float64)
        )


@pytest.mark.parametrize("extension", ["min", "last", "mean"])
def test_extensions_of_steps_whose_last_is_not_the_least(extension):
    """The running minimum of the whole sequence, not only of what continues it."""
    steps = [0.4, 0.1, 0.3]
    following = {"min": 0.1, "last": 0.3, "mean": 0.8 / 3}[extension]
    assert Prefix(steps, extension)(4).item() == pytest.approx(following)
    steady = Prefix(steps, extension, monotone=True)
    assert [steady(k).item() for k in (1, 2, 3, 4, 9)] == pytest.approx([0.4, 0.1, 0.1, 0.1, 0.1])
    scaled = Prefix(steps, extension, scale=0.5, monotone=True)
    assert scaled(4).item() == pytest.approx(min(0.1, 0.5 * following))


def test_the_shape_of_a_run():
    """Rises over the first quarter of 8 steps, then falls to 0; the last value stays."""
    rising = OverRun(8, warmup=0.25)
    u = [(k - 0.5) / 8 for k in range(1, 9)]
    assert [rising(k) for k in range(1, 9)] == pytest.approx(
        [min(1, each / 0.25) * (1 - each) for each in u]
    )
    assert rising(9) == rising(100) == pytest.approx(0.1), "as with a tenth of the run left"
    flat = OverRun(8, warmup=0.0, power=0.0)
    assert [flat(k) for k in (1, 5, 20)] == [1.0] * 3
    assert OverRun(1)(1) == 0.5, "the middle of the only step"
    shorter = OverRun(25, warmup=0.1, power=0.5, length=0.5)
    assert shorter(5) == pytest.approx(2 * OverRun(25, warmup=0.1, power=0.5)(5)), (
        "a quarter as long, twice the step"
    )
    longer = shorter.over(1600)
    assert [longer.steps, longer.warmup, longer.power, longer.length] == [1600, 0.1, 0.5, 0.5]
    assert longer(800) == pytest.approx((1 - 799.5 / 1600) ** 0.5 / 4)
    assert [OverRun(8)(k) for k in (1, 2)] == pytest.approx([1 - 0.5 / 8, 1 - 1.5 / 8]), (
        "a twentieth is over by then"
    )
    slow = OverRun(100)
    assert [slow(k) for k in (1, 3, 10)] == pytest.approx([0.1 * 0.995, 0.5 * 0.975, 0.905])


@pytest.mark.parametrize(
    "good",
    [
        {"steps": 1},
        {"steps": 5, "warmup": 0.0},
        {"steps": 5, "warmup": 1.0},
        {"steps": 5, "power": 0.0},
    ],
)
def test_the_edges_of_what_a_run_may_be(good):
    OverRun(**good)
    for bad in (
        {"steps": 0},
        {"warmup": -0.01},
        {"warmup": 1.01},
        {"power": -0.01},
        {"power": math.nan},
        {"length": -0.01},
    ):
        with pytest.raises(ValueError, match="OverRun needs"):
            OverRun(**{**good, **bad})


def test_steps_may_not_grow():
    assert Polynomial(0.3, 0.0)(7) == 0.3
    for power in (-0.1, math.nan):
        with pytest.raises(ValueError, match="so that steps do not grow"):
            Polynomial(1.0, power)


def test_counts_and_values_belong_together():
    for values in ([1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]]):
        with pytest.raises(ValueError, match="a value for each"):
            Interpolated([1, 2], values)
    for counts in ([0, 2], [3, 2], [2, 2]):
        with pytest.raises(ValueError, match="increasing counts"):
            Interpolated(counts, [1.0, 2.0])
    assert Interpolated([1], [0.7])(5).item() == pytest.approx(0.7)
    with pytest.raises(ValueError, match="non-empty"):
        Prefix([[0.1, 0.2]])
    torch.testing.assert_close(Interpolated([1, 4], [0.7, 0.2]).values, torch.tensor([0.7, 0.2]))


def test_a_bound_is_not_reached_and_comes_back_from_a_description():
    bounded = PowerLaws([1, 4], [0.5, 0.25], power=1.0, bound=0.75)
    again = PowerLaws(**bounded.config())
    assert (again.counts, again.power, again.bound) == ([1, 4], 1.0, 0.75)
    again.load_state_dict(bounded.state_dict())
    assert [again(k).item() for k in (1, 2, 9)] == [bounded(k).item() for k in (1, 2, 9)]
    free = PowerLaws([2], [3.0])
    assert (free.power, free.bound) == (0.0, math.inf)
    assert PowerLaws(**free.config()).counts == [2]
    for value in (0.75, 0.8, 0.0):
        with pytest.raises(ValueError, match=r"between 0 and its bound 0\.75"):
            PowerLaws([1], [value], bound=0.75)
    with pytest.raises(ValueError, match="positive, finite values"):
        PowerLaws([1], [math.inf])


def test_a_table_is_not_used_while_something_is_learned():
    t = PowerLaws([1, 4], [0.5, 2.0])
    with torch.no_grad():
        number = t(3)
    assert isinstance(number, float)
    learned = t(3)
    assert learned.requires_grad
    assert learned.item() == pytest.approx(number)


def test_what_can_be_a_schedule():
    assert as_schedule(2, "t")(5) == 2.0
    assert as_schedule(torch.tensor(0.25), "t")(5).item() == 0.25
    assert as_schedule(lambda k: 1 / k, "t")(4) == 0.25
    own = Constant(0.1)
    assert as_schedule(own, "t") is own
    assert admissible_step(4.0) == 0.25
    assert admissible_step(4.0, 2.0, 0.5) == 0.0625


def test_a_subclass_with_another_forward_does_not_inherit_the_fast_forms():
    class Halved(PowerLaws):
        def forward(self, k):
            return super().forward(k) / 2

    class Doubled(Polynomial):
        def forward(self, k):
            return 2 * super().forward(k)

    halved = Halved([1, 4], [1.0, 0.5]).requires_grad_(False)
    assert [float(halved(1)) for _ in range(3)] == [0.5] * 3, "the table is that of the parent"
    assert halved.sequence(1, 1).tolist() == [[0.5]]
    assert Doubled(1.0, 1.0).sequence(1, 2).tolist() == [[2.0], [1.0]]
