"""Total-variation denoising of arrays larger than memory, with one proven gap for the whole array.

The dual problem is max D(u) over |u_g| ≤ sλ with D(u) = Σ_p w(y − c) − w²/(4s) and w = Dᵀu. It is
solved by block-coordinate ascent: a window solves for the dual variables of its points while all
others are held fixed, which is a total-variation problem of its own. D never decreases, and the
assembled u is feasible for the whole array at any time. Windows overlap, so that few sweeps are
needed. Then x = y − w/(2s) and both values are summed layer by layer in double precision.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from mirrordescent import kernels
from mirrordescent._internal.extras import requires_extra
from mirrordescent._internal.progress import ProgressBar
from mirrordescent._internal.rounding import sum_error, unit
from mirrordescent.kernels.grid_steps import GridShape, layer_bounds, layer_values
from mirrordescent.methods import PDHG
from mirrordescent.methods.primal_dual import PDHGState
from mirrordescent.problems.differences import direction_name
from mirrordescent.problems.grid_tv import WindowTV
from mirrordescent.restore.array_blocks import (
    AXES,
    ArrayLike,
    Box,
    DualFiles,
    Shape,
    Volume,
    exact_dtype,
    grown,
    lengths,
    volume_shape,
    windows,
)
from mirrordescent.solving import gap as gap_rule, solve

ARRAYS = 28
"""Peak memory of solving a window, in arrays of its size."""

SHARE = 0.25
"""Share of the tolerance for the gap of a window relative to its own start."""

STEPS = 300
"""Largest number of steps in a window."""

CHECK_EVERY = 20

RELAXATION = 1.8

MOST_SWEEPS = 30

PATIENCE = 4
"""Sweeps without a gap that is smaller by a tenth, after which rounding limits the gap."""

NAMES = tuple(direction_name(axis - AXES) for axis in range(AXES))


@dataclass(frozen=True)
class LargeResult:
    """The outcome for an array that was solved in windows.

    Args:
        value: Objective f(x), rounded up, for x before it is rounded to the type of ``out``.
        lower: Proven lower bound on the minimum of the whole array.
        gap: (f(x) − lower)/(f(y) − lower).
        windows: Number of windows.
        sweeps: Sweeps over all windows.
        converged: Whether the gap is at most the required one.
    """

    value: float
    lower: float
    gap: float
    windows: int
    sweeps: int
    converged: bool


class Task(NamedTuple):
    """f(x) = s(‖x − y‖² + λ Σ_g |(WDx)_g|) on a volume."""

    y: Volume
    weight: float
    scale: float
    axis_weights: tuple[float, float, float]
    isotropic: bool

    @property
    def shape(self) -> Shape:
        """The shape of the volume."""
        return self.y.shape

    @property
    def radius(self) -> float:
        """sλ."""
        return self.scale * self.weight

    def grid(self, held: tuple[bool, ...] = ()) -> GridShape:
        """Return the axes and groups for the kernels."""
        return GridShape(self.axis_weights, self.isotropic, False, held)


@torch.no_grad()
def denoise_large(
    array: ArrayLike,
    out: ArrayLike,
    folder: Path | str,
    *,
    weight: float,
    memory: int,
    scale: float = 0.5,
    axis_weights: Sequence[float] | None = None,
    isotropic: bool = True,
    gap: float = 1e-3,
    dtype: torch.dtype | None = None,
    progress: bool | None = None,
    interrupt: Callable[[int, int], object] | None = None,
) -> LargeResult:
    """Denoise an array by total variation window by window, with one gap for the whole array.

    The dual variables are kept in files of the folder: one number of the computation's type for
    every axis at every point. If the folder has the files of an interrupted call with the same
    arguments, the call continues where that one ended.

    Args:
        array: Array with two or three axes: of NumPy, a memory map, a zarr array, or
            :class:`TiffPages`. It is read by boxes.
        out: Array of the same shape for the result, written by layers.
        folder: Folder for the dual variables.
        weight: Weight λ.
        memory: Bytes that windows may take, besides about 300 MB of Python and PyTorch.
        scale: Scale s.
        axis_weights: Weights of the differences along the axes; None if all are 1.
        isotropic: Whether all differences of a point are one group.
        gap: Relative gap (f(x) − lower)/(f(y) − lower) that must be proven.
        dtype: Type of the computation, float32 or float64. By default it is float32 if this type
            holds all numbers of the array's type, and float64 otherwise.
        progress: Whether to show a progress bar; by default on a terminal.
        interrupt: Function that is called with the sweep and the window after each window.

    Raises:
        ValueError: If shapes differ, numbers are not finite or not numbers of ``dtype``, out is the
            array itself, or the memory is too small.
        KernelsUnavailable: If the C kernels are not compiled.
    """
    kernels.library()
    if tuple(array.shape) != tuple(out.shape):
        raise ValueError(f"out must have the shape of the array {array.shape}, got {out.shape}")
    if not weight > 0 or not gap > 0:
        raise ValueError(f"weight and gap must be positive, got {weight} and {gap}")
    if _same_storage(array, out):
        raise ValueError("out must not be the array itself, which is read until the end")
    dtype = exact_dtype(np.dtype(array.dtype)) if dtype is None else dtype
    weights = _volume_weights(axis_weights, len(array.shape))
    task = Task(Volume(array, dtype), float(weight), float(scale), weights, isotropic)
    size = torch.empty(0, dtype=dtype).element_size()
    boxes = windows(task.shape, memory // (ARRAYS * size))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    duals = DualFiles(folder, task.shape, dtype)
    started, content = _start_value(task)
    if not math.isfinite(started):
        raise ValueError("the array has numbers that are not finite")
    journal = Journal(folder, _key_of(task, gap, boxes, content))
    if not journal.begun or not duals.complete:
        duals.create()
        journal.record(0, 0)
    layers = max(1, min(task.shape[0], memory // (ARRAYS * size * math.prod(task.shape[1:]))))
    result = None
    tolerance = SHARE * gap
    best = math.inf
    stale = 0
    while journal.sweep < MOST_SWEEPS:
        with ProgressBar(f"sweep {journal.sweep + 1}", len(boxes), progress) as bar:
            for index in range(journal.window, len(boxes)):
                order = index if journal.sweep % 2 == 0 else len(boxes) - 1 - index
                _solve_window(task, duals, boxes[order], tolerance)
                journal.record(journal.sweep, index + 1)
                bar.update(index + 1, "")
                if interrupt is not None:
                    interrupt(journal.sweep, index)
        journal.record(journal.sweep + 1, 0)
        value, lower = _assemble(task, duals, Volume(out, dtype), layers)
        result = _result(value, lower, started, gap, boxes, journal.sweep)
        relative = result.gap
        stale = 0 if relative < 0.9 * best else stale + 1
        best = min(best, relative)
        if result.converged or value <= lower or stale == PATIENCE:
            break
        tolerance /= 2
    if result is None:  # all sweeps were done by an earlier call
        value, lower = _assemble(task, duals, Volume(out, dtype), layers)
        result = _result(value, lower, started, gap, boxes, journal.sweep)
    return result


def _result(
    value: float, lower: float, started: float, gap: float, boxes: list[Box], sweeps: int
) -> LargeResult:
    relative = (value - lower) / max(started - lower, 1e-300)
    return LargeResult(value, lower, relative, len(boxes), sweeps, relative <= gap)


def _same_storage(array: ArrayLike, out: ArrayLike) -> bool:
    """Tell whether two arrays share memory or a file."""
    if array is out:
        return True
    if isinstance(array, np.memmap) and isinstance(out, np.memmap):
        files = (array.filename, out.filename)
        if None not in files and Path(str(files[0])).resolve() == Path(str(files[1])).resolve():
            return True
    if isinstance(array, np.ndarray) and isinstance(out, np.ndarray):
        return np.shares_memory(array, out)
    stores = [str(getattr(each, "store_path", "")) for each in (array, out)]
    return bool(stores[0]) and stores[0] == stores[1]


class Journal:
    """The sweep and the window at which a run continues, in a file.

    Args:
        folder: Folder of the file.
        key: Hash of the arguments; a file with another key is replaced.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / "journal.json"
        self.key = key
        self.sweep = 0
        self.window = 0
        self.begun = False
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if isinstance(stored, dict) and stored.get("key") == key:
            self.sweep = int(stored.get("sweep", 0))
            self.window = int(stored.get("window", 0))
            self.begun = True

    def record(self, sweep: int, window: int) -> None:
        """Write that the windows before this one are done."""
        self.sweep = sweep
        self.window = window
        text = json.dumps({"key": self.key, "sweep": sweep, "window": window})
        # Not synchronised with the disk: after a power failure an older or another dual point is
        # continued from, which costs time and no correctness.
        temporary = self.path.with_suffix(".new")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.path)


