"""What a page can show: pictures to compare, curves, groups of numbers, tables, claims."""

from __future__ import annotations

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
    """One method's quantity along its runs: iterations (points,), seconds (points,), values
    (points, runs).
    """

    name: str
    iterations: list[int]
    seconds: list[float]
    values: Tensor

    def mean_at(self, iteration: int) -> float:
        """Return the mean at an iteration: not a number if a run has failed by then."""
        return float(self.values[self.iterations.index(iteration)].mean())

    def of_run(self, run: int) -> Curve:
        """Return the curve of one run alone."""
        return Curve(self.name, self.iterations, self.seconds, self.values[:, run : run + 1])


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes."""

    curves: list[Curve]
    quantity: str = GAP
    against: Literal["iterations", "seconds"] = "iterations"
    scales: tuple[Scale, Scale] = ("log", "log")
    axes: ClassVar[Sequence[str]] = ("iterations", "seconds")

    def __getitem__(self, name: str) -> Curve:
        """Return the curve of a method, whatever setting its name goes on with in brackets."""
        return self.curves[self.names.index(name)]

    @property
    def names(self) -> list[str]:
        """The names of the methods, without their settings."""
        return [curve.name.split(" (")[0] for curve in self.curves]


@dataclass(frozen=True)
class Dots:
    """Groups of numbers, a dot for each."""

    groups: Mapping[str, Tensor]
    quantity: str
    against: ClassVar[str] = "entry"
    scales: ClassVar[tuple[Scale, Scale]] = ("linear", "linear")
    axes: ClassVar[Sequence[str]] = ("entry",)


class Link(str):
    """A cell of a table that leads to a file, given by its path relative to the page."""

    file: str

    def __new__(cls, text: str, file: str) -> Link:
        """Make a text with a file behind it."""
        link = super().__new__(cls, text)
        link.file = file
        return link

    @property
    def address(self) -> str:
        """The path as a page needs it; one that looks like an address of another kind is still a
        file.
        """
        return "./" + quote(self.file)


@dataclass(frozen=True)
class Table:
    """Numbers in rows and columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )


@dataclass(frozen=True)
class Claim:
    """A statement, whether it holds here, and the numbers that say so.

    ``holds`` is None where the uncertainty of the numbers does not decide it, or nothing was
    measured.
    """

    statement: str
    holds: bool | None
    measured: str

    @classmethod
    def by(cls, statement: str, low: float, high: float, measured: str) -> Claim:
        """Judge by the interval of a margin that is to be above 0: beyond its uncertainty, one way
        or the other.
        """
        holds = True if low > 0 else False if high < 0 else None
        return cls(statement, holds, measured)

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        undecided = "not measured" if self.measured == NOT_MEASURED else "not decided"
        return {True: "holds", False: "does not hold", None: undecided}[self.holds]


@dataclass(frozen=True)
class Picture:
    """An image (channels, height, width) or (height, width), of pixels in [0, 1] or of bytes, and a
    few words on it.
    """

    image: Tensor
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Pictures of one or several scenes by their names, of which any two can be laid over each
    other.

    Args:
        scenes: the pictures of each scene, by the names of both.
        before: the picture on the left at first; by default the first of a scene.
        after: the picture on the right at first; by default the last of a scene.
    """

    scenes: Mapping[str, Mapping[str, Picture]]
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class Strip:
    """Pictures in an order, such as along a setting, of which a slider shows one.

    Args:
        pictures: by their names.
        first: the one that is shown at first.
    """

    pictures: Mapping[str, Picture]
    first: str


Content: TypeAlias = Comparison | Panel | Dots | Strip | Table | Sequence[Claim]


@dataclass(frozen=True)
class Section:
    """A part of a page: its heading, what it shows, and a sentence on how to read it."""

    title: str
    content: Content
    note: str = ""
