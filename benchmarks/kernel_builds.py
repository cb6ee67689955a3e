"""Kernels of the wheel against kernels compiled for this processor.

The wheel is compiled by zig for several levels of a processor. The fastest level that the processor
supports is used. The other library is compiled by the local C compiler with ``-march=native``. The
table shows the ratio of their processor times for every kernel, with one thread: the median of runs
that are taken in turn.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import process_time
from unittest import mock

import torch
from building.compilation import compile_library, local_compiler
from building.wheels import build_wheel
from torch import Tensor, nn

from benchmarks.measure import about, judged, quick, table, threads
from mirrordescent import kernels, optim
from mirrordescent.kernels import call, loading
from mirrordescent.mirrors import Diagonal, Spline
from mirrordescent.mirrors.resolvents import Resolvents

TARGET = 1.1
RESOLVENTS = Resolvents((0.2, 0.5, 0.25), (1.0, 0.1))
Run = Callable[[], object]


def build_libraries(folder: Path) -> tuple[Path, Path]:
    """Return the library of the wheel, and one for this processor."""
    native = folder / "native.so"
    compile_library(native, local_compiler(), {"baseline": ("-march=native",)})
    with zipfile.ZipFile(build_wheel("linux-x86_64", folder)) as archive:
        member = "mirrordescent/kernels/_lib/kernels.so"
        return Path(archive.extract(member, folder)), native


@contextmanager
def using(library: ctypes.CDLL, level: str) -> Iterator[None]:
    """Call the kernels of a library inside this context."""
    with (
        mock.patch.object(call, "library", return_value=library),
        mock.patch.object(call, "level", return_value=level),
    ):
        call._function.cache_clear()
        yield
    call._function.cache_clear()


def fastest_level(library: ctypes.CDLL) -> str:
    """Return the fastest level of a library that the processor supports."""
    return next(level for level in loading.LEVELS if library.kernel_level_supported(level.encode()))


def image_cases(dtype: torch.dtype, side: int) -> dict[str, Run]:
    """Return a run of every kernel on images."""
    generator = torch.Generator().manual_seed(0)

    def image(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=dtype)

    y = image(2, 3, side, side)
    x = image(2, 3, side, side)
    mask = (image(2, 1, side, side) > 0.3).to(dtype)
    u = (image(2, 3, side - 1, side) - 0.5, image(2, 3, side, side - 1) - 0.5)
    box = (torch.zeros(2, 3, 1, 1, dtype=dtype), torch.ones(2, 3, 1, 1, dtype=dtype))
    amd = kernels.numbers(5.0, 0.1, 1.4, 0.2, 0.05, 0.02, 0.3, 0.1)
    dual = kernels.numbers(0.3, 0.2, 0.1, 0.3, 0.1, 0.0, 1.0, 1.0, 1.0, 0.0)
    smooth = kernels.numbers(0.1, 0.1, 1.0, 1.0)
    theta = torch.ones(2, dtype=dtype)
    bound = torch.tensor([0.1], dtype=torch.float64)
    values = torch.tensor([[1.0, 0.1]], dtype=torch.float64)
    cases: dict[str, Run] = {
        "amd_stencil": lambda: kernels.amd_stencil(x, y, y, mask, None, amd, 10),
        "image_sums": lambda: kernels.image_sums(y, mask, x),
        "hole_depths": lambda: kernels.hole_depths(mask, 5),
        "close_holes": lambda: kernels.close_holes((u[0].clone(), u[1].clone()), mask, bound, 5),
    }
    for isotropic in (False, True):
        suffix = ", isotropic" if isotropic else ""
        groups = {"isotropic": isotropic}
        cases |= {
            f"primal_dual{suffix}": partial(
                kernels.primal_dual, x, u, y, mask, box, dual, 10, **groups
            ),
            f"dual_fista{suffix}": partial(
                kernels.dual_fista, u, u, theta, y, box, smooth, 10, **groups
            ),
            f"dual_value{suffix}": partial(
                kernels.dual_value, u, None, y, mask, box, values, **groups
            ),
        }
    return cases


def list_cases(dtype: torch.dtype, size: int) -> dict[str, Run]:
    """Return a run of every kernel on lists of tensors."""
    generator = torch.Generator().manual_seed(1)

    def tensors() -> list[Tensor]:
        return [
            torch.randn(shape, generator=generator, dtype=dtype)
            for shape in [(size,), (64, 128), (128,), (200, 300)]
        ]

    x = tensors()
    m = tensors()
    n = [each.square() for each in tensors()]
    w = [torch.ones((), dtype=dtype) for _ in x]
    matrices = [x[1], x[3]]
    return {
        "momenta": lambda: kernels.momenta(m, x, 0.9),
        "adapted": lambda: kernels.adaptive_step(
            [each.clone() for each in x], n, w, m, [0.1] * len(x), 0.99, 1.0, 1e-8
        ),
        "powers": lambda: kernels.powers(x, 0.3),
        "directions": lambda: kernels.directions(matrices, [RESOLVENTS] * 2),
    }


def optimiser_cases(dtype: torch.dtype, size: int) -> dict[str, Run]:
    """Return steps of optimisers, which look up their kernels when they are constructed."""
    spline = Spline(torch.tensor(0)).to(dtype).requires_grad_(False)
    scaled = Diagonal(torch.full((size,), 2.0, dtype=dtype))
    made: dict[str, Run] = {}
    for name, make in (("md", optim.MD), ("amd", optim.AMD)):
        for kind, mirror in (("scaled", scaled), ("spline", spline)):
            p = nn.Parameter(torch.ones(size, dtype=dtype))
            p.grad = torch.full((size,), 1e-3, dtype=dtype)
            optimizer = make([("p", p)], lr=1e-3, mirror=mirror, fused=True, nonfinite=None)
            made[f"{name}_{kind}"] = optimizer.step
    return made


def ratios(
    wheel: Path, native: Path, dtype: torch.dtype, repeats: int, side: int, size: int
) -> dict[str, float]:
    """Return the processor time of the wheel's kernels over that of the native ones."""
    libraries = [ctypes.CDLL(str(wheel)), ctypes.CDLL(str(native))]
    levels = [fastest_level(libraries[0]), "baseline"]
    cases: list[dict[str, Run]] = []
    for library, level in zip(libraries, levels, strict=True):
        with using(library, level):
            cases.append(optimiser_cases(dtype, size))
    found: dict[str, float] = {}
    shared = {**image_cases(dtype, side), **list_cases(dtype, size)}
    for name in (*shared, *cases[0]):
        runs = [one.get(name) or shared[name] for one in cases]
        pairs = []
        for _ in range(repeats + 1):
            pair = []
            for library, level, run in zip(libraries, levels, runs, strict=True):
                with using(library, level):
                    run()
                    pair.append(processor_time(run))
            pairs.append(pair[0] / pair[1])
        found[name] = statistics.median(pairs[1:])
    return found


def processor_time(run: Run) -> float:
    """Return the processor time of several calls, at least five milliseconds."""
    count = 0
    began = process_time()
    while (passed := process_time() - began) < 0.005:
        run()
        count += 1
    return passed / count


@torch.no_grad()
def main() -> str:
    """Measure."""
    repeats = 3 if quick() else 31
    side = 64 if quick() else 256
    rows = []
    with tempfile.TemporaryDirectory() as folder, threads(1):
        wheel, native = build_libraries(Path(folder))
        for dtype in (torch.float32, torch.float64):
            found = ratios(wheel, native, dtype, repeats, side, 20 * side**2 // 4)
            kind = str(dtype).removeprefix("torch.")
            rows += [judged(f"{name}, {kind}", value, TARGET) for name, value in found.items()]
            mean = statistics.geometric_mean(found.values())
            rows.append(judged(f"all, {kind} (geometric mean)", mean, TARGET))
    header = ("kernel", "wheel/native", "target", "")
    return f"{about(__doc__)}\n{table(header, rows)}"


if __name__ == "__main__":
    print(main(), file=sys.stdout)
