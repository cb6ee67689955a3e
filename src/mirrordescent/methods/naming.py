"""Methods by their names, the paper's among them."""

import inspect
from typing import Any

from mirrordescent._internal.suggestions import require_known
from mirrordescent.methods.base import Method
from mirrordescent.mirrors import Euclidean, MirrorMap
from mirrordescent.schedules import ScheduleLike


def names() -> dict[str, type[Method[Any]]]:
    """Return the classes of methods that have a name (``Method.called``), the user's own included,
    by their names.
    """
    found: dict[str, type[Method[Any]]] = {}
    classes: list[Any] = [Method]
    while classes:
        cls = classes.pop(0)
        found |= {name: cls for name in vars(cls).get("called", ())}
        classes += cls.__subclasses__()
    return found


def takes(name: str, argument: str) -> bool:
    """Tell whether the constructor of a named method takes an argument, such as ``mirror`` or
    ``t``.
    """
    return argument in inspect.signature(names()[name]).parameters


def named(name: str, mirror: MirrorMap | None = None, t: ScheduleLike | None = None) -> Method[Any]:
    """Make a method by its name: ``md`` or ``lmd``, ``smd``, ``amd``, ``asmd``, ``gd``, ``adam``,
    ``pdhg``, …

    The names with an l are the paper's for the same methods with a learned map, and need one.
    Without a map the others are Euclidean. Primal-dual methods take neither a map nor step sizes.

    >>> type(named("LAMD", Euclidean(), t=0.1))
    <class 'mirrordescent.methods.accelerated.AMD'>
    >>> named("nestorov", t=0.1)
    Traceback (most recent call last):
    ValueError: unknown method 'nestorov'; did you mean 'nesterov'? known: ...
    """
    key = name.casefold()
    known = names()
    require_known(key, known, "method")
    if mirror is not None and not takes(key, "mirror"):
        mirrored = ", ".join(other for other in known if takes(other, "mirror"))
        raise ValueError(f"{name} takes no mirror map: the methods with one are {mirrored}")
    if t is not None and not takes(key, "t"):
        raise ValueError(f"{name} takes no step sizes")
    if t is None and takes(key, "t"):
        raise ValueError(f"{name} needs step sizes: give t")
    if mirror is None and takes(key, "mirror") and key.startswith("l"):
        raise ValueError(f"{name} needs a learned mirror map; without one, use {key[1:]}")
    arguments: dict[str, Any] = {"mirror": mirror or Euclidean(), "t": t}
    return known[key](**{name: value for name, value in arguments.items() if takes(key, name)})
