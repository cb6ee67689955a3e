"""Schedules: sequences t(1), t(2), … of step sizes, momenta and weights.

A schedule is a function of the count k ≥ 1. The step of a state with k steps taken uses t(k + 1),
so that c/k is finite at the start. Where a schedule is expected, any callable can be given, and a
number stands for a constant.
"""

import math
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor, nn

from mirrordescent._internal.checks import require_positive
from mirrordescent._internal.suggestions import require_known
from mirrordescent.parts import Config, Part, register_tensor

Number: TypeAlias = float | Tensor
Values: TypeAlias = Sequence[float] | Tensor
ScheduleLike: TypeAlias = float | Tensor | Callable[[int], Number]
Extension: TypeAlias = Literal["mean", "min", "last", "reciprocal", "root_reciprocal"]

TABULATED = 512  # number of values of a schedule that are cached
TYPICAL_LENGTH = 100  # length of a run at which OverRun does not shorten steps
UNPLANNED = 0.1  # remaining share of a run that OverRun assumes after the last planned step
WARMUP_STEPS = 10  # of runs of unknown length


class Schedule(Part, nn.Module):
    """t(k), k = 1, 2, …. To add a schedule, write ``forward``.

    Values are numbers, or tensors (batch,) if samples differ. A subclass may add a fast
    ``sequence`` or ``__call__``. They belong to the ``forward`` of the same class: a subclass that
    overrides only ``forward`` does not inherit them.
    """

    kind = "schedule"

    def __init__(self) -> None:
        super().__init__()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        members = vars(cls)
        if "forward" not in members:
            return
        if "sequence" not in members:
            cls.sequence = Schedule.sequence  # type: ignore[method-assign]
        if "__call__" not in members:
            cls.__call__ = nn.Module.__call__  # type: ignore[method-assign]

    def forward(self, k: int) -> Number:
        """Return t(k)."""
        raise NotImplementedError

    @torch.no_grad()
    def sequence(self, first: int, count: int) -> Tensor:
        """Return t(first), t(first + 1), … in double precision.

        The result is (count, 1), or (count, batch) if samples differ.
        """
        values = (self(k) for k in range(first, first + count))
        rows = [torch.as_tensor(value, dtype=torch.float64, device="cpu") for value in values]
        return torch.stack(rows).reshape(count, -1)


class Polynomial(Schedule):
    """t(k) = c / k^power.

    Args:
        c: Positive factor.
        power: Exponent ≥ 0.

    >>> Polynomial(1.0, power=0.75)(16)
    0.125
    """

    def __init__(self, c: float, power: float) -> None:
        super().__init__()
        require_positive(c=c)
        if not power >= 0:
            raise ValueError(f"power must be ≥ 0, so that steps do not grow, got {power}")
        self.c = float(c)
        self.power = float(power)

    def forward(self, k: int) -> float:
        return self.c / k**self.power

    def sequence(self, first: int, count: int) -> Tensor:
        k = torch.arange(first, first + count, dtype=torch.float64)[:, None]
        return self.c / k**self.power


class Constant(Polynomial):
    """t(k) = c."""

    def __init__(self, c: float) -> None:
        super().__init__(c, 0.0)


class Reciprocal(Polynomial):
    """t(k) = c / k."""

    def __init__(self, c: float) -> None:
        super().__init__(c, 1.0)


class RootReciprocal(Polynomial):
    """t(k) = c / √k."""

    def __init__(self, c: float) -> None:
        super().__init__(c, 0.5)