def _volume_weights(axis_weights: Sequence[float] | None, axes: int) -> tuple[float, float, float]:
    weights = [1.0] * axes if axis_weights is None else [float(w) for w in axis_weights]
    if len(weights) != axes or not all(w > 0 and math.isfinite(w) for w in weights):
        raise ValueError(f"axis_weights must be {axes} positive numbers, got {weights}")
    volume_shape((1,) * axes)
    return (weights[0], 1.0, weights[1]) if axes == 2 else (weights[0], weights[1], weights[2])


def _key_of(task: Task, gap: float, boxes: list[Box], content: str) -> str:
    """Return a hash of what determines a run."""
    numbers = [task.shape, task.weight, task.scale, task.axis_weights, task.isotropic]
    text = repr([*numbers, str(task.y.dtype), gap, boxes, content])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _solve_window(task: Task, duals: DualFiles, window: Box, tolerance: float) -> None:
    """Maximise D over the dual variables of the points of a window.

    Their differences reach one point beyond the window. So the problem is that of the window with
    one more layer at the end of every axis, whose own groups are held.
    """
    extended = grown(window, task.shape, 0, 1)
    held = tuple(e.stop > w.stop for e, w in zip(extended, window, strict=True))
    y, blocks = _window_data(task, duals, window, extended)
    problem = WindowTV(
        y,
        task.weight,
        task.scale,
        axis_weights=task.axis_weights,
        isotropic=task.isotropic,
        held=held,
    )
    x = problem.smooth.argmin(problem.K_adjoint(blocks))
    method = PDHG(problem.ratio, RELAXATION)
    solution = solve(
        problem,
        method,
        iterations=STEPS,
        check_every=CHECK_EVERY,
        stop=gap_rule(tolerance, start_value=problem.value(y)),
        state=PDHGState(0, x, blocks),
        progress=False,
    )
    u = solution.state.u
    parts = []
    for axis, name in enumerate(NAMES):
        padded = torch.zeros(lengths(extended), dtype=task.y.dtype)
        block = cast(Tensor, u[name])[0, 0]
        padded.narrow(axis, 0, block.shape[axis]).copy_(block)
        parts.append(padded[tuple(slice(0, n) for n in lengths(window))])
    duals.write(window, parts)


