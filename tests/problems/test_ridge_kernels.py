"""The kernel of the learned regulariser against torch, and where it is used."""

import math

import pytest
import torch
import torch.nn.functional as F

import mirrordescent as md
from mirrordescent import kernels
from mirrordescent.problems import LearnedRidges, RidgeProfile, ridge_evaluations

pytestmark = pytest.mark.usefixtures("compiled", "every_level")

DTYPES = [torch.float32, torch.float64]
SHAPES = {
    # batch, channels, height, width, filters, rows, columns, pieces
    "colour": (2, 3, 23, 41, 64, 7, 7, 9),
    "grey": (2, 1, 30, 19, 48, 7, 7, 9),
    "one response": (3, 2, 5, 3, 4, 5, 3, 4),
    "one pixel": (1, 1, 1, 1, 3, 1, 1, 2),
    "one row": (2, 1, 1, 50, 9, 1, 5, 9),
    "one column": (2, 1, 50, 1, 9, 5, 1, 9),
    "two tiles": (1, 2, 9, 200, 11, 3, 5, 1),
    "many tiles": (1, 1, 6, 1001, 5, 5, 7, 9),
    "tall filters": (1, 1, 40, 20, 6, 19, 3, 3),
    "filters as wide as a tile": (1, 1, 4, 500, 2, 3, 205, 3),
    "many channels": (1, 10, 12, 33, 13, 3, 3, 12),
    "a border without responses": (1, 1, 9, 198, 3, 3, 9, 9),
}


def random_term(shape, dtype, per_sample=False, seed=0):
    """Return a term whose filters have mean 0, and images."""
    batch, channels, height, width, count, rows, columns, pieces = shape
    generator = torch.Generator().manual_seed(seed)
    filters = torch.randn(count, channels, rows, columns, generator=generator, dtype=dtype)
    filters = filters - filters.mean((-2, -1), keepdim=True)
    size = (batch, count, pieces) if per_sample else (count, pieces)
    steps = torch.rand(size, generator=generator, dtype=dtype) + 0.05
    values = torch.randn(size, generator=generator, dtype=dtype)
    scale = 3 * math.sqrt(channels * rows * columns) / pieces
    weight = torch.rand(batch, generator=generator, dtype=dtype) + 0.1
    term = LearnedRidges(filters, RidgeProfile(scale * steps.cumsum(-1), values), weight)
    return term, torch.randn(batch, channels, height, width, generator=generator, dtype=dtype)


def plain_value(term, x):
    u = F.conv2d(x, term.filters)
    return term.scaled_weight * term.profile.value(u).sum((1, 2, 3))


def plain_gradient(term, out, x):
    slope = term.profile.derivative(F.conv2d(x, term.filters))
    return out + term.weight.reshape(-1, 1, 1, 1) * F.conv_transpose2d(slope, term.filters)


def close(found, expected):
    """Compare relative to the largest entry. The sums over pieces cancel, which costs digits."""
    tolerance = 1e3 * torch.finfo(found.dtype).eps * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.fixture(autouse=True)
def forget():
    """Forget evaluations of other tests."""
    ridge_evaluations.forget()