class Prefix(Schedule):
    """t(k) = values[k − 1] for k ≤ N = len(values), then a rule that continues them.

    ============================  ======================================
    extension                     t(k) for k > N
    ============================  ======================================
    ``"mean"``                    scale · mean(tᵢ)
    ``"min"``                     scale · min(tᵢ)
    ``"last"``                    scale · t_N
    ``"reciprocal"``              scale · c/k,  c = mean(i·tᵢ)
    ``"root_reciprocal"``         scale · c'/√k,  c' = mean(√i·tᵢ)
    ============================  ======================================

    Args:
        values: t(1), …, t(N), which become a parameter, so that they can be learned.
        extension: Rule for k > N.
        scale: Factor of the rule.
        monotone: Whether to take the running minimum of the whole sequence. The reciprocal rules
            may jump upwards at k = N + 1, although the theorems assume that steps never increase.

    >>> t = Prefix([0.4, 0.1], extension="reciprocal")
    >>> [round(t(k).item(), 3) for k in (1, 2, 3, 6)]
    [0.4, 0.1, 0.1, 0.05]
    """

    def __init__(
        self,
        values: Values,
        extension: Extension = "reciprocal",
        scale: float = 1.0,
        monotone: bool = False,
    ) -> None:
        super().__init__()
        values = _positive(self, values)
        if values.ndim != 1 or len(values) == 0:
            raise ValueError(
                f"Prefix needs a non-empty list of step sizes, got shape {tuple(values.shape)}"
            )
        require_known(extension, get_args(Extension), "extension")
        require_positive(scale=scale)
        self.values = values if isinstance(values, nn.Parameter) else nn.Parameter(values)
        self.extension = extension
        self.scale = float(scale)
        self.monotone = monotone

    def forward(self, k: int) -> Tensor:
        if k <= len(self.values):
            return self.values[:k].min() if self.monotone else self.values[k - 1]
        extended = self.scale * self._extend(k)
        if self.monotone:
            return torch.minimum(extended, self.values.min())
        return extended

    def _extend(self, k: int) -> Tensor:
        if self.extension == "min":
            return self.values.min()
        if self.extension == "last":
            return self.values[-1]
        power = {"mean": 0.0, "reciprocal": 1.0, "root_reciprocal": 0.5}[self.extension]
        counts = torch.arange(
            1, len(self.values) + 1, dtype=self.values.dtype, device=self.values.device
        )
        return (counts**power * self.values).mean() / k**power

    def extra_repr(self) -> str:
        return f"N={len(self.values)}, {super().extra_repr()}"


class _Knots(Schedule):
    """Positive values at given counts, and a rule for other counts."""

    def __init__(self, counts: Sequence[int]) -> None:
        super().__init__()
        self.counts = list(counts)

    def _checked(self, values: Values, bound: float = math.inf) -> Tensor:
        """Return the values as a tensor; raise unless each count has one in (0, bound)."""
        values = torch.as_tensor(values)
        counts = self.counts
        increasing = all(a < b for a, b in pairwise([0, *counts]))
        if not counts or not increasing or values.shape != (len(counts),):
            raise ValueError(
                f"{type(self).__name__} needs increasing counts ≥ 1 and a value for each, "
                f"got {counts} and {values}"
            )
        return _positive(self, values, bound)

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [f"counts={self.counts}", super().extra_repr()]))


class Interpolated(_Knots):
    """Geometric interpolation of values at given counts: log t(k) is piecewise linear in k.

    t is constant before the first and after the last count. So a few numbers make a long schedule.
    The logarithms of the values are learned, so that values stay positive. A single value is a
    learned constant.

    Args:
        counts: Increasing counts ≥ 1.
        values: Values at these counts.

    >>> t = Interpolated([1, 3], [1.0, 0.25])
    >>> [round(t(k).item(), 3) for k in (1, 2, 3, 9)]
    [1.0, 0.5, 0.25, 0.25]
    """

    def __init__(self, counts: Sequence[int], values: Values) -> None:
        super().__init__(counts)
        self.log_values = nn.Parameter(self._checked(values).log())

    def forward(self, k: int) -> Tensor:
        after = bisect(self.counts, k)
        if after in (0, len(self.counts)):
            return self.log_values[max(0, after - 1)].exp()
        start = self.counts[after - 1]
        end = self.counts[after]
        return torch.lerp(
            self.log_values[after - 1], self.log_values[after], (k - start) / (end - start)
        ).exp()

    @property
    def values(self) -> Tensor:
        """The values at the counts."""
        return self.log_values.exp()


