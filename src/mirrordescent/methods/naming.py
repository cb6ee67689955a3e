"""Methods by their names."""

import inspect
import math
import warnings
from typing import Any

from mirrordescent._internal.deprecation import OUTLOOK
from mirrordescent._internal.suggestions import require_known
from mirrordescent.methods.base import Method
from mirrordescent.mirrors import Euclidean, MirrorMap
from mirrordescent.problems.base import Problem
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
            f"{cls.__qualname__}.called was renamed to cli_names; {OUTLOOK}",
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


def default_method(name: str, problem: Problem) -> Method[Any]:
    """Construct a method by its name with default settings, such as ``pdhg`` or ``LBFGS``.

    A step size without a default is 1/L, where L is the smoothness of the problem.

    Args:
        name: Name of the class or on the command line; case and hyphens do not matter.
        problem: Problem to be solved.

    >>> import torch
    >>> from mirrordescent.problems import Quadratic
    >>> problem = Quadratic(torch.tensor([1.0, 4.0]), centre=torch.zeros(1, 2))
    >>> default_method("gd", problem).t(1)
    0.25
    """
    known = _classes_by_key()
    key = _key(name)
    require_known(key, known, "method")
    cls: Any = known[key]
    parameters = list(inspect.signature(cls).parameters.values())
    required = [each.name for each in parameters if each.default is inspect.Parameter.empty]
    missing = [each for each in required if each != "t"]
    if missing:
        raise ValueError(
            f"{cls.__name__} has no defaults for {', '.join(required)}: construct "
            f"{cls.__name__}({', '.join(f'{each}=…' for each in required)}) and pass it as method"
        )
    if not required:
        return cls()
    smoothness = problem.smoothness()
    if smoothness is None or not 0 < smoothness < math.inf:
        raise ValueError(
            f"{cls.__name__} needs a step size, and {type(problem).__name__} has no known "
            f"smoothness: construct {cls.__name__}(t=…) and pass it as method"
        )
    return cls(t=1 / smoothness)


def _classes_by_key() -> dict[str, type[Method[Any]]]:
    """Return the classes of methods by their simplified names."""
    found = {_key(name): cls for name, cls in names().items()}
    classes: list[Any] = [Method]
    while classes:
        cls = classes.pop(0)
        if not inspect.isabstract(cls) and not cls.__name__.startswith("_"):
            found.setdefault(_key(cls.__name__), cls)
        classes += cls.__subclasses__()
    return found


def _key(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "")