@pytest.fixture
def calls(monkeypatch):
    """Names of the functions of kernels that were called."""
    names = []

    def watch(name):
        original = getattr(kernels, name)

        def call(*arguments):
            names.append(name)
            return original(*arguments)

        monkeypatch.setattr(kernels, name, call)

    watch("ridge_gradient")
    watch("ridge_sums")
    watch("ridge_sums_and_gradient")
    return names


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_value_and_gradient_are_those_of_torch(shape, per_sample, dtype, calls):
    term, x = random_term(shape, dtype, per_sample)
    out = torch.randn(x.shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
    before = out.clone()
    close(term.add_gradient(out, x, 0.0), plain_gradient(term, out, x))
    assert torch.equal(out, before)
    close(term.value(x), plain_value(term, x))
    separate = ["ridge_gradient"] if dtype == torch.float32 else []
    assert calls == [*separate, "ridge_sums_and_gradient"]
    ridge_evaluations.forget()
    close(term.value(x), plain_value(term, x))
    close(term.add_gradient(out, x, 0.0), plain_gradient(term, out, x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_images_that_are_not_contiguous(dtype):
    term, x = random_term(SHAPES["colour"], dtype)
    expected = term.add_gradient(x, x, 0.0)
    last = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(term.add_gradient(last, last, 0.0), expected)
    assert torch.equal(term.value(last), term.value(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_results_do_not_depend_on_the_number_of_threads(batch, dtype):
    """Also bit for bit: bands of rows do not change the order of a sum."""
    term, x = random_term((batch, 3, 75, 61, 21, 7, 7, 9), dtype, per_sample=True)
    before = torch.get_num_threads()
    gradients = []
    values = []
    try:
        for count in (1, 2, 3, 5):
            torch.set_num_threads(count)
            ridge_evaluations.forget()
            gradients.append(term.add_gradient(x, x, 0.0))
            values.append(term.value(x))
    finally:
        torch.set_num_threads(before)
    for gradient, value in zip(gradients, values, strict=True):
        assert torch.equal(gradient, gradients[0])
        assert torch.equal(value, values[0])


def test_the_sum_of_sizes_is_that_of_torch():
    term, x = random_term(SHAPES["colour"], torch.float64, per_sample=True)
    values, sizes = kernels.ridge_sums(
        x, term.filters, term.profile.positions, term.profile.coefficients()
    )
    terms = term.profile.value(F.conv2d(x, term.filters))
    torch.testing.assert_close(values, terms.sum((1, 2, 3)))
    torch.testing.assert_close(sizes, terms.abs().sum((1, 2, 3)))
    assert bool((sizes > 1.01 * values.abs()).all())


@pytest.mark.parametrize("shape", ["colour", "two tiles", "tall filters"])
def test_errors_are_within_the_bounds_on_rounding(shape):
    """The same numbers in double precision are exact in comparison."""
    term, x = random_term(SHAPES[shape], torch.float32, per_sample=True, seed=2)
    zeros = torch.zeros_like(x)
    value = term.value(x)
    gradient = term.add_gradient(zeros, x, 0.0)
    value_bound = term.value_error(x, value)
    gradient_bound = term.gradient_error(x)
    term.double()
    exact = plain_value(term, x.double())
    assert bool(((value.double() - exact).abs() <= value_bound).all())
    difference = gradient.double() - plain_gradient(term, zeros.double(), x.double())
    assert bool((difference.flatten(1).norm(dim=1) <= gradient_bound).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_pixel_that_is_not_finite_spoils_what_depends_on_it_and_nothing_else(bad):
    term, x = random_term((1, 2, 40, 230, 9, 5, 3, 9), torch.float32)
    x[0, 1, 20, 190] = bad
    gradient = term.add_gradient(torch.zeros_like(x), x, 0.0)
    expected = plain_gradient(term, torch.zeros_like(x), x)
    assert torch.equal(gradient.isfinite(), expected.isfinite())
    assert not bool(term.value(x).isfinite())
    far = torch.ones_like(x, dtype=torch.bool)
    far[..., 16:25, 188:193] = False
    assert bool(gradient[far].isfinite().all())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_derivatives_and_transforms_use_torch(calls):
    term, x = random_term(SHAPES["colour"], torch.float64)
    leaf = x.clone().requires_grad_()
    (by_autograd,) = torch.autograd.grad(term.value(leaf).sum(), leaf)
    _, pull_back = torch.func.vjp(term.value, x)
    (gradient,) = pull_back(torch.ones(len(x), dtype=x.dtype))
    _, slope = torch.func.jvp(term.value, (x,), (torch.ones_like(x),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        tangent = torch.autograd.forward_ad.unpack_dual(term.value(dual)).tangent
    batched = torch.func.vmap(lambda out: term.add_gradient(out, x, 0.0))(
        torch.zeros(2, *x.shape).to(x)
    )
    assert not calls
    by_kernel = term.add_gradient(torch.zeros_like(x), x, 0.0)
    assert calls == ["ridge_sums_and_gradient"]
    torch.testing.assert_close(by_autograd, by_kernel)
    torch.testing.assert_close(gradient, by_kernel)
    torch.testing.assert_close(slope, by_kernel.sum((1, 2, 3)))
    torch.testing.assert_close(tangent, (by_kernel * x).sum((1, 2, 3)))
    torch.testing.assert_close(batched[1], by_kernel)
    with torch.no_grad():
        ridge_evaluations.forget()
        torch.testing.assert_close(term.value(leaf), plain_value(term, x))
    assert calls == ["ridge_sums_and_gradient", "ridge_sums_and_gradient"]


@pytest.mark.parametrize("name", ["filters", "positions", "values", "weight"])
def test_derivatives_with_respect_to_parameters_use_torch(name, calls):
    term, x = random_term(SHAPES["grey"], torch.float64)
    owner = term if name in ("filters", "weight") else term.profile
    parameter = getattr(owner, name).requires_grad_()
    (derivative,) = torch.autograd.grad(term.value(x).sum(), parameter)
    assert not calls
    assert float(derivative.abs().max()) > 0


def test_subclasses_and_disabled_kernels_use_torch(calls):
    class Other(LearnedRidges):
        pass

    class OtherProfile(RidgeProfile):
        def value(self, u):
            return 2 * super().value(u)

    term, x = random_term(SHAPES["grey"], torch.float32)
    profile = term.profile
    other = Other(term.filters, profile, term.weight)
    doubled = LearnedRidges(
        term.filters, OtherProfile(profile.positions, profile.values), term.weight
    )
    expected = plain_value(term, x)
    torch.testing.assert_close(other.value(x), expected)
    torch.testing.assert_close(doubled.value(x), 2 * expected)
    with kernels.disabled():
        torch.testing.assert_close(term.value(x), expected)
    assert not calls


def test_arguments_of_the_kernel_are_checked():
    term, x = random_term(SHAPES["colour"], torch.float32)
    bank = (term.filters, term.profile.positions, term.profile.coefficients())
    for wrong, base in (
        (x[:, :2], x[:, :2]),
        (x[..., :6, :], x[..., :6, :]),
        (x.double(), x.double()),
        (x, x[:1]),
    ):
        with pytest.raises(ValueError, match="on the CPU with one dtype"):
            kernels.ridge_gradient(wrong, *bank, base)
    with pytest.raises(ValueError, match="3 weights"):
        kernels.ridge_gradient(x, *bank, x, torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_and_gradient_come_from_one_pass(dtype, monkeypatch):
    prior = md.zoo.load("photo-prior").to(dtype)
    term = prior.term(0.05)
    x = torch.rand(2, 3, 20, 24, dtype=dtype, generator=torch.Generator().manual_seed(0))
    calls = []
    once = kernels.ridge_sums_and_gradient
    monkeypatch.setattr(
        kernels, "ridge_sums_and_gradient", lambda *given: calls.append(1) or once(*given)
    )
    value = term.value(x)
    gradient = term.add_gradient(torch.zeros_like(x), x, 0.0)
    term.value_error(x, value)
    assert len(calls) == 1
    alone = kernels.ridge_gradient(x, *term._bank(), torch.zeros_like(x))
    assert torch.equal(gradient, alone)
    with kernels.disabled():
        torch.testing.assert_close(value, term.value(x))
        expected = term.add_gradient(torch.zeros_like(x), x, 0.0)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


def test_a_point_that_is_changed_in_place_is_evaluated_again():
    term = md.zoo.load("photo-prior").term(0.05)
    x = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    first = term.value(x)
    x *= 0.5
    with kernels.disabled():
        expected = term.value(x)
    torch.testing.assert_close(term.value(x), expected)
    assert not torch.allclose(first, expected)
    stronger = md.zoo.load("photo-prior").term(0.1)
    with kernels.disabled():
        expected = stronger.value(x)
    torch.testing.assert_close(stronger.value(x), expected)


def test_evaluations_that_are_kept_have_a_limited_size(monkeypatch):
    monkeypatch.setattr(ridge_evaluations, "REMEMBERED", 2000)
    term = md.zoo.load("photo-prior-grey").term(0.05)
    for seed in range(4):
        x = torch.rand(1, 1, 24, 24, generator=torch.Generator().manual_seed(seed))
        term.value(x)
    kept = [each.inputs[0].numel() for each in ridge_evaluations._recent]
    assert sum(kept) <= 2000
    assert ridge_evaluations.recall(x, term._bank()) is not None
