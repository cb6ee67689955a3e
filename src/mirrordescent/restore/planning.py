"""The methods that restore a photograph: the default, a method by name, or an entry of the zoo."""

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

Task: TypeAlias = Literal["denoise", "inpaint", "deblur", "upsample"]
OPERATOR_TASKS: tuple[Task, ...] = ("deblur", "upsample")
"""Tasks whose data are seen through an operator."""


class TaskDefaults(NamedTuple):
    """The default methods of a task.

    Args:
        entry: Entry of the zoo that takes the first steps.
        after: Number of these steps.
        then: Name of the primal-dual method that follows.
        mirror: Entry with a learned map, for methods by name that need one.
    """

    entry: str
    after: int
    then: str
    mirror: str


# After a few steps the learned method is closer to the optimum than any other, but its lower bounds
# are loose where pixels are missing. A primal-dual method with the geometry of a stencil continues
# from there and proves how close it is.
DEFAULTS: dict[Task, TaskDefaults] = {
    "inpaint": TaskDefaults("image-tv", SWITCH_AFTER, "condat-vu", "photo-inpaint-conjugate"),
    "denoise": TaskDefaults("image-tv", SWITCH_AFTER, "condat-vu", "ellipse-denoise-conjugate"),
}
# With an operator, a primal-dual method works from the start.
OPERATOR_METHOD = "pdhg"
OPERATOR_RATIO = 1.5
OPERATOR_ITERATIONS = 300
OPERATOR_TOLERANCE = 1e-2
ISOTROPIC_ENTRY = "image-tv-isotropic"  # the default entry for isotropic total variation
MIRROR_ITERATIONS = 20  # of methods with a mirror map
EUCLIDEAN_ITERATIONS = 200  # of methods without one
PROOF_ITERATIONS = 1000  # of methods that compute lower bounds
STEPS = {"gd": 0.05, "nesterov": 0.005, "adam": 0.01}  # tuned in the experiments
EUCLIDEAN_STEP = 0.05
TOLERANCE = 1e-3
SINGLE_PRECISION = 1e-5  # smaller tolerances need double precision
# The fastest ratio of PDHG on photographs with filled holes, for weights from 0.03 to 0.15.
PDHG_RATIO = 0.5


@dataclass(frozen=True)
class RestorationPlan:
    """The method that restores photographs, and when it stops.

    Args:
        label: Name of the method.
        method: The method.
        iterations: Largest number of iterations.
        tolerance: Relative gap to reach.
        promised: Whether the gap must be reached and proven. If not, the answer is that of the
            method after its iterations.
        then: Name of the primal-dual method that continues, or that proves how good the answer is.
        fused: Whether to use kernels in C; see :func:`~mirrordescent.solve`.
        source: Name of the method and checksum of the entry of the zoo that it uses. If it is
            empty, results of earlier runs are not compared and not reused.
        check_every: Number of iterations between checks.
        requested_iterations: Number of iterations that the user asked for, or None.
    """

    label: str
    method: Method[Any]
    iterations: int
    tolerance: float
    promised: bool
    then: str
    fused: bool | None = None
    source: str = ""
    check_every: int = 20
    requested_iterations: int | None = None


