"""What a task is solved by: its default, a method by name, or an entry of the zoo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from mirrordescent import zoo
from mirrordescent.methods import NAMES, PDHG, DualFISTA, Equipped, Fused, HandOver, Method, named
from mirrordescent.methods.naming import MIRRORED, PRIMAL_DUAL, STEPPED
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.names import require_known
from mirrordescent.schedules import Schedule

Task: TypeAlias = Literal["denoise", "inpaint"]


class Default(NamedTuple):
    """What a task is solved by: an entry of the zoo for the first steps, then a primal-dual method.

    ``mirror`` is the learned map for methods by name that need one.
    """

    entry: str
    after: int
    then: str
    mirror: str


# What was learned certifies itself on denoising, where the dual point is a mean of what it was told. Where pixels are
# missing the bound lags behind, and it serves as a start for PDHG, nearer to the optimum and with a dual variable.
DEFAULTS: dict[Task, Default] = {
    "inpaint": Default("photo-inpaint-spectral", 10, "pdhg", "photo-inpaint-conjugate"),
    "denoise": Default("ellipse-denoise-spectral", 200, "dual-fista", "ellipse-denoise-conjugate"),
}
BUDGETS = {**dict.fromkeys(MIRRORED, 20), **dict.fromkeys(STEPPED, 200), **dict.fromkeys(PRIMAL_DUAL, 1000)}
STEPS = {"gd": 0.05, "nesterov": 0.005, "adam": 0.01}  # tuned in the experiments
EUCLIDEAN_STEP = 0.05
TOLERANCE = 1e-3
SINGLE_PRECISION = 1e-5  # below this tolerance rounding decides in single precision
RATIO = 0.5  # of PDHG's steps, the fastest on photographs from filled holes for weights of 0.03 … 0.15


@dataclass(frozen=True)
class Plan:
    """How to restore.

    Args:
        label: what the method is called.
        method: the method.
        iterations: its budget.
        tolerance: the relative gap to reach, proven.
        hand_over: whether a primal-dual method takes over where the tolerance was not reached, or only proves how far
            the answer is from the optimum.
        then: what that primal-dual method is called.
        fused: whether methods step by kernels in C, where there is one.
    """

    label: str
    method: Method[Any]
    iterations: int
    tolerance: float
    hand_over: bool
    then: str
    fused: bool = False


def plan(
    task: Task,
    method: str | None = None,
    mirror: str | Path | None = None,
    iterations: int | None = None,
    tolerance: float | None = None,
    fused: bool = False,
) -> Plan:
    """Choose what a task is solved by: its default, a method by name, or an entry of the zoo.

    An answer by default, or with a tolerance, has a gap below it, whatever it takes. With a method of one's choice and
    no tolerance, the answer is that method's own after its iterations.
    """
    if iterations is not None and iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    if tolerance is not None and not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be in (0, 1), got {tolerance}")
    if method is not None:
        require_known(method.casefold(), NAMES, "method")
    chosen, default = method is not None or mirror is not None, DEFAULTS[task]
    name = None if method is None else method.casefold()
    made, label = _method(task, name, mirror if chosen else default.entry)
    made = Fused(made) if fused else made
    budget = iterations or BUDGETS[name or ("pdhg" if certifies(made) else "lamd")]
    hand_over = tolerance is not None or (not chosen and iterations is None)
    if hand_over and isinstance(made.method if isinstance(made, Fused) else made, Equipped):
        after = iterations or default.after
        made = HandOver(made, after, primal_dual(default.then, fused))
        budget = after + BUDGETS[default.then]
    precision = torch.float64 if (tolerance or TOLERANCE) < SINGLE_PRECISION else torch.float32
    return Plan(label, made.to(precision), budget, tolerance or TOLERANCE, hand_over, default.then, fused)


def primal_dual(name: str, fused: bool) -> PDHG | DualFISTA | Fused:
    """Make a primal-dual method, with its kernel if it is asked for and there is one."""
    if name == "dual-fista":
        return DualFISTA()
    return Fused(PDHG(RATIO)) if fused else PDHG(RATIO)


def _method(task: Task, name: str | None, mirror: str | Path | None) -> tuple[Method[Any], str]:
    if name in PRIMAL_DUAL or name in STEPPED:
        if mirror is not None:
            raise ValueError(f"{name} takes no mirror map; the methods with one are {', '.join(MIRRORED)}")
        return (PDHG(RATIO) if name == "pdhg" else named(name, t=STEPS.get(name))), name
    if mirror is None and name is not None and not name.startswith("l"):
        return named(name, t=EUCLIDEAN_STEP), f"{name}, Euclidean"
    chosen = mirror or DEFAULTS[task].mirror
    entry = zoo.load(chosen)
    if name is None:
        if not isinstance(entry, Method):
            raise ValueError(f"{chosen} is no method of its own: choose one, such as --method lamd")
        return entry, Path(chosen).stem
    psi, t = getattr(entry, "mirror", None), getattr(entry, "t", None)
    if not isinstance(psi, MirrorMap) or not isinstance(t, Schedule):
        raise ValueError(f"{chosen} has no mirror map with step sizes, which {name} needs")
    return named(name, psi, t), f"{name}, {Path(chosen).stem}"


def certifies(method: Method[Any]) -> bool:
    """Tell whether a method proves lower bounds on the way."""
    while isinstance(method, (Equipped, Fused)):
        method = method.method
    return type(method).lower_bound is not Method.lower_bound
