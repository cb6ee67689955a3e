"""The registry of outside solvers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeAlias

from torch import Tensor

from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree

SolveTo: TypeAlias = Callable[[float], Tensor]
"""A function of the solver's own tolerance that solves all problems and returns points (batch, …).
"""

TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 1e-10)


@dataclass(frozen=True)
class Rival:
    """A solver of another package.

    Args:
        name: Name of the solver.
        prepare: Function of a problem and its starts. It converts the data, which is not timed, and
            returns a function that solves all problems to a tolerance; None if the problems do not
            have the form that the solver needs.
        package: Module that must be installed; empty for none.
        tolerances: Tolerances to try, from loose to tight. An exact solver has one.
    """

    name: str
    prepare: Callable[[Problem, Tree], SolveTo | None]
    package: str = ""
    tolerances: tuple[float, ...] = TOLERANCES

    @property
    def installed(self) -> bool:
        """Whether the package is installed."""
        return not self.package or find_spec(self.package) is not None


_RIVALS: dict[str, Rival] = {}


def register(rival: Rival) -> Rival:
    """Add a solver to the registry, or replace the one of the same name."""
    _RIVALS[rival.name] = rival
    return rival


def known_rivals() -> list[Rival]:
    """Return all registered solvers, whether their packages are installed or not."""
    return list(_RIVALS.values())


def as_rival(solver: Any) -> Rival:
    """Wrap a user's function as a :class:`Rival`.

    Args:
        solver: A :class:`Rival`; or a function of a problem and its starts that returns points.

    >>> def centre(problem, x0):
    ...     return problem.centre
    >>> as_rival(centre).name
    'centre'
    """
    if isinstance(solver, Rival):
        return solver
    if not callable(solver):
        raise TypeError(
            "rivals must be instances of Rival or functions of a problem and its starts, "
            f"got {type(solver).__name__}"
        )

    def prepare(problem: Problem, x0: Tree) -> SolveTo:
        return lambda _: solver(problem, x0)

    return Rival(getattr(solver, "__name__", type(solver).__name__), prepare, tolerances=(0.0,))
