"""Attempts that may fail in code of users: a failure disqualifies one setting, not the search."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from mirrordescent.methods.base import Method
from mirrordescent.racing.race import Race, RaceResult
from mirrordescent.racing.tuning import Cost


def tolerant(cost: Cost, report: Callable[[str], object]) -> Cost:
    """Return a cost that is infinite for methods that raise an error.

    A gradient of a user may raise an error far from the solution, such as a Cholesky
    decomposition of a matrix that is not positive definite. Such a setting is disqualified.

    Args:
        cost: Cost of a method.
        report: Function that is called with a message about every error.
    """

    def tolerant_cost(method: Method[Any]) -> float:
        try:
            return cost(method)
        except Exception as error:
            report(f"{type(method).__name__} is disqualified: {in_brief(error)}")
            return math.inf

    return tolerant_cost


def limited(cost: Cost, end: float, unsolved: float = math.inf) -> Cost:
    """Return a cost that is infinite for settings for which there is no time.

    Settings are tried until one has a cost below ``unsolved``, however long that takes.

    Args:
        cost: Cost of a method.
        end: Value of ``time.perf_counter`` after which no further setting is tried.
        unsolved: Cost of a setting that solves no problem.
    """
    known = math.inf

    def limited_cost(method: Method[Any]) -> float:
        nonlocal known
        if known < unsolved and perf_counter() > end:
            return math.inf
        found = cost(method)
        known = min(known, found)
        return found

    return limited_cost


def attempt(race: Race, method: Method[Any], report: Callable[[str], object]) -> RaceResult:
    """Race a method; if it raises an error, it solves no problem.

    Args:
        race: The problems and the accuracy.
        method: The method.
        report: Function that is called with a message about an error.
    """
    try:
        return race.run(method)
    except Exception as error:
        report(f"{type(method).__name__} is disqualified: {in_brief(error)}")
        return RaceResult(torch.full((race.count,), -1), math.inf)


def in_brief(error: BaseException) -> str:
    """Return the type and the first line of an error.

    >>> in_brief(ValueError("A is singular\\nand more"))
    'ValueError: A is singular'
    """
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
