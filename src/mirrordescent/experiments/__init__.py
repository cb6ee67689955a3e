"""Experiments: the figures of the paper, with its claims as checks and the classical solvers beside them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from mirrordescent.experiments import imaging
from mirrordescent.experiments.imaging import Scale
from mirrordescent.experiments.result import Claim, Curve, Result

__all__ = ["Claim", "Curve", "Result", "Scale", "names", "reproduce"]


def names() -> list[str]:
    """Return the experiments there are."""
    return list(imaging.TASKS)


def reproduce(
    name: str,
    scale: Scale = "standard",
    out: Path = Path("out"),
    directory: Path | None = None,
    say: Callable[[str], object] = print,
) -> Result:
    """Run an experiment and write its curves, figures, claims and summary to OUT/NAME."""
    if name not in names():
        close = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names())}"
        raise ValueError(f"there is no experiment {name!r}; {hint}")
    result = imaging.run(imaging.TASKS[name], scale, directory, say)
    result.write(out / name)
    return result