class _Table(NamedTuple):
    """Cached values of a schedule, and the parameter from which they were computed.

    Attributes:
        address: Address of the parameter's memory.
        view: View of this memory.
        content: Copy of the parameter from which the values were computed.
        values: Values of the schedule.
    """

    address: int
    view: np.ndarray
    content: bytes
    values: list[float]

    def __deepcopy__(self, memo: object) -> None:
        """Return None: a copied schedule computes a table of its own parameter."""


class PowerLaws(_Knots):
    """Powers of k between values at given counts: log t(k) is piecewise linear in log k.

    After the last count K, t(k) = t(K)·(K/k)^power. A schedule thus continues beyond the learned
    counts: momenta and widths may decrease like 1/k, and weights may grow like k (``power=-1``).
    The logarithms of the values are learned.

    Args:
        counts: Increasing counts ≥ 1.
        values: Values at these counts.
        power: Exponent after the last count.
        bound: Upper bound b of the values. If it is finite, log(t/(b − t)) replaces log t, which is
            nearly the same for small t.

    >>> t = PowerLaws([1, 4], [1.0, 0.5], power=1.0)
    >>> [round(t(k).item(), 3) for k in (1, 2, 4, 8)]
    [1.0, 0.707, 0.5, 0.25]
    """

    def __init__(
        self, counts: Sequence[int], values: Values, power: float = 0.0, bound: float = math.inf
    ) -> None:
        super().__init__(counts)
        values = self._checked(values, bound)
        self.power = float(power)
        self.bound = float(bound)
        self.raw = nn.Parameter(values.log() if math.isinf(bound) else (values / bound).logit())
        self._table: _Table | None = None

    def __call__(self, k: int) -> Number:
        """Return t(k): a tensor if a graph is built, else a number, with which steps are faster.

        The first numbers are cached as long as the parameter does not change. On small problems,
        computing the powers, or calling the module with its hooks, would take longer than a step.
        """
        table = self._table
        if table is not None and 1 <= k <= TABULATED:
            raw = self._parameters["raw"]
            learning = raw.requires_grad and torch.is_grad_enabled()  # type: ignore[union-attr]
            if (
                not learning
                and raw.data_ptr() == table.address  # type: ignore[union-attr]
                and table.view.tobytes() == table.content
            ):
                return table.values[k - 1]
        return self.forward(k)

    def forward(self, k: int) -> Number:
        raw = self.raw
        if raw.is_cuda or (torch.is_grad_enabled() and raw.requires_grad):
            return self._value(self._raw(k))
        if (
            raw.ndim > 1
            or raw.dtype not in (torch.float32, torch.float64)
            or not 1 <= k <= TABULATED
        ):
            return float(self._values(k, 1))
        view = raw.detach().numpy()
        values = self._values(1, TABULATED).flatten().tolist()
        self._table = _Table(raw.data_ptr(), view, view.tobytes(), values)
        return values[k - 1]

    def sequence(self, first: int, count: int) -> Tensor:
        """Return t(first), …, computed in NumPy, since every call of a kernel needs it."""
        return self._values(first, count)

    def _values(self, first: int, count: int) -> Tensor:
        raws = self._raws(first, count)
        values = np.exp(raws) if math.isinf(self.bound) else self.bound / (1 + np.exp(-raws))
        return torch.from_numpy(values)

    def _raws(self, first: int, count: int) -> np.ndarray:
        """Return the interpolated and extrapolated parameter: (count, 1), or (count, batch)."""
        hats, beyond = log_hats(tuple(self.counts), first, count)
        if self.raw.ndim > 1:
            return hats @ as_numbers(self.raw).T - self.power * beyond
        return between(self.raw, self.counts, first, count)[:, None] - self.power * beyond

    def _raw(self, k: int) -> Tensor:
        """Return the interpolated parameter at one count, as a tensor with a graph."""
        counts = self.counts
        after = bisect(self.counts, k)
        last = len(counts) - 1
        i = max(after - 1, 0)
        j = min(after, last)
        share = 0.0 if i == j else math.log(k / counts[i]) / math.log(counts[j] / counts[i])
        beyond = self.power * math.log(k / counts[last]) if after > last else 0.0
        return torch.lerp(self.raw[..., i], self.raw[..., j], share) - beyond

    def _value(self, raw: Tensor) -> Tensor:
        return raw.exp() if math.isinf(self.bound) else self.bound * raw.sigmoid()

    def config(self) -> Config:
        """Return the rule with arbitrary values, since the stored tensor ``raw`` replaces them."""
        values = [min(1.0, self.bound / 2)] * len(self.counts)
        return {"counts": self.counts, "values": values, "power": self.power, "bound": self.bound}


