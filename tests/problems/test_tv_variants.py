"""Isotropic, coupled and Huber total variation, and weights per image, against references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from skimage.restoration import denoise_tv_chambolle
from torch.func import jacrev

import mirrordescent as md
from mirrordescent.methods.primal_dual import PDHG, DualFISTA
from mirrordescent.mirrors import Euclidean
from mirrordescent.oracles import Rounded, Smoothed
from mirrordescent.parts import build, describe
from mirrordescent.problems import Blur, gaussian_kernel
from mirrordescent.problems.differences import differences
from mirrordescent.problems.fingerprint import fingerprint
from mirrordescent.trees import tree_map

VARIANTS = {
    "anisotropic": {},
    "isotropic": {"isotropic": True},
    "coupled": {"coupled": True},
    "isotropic, coupled": {"isotropic": True, "coupled": True},
    "huber": {"huber": 0.4},
    "isotropic, huber": {"isotropic": True, "huber": 0.4},
    "coupled, huber": {"coupled": True, "huber": 0.4},
    "isotropic, coupled, huber": {"isotropic": True, "coupled": True, "huber": 0.4},
}
DATA = {
    "denoising": lambda y: {"mask": None},
    "inpainting": lambda y: {"mask": random(len(y), 1, *y.shape[2:], seed=8) > -0.6, "scale": 0.8},
    "deblurring": lambda y: {
        "mask": None,
        "scale": 0.8,
        "operator": Blur(gaussian_kernel(0.6)).double(),
    },
}
WEIGHTS = {
    "a weight": 0.7,
    "a weight each": torch.tensor([0.4, 0.7, 1.3], dtype=torch.float64),
}

variants = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
data = pytest.mark.parametrize("data", DATA.values(), ids=DATA)
weights = pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(variant, data, weight=0.7, shape=(3, 2, 4, 3)):
    y = random(*shape, seed=1) + 2
    return md.TVInpainting(y, weight=weight, **data(y), **variant)


def objective(problem, x, width=0.0, eps=0.0):
    """Return f with norms r replaced by √(r² + ε²), and smoothed over a width: (batch,)."""
    # repeated, so that there is a difference of 0 at the border
    bottom = x[..., -1:, :]
    right = x[..., -1:]
    d = torch.stack([torch.diff(x, dim=-2, append=bottom), torch.diff(x, dim=-1, append=right)], -1)
    axes = [1] * problem.coupled + [-1] * problem.isotropic
    squares = d.square().sum(axes) if axes else d.square()
    r = (squares + eps**2).clamp(min=1e-300).sqrt().flatten(1)
    width = torch.as_tensor(width, dtype=x.dtype).reshape(-1, 1).clamp(min=problem.huber)
    rounded = torch.where(r <= width, r.square() / (2 * width.clamp(min=1e-300)), r - width / 2)
    observed = x if problem.operator is None else problem.operator.A(x)
    residual = (
        observed - problem.y if problem.mask is None else problem.mask * (observed - problem.y)
    )
    return problem.scale * (residual.square().flatten(1).sum(1) + problem.weight * rounded.sum(1))


def slope(problem, x, width=0.0):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(objective(problem, x, width).sum(), x)[0]


def test_values_by_hand():
    x = torch.zeros(1, 2, 2, 3)
    # a corner of both channels, whose differences are −3 and −4, twice
    x[0, 0, 0, 0] = 3.0
    x[0, 1, 0, 0] = 4.0
    x[0, 0, 1, 2] = 5.0  # the opposite corner, reached from above and from the left, by two pixels
    expected = [2 * 3 + 2 * 4 + 2 * 5, (3 + 4) * 2**0.5 + 2 * 5, 2 * 5 + 2 * 5, 5 * 2**0.5 + 2 * 5]
    for variant, total in zip(list(VARIANTS.values())[:4], expected, strict=True):
        problem = md.TVDenoising(x, **variant)
        assert float(problem.total_variation(x)) == pytest.approx(total, rel=1e-6)
        assert float(problem.value(x)) == pytest.approx(0.15 / 2 * total, rel=1e-6)
        assert float(problem.total_variation(torch.full_like(x, 0.3))) == 0
    # Huber with η = 4: 3²/8, and 5 − 2 beyond.
    x = torch.tensor([[[[0.0, 3.0, 8.0]]]])
    assert float(md.TVDenoising(x, huber=4.0).total_variation(x)) == pytest.approx(9 / 8 + 3)


def test_a_weight_may_be_a_tensor_for_all():
    y = random(2, 1, 4, 3)
    x = random(2, 1, 4, 3, seed=2)
    number, tensor = (md.TVInpainting(y, None, weight) for weight in (0.5, torch.tensor(0.5)))
    assert torch.equal(number.value(x), tensor.value(x))
    assert torch.equal(*(md.solve(each, md.PDHG(0.5), iterations=5).x for each in (number, tensor)))


@variants
@data
@weights
def test_values_and_gradients(variant, data, weight):
    problem = make(variant, data, weight)
    x = random(3, 2, 4, 3)
    torch.testing.assert_close(problem.value(x), objective(problem, x))
    torch.testing.assert_close(problem.grad(x), slope(problem, x))
    each = torch.tensor([0.1, 0.7, 3.0], dtype=torch.float64)
    for width in (0.1, 2.0, torch.tensor(0.7, dtype=torch.float64), each):
        torch.testing.assert_close(problem.smoothed_grad(x, width), slope(problem, x, width))
        with torch.no_grad():
            torch.testing.assert_close(
                problem.smoothed_grad(x, width), slope_without_graph(problem, x, width)
            )


def slope_without_graph(problem, x, width):
    with torch.enable_grad():
        return slope(problem, x, width)


@variants
@data
def test_subgradients_of_flat_images_are_0_and_so_are_their_derivatives(variant, data):
    """Derivatives of unrolled steps are finite where neighbouring pixels are equal."""
    problem = make(variant, data)
    x = torch.full((3, 2, 4, 3), 1.5, dtype=torch.float64, requires_grad=True)
    alone = torch.autograd.grad(problem.scale * problem.fidelity(x).sum(), x, create_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(problem.value(x).sum(), x)[0], alone)
    torch.testing.assert_close(problem.grad(x), alone)
    bent = torch.autograd.grad(problem.grad(x).square().sum(), x)[0]
    rounded = torch.autograd.grad(
        problem.smoothed_grad(x, max(problem.huber, 0.3)).square().sum(), x
    )[0]
    flat = torch.autograd.grad(alone.square().sum(), x)[0]
    assert rounded.isfinite().all()
    torch.testing.assert_close(bent, rounded if problem.huber else flat)


@variants
@weights
def test_rounded_kinks_have_the_curvature_asked_for(variant, weight):
    """The Hessian is at most 2s·I + a·DᵀD, whatever λ is; in flat images it is that, where η is not
    wider.
    """
    problem = make(variant, DATA["denoising"], weight)
    n = math.prod(problem.sample_shape)
    oracle = Rounded(0.9)
    stacked = torch.autograd.functional.jacobian(
        lambda x: torch.cat([d.flatten() for d in differences(x).values()]), problem.y[:1]
    ).reshape(-1, n)
    bound = 2 * problem.scale * torch.eye(n, dtype=torch.float64) + 0.9 * stacked.T @ stacked
    for x in (torch.zeros_like(problem.y), random(*problem.y.shape)):
        full = torch.autograd.functional.jacobian(lambda p: oracle(problem, p, 0), x)
        for i in range(3):
            hessian = full[i, :, :, :, i].reshape(n, n)
            assert torch.linalg.eigvalsh(bound - hessian).min() >= -1e-12
            if not x.any() and not problem.huber:
                torch.testing.assert_close(hessian, bound)


@variants
@weights
@pytest.mark.parametrize("sigma", [0.0, 0.3, 2.0])
def test_prox_of_the_conjugate_by_moreau(variant, weight, sigma):
    """u − σ prox_{G/σ}(u/σ), group by group in a loop; at σ = 0 the projection onto |u_g| ≤ sλ."""
    problem = make(variant, DATA["inpainting"], weight)
    eta = problem.huber
    kinks = (problem.scale * torch.as_tensor(problem.weight)).expand(3)
    u = tree_map(lambda d: 0.6 * d, problem.K(random(3, 2, 4, 3, seed=4)))
    proxed = problem.prox_G_conjugate(u, torch.tensor(sigma) if sigma else sigma)
    groups = {}
    for name, block in u.items():
        for place in np.ndindex(*block.shape):
            sample, channel, i, j = place
            label = (
                sample,
                "" if problem.isotropic else name,
                -1 if problem.coupled else channel,
                i,
                j,
            )
            groups.setdefault(label, []).append((name, place))
    moved = 0
    for (sample, *_), members in groups.items():
        given = np.array([float(u[name][place]) for name, place in members])
        kink = float(kinks[sample])
        size = np.sqrt((given**2).sum())
        if sigma:
            v = given / sigma
            t = kink / sigma
            beyond = size / sigma > eta + t
            inner = v * (1 - t / (size / sigma)) if beyond else v * eta / (eta + t)
            expected = given - sigma * inner
        else:
            expected = given * min(1.0, kink / size)
        moved += size > kink
        np.testing.assert_allclose(
            [float(proxed[name][place]) for name, place in members], expected, rtol=1e-6
        )
    assert 0 < moved < len(groups)


def by_scipy(problem):
    """Minimise f with √(r² + ε²) for r by Newton's method, with smaller and smaller ε."""
    shape = problem.y.shape
    x = problem.y.flatten().numpy()

    def total(flat, eps):
        return objective(problem, flat.reshape(shape), eps=eps).sum()

    for eps in 10.0 ** -np.arange(1, 8):
        slope = jacrev(total, 0)
        jac, hess, value = (
            lambda flat, function=function, eps=eps: function(torch.from_numpy(flat), eps).numpy()
            for function in (slope, jacrev(slope, 0), total)
        )
        x = minimize(value, x, jac=jac, hess=hess, method="trust-exact", options={"gtol": 1e-9}).x
    return torch.from_numpy(x).reshape(shape)


