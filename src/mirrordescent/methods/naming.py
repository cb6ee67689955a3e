"""Methods by their names on the command line."""

import inspect
import warnings
from typing import Any

from mirrordescent._internal.suggestions import require_known
from mirrordescent.methods.base import Method
from mirrordescent.mirrors import Euclidean, MirrorMap
from mirrordescent.schedules import ScheduleLike


def names() -> dict[str, type[Method[Any]]]:
    """Return the classes of methods by their names (``Method.cli_names``), users' own included."""
    found: dict[str, type[Method[Any]]] = {}
    classes: list[Any] = [Method]
    while classes:
        cls = classes.pop(0)
        for name in _names_of(cls):
            found[name] = cls
        classes += cls.__subclasses__()
    return found


def _names_of(cls: type) -> tuple[str, ...]:
    """Return the names of a class itself: names are not inherited."""
    members = vars(cls)
    if "called" in members and "cli_names" not in members:
        warnings.warn(
            f"{cls.__qualname__}.called was renamed to cli_names; the old name will be removed",
            DeprecationWarning,
            stacklevel=3,
        )
        return tuple(members["called"])
    return tuple(members.get("cli_names", ()))


def takes(name: str, argument: str) -> bool:
    """Tell whether the constructor of a named method has an argument, such as ``mirror``."""
    return argument in inspect.signature(names()[name]).parameters


def named(name: str, mirror: MirrorMap | None = None, t: ScheduleLike | None = None) -> Method[Any]:
    """Construct a method by its name: ``md`` or ``lmd``, ``smd``, ``amd``, ``gd``, ``pdhg``, …

    Args:
        name: Name of the method. Names that begin with an l are those of learned mirror descent in
            the literature: the same method, for which a map is required.
        mirror: Mirror map; Euclidean by default. Primal-dual methods take none.
        t: Step sizes. Primal-dual methods take none.

    >>> type(named("LAMD", Euclidean(), t=0.1))
    <class 'mirrordescent.methods.accelerated.AMD'>
    >>> named("nestorov", t=0.1)
    Traceback (most recent call last):
    ValueError: unknown method 'nestorov'; did you mean 'nesterov'? known: ...
    """
    key = name.casefold()
    known = names()
    require_known(key, known, "method")
    takes_mirror = takes(key, "mirror")
    takes_steps = takes(key, "t")
    if mirror is not None and not takes_mirror:
        mirrored = ", ".join(other for other in known if takes(other, "mirror"))
        raise ValueError(f"{name} takes no mirror map: the methods with one are {mirrored}")
    if mirror is None and takes_mirror and key.startswith("l"):
        raise ValueError(f"{name} needs a learned mirror map; without one, use {key[1:]}")
    if t is not None and not takes_steps:
        raise ValueError(f"{name} takes no step sizes")
    if t is None and takes_steps:
        raise ValueError(f"{name} needs step sizes: give t")
    arguments: dict[str, Any] = {}
    if takes_mirror:
        arguments["mirror"] = mirror or Euclidean()
    if takes_steps:
        arguments["t"] = t
    return known[key](**arguments)
