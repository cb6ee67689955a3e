"""Methods by their names, the paper's among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mirrordescent.methods.accelerated import AMD, ASMD
from mirrordescent.methods.base import Method
from mirrordescent.methods.baselines import GD, Adam, Nesterov
from mirrordescent.methods.descent import MD, SMD
from mirrordescent.methods.primal_dual import PDHG, DualFISTA
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.mirrors.quadratic import Euclidean
from mirrordescent.names import require_known
from mirrordescent.schedules import ScheduleLike

MIRRORED: dict[str, Callable[..., Method[Any]]] = {
    "md": MD, "smd": SMD, "amd": AMD, "asmd": ASMD,
    "lmd": MD, "lsmd": SMD, "lamd": AMD, "lasmd": ASMD,
}  # fmt: skip
STEPPED: dict[str, Callable[..., Method[Any]]] = {"gd": GD, "nesterov": Nesterov, "adam": Adam}
PRIMAL_DUAL: dict[str, Callable[..., Method[Any]]] = {"pdhg": PDHG, "dual-fista": DualFISTA}
NAMES = (*MIRRORED, *STEPPED, *PRIMAL_DUAL)


def named(name: str, mirror: MirrorMap | None = None, t: ScheduleLike | None = None) -> Method[Any]:
    """Make a method by its name: ``md`` or ``lmd``, ``smd``, ``amd``, ``asmd``, ``gd``, ``adam``, ``pdhg``, …

    The names with an l are the paper's for the same methods with a learned map, and need one. Without a map the others
    are Euclidean. Primal-dual methods take neither a map nor step sizes.

    >>> type(named("LAMD", Euclidean(), t=0.1))
    <class 'mirrordescent.methods.accelerated.AMD'>
    >>> named("nestorov", t=0.1)
    Traceback (most recent call last):
    ValueError: unknown method 'nestorov'; did you mean 'nesterov'? known: md, smd, ...
    """
    key = name.casefold()
    require_known(key, NAMES, "method")
    if key in PRIMAL_DUAL:
        if mirror is not None or t is not None:
            raise ValueError(f"{name} takes neither a mirror map nor step sizes")
        return PRIMAL_DUAL[key]()
    if t is None:
        raise ValueError(f"{name} needs step sizes: give t")
    if key in STEPPED:
        if mirror is not None:
            raise ValueError(f"{name} takes no mirror map: the methods with one are {', '.join(MIRRORED)}")
        return STEPPED[key](t)
    if mirror is None and key.startswith("l"):
        raise ValueError(f"{name} needs a learned mirror map; without one, use {key[1:]}")
    return MIRRORED[key](mirror or Euclidean(), t)