@variants
@data
def test_certificates_enclose_the_optimum_of_a_general_solver(variant, data):
    """The smoothed minimum is at most sλε per group above the minimum."""
    problem = make(variant, data, WEIGHTS["a weight each"][:2], shape=(2, 2, 3, 3))
    found = objective(problem, by_scipy(problem))
    reference = md.certify(problem, 1e-7, cache=False)
    assert (
        reference.lower <= found * (1 + 1e-13)
    ).all()  # up to rounding: both are exact where f is smooth
    torch.testing.assert_close(reference.value, found, rtol=2e-6, atol=0)
    torch.testing.assert_close(reference.value, objective(problem, reference.x))
    assert (reference.relative_gap <= 1e-6).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_isotropic_denoising_is_that_of_scikit_image(channels):
    """Chambolle's ½‖x − y‖² + w·TV, w = λ/2, per channel, accurate to O(1/iterations)."""
    y = torch.rand(
        1, channels, 20, 17, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    problem = md.TVDenoising(y, weight=0.4, isotropic=True)
    theirs = denoise_tv_chambolle(
        y[0].numpy(), weight=0.2, eps=1e-12, max_num_iter=5000, channel_axis=0
    )
    reference = md.certify(problem, 1e-8, cache=False)
    torch.testing.assert_close(reference.x[0], torch.from_numpy(theirs), rtol=0, atol=2e-3)
    excess = problem.value(torch.from_numpy(theirs).unsqueeze(0)) - reference.lower
    assert 0 <= float(excess) <= 1e-4 * float(reference.value)
    assert (
        float((md.certify(md.TVDenoising(y, weight=0.4), cache=False).x - reference.x).abs().max())
        > 0.02
    )


@variants
@data
def test_no_dual_point_gives_more_than_the_optimum(variant, data):
    """Maximise the bound by gradient ascent from a random dual point."""
    problem = make(variant, data, WEIGHTS["a weight each"])
    optimum = md.certify(problem, 1e-9, cache=False).value
    u = tree_map(lambda block: 0.1 * block, problem.K(random(3, 2, 4, 3, seed=6)))
    if problem.operator is not None:
        u["data"] -= (
            0.1 * problem.y
        )  # in the direction of residuals, without which the best multiple is 0 times
    u = {name: block.requires_grad_() for name, block in u.items()}
    ascent = torch.optim.Adam(u.values(), lr=0.03)
    first = problem.lower_bound(u).detach()
    for _ in range(200):
        bound = problem.lower_bound(u)
        assert (bound <= optimum * (1 + 1e-9)).all()
        ascent.zero_grad()
        if (bound > 0.98 * optimum).all():
            break
        (-bound.sum()).backward()
        ascent.step()
    assert bound.sum() > first.sum() + 1
    assert (bound > 0.9 * optimum).all()


@variants
@pytest.mark.parametrize("oracle", [None, Smoothed(lambda k: 0.5 / k)], ids=["exact", "smoothed"])
def test_bounds_from_means(variant, oracle):
    problem = make(variant, DATA["inpainting"], WEIGHTS["a weight each"])
    reference = md.certify(problem, 1e-9, cache=False)
    method = md.Certified(md.AMD(Euclidean(), md.schedules.Reciprocal(0.2)))
    solution = md.solve(problem, method, iterations=1000, oracle=oracle)
    assert (solution.lower <= reference.value * (1 + 1e-12)).all()
    assert (solution.lower >= 0.97 * reference.value).all()


@pytest.mark.parametrize("method", [PDHG(0.25), DualFISTA()], ids=["PDHG", "DualFISTA"])
@variants
def test_primal_dual_methods_prove_their_answers(variant, method):
    problem = make(variant, DATA["denoising"], WEIGHTS["a weight each"])
    solution = md.solve(problem, method, iterations=5000, stop=md.gap(1e-6), check_every=50)
    assert solution.statuses == [md.Status.CONVERGED] * 3
    # f(x) − min f ≥ s‖x − x*‖², by strong convexity.
    distance = (solution.x - md.certify(problem, 1e-9, cache=False).x).square().flatten(1).sum(1)
    assert (problem.scale * distance <= solution.value - solution.lower + 1e-6).all()


@variants
def test_what_changes_nothing(variant):
    """All variants: transposition. Anisotropic: reflection. Coupled: rotations of colours."""
    problem = make(variant, DATA["inpainting"])
    x = random(3, 2, 4, 3)
    mask = problem.mask.bool()

    def moved(change):
        return md.TVInpainting(
            change(problem.y), change(mask), problem.weight, problem.scale, **variant
        )

    changes = [lambda image: image.mT]
    if not problem.isotropic:
        changes += [lambda image: image.flip(-1), lambda image: image.flip(-2)]
    for change in changes:
        other = moved(change)
        torch.testing.assert_close(other.value(change(x)), problem.value(x))
        torch.testing.assert_close(other.grad(change(x)), change(problem.grad(x)))
        one = md.certify(problem, 1e-7, cache=False)
        two = md.certify(other, 1e-7, cache=False)
        assert (one.lower <= two.value).all()
        assert (two.lower <= one.value).all()

    rotation = torch.linalg.qr(random(2, 2)).Q
    turned = torch.einsum("cd,bdij->bcij", rotation, x)
    same = torch.isclose(problem.total_variation(turned), problem.total_variation(x))
    assert same.all() if problem.coupled else not same.any()


@variants
@data
@weights
def test_units(variant, data, weight):
    """(y, λ, η) → (cy, cλ, cη) multiplies x by c, and f, its optimum and its bounds by c²."""
    problem = make(variant, data, weight)
    c = 255.0
    scaled = {**variant, "huber": c * problem.huber}
    settings = {"mask": problem.mask, "scale": problem.scale, "operator": problem.operator}
    other = md.TVInpainting(c * problem.y, weight=c * weight, **settings, **scaled)
    x = random(3, 2, 4, 3)
    u = tree_map(lambda d: 0.3 * d, problem.K(random(3, 2, 4, 3, seed=5)))
    torch.testing.assert_close(other.value(c * x), c**2 * problem.value(x))
    torch.testing.assert_close(other.grad(c * x), c * problem.grad(x))
    torch.testing.assert_close(
        other.smoothed_grad(c * x, c * 0.3), c * problem.smoothed_grad(x, 0.3)
    )
    torch.testing.assert_close(
        other.lower_bound(tree_map(lambda v: c * v, u)), c**2 * problem.lower_bound(u)
    )


def singles(problem):
    """Return the same problems one by one, each with a number as weight."""
    for i, weight in enumerate(problem.weight.tolist()):
        mask = problem.mask if problem.mask is None else problem.mask[i : i + 1]
        settings = {
            name: getattr(problem, name)
            for name in ("scale", "operator", "isotropic", "coupled", "huber")
        }
        yield i, md.TVInpainting(problem.y[i : i + 1], mask, weight, **settings)


@variants
@data
def test_a_weight_for_every_image_is_as_good_as_single_problems(variant, data):
    problem = make(variant, data, WEIGHTS["a weight each"])
    x = random(3, 2, 4, 3)
    u = tree_map(lambda d: 0.3 * d, problem.K(random(3, 2, 4, 3, seed=5)))

    def nesterov(p):
        return md.solve(p, md.Nesterov(0.05), oracle=Rounded(2.0), iterations=30)

    pdhg = PDHG(0.5)
    together = nesterov(problem).x, md.solve(problem, pdhg, iterations=30)
    for i, one in singles(problem):
        this = slice(i, i + 1)
        mine = {name: block[this] for name, block in u.items()}
        torch.testing.assert_close(problem.value(x)[this], one.value(x[this]))
        torch.testing.assert_close(problem.grad(x)[this], one.grad(x[this]))
        torch.testing.assert_close(
            problem.smoothed_grad(x, 0.3)[this], one.smoothed_grad(x[this], 0.3)
        )
        torch.testing.assert_close(problem.lower_bound(u)[this], one.lower_bound(mine))
        proxed = problem.prox_G_conjugate(u, 0.4)
        torch.testing.assert_close(
            {n: v[this] for n, v in proxed.items()}, one.prox_G_conjugate(mine, 0.4)
        )
        assert float(problem.kink[i]) == pytest.approx(one.kink)
        torch.testing.assert_close(together[0][this], nesterov(one).x)
        alone = md.solve(one, pdhg, iterations=30)
        torch.testing.assert_close(together[1].x[this], alone.x)
        torch.testing.assert_close(together[1].lower[this], alone.lower)
        if problem.operator is None:
            g = problem.grad(x)
            torch.testing.assert_close(
                problem.bound_from_means(g, x)[this], one.bound_from_means(g[this], x[this])
            )


@variants
@data
@weights
def test_smoothness(variant, data, weight):
    """No pair of points exceeds the constant, and a faint checkerboard comes close to it."""
    problem = make(variant, data, weight, shape=(3, 2, 16, 16))
    L = problem.smoothness()
    if not problem.huber:
        assert math.isinf(L)
        return
    grid = torch.arange(16)
    board = (1e-3 * (-1.0) ** (grid[:, None] + grid)).double().expand(3, 2, 16, 16)
    zero = torch.zeros_like(board)
    for a, b in [(zero, board), (zero, random(3, 2, 16, 16)), (random(3, 2, 16, 16, seed=3), zero)]:
        rise = (problem.grad(a) - problem.grad(b)).flatten(1).norm(dim=1)
        assert (rise <= L * (a - b).flatten(1).norm(dim=1) * (1 + 1e-12)).all()
    rise = (problem.grad(zero) - problem.grad(board)).flatten(1).norm(dim=1) / board.flatten(
        1
    ).norm(dim=1)
    assert rise.max() > 0.75 * L


@variants
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (4, 1)])
def test_images_of_one_row_column_or_pixel(variant, shape):
    for operator in (None, Blur(torch.ones(1, 1)).double()):
        y = random(2, 3, *shape)
        problem = md.TVInpainting(
            y, None, weight=torch.tensor([0.2, 2.0]).double(), operator=operator, **variant
        )
        reference = md.certify(problem, 1e-6, cache=False)
        assert (reference.lower <= reference.value + 1e-12).all()
        torch.testing.assert_close(
            reference.value, objective(problem, reference.x), rtol=1e-6, atol=1e-9
        )