class OverRun(Schedule):
    """t(k) = (N/100)^−length · min(1, u/warmup) · (1 − u)^power, u = (k − ½)/N, for N steps.

    t rises, then decreases towards 0. It is a function of the completed share u of the run, so that
    a schedule learned on short runs can be used for long ones, which need shorter steps. After N
    steps t is constant, as long as it was when a tenth of the run remained, so that a run which was
    planned too short still makes progress.

    Args:
        steps: Length N of the run.
        warmup: Share of the run in which t rises; 0 for none.
        power: Exponent of the decrease; 1 is linear, 0 is none.
        length: Exponent of the length of the run; 0 for steps that do not depend on it.

    >>> [round(OverRun(10, warmup=0.1, power=1.0)(k), 3) for k in (1, 2, 5, 10)]
    [0.475, 0.85, 0.55, 0.05]
    """

    def __init__(
        self, steps: int, warmup: float = 0.05, power: float = 1.0, length: float = 0.0
    ) -> None:
        super().__init__()
        if steps < 1 or not 0 <= warmup <= 1 or not power >= 0 or not length >= 0:
            raise ValueError(
                "OverRun needs steps ≥ 1, warmup in [0, 1], power ≥ 0 and length ≥ 0, "
                f"got {steps}, {warmup}, {power} and {length}"
            )
        self.steps = int(steps)
        self.warmup = float(warmup)
        self.power = float(power)
        self.length = float(length)

    def over(self, steps: int) -> "OverRun":
        """Return the same schedule for a run of another length."""
        return OverRun(steps, self.warmup, self.power, self.length)

    def open_ended(self) -> "OpenEnded":
        """Return the schedule for a run of unknown length."""
        return OpenEnded(self.power, self.length)

    def forward(self, k: int) -> float:
        longest = (self.steps / TYPICAL_LENGTH) ** -self.length
        if k > self.steps:
            return longest * UNPLANNED**self.power
        done = (k - 0.5) / self.steps
        rise = min(1.0, done / self.warmup) if self.warmup else 1.0
        return longest * rise * (1 - done) ** self.power


class OpenEnded(Schedule):
    """t(k) = (k/100)^−length · min(1, (k − ½)/warmup) / (1 + power), for runs of unknown length.

    After k steps, t is the mean of the steps that :class:`OverRun` with the same exponents takes in
    a run of k steps, since the mean of (1 − u)^power is 1/(1 + power). t does not decrease to 0, so
    averages of the iterates are needed, or a decrease on request. The first factor does not rise
    above its value at the end of the warm-up.

    Args:
        power: Exponent of the decrease in a run of known length.
        length: Exponent of the length of the run.
        warmup: Number of steps in which t rises.

    >>> [round(OpenEnded(power=1.0, length=0.5)(k), 3) for k in (1, 100, 400)]
    [0.079, 0.5, 0.25]
    """

    def __init__(self, power: float = 1.0, length: float = 0.0, warmup: int = WARMUP_STEPS) -> None:
        super().__init__()
        if warmup < 1 or not power >= 0 or not length >= 0:
            raise ValueError(
                "OpenEnded needs warmup ≥ 1, power ≥ 0 and length ≥ 0, "
                f"got {warmup}, {power} and {length}"
            )
        self.power = float(power)
        self.length = float(length)
        self.warmup = int(warmup)

    def forward(self, k: int) -> float:
        length = (max(k, self.warmup) / TYPICAL_LENGTH) ** -self.length
        return length * min(1.0, (k - 0.5) / self.warmup) / (1 + self.power)


