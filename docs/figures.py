"""The pictures of the documentation: ``python docs/figures.py``.

docs/idea.png, on the landing page: mirror descent on the simplex, seen from both of its sides.
docs/layers.png, of ARCHITECTURE.md: the layers of the library, drawn from the contract in
pyproject.toml that keeps them apart. docs/photographs: a photograph that comes with scikit-image,
damaged, and what the commands of the README make of it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch, Polygon, Rectangle
from PIL import Image, ImageDraw
from torch import Tensor

import mirrordescent as md

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])
PLANE = -np.array([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]]) / np.array(
    [[2**0.5], [6**0.5]]
)  # what Σy = const leaves free
CENTRE = torch.tensor([0.06, 0.74, 0.20])
METRIC = torch.diag(torch.tensor([6.0, 1.0, 1.0]))
START = torch.tensor([[0.10, 0.03, 0.87]])
STEP = 0.9
STEPS = 12
STEPPED = 0  # the step that is explained
# the window of the dual plane
LOW = np.array([-1.9, -1.0])
HIGH = np.array([2.5, 3.0])
BLUE = "#2563eb"
ORANGE = "#ea7317"
GREY = "#9aa3af"
INK = "#1f2937"


def objective(x: Tensor) -> Tensor:
    """½⟨x − c, H(x − c)⟩, tilted so that the minimum lies near an edge."""
    d = x - CENTRE
    return 0.5 * torch.einsum("bi,ij,bj->b", d, METRIC, d)


def path(method: Any) -> Tensor:
    """Return x_0, …, x_K: (K + 1, 3)."""
    problem = md.Function(objective)
    state = method.init(START)
    points = [START]
    for _ in range(STEPS):
        state = method.update(state, problem.grad(state.x))
        points.append(state.x)
    return torch.cat(points)


def flat(x: Tensor) -> np.ndarray[Any, Any]:
    """Return points of the simplex as points of the triangle."""
    return x.numpy() @ CORNERS


def dual(x: Tensor) -> np.ndarray[Any, Any]:
    """Return ∇ψ(x) = log x up to constants, in the plane."""
    return x.log().numpy() @ PLANE.T


def from_dual(y: np.ndarray[Any, Any]) -> Tensor:
    """Return ∇ψ*(y) = softmax y."""
    return torch.from_numpy(y @ PLANE).softmax(-1)


def grid(every: float = 0.5, reach: float = 6.0) -> list[np.ndarray[Any, Any]]:
    """Return the lines of a square grid of the dual plane."""
    along = np.linspace(-reach, reach, 400)
    lines = []
    for at in np.arange(-reach, reach + 1e-9, every):
        lines += [
            np.stack([np.full_like(along, at), along], 1),
            np.stack([along, np.full_like(along, at)], 1),
        ]
    return lines


def draw() -> Figure:
    """Draw the triangle, the plane, both paths on both, and the maps between."""
    figure = Figure(figsize=(11, 5.0), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    left = figure.add_axes((0.0, 0.02, 0.5, 0.88))
    right = figure.add_axes((0.54, 0.05, 0.45, 0.85))
    mirrored = path(md.MD(md.mirrors.SimplexEntropy(), STEP))
    projected = path(md.ProjectedGradient(md.domains.Simplex(), STEP))
    draw_primal(left, mirrored, projected)
    draw_dual(right, mirrored)
    connect(figure, left, right, mirrored)
    return figure


def draw_primal(axes: Any, mirrored: Tensor, projected: Tensor) -> None:
    """Draw the triangle with level sets and paths; the grid of the dual plane is carried over by
    ∇ψ*.
    """
    triangle = Polygon(CORNERS, closed=True, fill=False, edgecolor=INK, linewidth=1.4, zorder=3)
    axes.add_patch(triangle)
    for line in grid():
        axes.plot(*flat(from_dual(line)).T, color=GREY, linewidth=0.5, alpha=0.6, zorder=1)
    a, b = np.meshgrid(np.linspace(0, 1, 300), np.linspace(0, 3**0.5 / 2, 260))
    third = b / CORNERS[2, 1]
    second = a - third / 2
    x = torch.from_numpy(np.stack([1 - second - third, second, third], -1)).float()
    values = objective(x.reshape(-1, 3)).reshape(a.shape).numpy()
    values = np.where((x.numpy() >= 0).all(-1), values.clip(1e-8), np.nan)
    levels = np.geomspace(0.01, 3, 12)
    shades = LinearSegmentedColormap.from_list("levels", ["#bcd7f7", "#ffffff"])
    axes.contourf(
        a,
        b,
        values,
        levels=[1e-9, *levels],
        cmap=shades,
        extend="max",
        norm=LogNorm(0.004, 3, clip=True),
        zorder=0,
    )
    axes.contour(a, b, values, levels=levels, colors="#7aa7e0", linewidths=0.7, zorder=2)
    points = flat(projected)
    axes.plot(
        *points.T,
        "o--",
        color=ORANGE,
        markersize=4,
        linewidth=1.4,
        label="projected gradient, the same t",
        zorder=4,
    )
    points = flat(mirrored)
    axes.plot(
        *points.T, "o-", color=BLUE, markersize=5, linewidth=1.8, label="mirror descent", zorder=5
    )
    axes.plot(
        *flat(CENTRE), "*", color=INK, markersize=11, linestyle="none", label="minimum", zorder=6
    )
    axes.set(xlim=(-0.12, 1.12), ylim=(-0.1, 0.95), aspect="equal")
    axes.set_title("primal: points x, here probabilities", color=INK, fontsize=12)
    axes.legend(loc="upper left", frameon=False, fontsize=10)
    axes.set_axis_off()


def draw_dual(axes: Any, mirrored: Tensor) -> None:
    """Draw the dual plane, in which the steps are straight."""
    for line in grid():
        axes.plot(*line.T, color=GREY, linewidth=0.5, alpha=0.6, zorder=1)
    points = dual(mirrored)
    axes.plot(*points.T, "o-", color=BLUE, markersize=5, linewidth=1.8, zorder=5)
    axes.set(xlim=(LOW[0], HIGH[0]), ylim=(LOW[1], HIGH[1]), aspect="equal", xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_color(GREY)
    axes.set_title("dual: y = ∇ψ(x), where steps are straight", color=INK, fontsize=12)


def connect(figure: Figure, left: Any, right: Any, mirrored: Tensor) -> None:
    """Draw the way there, the step, and the way back."""
    x = flat(mirrored)
    y = dual(mirrored)
    ways = (
        (x[STEPPED], y[STEPPED], left, right, -0.28, "∇ψ", (0.446, 0.885)),
        (y[STEPPED + 1], x[STEPPED + 1], right, left, -0.28, "∇ψ*", (0.5, 0.42)),
    )
    for start, end, here, there, bend, label, place in ways:
        arrow = ConnectionPatch(
            start,
            end,
            "data",
            "data",
            axesA=here,
            axesB=there,
            arrowstyle="-|>",
            mutation_scale=15,
            connectionstyle=f"arc3,rad={bend}",
            color=INK,
            linewidth=1.3,
            shrinkA=7,
            shrinkB=7,
        )
        figure.add_artist(arrow)
        figure.text(*place, label, color=INK, fontsize=15, ha="center")
    middle = (y[STEPPED] + y[STEPPED + 1]) / 2
    right.annotate(
        "− t ∇f(x)", middle, (10, 6), textcoords="offset points", color=BLUE, fontsize=13
    )


ROWS = {
    "what people use": (
        "cli",
        "app | demo | diagnosis",
        "contests | recipes",
        "automatic | restore",
    ),
    "built on learning": ("theory", "optim | report | rivals", "racing"),
    "learning": ("learn", "data", "zoo"),
    "solving": ("references", "solving", "execution", "methods", "oracles"),
    "problems and their geometry": (
        "problems",
        "mirrors",
        "conditioning",
        "schedules",
        "domains",
    ),
}
"""Layers of the contract in every row of the picture, from the top, by the title of the row."""

LAST_ROW = "foundation"


def draw_layers() -> Figure:
    """Draw the layers of the import contract. Layers below the named rows form the last row."""
    contract = tomllib.loads(
        (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    )
    layers = contract["tool"]["importlinter"]["contracts"][0]["layers"]
    named = [layer for row in ROWS.values() for layer in row]
    if layers[: len(named)] != named:
        raise ValueError(f"ROWS must list the layers of pyproject.toml in order, got {layers}")
    rows = ROWS | {LAST_ROW: tuple(layers[len(named) :])}
    figure = Figure(figsize=(10, 7.6), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 100), ylim=(0, 5 * len(rows) + 1.2))
    axes.set_axis_off()
    colours = ("#dbeafe", "#e0f2fe", "#e0e7ff", "#dcfce7", "#fef3c7", "#f1f5f9")
    for number, ((title, row), colour) in enumerate(zip(rows.items(), colours, strict=True)):
        bottom = 5 * (len(rows) - 1 - number) + 0.6
        _draw_row(axes, title, row, bottom, colour)
    top = 5 * len(rows) + 0.6
    axes.annotate("", (96, 0.8), (96, top), arrowprops={"arrowstyle": "-|>", "color": INK})
    axes.text(
        97.6,
        2.5 * len(rows),
        "may import packages to the right and below",
        rotation=270,
        fontsize=11,
        color=INK,
        ha="center",
        va="center",
    )
    return figure


def _draw_row(axes: Axes, title: str, row: Sequence[str], bottom: float, colour: str) -> None:
    """Draw one row of packages, side by side."""
    axes.add_patch(Rectangle((1, bottom), 92, 4.3, facecolor=colour, edgecolor="none"))
    axes.text(2, bottom + 3.5, title, fontsize=11, color=INK, weight="bold", va="center")
    width = 90 / len(row)
    for place, packages in enumerate(row):
        left = 2 + place * width
        axes.add_patch(
            Rectangle((left, bottom + 0.5), width - 1, 2.3, facecolor="white", edgecolor=GREY)
        )
        axes.text(
            left + (width - 1) / 2,
            bottom + 1.65,
            textwrap.fill(packages.replace(" | ", ", "), 36),
            fontsize=10,
            color=INK,
            ha="center",
            va="center",
        )


def draw_photographs(folder: Path) -> Path:
    """Damage a photograph, let the command line restore it, and put before and after side
    by side.
    """
    cat = md.data.bundled_photographs("test")[0]
    generator = torch.Generator().manual_seed(0)
    noisy = cat + 0.1 * torch.randn(cat.shape, generator=generator)
    for name, image in (("written", cat), ("noisy", noisy)):
        pixels = (image.clamp(0, 1) * 255).round().byte().movedim(0, -1).numpy()
        Image.fromarray(pixels).save(folder / f"{name}.png")
    with Image.open(folder / "written.png") as picture:
        pen = ImageDraw.Draw(picture)
        for top in range(8, picture.height, 48):
            pen.text(
                (10 + top % 30, top),
                "mirror descent in learned geometry",
                fill="#ff00ff",
                font_size=26,
            )
        picture.save(folder / "written.png")
    commands = (["inpaint", "written.png", "--mask-colour", "#ff00ff"], ["denoise", "noisy.png"])
    with tempfile.TemporaryDirectory() as out:
        sides = []
        for command in commands:
            start = [sys.executable, "-m", "mirrordescent", "solve"]
            subprocess.run([*start, *command, "--out", out], cwd=folder, check=True)
            for place in (folder, Path(out)):
                with Image.open(place / command[1]) as picture:
                    sides.append(picture.convert("RGB"))
        width, height = sides[0].size
        sheet = Image.new("RGB", (2 * width + 8, 2 * height + 8), "white")
        for index, side in enumerate(sides):
            sheet.paste(side, (index % 2 * (width + 8), index // 2 * (height + 8)))
        sheet.save(folder / "restored.jpg", quality=92)
    return folder / "restored.jpg"


if __name__ == "__main__":
    print(draw_photographs(Path(__file__).parent / "photographs"))
    for name, drawn in (("idea.png", draw), ("layers.png", draw_layers)):
        drawn().savefig(Path(__file__).parent / name)
        print(Path(__file__).parent / name)