def test_kernels_are_not_used_for_what_they_were_not_made_for(compiled):
    for weight in WEIGHTS.values():
        for variant in VARIANTS.values():
            problem = make(variant, DATA["inpainting"], weight)
            slow, fast = (
                md.solve(problem, PDHG(), iterations=20, fused=fused).x for fused in (False, None)
            )
            torch.testing.assert_close(slow, fast)


@weights
def test_stored_and_told_apart(weight):
    keys = set()
    for variant in VARIANTS.values():
        problem = make(variant, DATA["inpainting"], weight)
        x = random(3, 2, 4, 3)
        again = build(describe(problem), problem.state_dict())
        assert torch.equal(again.value(x), problem.value(x))
        assert torch.equal(problem.float().grad(x.float()), again.float().grad(x.float()))
        keys.add(fingerprint(problem, "test"))
    assert len(keys - {None}) == len(VARIANTS)


def test_the_weights_of_a_batch_are_checked():
    y = torch.rand(2, 3, 4, 4)
    ones = torch.ones(2)
    cases = [
        (
            torch.ones(3),
            ValueError,
            r"weight must be a number or a tensor of shape \(2,\), .* got shape \(3,\)",
        ),
        (torch.ones(2, 1), ValueError, r"weight must be a number or a tensor of shape"),
        (ones * float("nan"), ValueError, "weight has NaN or infinite entries"),
        (torch.tensor([0.1, -0.2]), ValueError, r"weight must be positive, got -0.2 for image 1"),
        (torch.tensor([0.0, 0.2]), ValueError, r"weight must be positive, got 0 for image 0"),
        (ones.double(), TypeError, "weight and y must share dtype"),
        (ones.int(), TypeError, "weight must be a floating-point tensor"),
        (torch.tensor(float("nan")), ValueError, "weight must be positive and finite, got nan"),
    ]
    for weight, error, message in cases:
        with pytest.raises(error, match=message):
            md.TVDenoising(y, weight)
    for huber in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="huber must be finite and not negative"):
            md.TVDenoising(y, huber=huber)
    assert isinstance(md.TVDenoising(y, torch.tensor(0.2)).kink, float)
