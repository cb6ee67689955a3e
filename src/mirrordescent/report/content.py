"""Contents of a page: pictures to compare, curves, groups of numbers, tables, claims."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias
from urllib.parse import quote

from torch import Tensor

GAP = "gap f(x) − f*, certified"
NOT_MEASURED = "not measured"
Scale: TypeAlias = Literal["log", "linear"]


@dataclass(frozen=True)
class Curve:
    """A quantity of a method along its runs.

    Args:
        name: Name of the method, optionally with settings in brackets.
        iterations: Iterations (points,).
        seconds: Times (points,).
        values: Values (points, runs).
    """

    name: str
    iterations: list[int]
    seconds: list[float]
    values: Tensor

    def mean_at(self, iteration: int) -> float:
        """Return the mean over the runs at an iteration. It is NaN if a run has failed."""
        return float(self.values[self.iterations.index(iteration)].mean())

    def of_run(self, run: int) -> Curve:
        """Return the curve of one run."""
        return Curve(self.name, self.iterations, self.seconds, self.values[:, run : run + 1])


@dataclass(frozen=True)
class Panel:
    """Curves with common axes.

    Args:
        curves: Curves.
        quantity: Description of the vertical axis.
        against: Horizontal axis that is shown first.
        scales: Horizontal and vertical scale.
    """

    curves: list[Curve]
    quantity: str = GAP
    against: Literal["iterations", "seconds"] = "iterations"
    scales: tuple[Scale, Scale] = ("log", "log")
    axes: ClassVar[Sequence[str]] = ("iterations", "seconds")

    def __getitem__(self, name: str) -> Curve:
        """Return the curve of a method by its name without settings."""
        return self.curves[self.names.index(name)]

    @property
    def names(self) -> list[str]:
        """The names of the methods, without their settings."""
        return [curve.name.split(" (")[0] for curve in self.curves]


@dataclass(frozen=True)
class Dots:
    """Groups of numbers, each of which is shown as a dot.

    Args:
        groups: Numbers by the name of the group.
        quantity: Description of the numbers.
    """

    groups: Mapping[str, Tensor]
    quantity: str
    against: ClassVar[str] = "entry"
    scales: ClassVar[tuple[Scale, Scale]] = ("linear", "linear")
    axes: ClassVar[Sequence[str]] = ("entry",)


class Link(str):
    """A cell of a table with a link to a file.

    Args:
        text: Text of the cell.
        file: Path of the file, relative to the page.
    """

    file: str

    def __new__(cls, text: str, file: str) -> Link:
        """Return the text with its file."""
        link = super().__new__(cls, text)
        link.file = file
        return link

    @property
    def address(self) -> str:
        """The relative URL of the file. A path that looks like a URL remains a path."""
        return "./" + quote(os.fsencode(self.file))  # names need not be valid Unicode


@dataclass(frozen=True)
class Table:
    """A table of texts and numbers.

    Args:
        columns: Header.
        rows: Cells by row.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = []
        for row in (self.columns, ["---"] * len(self.columns), *self.rows):
            cells = [cell.replace("|", "\\|") for cell in row]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)


@dataclass(frozen=True)
class Claim:
    """A statement and the measurement that supports or contradicts it.

    Args:
        statement: Statement.
        holds: Whether it holds, or None if the measurement does not decide it or is missing.
        measured: Measured numbers.
    """

    statement: str
    holds: bool | None
    measured: str

    @classmethod
    def by(cls, statement: str, low: float, high: float, measured: str) -> Claim:
        """Return a claim that a margin is positive, judged by a confidence interval.

        Args:
            statement: Statement.
            low: Lower end of the interval.
            high: Upper end of the interval.
            measured: Measured numbers.
        """
        holds = None
        if low > 0:
            holds = True
        elif high < 0:
            holds = False
        return cls(statement, holds, measured)

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.holds is None:
            return NOT_MEASURED if self.measured == NOT_MEASURED else "not decided"
        return "holds" if self.holds else "does not hold"


@dataclass(frozen=True)
class Picture:
    """A picture with a caption.

    Args:
        image: Image (channels, height, width) or (height, width), with values in [0, 1] or bytes.
        note: Caption.
    """

    image: Tensor
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Pictures of one or several scenes. A slider compares any two pictures of a scene.

    Args:
        scenes: Pictures by name, for each scene by name.
        before: Name of the picture that is first shown on the left. The default is the first.
        after: Name of the picture that is first shown on the right. The default is the last.
    """

    scenes: Mapping[str, Mapping[str, Picture]]
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class Strip:
    """A sequence of pictures, such as for values of a setting. A slider shows one of them.

    Args:
        pictures: Pictures by name.
        first: Name of the picture that is shown first.
    """

    pictures: Mapping[str, Picture]
    first: str


Content: TypeAlias = Comparison | Panel | Dots | Strip | Table | Sequence[Claim]


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Args:
        title: Heading.
        content: Pictures, chart, table or claims.
        note: Explanation, in a sentence or two.
    """

    title: str
    content: Content
    note: str = ""
