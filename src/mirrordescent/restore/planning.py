"""What a task is solved by: its default, a method by name, or an entry of the zoo."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from mirrordescent import zoo
from mirrordescent._internal.suggestions import require_known
from mirrordescent.methods import PDHG, Equipped, Method, PrimalDual, named, names, proven
from mirrordescent.methods.naming import takes
from mirrordescent.methods.switch import SWITCH_AFTER, first_part, stencil_condat_vu
from mirrordescent.mirrors import MirrorMap
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


# The learned method is nearest to the optimum after a few steps, and where pixels are missing its
# bounds lag behind: it serves as a start for a primal-dual method in the geometry of a stencil,
# with a dual variable.
DEFAULTS: dict[Task, Default] = {
    "inpaint": Default("image-tv", SWITCH_AFTER, "condat-vu", "photo-inpaint-conjugate"),
    "denoise": Default("image-tv", SWITCH_AFTER, "condat-vu", "ellipse-denoise-conjugate"),
}
ISOTROPIC = "image-tv-isotropic"  # the entry where both differences of a pixel are taken together
# iterations of methods with a map, with step sizes alone, and with proofs
MIRRORED = 20
STEPPED = 200
PROVEN = 1000
STEPS = {"gd": 0.05, "nesterov": 0.005, "adam": 0.01}  # tuned in the experiments
EUCLIDEAN_STEP = 0.05
TOLERANCE = 1e-3
SINGLE_PRECISION = 1e-5  # below this tolerance rounding decides in single precision
RATIO = (
    0.5  # of PDHG's steps, the fastest on photographs from filled holes for weights of 0.03 … 0.15
)


@dataclass(frozen=True)
class Plan:
    """How to restore.

    Args:
        label: what the method is called.
        method: the method.
        iterations: its budget, in all.
        tolerance: the relative gap to reach, proven.
        promised: whether that has to be reached, or the answer is the method's own after its
            iterations.
        then: what the primal-dual method is called that takes over, or that proves how good the
            answer is.
        fused: whether to step by kernels in C; see :func:`~mirrordescent.solve`.
    """

    label: str
    method: Method[Any]
    iterations: int
    tolerance: float
    promised: bool
    then: str
    fused: bool | None = None


def plan(
    task: Task,
    method: str | None = None,
    mirror: str | Path | None = None,
    iterations: int | None = None,
    tolerance: float | None = None,
    fused: bool | None = None,
    *,
    isotropic: bool = False,
) -> Plan:
    """Choose what a task is solved by: its default, a method by name, or an entry of the zoo.

    By default, and with a tolerance, a primal-dual method takes over and goes on until the gap is
    proven to be small enough, or the iterations are used up. With a chosen method and no tolerance,
    the answer is that method's own after its iterations. ``isotropic`` says which total variation
    the default is for.
    """
    if iterations is not None and iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    if tolerance is not None and not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be in (0, 1), got {tolerance}")
    name = None if method is None else method.casefold()
    if name is not None:
        require_known(name, names(), "method")
    chosen = method is not None or mirror is not None
    default = DEFAULTS[task]
    entry = ISOTROPIC if isotropic else default.entry
    made, label = _method(task, name, mirror if chosen else entry)
    budget = iterations or _budget(name, made)
    promised = tolerance is not None or (not chosen and iterations is None)
    if (promised or not chosen) and (first := first_part(made)) is not None:
        after = default.after if isinstance(first, Equipped) else _budget(name, made)
        after = min(after, iterations or after)
        made = proven(made, after)
        budget = iterations or after + PROVEN
    elif promised and not made.certifies:
        raise ValueError(
            f"{label} proves nothing and cannot be handed over to a method that does: give no tolerance"
        )
    precision = torch.float64 if (tolerance or TOLERANCE) < SINGLE_PRECISION else torch.float32
    return Plan(
        label, made.to(precision), budget, tolerance or TOLERANCE, promised, default.then, fused
    )


def primal_dual(name: str) -> PrimalDual[Any]:
    """Make a primal-dual method by its name, with steps that suit photographs."""
    if name == "condat-vu":
        return stencil_condat_vu()
    made = PDHG(RATIO) if name == "pdhg" else named(name)
    assert isinstance(made, PrimalDual)
    return made


def _budget(name: str | None, made: Method[Any]) -> int:
    if made.certifies:
        return PROVEN
    return MIRRORED if name is None or takes(name, "mirror") else STEPPED


def _method(task: Task, name: str | None, mirror: str | Path | None) -> tuple[Method[Any], str]:
    if name is not None and not takes(name, "mirror"):
        if mirror is not None:
            raise ValueError(
                f"{name} takes no mirror map; leave out --mirror, or choose a method such as lamd"
            )
        return (
            named(name, t=STEPS.get(name, EUCLIDEAN_STEP))
            if takes(name, "t")
            else primal_dual(name)
        ), name
    if mirror is None and name is not None and not name.startswith("l"):
        return named(name, t=EUCLIDEAN_STEP), f"{name}, Euclidean"
    chosen = mirror or DEFAULTS[task].mirror
    entry = zoo.load(chosen)
    if name is None:
        if not isinstance(entry, Method):
            raise ValueError(
                f"{chosen} is a {type(entry).__name__}, not a method: choose one, such as --method lamd"
            )
        return entry, Path(chosen).stem
    psi = getattr(entry, "mirror", None)
    t = getattr(entry, "t", None)
    if not isinstance(psi, MirrorMap) or not isinstance(t, Schedule):
        raise ValueError(f"{chosen} has no mirror map with step sizes, which {name} needs")
    return named(name, psi, t), f"{name}, {Path(chosen).stem}"