def _window_data(
    task: Task, duals: DualFiles, window: Box, extended: Box
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return y minus the pull of the fixed dual variables, and the blocks of the others."""
    around = grown(extended, task.shape, 1, 0)
    begin = [e.start - a.start for e, a in zip(extended, around, strict=True)]
    stored = duals.read(around)
    inner = tuple(
        slice(w.start - a.start, w.stop - a.start) for w, a in zip(window, around, strict=True)
    )
    here = tuple(slice(b, None) for b in begin)
    pull = torch.zeros(lengths(extended), dtype=torch.float64)
    blocks = {}
    for axis, name in enumerate(NAMES):
        u = stored[axis]
        free = torch.zeros_like(u)
        free[inner] = u[inner]
        u[inner] = 0
        weight = task.axis_weights[axis]
        pull -= weight * u[here]
        if begin[axis]:
            before = list(here)
            before[axis] = slice(0, u.shape[axis] - 1)
            pull += weight * u[tuple(before)]
        else:
            count = pull.shape[axis] - 1
            pull.narrow(axis, 1, count).add_(u[here].narrow(axis, 0, count), alpha=weight)
        block = free[here]
        blocks[name] = block.narrow(axis, 0, block.shape[axis] - 1).contiguous()[None, None]
    y = task.y.read(extended) - (pull / (2 * task.scale)).to(task.y.dtype)
    return y[None, None], blocks


def _start_value(task: Task) -> tuple[float, str]:
    """Return f(y) = sλ Σ|Dy|, rounded down, and a hash of y, layer by layer."""
    total = 0.0
    digest = hashlib.sha256()
    for layer in range(task.shape[0]):
        box = _layers(task, layer, min(layer + 2, task.shape[0]))
        y = task.y.read(box)[None, None]
        digest.update(y[0, 0, 0].numpy().tobytes())
        total += task.radius * float(layer_values(y, y, task.grid(), 0.0)[0, 0, 1])
    return total * (1 - unit(4 * sum(task.shape))), digest.hexdigest()


def _assemble(task: Task, duals: DualFiles, out: Volume, layers: int) -> tuple[float, float]:
    """Write x = y − w/(2s), and return f(x), rounded up, and the bound of u, rounded down."""
    depth = task.shape[0]
    centre: Tensor | None = None
    sums = torch.zeros(4, dtype=torch.float64)
    squares = 0.0
    variation = 0.0
    carried: tuple[Tensor, Tensor] | None = None
    for begin in range(0, depth, layers):
        end = min(depth, begin + layers)
        around = _layers(task, max(0, begin - 1), min(depth, end + 1))
        first = begin - (around[0].start or 0)
        y = task.y.read(around)[None, None]
        u = duals.read(around)
        if centre is None:
            centre = y.double().mean().reshape(1, 1)
        blocks = [
            part.narrow(axis, 0, part.shape[axis] - 1)[None, None] for axis, part in enumerate(u)
        ]
        found = layer_bounds(
            blocks,
            y,
            task.grid(),
            torch.tensor([task.radius], dtype=torch.float64),
            2 * task.scale,
            centre,
        )
        sums += found[0, first : first + end - begin].sum(0)
        x = _primal(task, y[0, 0], u)[first : first + end - begin]
        seen = y[0, 0, first : first + end - begin]
        out.write(_layers(task, begin, end), x)
        if carried is not None:
            x = torch.cat([carried[0], x])
            seen = torch.cat([carried[1], seen])
        whole = len(x) if end == depth else len(x) - 1
        values = layer_values(x[None, None], seen[None, None], task.grid(), 0.0)[0, :whole]
        squares += float(values[:, 0].sum())
        variation += float(values[:, 1].sum())
        carried = (x[-1:].clone(), seen[-1:].clone())
    value = task.scale * squares + task.radius * variation
    count = 4 * sum(task.shape) + layers
    value = value * (1 + unit(count))
    return value, _rounded_bound(task, sums, count)


def _rounded_bound(task: Task, sums: Tensor, count: int) -> float:
    """Return the bound of the sums over all layers, minus rounding; see ``GridDenoising``."""
    largest = 2 * sum(task.axis_weights) * task.radius
    entry_error = 2 * unit(3 * AXES) * largest
    squares = entry_error * (entry_error / (2 * task.scale)) * math.prod(task.shape)
    error = entry_error * sums[2] + squares
    bound = float(sums[0] - error - sum_error(sums[1], count))
    return max(bound, 0.0) if math.isfinite(bound) else -math.inf


def _primal(task: Task, y: Tensor, u: list[Tensor]) -> Tensor:
    """Return y − w/(2s) for the layers of a box whose neighbours are in the box."""
    w = torch.zeros_like(y, dtype=torch.float64)
    for axis, part in enumerate(u):
        weight = task.axis_weights[axis]
        w -= weight * part
        count = part.shape[axis] - 1
        w.narrow(axis, 1, count).add_(part.narrow(axis, 0, count), alpha=weight)
    return (y.double() - w / (2 * task.scale)).to(y.dtype)


def _layers(task: Task, begin: int, end: int) -> Box:
    return (slice(begin, end), slice(0, task.shape[1]), slice(0, task.shape[2]))


class TiffPages:
    """The pages of a TIFF file as a volume (pages, height, width), which is read page by page.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: Path | str) -> None:
        with requires_extra("pictures", "Reading TIFF files", "Pillow"):
            from PIL import Image

        self.path = Path(path)
        with Image.open(self.path) as image:
            pages = int(getattr(image, "n_frames", 1))
            self.shape = (pages, image.height, image.width)
            self.dtype = np.asarray(image).dtype

    def __getitem__(self, key: tuple[slice, slice, slice]) -> Any:
        """Read a box."""
        from PIL import Image

        pages = range(*key[0].indices(self.shape[0]))
        with Image.open(self.path) as image:
            parts = []
            for page in pages:
                image.seek(page)
                parts.append(np.asarray(image)[key[1:]])
        return np.stack(parts)
