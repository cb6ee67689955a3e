"""What a task is solved by: its default, a method by name, or an entry of the zoo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from mirrordescent import zoo
from mirrordescent.methods import NAMES, PDHG, Method, named
from mirrordescent.methods.naming import MIRRORED, PRIMAL_DUAL, STEPPED
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.names import require_known
from mirrordescent.schedules import Schedule

Task: TypeAlias = Literal["denoise", "inpaint"]


class Default(NamedTuple):
    """What a task is solved by, and the learned map for methods that need one."""

    method: str
    mirror: str


# On photographs a primal-dual method from filled holes reaches any accuracy sooner than the one-network maps, whose
# step costs ten of its own; and it proves how far it came.
DEFAULTS: dict[Task, Default] = {
    "inpaint": Default("pdhg", "photo-inpaint-conjugate"),
    "denoise": Default("dual-fista", "ellipse-denoise-conjugate"),
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
    """

    label: str
    method: Method[Any]
    iterations: int
    tolerance: float
    hand_over: bool


def plan(
    task: Task,
    method: str | None = None,
    mirror: str | Path | None = None,
    iterations: int | None = None,
    tolerance: float | None = None,
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
    chosen = method is not None or mirror is not None
    name = (method or DEFAULTS[task].method).casefold() if method or not mirror else None
    made, label = _method(task, name, mirror)
    budget = iterations or BUDGETS[name or ("pdhg" if certifies(made) else "lamd")]
    precision = torch.float64 if (tolerance or TOLERANCE) < SINGLE_PRECISION else torch.float32
    hand_over = tolerance is not None or (not chosen and iterations is None)
    return Plan(label, made.to(precision), budget, tolerance or TOLERANCE, hand_over)


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
    return type(method).lower_bound is not Method.lower_bound
