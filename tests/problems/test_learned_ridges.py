"""The learned regulariser: profiles, proven norms of filter banks, and problems with priors."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import mirrordescent as md
from mirrordescent.parts import build, describe
from mirrordescent.problems import (
    Anchor,
    Blur,
    Composite,
    LearnedRidges,
    RidgePrior,
    RidgeProfile,
    RidgeTable,
    SquaredError,
    gaussian_kernel,
    prior_denoising,
    prior_restoration,
)
from mirrordescent.problems.filter_banks import (
    absolute_norm,
    bank_bound,
    responses,
    responses_adjoint,
)
from mirrordescent.problems.prior_problems import ANCHOR

DOUBLE = torch.float64


def random_filters(generator, count=5, channels=2, rows=3, columns=5):
    filters = torch.randn(count, channels, rows, columns, generator=generator, dtype=DOUBLE)
    return filters - filters.mean((-2, -1), keepdim=True)


def random_profile(generator, count=5, pieces=4, batch=None, convex=False):
    shape = (count, pieces) if batch is None else (batch, count, pieces)
    positions = 0.05 * torch.rand(shape, generator=generator, dtype=DOUBLE).cumsum(-1) + 1e-3
    values = 0.02 * torch.rand(shape, generator=generator, dtype=DOUBLE)
    values = values if convex else values - 0.005
    return RidgeProfile(positions, values.cumsum(-1) if convex else values)


def random_prior(generator, channels=1, convex=True):
    """Return a prior whose denoising energy is strongly convex."""
    filters = random_filters(generator, 6, channels, 3, 3)
    filters = filters / math.sqrt(bank_bound(filters))
    levels = torch.tensor([0.01, 0.1], dtype=DOUBLE)
    nodes = torch.tensor([0.3, 0.7, 2.0], dtype=DOUBLE)
    scales = 0.3 * torch.randn(2, 6, generator=generator, dtype=DOUBLE)
    heights = 0.1 + 0.2 * torch.rand(2, 6, 3, generator=generator, dtype=DOUBLE)
    rising = heights.cumsum(-1)
    heights[..., -1] -= 0.25
    return RidgePrior(
        filters,
        RidgeTable(levels, scales, nodes, heights),
        RidgeTable(levels, scales, nodes, rising) if convex else None,
    )


def dense(filters, height, width, padding=0):
    """Return the matrix of the responses of a filter bank on images of a size."""
    size = filters.shape[1] * height * width
    unit_images = torch.eye(size, dtype=DOUBLE).reshape(size, filters.shape[1], height, width)
    return F.conv2d(unit_images, filters, padding=padding).flatten(1).mT


# Filter banks.


@pytest.mark.parametrize("seed", range(8))
def test_the_bound_of_a_bank_holds_for_the_dense_matrix_of_every_size(seed):
    generator = torch.Generator().manual_seed(seed)
    filters = random_filters(generator, 1 + seed % 4, 1 + seed % 3, 3, 3 + 2 * (seed % 2))
    weights = torch.rand(len(filters), generator=generator, dtype=DOUBLE)
    bound = bank_bound(filters)
    weighted = bank_bound(filters, weights)
    exact = 0.0
    for height, width in ((5, 5), (6, 9), (9, 9)):
        matrix = dense(filters, height, width)
        exact = float(torch.linalg.matrix_norm(matrix, 2)) ** 2
        assert exact <= bound
        rows = weights.repeat_interleave(matrix.shape[0] // len(weights)).sqrt()
        assert float(torch.linalg.matrix_norm(rows[:, None] * matrix, 2)) ** 2 <= weighted
        padded = dense(filters, height, width, (filters.shape[-2] // 2, filters.shape[-1] // 2))
        assert float(torch.linalg.matrix_norm(padded, 2)) ** 2 <= bound
    assert bound < 3 * exact  # not vacuous, although the images are small


@pytest.mark.parametrize("frequency", [0.0, 0.123, 1.0, 2.0, 2.9, math.pi])
def test_the_bound_holds_for_filters_whose_symbol_peaks_between_samples(frequency):
    """A narrow peak at any frequency, and few samples: the sampling error matters."""
    at = torch.arange(9, dtype=DOUBLE)
    wave = torch.polar(torch.ones(9, dtype=DOUBLE), frequency * at)
    filters = torch.stack([torch.outer(wave, wave).real, torch.outer(wave, wave).imag])[:, None]
    spectrum = torch.fft.fft2(filters[:, 0], s=(1000, 1000))
    largest = float(spectrum.abs().square().sum(0).max())
    for samples in (18, 20, 32):
        assert largest <= bank_bound(filters, samples=samples) * (1 + 1e-12)
    assert largest <= bank_bound(filters, samples=500) <= 1.01 * largest


def test_the_samples_alone_would_not_be_a_bound():
    """Without the sampling error, the test above would fail: the largest sample is too small."""
    at = torch.arange(9, dtype=DOUBLE)
    frequency = math.pi / 18  # half-way between two of 18 samples
    wave = torch.polar(torch.ones(9, dtype=DOUBLE), frequency * at)
    filters = torch.stack([wave.real, wave.imag])[:, None, None]
    spectrum = torch.fft.fft(filters[:, 0, 0], n=18)
    largest_sample = float(spectrum.abs().square().sum(0).max())
    assert largest_sample < 80 < bank_bound(filters, samples=18)


def test_weights_and_samples_of_a_bound_are_checked():
    filters = torch.ones(1, 1, 3, 3)
    with pytest.raises(ValueError, match="weights must be at least 0"):
        bank_bound(filters, torch.tensor([-1.0]))
    with pytest.raises(ValueError, match="samples must exceed 4"):
        bank_bound(filters, samples=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_responses_and_their_adjoint_are_those_of_a_convolution(dtype):
    generator = torch.Generator().manual_seed(0)
    filters = random_filters(generator).to(dtype)
    x = torch.randn(2, 2, 8, 9, generator=generator).to(dtype)
    u = responses(x, filters)
    torch.testing.assert_close(u, F.conv2d(x, filters))
    v = torch.randn(u.shape, generator=generator).to(dtype)
    torch.testing.assert_close(responses_adjoint(v, filters), F.conv_transpose2d(v, filters))
    assert float(torch.linalg.matrix_norm(dense(filters.abs().double(), 9, 9), 2)) <= absolute_norm(
        filters
    )


# Profiles.


def test_a_profile_is_the_integral_of_its_derivative_and_has_its_curvature():
    generator = torch.Generator().manual_seed(1)
    profile = random_profile(generator, batch=2)
    u = (0.4 * torch.rand(2, 5, 50, 1, generator=generator, dtype=DOUBLE) - 0.2).requires_grad_()
    (slope,) = torch.autograd.grad(profile.value(u).sum(), u, create_graph=True)
    torch.testing.assert_close(slope, profile.derivative(u))
    torch.testing.assert_close(profile.derivative(-u), -profile.derivative(u))
    (curvature,) = torch.autograd.grad(profile.derivative(u).sum(), u)
    torch.testing.assert_close(curvature, profile.curvature(u.detach()))
    rising = random_profile(generator, batch=2, convex=True)
    assert rising.nonnegative
    assert bool((rising.value(u) >= 0).all())
    assert not profile.nonnegative


def test_a_profile_takes_its_values_at_its_positions():
    profile = random_profile(torch.Generator().manual_seed(2))
    at = profile.positions.T.reshape(4, 5, 1, 1)
    expected = profile.values.T.reshape(4, 5, 1, 1)
    torch.testing.assert_close(profile.derivative(at), expected)
    torch.testing.assert_close(profile.derivative(at + 10)[-1], expected[-1])


@pytest.mark.parametrize("convex", [True, False])
def test_the_prox_solves_its_optimality_condition(convex):
    generator = torch.Generator().manual_seed(3)
    profile = random_profile(generator, batch=2, convex=convex)
    u = torch.rand(2, 5, 40, 1, generator=generator, dtype=DOUBLE) - 0.5
    tau = torch.tensor([0.3, 0.9], dtype=DOUBLE)
    weak = float(profile.constants().weak.max())
    tau = tau / max(weak, 1e-3)
    s = profile.prox(u, tau)
    step = tau.reshape(2, 1, 1, 1)
    torch.testing.assert_close(s + step * profile.derivative(s), u)


def test_the_prox_of_a_step_that_is_too_long_is_an_error():
    profile = random_profile(torch.Generator().manual_seed(3))
    with pytest.raises(ValueError, match="τρ < 1"):
        profile.prox(
            torch.zeros(1, 5, 1, 1, dtype=DOUBLE), 1.01 / float(profile.constants().weak.max())
        )


def test_the_conjugate_is_the_supremum():
    """φ*(u) = max_t ut − φ(t), by brute force over a grid of t."""
    generator = torch.Generator().manual_seed(4)
    profile = random_profile(generator, convex=True)
    share = torch.rand(1, 5, 7, 1, generator=generator, dtype=DOUBLE) * 2 - 1
    u = share * profile.values[:, -1].reshape(1, 5, 1, 1)
    t = torch.linspace(-0.5, 0.5, 20001, dtype=DOUBLE)
    grid = t.reshape(1, 1, 1, -1).expand(1, 5, 7, -1)
    supremum = (u * grid - profile.value(grid)).amax(-1, keepdim=True)
    torch.testing.assert_close(profile.conjugate(u), supremum, rtol=1e-4, atol=1e-7)
    with pytest.raises(ValueError, match="convex profiles only"):
        random_profile(generator).conjugate(u)


def test_constants_bound_the_slopes():
    profile = random_profile(torch.Generator().manual_seed(5))
    constants = profile.constants()
    slopes = profile.slopes()
    assert bool((-constants.weak <= slopes.amin(-1)).all())
    assert bool((slopes.amax(-1) <= constants.steep).all())
    assert bool((constants.weak <= (-slopes.amin(-1)).clamp(min=0) + 1e-9).all())
    assert not profile.convex
    rising = random_profile(torch.Generator().manual_seed(5), convex=True)
    assert rising.convex
    assert not bool(rising.constants().weak.any())


@pytest.mark.parametrize(
    ("positions", "values", "message"),
    [
        ([[1.0, 1.0]], [[0.0, 0.0]], "strictly increasing"),
        ([[0.0, 1.0]], [[0.0, 0.0]], "positive"),
        ([[1.0, 2.0]], [[0.0, math.nan]], "finite"),
        ([[1.0, 2.0]], [[0.0]], "same shape"),
    ],
)
def test_wrong_profiles_are_refused(positions, values, message):
    with pytest.raises(ValueError, match=message):
        RidgeProfile(torch.tensor(positions), torch.tensor(values))


# The term and its problems.


def test_the_term_is_the_sum_of_profiles_of_responses():
    generator = torch.Generator().manual_seed(6)
    filters = random_filters(generator)
    profile = random_profile(generator)
    x = torch.rand(2, 2, 7, 8, generator=generator, dtype=DOUBLE)
    expected = torch.zeros(2, dtype=DOUBLE)
    for k, i, j in itertools.product(range(5), range(5), range(4)):
        patch = x[:, :, i : i + 3, j : j + 5]
        u = (patch * filters[k]).sum((1, 2, 3))
        each = RidgeProfile(profile.positions[k : k + 1], profile.values[k : k + 1])
        expected += 2 * each.value(u.reshape(2, 1, 1, 1)).flatten()
    torch.testing.assert_close(LearnedRidges(filters, profile, 2.0).value(x), expected)


def test_the_hessian_product_is_the_derivative_of_the_gradient():
    generator = torch.Generator().manual_seed(7)
    term = LearnedRidges(random_filters(generator), random_profile(generator), 0.7)
    x = torch.rand(1, 2, 7, 8, generator=generator, dtype=DOUBLE, requires_grad=True)
    direction = torch.randn(x.shape, generator=generator, dtype=DOUBLE)
    gradient = term.add_gradient(torch.zeros_like(x), x, 0.0)
    (expected,) = torch.autograd.grad((gradient * direction).sum(), x)
    torch.testing.assert_close(term.hessian_product(x.detach(), direction), expected)


@pytest.mark.parametrize("seed", range(6))
def test_moduli_bound_the_spectrum_of_the_hessian(seed):
    generator = torch.Generator().manual_seed(seed)
    filters = random_filters(generator, channels=1, columns=3)
    term = LearnedRidges(filters, random_profile(generator), 0.5)
    x = 0.1 * torch.rand(1, 1, 7, 7, generator=generator, dtype=DOUBLE)
    units = torch.eye(49, dtype=DOUBLE).reshape(49, 1, 7, 7)
    hessian = term.hessian_product(x.expand(49, -1, -1, -1), units).flatten(1)
    eigenvalues = torch.linalg.eigvalsh(hessian)
    assert term.convexity <= float(eigenvalues[0])
    assert float(eigenvalues[-1]) <= term.curvature


def test_a_filter_that_sees_constants_is_refused():
    profile = RidgeProfile(torch.ones(1, 1), torch.ones(1, 1))
    with pytest.raises(ValueError, match="mean 0"):
        LearnedRidges(torch.ones(1, 1, 3, 3), profile)
    with pytest.raises(ValueError, match="odd sides"):
        LearnedRidges(torch.zeros(1, 1, 2, 3), profile)
    with pytest.raises(ValueError, match="one row for each"):
        LearnedRidges(torch.zeros(2, 1, 3, 3), profile)


def test_images_must_fit_the_filters():
    prior = random_prior(torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="at least 3 × 3"):
        prior_denoising(torch.zeros(1, 1, 2, 8, dtype=DOUBLE), 0.1, prior)
    with pytest.raises(ValueError, match="learned for 1"):
        prior_denoising(torch.zeros(1, 3, 8, 8, dtype=DOUBLE), 0.1, prior)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bound_of_denoising_is_below_the_minimum_and_tight(dtype):
    generator = torch.Generator().manual_seed(8)
    prior = random_prior(generator)
    y = torch.rand(3, 1, 12, 14, generator=generator, dtype=DOUBLE)
    sigma = torch.tensor([0.02, 0.05, 0.3], dtype=DOUBLE)
    problem = prior_denoising(y.to(dtype), sigma, prior.to(dtype))
    assert problem.convex
    assert 0 < problem.strong_convexity() < 1
    assert problem.saddle_point() is None
    assert problem.never_below is None
    precise = prior_denoising(y.to(dtype).double(), sigma.to(dtype).double(), prior.double())
    minimum = md.solve(precise, md.methods.LBFGS(), iterations=300).best_value
    start = y.to(dtype)
    assert bool((problem.bound_at(start) <= minimum).all())
    x = md.solve(problem, md.methods.LBFGS(), iterations=60).x
    bound = problem.bound_at(x)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-9
    assert bool((bound <= minimum).all())
    assert bool((minimum - bound <= tolerance * problem.value(start)).all())


def test_denoising_is_certified_and_verified():
    generator = torch.Generator().manual_seed(9)
    problem = prior_denoising(
        torch.rand(2, 1, 10, 10, generator=generator, dtype=DOUBLE), 0.1, random_prior(generator)
    )
    certificate = md.certify(problem, tolerance=1e-8)
    assert certificate.proven
    assert not certificate.conditional_on
    assert certificate.verify(problem).confirmed
    raised = replace(certificate, lower=certificate.value + 1e-6)
    assert not raised.verify(problem).confirmed


def test_a_problem_that_may_not_be_convex_claims_nothing():
    generator = torch.Generator().manual_seed(10)
    prior = random_prior(generator)
    y = torch.rand(1, 1, 9, 9, generator=generator, dtype=DOUBLE)
    mask = torch.ones_like(y)
    mask[..., 4] = 0
    masked = Composite(SquaredError(y, mask=mask), [prior.term(0.1)])
    heavy = Composite(SquaredError(y), [prior.term(0.1, weight=100.0)])
    for problem in (masked, heavy):
        assert problem.convex is None
        assert problem.strong_convexity() == 0
        assert problem.bound_at(y) is None
        assert problem.saddle_point() is None


def test_convex_terms_and_primal_dual_methods_agree_with_gradients():
    generator = torch.Generator().manual_seed(11)
    prior = random_prior(generator)
    y = torch.rand(2, 1, 9, 9, generator=generator, dtype=DOUBLE)
    problem = Composite(SquaredError(y), [prior.term(0.1, convex=True)])
    assert problem.saddle_point() is problem
    expected = md.solve(problem, md.methods.LBFGS(), iterations=200).best_value
    dual = md.solve(problem, md.methods.DualFISTA(), iterations=2000, stop=md.gap(1e-7))
    torch.testing.assert_close(dual.value, expected, rtol=1e-6, atol=0.0)
    assert bool((dual.lower <= expected).all())
    assert bool((expected - dual.lower < 1e-5 * expected).all())


def test_inpainting_and_deblurring_are_proven_with_an_anchor():
    generator = torch.Generator().manual_seed(12)
    prior = random_prior(generator)
    y = torch.rand(1, 1, 12, 12, generator=generator, dtype=DOUBLE)
    mask = torch.rand(1, 1, 12, 12, generator=generator) > 0.3
    inpainting = prior_restoration(y, 0.05, prior, mask=mask)
    deblurring = prior_restoration(y, 0.05, prior, operator=Blur(gaussian_kernel(1.0).double()))
    for problem in (inpainting, deblurring):
        assert problem.convex
        assert problem.strong_convexity() == pytest.approx(ANCHOR)
        x = md.solve(problem, md.methods.LBFGS(), iterations=300).x
        gradient = problem.grad(x)
        gap = problem.value(x) - problem.bound_at(x)
        assert bool((gap >= gradient.square().sum((1, 2, 3)) / (2 * ANCHOR)).all())
        assert bool((gap < 1e-6).all())
    anchor = inpainting.parts[1]
    assert isinstance(anchor, Anchor)
    known = mask.expand_as(y)
    torch.testing.assert_close(anchor.centre[known], y[known])
    assert len(prior_restoration(y, 0.05, prior, mask=mask, anchor=0).parts) == 1


def test_an_anchor_has_the_conjugate_of_a_shifted_square():
    generator = torch.Generator().manual_seed(13)
    centre = torch.randn(2, 6, generator=generator, dtype=DOUBLE)
    term = Anchor(torch.tensor([0.5, 2.0], dtype=DOUBLE), centre)
    x = torch.randn(2, 6, generator=generator, dtype=DOUBLE)
    u = {"entries": term.add_gradient(torch.zeros_like(x), x, 0.0)}
    # Equality of Fenchel and Young at u = ∇g(x).
    total = term.value(x) + term.conjugate(u)
    torch.testing.assert_close(total, (x * u["entries"]).sum(-1))
    sigma = 0.7
    proxed = term.prox_conjugate(u, sigma)["entries"]
    weight = torch.tensor([[0.5], [2.0]], dtype=DOUBLE)
    torch.testing.assert_close((u["entries"] - proxed) / sigma, centre + proxed / weight)
    with pytest.raises(ValueError, match="broadcast"):
        Composite(SquaredError(x), [Anchor(1.0, torch.zeros(3, 7, dtype=DOUBLE))])


# Priors.


def test_a_table_interpolates_in_the_logarithm_of_the_noise():
    prior = random_prior(torch.Generator().manual_seed(14))
    table = prior.weak
    for index in range(2):
        profile = table.at(float(table.levels[index]))
        unit = table.levels[index] * table.scales[index].exp()
        torch.testing.assert_close(profile.positions, unit[:, None] * table.nodes)
        torch.testing.assert_close(profile.values, unit[:, None] * table.heights[index])
    middle = table.at(math.sqrt(0.01 * 0.1)).slopes()
    ends = (table.at(0.01).slopes() + table.at(0.1).slopes()) / 2
    torch.testing.assert_close(middle, ends)
    both = table.at(torch.tensor([0.03, 0.07], dtype=DOUBLE))
    torch.testing.assert_close(both.values[1], table.at(0.07).values)
    with pytest.raises(ValueError, match="at least 0"):
        table.at(-0.1)


def test_the_prior_vanishes_without_noise():
    generator = torch.Generator().manual_seed(15)
    prior = random_prior(generator)
    y = torch.rand(1, 1, 9, 9, generator=generator, dtype=DOUBLE)
    x = md.solve(prior_denoising(y, 0.0, prior), md.methods.LBFGS(), iterations=50).x
    assert float((x - y).abs().max()) < 1e-5


def test_a_prior_without_convex_profiles_says_so():
    prior = random_prior(torch.Generator().manual_seed(16), convex=False)
    with pytest.raises(ValueError, match="no convex profiles"):
        prior.term(0.1, convex=True)


def test_a_prior_can_be_stored(tmp_path):
    generator = torch.Generator().manual_seed(17)
    prior = random_prior(generator)
    rebuilt = build(describe(prior), prior.state_dict())
    x = torch.rand(1, 1, 9, 9, generator=generator, dtype=DOUBLE)
    expected = prior.term(0.05, convex=True).value(x)
    torch.testing.assert_close(rebuilt.term(0.05, convex=True).value(x), expected)
    path = md.zoo.save(prior, tmp_path / "prior")
    loaded = md.zoo.load(path)
    assert isinstance(loaded, RidgePrior)
    assert md.zoo.card(path).kind == "prior"
    torch.testing.assert_close(loaded.term(0.05).value(x), prior.term(0.05).value(x))


def test_a_table_interpolates_in_every_interval_of_its_levels():
    levels = torch.tensor([0.01, 0.02, 0.08, 0.2], dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    scales = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    heights = torch.rand(4, 2, 3, generator=generator, dtype=torch.float64)
    nodes = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    table = RidgeTable(levels, scales, nodes, heights)
    for left in range(3):
        sigma = float((levels[left] * levels[left + 1]).sqrt())  # the middle of the logarithms
        found = table.at(sigma)
        unit = sigma * ((scales[left] + scales[left + 1]) / 2).exp()
        middle = (heights[left] + heights[left + 1]) / 2
        torch.testing.assert_close(found.positions, unit[:, None] * nodes)
        torch.testing.assert_close(found.values, unit[:, None] * middle)


@pytest.mark.parametrize("sides", [(3, 4), (4, 3)])
def test_filters_with_an_even_side_are_refused(sides):
    filters = torch.zeros(1, 1, *sides)
    profile = RidgeProfile(torch.ones(1, 1), torch.ones(1, 1))
    with pytest.raises(ValueError, match="odd sides"):
        LearnedRidges(filters, profile)