class Scalar(Schedule):
    """t(k) = c, a tensor, which is learned if it is a parameter."""

    c: Tensor

    def __init__(self, c: Tensor) -> None:
        super().__init__()
        register_tensor(self, "c", c)

    def forward(self, k: int) -> Tensor:
        return self.c


class _Call(Schedule):
    """A user's function of k as a schedule."""

    def __init__(self, function: Callable[[int], Number]) -> None:
        super().__init__()
        self.function = function

    def forward(self, k: int) -> Number:
        return self.function(k)


@lru_cache(maxsize=256)
def log_hats(counts: tuple[int, ...], first: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the hat functions of some counts at k = first, first + 1, …, linear in log k.

    The results are the hat functions, (length, counts), and max(log(k/K), 0) for the last count K,
    (length, 1). They are cached, since all schedules of a run need the same.
    """
    at = np.log(np.arange(first, first + length))
    knots = np.log(counts)
    hats = np.stack([np.interp(at, knots, each) for each in np.eye(len(counts))], 1)
    return hats, np.maximum(at - knots[-1], 0)[:, None]


def between(learned: Tensor, counts: Sequence[int], first: int, length: int) -> np.ndarray:
    """Interpolate learned values, (counts, …), at k = first, first + 1, …, linearly in log k.

    The result, (length, …), is cached by the content of the values, since every solve with a method
    needs the same.
    """
    values = learned.detach().cpu().numpy()
    return _between(values.tobytes(), values.dtype.str, values.shape, tuple(counts), first, length)


@lru_cache(maxsize=256)
def _between(
    content: bytes,
    dtype: str,
    shape: tuple[int, ...],
    counts: tuple[int, ...],
    first: int,
    length: int,
) -> np.ndarray:
    hats, _ = log_hats(counts, first, length)
    values = np.frombuffer(content, dtype).reshape(shape).astype(np.float64)
    return hats @ values


def as_numbers(tensor: Tensor) -> np.ndarray:
    """Return a tensor as an array in double precision."""
    return tensor.detach().cpu().numpy().astype(np.float64)


def as_schedule(value: ScheduleLike, name: str) -> Schedule:
    """Return a schedule, given a number, a callable of k ≥ 1, or a schedule.

    Args:
        value: Number, callable or schedule.
        name: Name of the argument, for error messages.
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, (Tensor, Real)):
        number = value.item() if isinstance(value, Tensor) and value.ndim == 0 else value
        if isinstance(number, Tensor) or not 0 < float(number) < math.inf:
            raise ValueError(
                f"{name} must be one positive, finite number, or a schedule; got {value}"
            )
        return Scalar(value) if isinstance(value, Tensor) else Constant(float(number))
    if callable(value):
        return _Call(value)
    raise TypeError(
        f"{name} must be a number, a schedule or a function of k, got {type(value).__name__}"
    )


def admissible_step(smoothness: float, gamma: float = 1.0, lower_regularity: float = 1.0) -> float:
    """Return the largest step size of Lemma 1 for accelerated mirror descent: t = ℓ_R / (L_f γ).

    Lemma 1 also requires γ ≥ L_R L_ψ*, that is, γ ≥ 1/α for an α-strongly convex potential and the
    Euclidean regulariser.

    Args:
        smoothness: L_f.
        gamma: γ.
        lower_regularity: ℓ_R of the regulariser; 1 for the Euclidean one.

    >>> admissible_step(smoothness=4.0, gamma=2.0)
    0.125
    """
    require_positive(smoothness=smoothness, gamma=gamma, lower_regularity=lower_regularity)
    return lower_regularity / (smoothness * gamma)


def _positive(schedule: Schedule, values: Values, bound: float = math.inf) -> Tensor:
    values = torch.as_tensor(values)
    if not values.is_floating_point():
        values = values.to(torch.get_default_dtype())
    if not bool(((values > 0) & (values < bound)).all()):
        required = "positive, finite values"
        if not math.isinf(bound):
            required = f"values between 0 and its bound {bound}"
        raise ValueError(f"{type(schedule).__name__} needs {required}, got {values}")
    return values