def plan_restoration(
    task: Task,
    method: str | None = None,
    mirror: str | Path | None = None,
    iterations: int | None = None,
    tolerance: float | None = None,
    fused: bool | None = None,
    *,
    isotropic: bool = False,
) -> RestorationPlan:
    """Choose the method for a task.

    By default, and if a tolerance is given, a primal-dual method continues until the gap is proven
    to be small enough or the iterations are used up. If a method but no tolerance is given, the
    answer is that of the method after its iterations.

    Args:
        task: "denoise", "inpaint", "deblur" or "upsample".
        method: Name of a method, such as "lamd" or "pdhg".
        mirror: Entry of the zoo, or .safetensors file, with a mirror map or a method.
        iterations: Largest number of iterations.
        tolerance: Relative gap to reach and to prove.
        fused: Whether to use kernels in C; see :func:`~mirrordescent.solve`.
        isotropic: Whether the total variation is isotropic. It decides the default method.
    """
    if iterations is not None and iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    if tolerance is not None and not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be in (0, 1), got {tolerance}")
    name = None if method is None else method.casefold()
    if name is not None:
        require_known(name, names(), "method")
    if task in OPERATOR_TASKS:
        if method is not None or mirror is not None:
            raise ValueError(f"--method and --mirror are for denoise and inpaint, not for {task}")
        return RestorationPlan(
            OPERATOR_METHOD,
            PDHG(OPERATOR_RATIO),
            iterations or OPERATOR_ITERATIONS,
            tolerance or OPERATOR_TOLERANCE,
            tolerance is not None,
            OPERATOR_METHOD,
            fused,
            f"{OPERATOR_METHOD}, no entry",
            requested_iterations=iterations,
        )
    defaults = DEFAULTS[task]
    is_default = method is None and mirror is None
    if is_default:
        mirror = ISOTROPIC_ENTRY if isotropic else defaults.entry
    chosen, label = _method(task, name, mirror)
    budget = iterations or _iterations(name, chosen)
    promised = tolerance is not None or (is_default and iterations is None)
    first = first_part(chosen) if promised or is_default else None
    if first is not None:
        after = defaults.after if isinstance(first, Equipped) else _iterations(name, chosen)
        after = min(after, iterations or after)
        chosen = proven(chosen, after)
        budget = iterations or after + PROOF_ITERATIONS
    elif promised and not chosen.certifies:
        raise ValueError(
            f"a tolerance needs a method that proves a gap, or that uses gradients only; {label} "
            "does neither: leave out --tolerance, or choose another method"
        )
    tolerance = tolerance or TOLERANCE
    precision = torch.float64 if tolerance < SINGLE_PRECISION else torch.float32
    return RestorationPlan(
        label,
        chosen.to(precision),
        budget,
        tolerance,
        promised,
        defaults.then,
        fused,
        _source(task, name, mirror),
        requested_iterations=iterations,
    )


def primal_dual(name: str) -> PrimalDual[Any]:
    """Return a primal-dual method by its name, with step sizes that suit photographs."""
    if name == "condat-vu":
        return stencil_condat_vu()
    method = PDHG(PDHG_RATIO) if name == "pdhg" else named(name)
    assert isinstance(method, PrimalDual)
    return method


def _iterations(name: str | None, method: Method[Any]) -> int:
    """Return the default number of iterations."""
    if method.certifies:
        return PROOF_ITERATIONS
    if name is None or takes(name, "mirror"):
        return MIRROR_ITERATIONS
    return EUCLIDEAN_ITERATIONS


def _source(task: Task, name: str | None, mirror: str | Path | None) -> str:
    """Return the name of a method and the checksum of its entry as text."""
    entry = _entry(task, name, mirror)
    checksum = "no entry" if entry is None else zoo.fingerprint(entry)
    return f"{name or 'method of the entry'}, {checksum}"


def _entry(task: Task, name: str | None, mirror: str | Path | None) -> str | Path | None:
    """Return the entry of the zoo that a method uses, or None."""
    if mirror is not None:
        return mirror
    if name is not None and not (takes(name, "mirror") and name.startswith("l")):
        return None
    return DEFAULTS[task].mirror


def _method(task: Task, name: str | None, mirror: str | Path | None) -> tuple[Method[Any], str]:
    """Return a method and its label."""
    if name is not None and not takes(name, "mirror"):
        if mirror is not None:
            raise ValueError(
                f"{name} takes no mirror map: leave out --mirror, or choose a method such as lamd"
            )
        if takes(name, "t"):
            return named(name, t=STEPS.get(name, EUCLIDEAN_STEP)), name
        return primal_dual(name), name
    source = _entry(task, name, mirror)
    if source is None:
        assert name is not None
        return named(name, t=EUCLIDEAN_STEP), f"{name}, Euclidean"
    entry = zoo.load(source)
    if name is None:
        if not isinstance(entry, Method):
            raise ValueError(
                f"{source} is a {type(entry).__name__}, not a method: add a method that uses it, "
                "such as --method lamd"
            )
        return entry, Path(source).stem
    psi = getattr(entry, "mirror", None)
    t = getattr(entry, "t", None)
    if not isinstance(psi, MirrorMap) or not isinstance(t, Schedule):
        raise ValueError(f"{source} has no mirror map with step sizes, which {name} needs")
    return named(name, psi, t), f"{name}, {Path(source).stem}"
