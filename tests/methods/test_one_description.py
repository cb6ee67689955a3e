"""Every way to take the steps of MD and AMD, against one plain transcription of what is printed in
their docstrings.

The transcription is in NumPy and double precision and shares no code with the library. The ways are
the pure methods in their storages, the steps in place on lists, the kernels of the optimisers, and
the kernel for images.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import mirrordescent as md
from mirrordescent import methods, optim
from mirrordescent.execution.foreach import diagonal_steps
from mirrordescent.methods import Equipped
from mirrordescent.mirrors import Diagonal, Euclidean, Spline, Stencil
from mirrordescent.oracles import Rounded

STEPS = 40
SHAPE = (7, 30)
CLOSE = {torch.float32: {"rtol": 2e-5, "atol": 2e-5}, torch.float64: {"rtol": 1e-11, "atol": 1e-11}}

dtypes = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64], ids=["float32", "float64"]
)
compiled = pytest.mark.usefixtures("compiled")


# The transcription


def printed_amd(x0, gradient, to_dual, to_primal, step, *, t, r, gamma, cap):
    """x^(k+1) of k = 0, …, STEPS, and x̃ before each; ``step`` is argmin_x ⟨v, x⟩ + R(x, ·)."""
    z = x0
    x_tilde = x0
    points = []
    corrected = [x0]
    for k in range(STEPS + 1):
        held = k if cap is None else min(k, cap)
        share = r / (r + held)
        x = share * z + (1 - share) * x_tilde
        points.append(x)
        g = gradient(x, k)
        z = to_primal(to_dual(z) - held / r * t(k + 1) * g)
        x_tilde = step(x, gamma(k + 1) * t(k + 1) * g)
        corrected.append(x_tilde)
    return points, corrected[:-1]


def printed_md(x0, gradient, to_dual, to_primal, *, t):
    """x of k = 0, …, STEPS."""
    points = [x0]
    for k in range(STEPS):
        points.append(to_primal(to_dual(points[-1]) - t(k + 1) * gradient(points[-1], k)))
    return points


# What it is of


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


START = 0.7 * numbers(0, *SHAPE)
TARGETS = numbers(1, STEPS + 1, *SHAPE)
CURVATURE = np.exp(numbers(2, *SHAPE) / 2)


def gradient(x, k):
    """∇ of ½ Σ c (x − b)², with another b at every step."""
    c, b = (
        (CURVATURE, TARGETS[k])
        if isinstance(x, np.ndarray)
        else map(torch.tensor, (CURVATURE, TARGETS[k]))
    )
    return c * (x - b) if isinstance(x, np.ndarray) else c.to(x) * (x - b.to(x))


def t(k):
    return 0.3 / k**0.5


def gamma(k):
    return 0.5 + 1 / k


def diagonal():
    d = np.exp(numbers(3, SHAPE[1]))
    return Diagonal(torch.tensor(d)), lambda x: d * x, lambda y: y / d


def euclidean():
    return Euclidean(), lambda x: x, lambda y: y


def spline():
    """∇ψ is a sum of its slopes from 0 on; beyond the last knots it goes on as it is."""
    mirror = Spline(torch.tensor(0), knots=6, reach=0.9).double()
    with torch.no_grad():
        mirror.raw_slopes.add_(torch.tensor(numbers(4, 1, 12)))
    slopes = np.log1p(np.exp(mirror.raw_slopes.detach().numpy()[0])) + 1e-3
    knots = 0.15 * np.arange(-6, 7)
    values = np.concatenate([-np.cumsum(slopes[5::-1])[::-1], [0], np.cumsum(slopes[6:])]) * 0.15
    far = 30
    knots = np.concatenate([[knots[0] - far], knots, [knots[-1] + far]])
    values = np.concatenate(
        [[values[0] - far * slopes[0]], values, [values[-1] + far * slopes[-1]]]
    )
    return mirror, lambda x: np.interp(x, knots, values), lambda y: np.interp(y, values, knots)


MAPS = {"euclidean": euclidean, "diagonal": diagonal, "spline": spline}
SETTINGS = {"uncapped": {"r": 3.0, "cap": None}, "capped": {"r": 4.5, "cap": 9}}
maps = pytest.mark.parametrize("name", MAPS)
settings = pytest.mark.parametrize("numbers_of", SETTINGS)
corrections = pytest.mark.parametrize("correction", ["euclidean", "mirror"])


def expected_amd(name, correction, numbers_of):
    mirror, to_dual, to_primal = MAPS[name]()

    def in_the_map(x, v):
        return to_primal(to_dual(x) - v)

    step = in_the_map if correction == "mirror" else lambda x, v: x - v
    chosen = {"t": t, "gamma": gamma, **SETTINGS[numbers_of]}
    return mirror, *printed_amd(START, gradient, to_dual, to_primal, step, **chosen)


def assert_same(ours, printed, dtype):
    assert all(point.dtype == dtype for point in ours)
    torch.testing.assert_close(
        torch.stack(list(ours)).double(), torch.tensor(np.stack(printed)), **CLOSE[dtype]
    )


# Pure methods


def run_pure(method, dtype):
    """All query points, and all answers."""
    state = method.init(torch.tensor(START)[None].to(dtype))
    points = [state.x[0]]
    answers = [method.answer(state)[0]]
    for k in range(STEPS):
        state = method.update(state, gradient(state.x[0], k)[None])
        points.append(state.x[0].detach())
        answers.append(method.answer(state)[0].detach())
    return points, answers


@dtypes
@maps
@settings
@corrections
@pytest.mark.parametrize("storage", ["primal", "dual"])
def test_amd(name, correction, numbers_of, storage, dtype):
    mirror, points, corrected = expected_amd(name, correction, numbers_of)
    mirror = mirror.to(dtype)
    regulariser = mirror if correction == "mirror" else None
    options = {
        "gamma": gamma,
        "regulariser": regulariser,
        "storage": storage,
        **SETTINGS[numbers_of],
    }
    ours, answers = run_pure(methods.AMD(mirror, t, returns="x_tilde", **options), dtype)
    assert_same(ours, points, dtype)
    assert_same(answers, corrected, dtype)


@dtypes
@maps
@pytest.mark.parametrize("storage", [methods.MD, methods.SMD])
def test_md(name, storage, dtype):
    mirror, to_dual, to_primal = MAPS[name]()
    ours, _ = run_pure(storage(mirror.to(dtype), t), dtype)
    assert_same(ours, printed_md(START, gradient, to_dual, to_primal, t=t), dtype)


# Steps in place, and the kernels of the optimisers


def run_in_place(method, mirror, dtype):
    """Two tensors at a time: the whole, and its second half."""
    x = [torch.tensor(START).to(dtype), torch.tensor(START[3:]).to(dtype)]
    d = None if isinstance(mirror, Euclidean) else [mirror.d, mirror.d]
    stored = [mirror.to_dual(each).clone() for each in x] if type(method) is methods.AMD else []
    steps = diagonal_steps(method)
    points = [x[0].clone()]
    for k in range(STEPS):
        g = [gradient(x[0], k), gradient(x[0], k)[3:]]
        steps.foreach(method, steps.step_sizes(method, k + 1), x, stored, g, d)
        points.append(x[0].clone())
        torch.testing.assert_close(x[1], x[0][3:])
    return points


@dtypes
@pytest.mark.parametrize("name", ["euclidean", "diagonal"])
@settings
@corrections
def test_amd_in_place(name, correction, numbers_of, dtype):
    mirror, points, _ = expected_amd(name, correction, numbers_of)
    mirror = mirror.to(dtype)
    regulariser = mirror if correction == "mirror" else None
    method = methods.AMD(mirror, t, gamma=gamma, regulariser=regulariser, **SETTINGS[numbers_of])
    assert diagonal_steps(method) is not None
    assert_same(run_in_place(method, mirror, dtype), points, dtype)


@dtypes
@pytest.mark.parametrize("name", ["euclidean", "diagonal"])
def test_md_in_place(name, dtype):
    mirror, to_dual, to_primal = MAPS[name]()
    ours = run_in_place(methods.MD(mirror.to(dtype), t), mirror, dtype)
    assert_same(ours, printed_md(START, gradient, to_dual, to_primal, t=t), dtype)


def run_optimiser(make, dtype, form):
    p = nn.Parameter(torch.tensor(START).to(dtype))
    optimiser = make([p])
    (choice,) = optimiser._executors[0].choices.values()
    assert getattr(choice.kernel, "name", None) == form
    points = [p.detach().clone()]
    for k in range(STEPS):
        p.grad = gradient(p.detach(), k)
        optimiser.step()
        points.append(p.detach().clone())
    return points


@dtypes
@maps
@settings
@corrections
@pytest.mark.parametrize("fused", [False, True], ids=["torch", "kernel"])
@compiled
def test_amd_of_the_optimiser(name, correction, numbers_of, fused, dtype):
    mirror, points, _ = expected_amd(name, correction, numbers_of)
    mirror = mirror.to(dtype)
    no_kernel = (name, correction) == ("spline", "mirror")
    options = {"t": t, "gamma": gamma, "correction": correction, **SETTINGS[numbers_of]}
    options["fused"] = fused = fused and not no_kernel
    form = {"spline": "amd_spline"}.get(name, "amd_scaled") if fused else None
    assert_same(
        run_optimiser(lambda p: optim.AMD(p, 1.0, mirror, **options), dtype, form), points, dtype
    )


@dtypes
@maps
@pytest.mark.parametrize("fused", [False, True], ids=["torch", "kernel"])
@compiled
def test_md_of_the_optimiser(name, fused, dtype):
    mirror, to_dual, to_primal = MAPS[name]()
    mirror = mirror.to(dtype)
    form = {"spline": "md_spline"}.get(name, "md_scaled") if fused else None
    ours = run_optimiser(lambda p: optim.MD(p, 1.0, mirror, t=t, fused=fused), dtype, form)
    assert_same(ours, printed_md(START, gradient, to_dual, to_primal, t=t), dtype)


# The kernel for images


def smoothed(image, side):
    """S image Sᵀ with S = (side, 1 − 2 side, side), the image continued by reflection."""
    for axis in (-2, -1):
        padded = np.pad(
            image,
            [(0, 0)] * 2 + [(1, 1) if axis == each else (0, 0) for each in (-2, -1)],
            mode="edge",
        )
        before, after = (np.delete(padded, drop, axis) for drop in ([-1, -2], [0, 1]))
        image = side * before + (1 - 2 * side) * image + side * after
    return image


def rounded_gradient(x, y, mask, scale, weight, curvature):
    """∇ of s·(‖Z(x − y)‖² + λ‖Dx‖₁), where |·| is rounded: its slope is c·d up to the height of the
    kink.
    """
    g = 2 * scale * mask * (x - y)
    for axis in (-2, -1):
        slope = np.clip(curvature * np.diff(x, axis=axis), -scale * weight, scale * weight)
        ends = [(0, 0)] * 4
        ends[axis] = (1, 1)
        g -= np.diff(np.pad(slope, ends), axis=axis)
    return g


@dtypes
@settings
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("fused", [False, True], ids=["method", "kernel"])
@compiled
def test_amd_on_images(numbers_of, masked, fused, dtype):
    y = np.abs(numbers(5, 2, 3, 19, 23))
    mask = (numbers(6, 19, 23) > -0.5) * 1.0 if masked else np.ones((19, 23))
    images = torch.tensor(y).to(dtype)
    weight = 0.3
    scale = 0.8
    problem = md.TVInpainting(images, torch.tensor(mask).to(dtype), weight=weight, scale=scale)
    mirror = Stencil(0.7).to(dtype).requires_grad_(False)
    side = float(mirror.damping) / 4
    options = {"gamma": lambda k: 0.2 + 0.5 / k, **SETTINGS[numbers_of]}
    chosen = {"t": lambda k: 0.2 / k**0.5, **options}
    method = methods.AMD(mirror, chosen["t"], regulariser=mirror, storage="primal", **options)
    equipped = Equipped(method, Rounded(lambda k: 0.5 + 0.2 * k))
    solved = md.solve(problem, equipped, iterations=STEPS, fused=fused)

    points, _ = printed_amd(
        problem.start().double().numpy(),
        lambda x, k: rounded_gradient(x, y, mask, scale, weight, 0.5 + 0.2 * (k + 1)),
        # a linear map: ∇ψ*(∇ψ(z) − v) = z − ∇ψ*(v), so z may stand for ∇ψ(z) if v is smoothed first
        lambda z: Pulled(z),
        lambda pulled: pulled.point - smoothed(pulled.pull, side),
        lambda x, v: x - smoothed(v, side),
        **chosen,
    )
    torch.testing.assert_close(solved.x.double(), torch.tensor(points[-1]), **CLOSE[dtype])


class Pulled:
    """A dual point ∇ψ(z) − v, as z and v."""

    def __init__(self, point, pull=0.0):
        self.point = point
        self.pull = pull

    def __sub__(self, v):
        return Pulled(self.point, self.pull + v)
