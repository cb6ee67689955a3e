"""Learning of priors: implicit derivatives, the lower level, and runs that are interrupted."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import mirrordescent as md
from mirrordescent.problems import RidgePrior, RidgeProfile, prior_denoising
from mirrordescent.problems.filter_banks import bank_bound
from mirrordescent.problems.prior_problems import ANCHOR
from mirrordescent.recipes.degraded_patches import (
    blurred_patches,
    denoising_patches,
    holey_patches,
)
from mirrordescent.recipes.ridge_priors import (
    PatchBatch,
    PriorLearning,
    PriorParameters,
    PriorSettings,
    backpropagate,
    cosine_filters,
    denoise,
    learn_from,
    psnr,
    restore_patches,
    solve_hessian,
)

TINY = PriorSettings(
    channels=1,
    minutes=0.004,
    size=3,
    patches=PatchBatch(2, 24),
    iterations=4,
    solves=3,
    checks=1,
)


def smooth_pictures(count, side=40, channels=3):
    """Return pictures with smooth shades and an edge."""
    generator = torch.Generator().manual_seed(0)
    pictures = []
    for _ in range(count):
        waves = torch.rand(channels, 1, 1, generator=generator)
        row = torch.linspace(0, 1, side).reshape(1, -1, 1)
        column = torch.linspace(0, 1, side).reshape(1, 1, -1)
        shade = 0.5 + 0.3 * torch.sin(3 * waves * row + 2 * column)
        pictures.append((shade + 0.2 * (row > column)).clamp(0, 1))
    return pictures


@pytest.mark.parametrize("size", [3, 5, 7])
def test_grey_filters_begin_with_a_tight_frame(size):
    """Σₖ|ŵₖ|² = 1 − |û|² with the mean filter u, so the norm is 1 and nothing is lost above it."""
    filters = cosine_filters(1, size)
    assert len(filters) == size**2 - 1
    spectrum = torch.fft.fft2(filters[:, 0].double(), s=(64, 64)).abs().square().sum(0)
    mean = torch.full((size, size), 1 / size**2, dtype=torch.float64)
    expected = 1 - torch.fft.fft2(mean, s=(64, 64)).abs().square()
    torch.testing.assert_close(spectrum, expected, rtol=0, atol=1e-6)


def test_colour_filters_have_mean_zero_and_norm_one():
    filters = cosine_filters(3, 7)
    assert filters.shape == (64, 3, 7, 7)
    assert float(filters.sum((-2, -1)).abs().max()) < 1e-6
    assert 0.99 < bank_bound(filters) < 1.02


def test_slopes_and_norms_of_all_parameters_are_bounded():
    parameters = PriorParameters(TINY, 0.9)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in parameters.parameters():
            parameter += 3 * torch.randn(parameter.shape, generator=generator)
    slopes = parameters.table().at(0.04).slopes()
    assert bool((slopes > -0.9 - 1e-4).all())
    assert bool((slopes < TINY.steepest + 1e-3).all())
    assert bank_bound(parameters.filters()) < 1.2
    prior = RidgePrior(parameters.filters().detach(), parameters.table())
    problem = prior_denoising(torch.rand(1, 1, 9, 9), 0.04, prior.requires_grad_(False))
    assert problem.smoothness() < 1 + 1.2 * TINY.steepest


def test_the_lower_level_is_the_denoising_problem():
    parameters = PriorParameters(TINY, 0.5).requires_grad_(False).double()
    prior = RidgePrior(parameters.filters(), parameters.table())
    y = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    problem = prior_denoising(y, 0.05, prior)
    expected = md.solve(problem, md.methods.LBFGS(), iterations=300).x
    found = denoise(y, prior.filters, prior.weak.at(0.05), 400)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_conjugate_gradients_solve_with_the_hessian():
    parameters = PriorParameters(TINY, 0.5).requires_grad_(False).double()
    filters = parameters.filters()
    profile = parameters.table().at(0.05)
    generator = torch.Generator().manual_seed(3)
    x = 0.1 * torch.rand(1, 1, 8, 8, generator=generator, dtype=torch.float64)
    right = torch.randn(1, 1, 8, 8, generator=generator, dtype=torch.float64)
    term = RidgePrior(filters, parameters.table()).term(0.05)
    for scale in (1.0, 0.3):
        v = solve_hessian(lambda x, scale=scale: scale * x, x, right, filters, profile, 200)
        torch.testing.assert_close(scale * v + term.hessian_product(x, v), right)


def test_implicit_derivatives_are_those_of_finite_differences():
    """The loss log(e + e₀/2), solved to high accuracy, at two values of a parameter."""
    settings = replace(TINY, patches=PatchBatch(2, 24))
    parameters = PriorParameters(settings, 0.5).double()
    generator = torch.Generator().manual_seed(4)
    clean = torch.rand(2, 1, 14, 14, generator=generator, dtype=torch.float64)
    sigma = torch.tensor([0.03, 0.08], dtype=torch.float64)
    noise = torch.randn(clean.shape, generator=generator, dtype=torch.float64)
    noisy = clean + sigma.reshape(-1, 1, 1, 1) * noise
    backpropagate(denoising_patches(clean, noisy, sigma), parameters, (600, 200))

    def loss():
        with torch.no_grad():
            profile = parameters.table().at(sigma)
            fixed = RidgeProfile(profile.positions, profile.values)
            x = denoise(noisy, parameters.filters(), fixed, 600)
            square = (x - clean)[..., 3:-3, 3:-3].square().mean((1, 2, 3))
            return float((square + 0.014 * sigma.pow(1.5)).log().mean() / 2)

    for parameter in (parameters.shapes, parameters.scales, parameters.raw):
        flat = parameter.data.view(-1)
        index = int(parameter.grad.abs().argmax())
        first = float(flat[index])
        step = 1e-4
        flat[index] = first + step
        above = loss()
        flat[index] = first - step
        below = loss()
        flat[index] = first
        expected = (above - below) / (2 * step)
        assert float(parameter.grad.view(-1)[index]) == pytest.approx(expected, rel=2e-2)


@pytest.mark.parametrize("degrade", [holey_patches, blurred_patches])
def test_data_terms_of_degraded_patches_are_quadratic(degrade):
    """H is symmetric with eigenvalues between ρ and 1 + ρ, and b = Hx for consistent data."""
    generator = torch.Generator().manual_seed(6)
    clean = torch.rand(2, 1, 30, 30, generator=generator)
    patches = degrade(clean, generator)
    a = torch.randn(clean.shape, generator=generator)
    b = torch.randn(clean.shape, generator=generator)
    torch.testing.assert_close(
        (a * patches.normal(b)).sum(), (b * patches.normal(a)).sum(), rtol=1e-4, atol=1e-3
    )
    quotients = (a * patches.normal(a)).sum((1, 2, 3)) / a.square().sum((1, 2, 3))
    assert bool(((quotients >= ANCHOR) & (quotients <= 1 + ANCHOR + 1e-4)).all())
    assert bool((patches.counted.sum((1, 2, 3)) > 0).all())
    residual = patches.normal(clean) - patches.right - ANCHOR * (clean - patches.start)
    noise = 0.0 if degrade is holey_patches else 0.04
    assert float(residual.abs().max()) <= 5 * noise + 1e-5


def test_holes_are_filled_by_the_lower_level():
    """A linear ramp has no second differences, so a prior of second differences restores it."""
    second = torch.tensor(
        [[[[0.0, 0, 0], [1, -2, 1], [0, 0, 0]]], [[[0, 1, 0], [0, -2, 0], [0, 1, 0]]]]
    )
    profile = RidgeProfile(torch.ones(2, 1), torch.ones(2, 1))
    ramp = (torch.arange(24.0) / 24).reshape(1, 1, 1, -1).expand(1, 1, 24, 24).contiguous()
    patches = holey_patches(ramp, torch.Generator().manual_seed(7))
    mask = patches.normal(torch.ones_like(ramp)) - ANCHOR
    x = restore_patches(lambda x: mask * x, mask * ramp, patches.start, second / 6, profile, 3000)
    # No filter fits at the corners.
    inner = (..., slice(1, -1), slice(1, -1))
    torch.testing.assert_close(x[inner], ramp[inner], rtol=0, atol=2e-3)


def test_parameters_start_from_a_learned_prior():
    prior = md.zoo.load("photo-prior-grey")
    settings = PriorSettings(channels=1)
    parameters = PriorParameters(settings, 0.0).requires_grad_(False)
    parameters.start_from(prior.convex_bank, prior.convex)
    torch.testing.assert_close(parameters.filters(), prior.convex_bank, rtol=0, atol=1e-3)
    expected = prior.convex.at(0.05).values
    torch.testing.assert_close(parameters.table().at(0.05).values, expected, rtol=0, atol=1e-3)
    with pytest.raises(ValueError, match="start from"):
        PriorParameters(TINY, 0.0).start_from(prior.filters, prior.convex)


def test_with_a_convex_share_of_1_denoising_stays_as_it_was(tmp_path):
    pictures = smooth_pictures(4)
    settings = replace(TINY, convex_share=1.0)
    start, _ = PriorLearning(pictures[:3], pictures[3:], TINY, tmp_path / "first").run(False)
    again = PriorLearning(pictures[:3], pictures[3:], settings, tmp_path / "again", start=start)
    prior, stages = again.run(progress=False)
    assert stages[0]["steps"] == 0
    assert torch.equal(prior.filters, start.filters)
    assert torch.equal(prior.weak.heights, start.weak.heights)
    assert stages[1]["steps"] > 0
    assert not torch.equal(prior.convex_bank, start.convex_bank)


def test_a_run_continues_where_it_was_interrupted(tmp_path):
    pictures = smooth_pictures(4)
    first = PriorLearning(pictures[:3], pictures[3:], TINY, tmp_path / "run")
    prior, stages = first.run(progress=False)
    again, repeated = PriorLearning(pictures[:3], pictures[3:], TINY, tmp_path / "run").run(False)
    torch.testing.assert_close(again.filters, prior.filters)
    torch.testing.assert_close(again.weak.heights, prior.weak.heights)
    assert [stage["steps"] for stage in stages] == [stage["steps"] for stage in repeated]
    assert prior.convex.at(0.05).convex
    assert not prior.filters.requires_grad
    with pytest.raises(ValueError, match="other settings"):
        PriorLearning(pictures[:3], pictures[3:], replace(TINY, seed=5), tmp_path / "run").run(
            False
        )
    fresh = PriorLearning(pictures[:3], pictures[3:], TINY, tmp_path / "run", resume=False)
    assert not fresh.file.exists()


def test_learning_lowers_the_loss():
    settings = replace(TINY, patches=PatchBatch(4, 24), iterations=12, solves=6)
    parameters = PriorParameters(settings, 0.5)
    generator = torch.Generator().manual_seed(5)
    clean = torch.stack([picture.mean(0, keepdim=True) for picture in smooth_pictures(4, 24)])
    noisy = clean + 0.08 * torch.randn(clean.shape, generator=generator)
    patches = denoising_patches(clean, noisy, torch.full((4,), 0.08))
    optimiser = torch.optim.Adam(parameters.parameters(), lr=2e-2)
    errors = []
    for _ in range(15):
        optimiser.zero_grad()
        errors.append(float(backpropagate(patches, parameters, (12, 6)).mean()))
        optimiser.step()
    assert errors[-1] < 0.9 * errors[0]


def test_a_folder_of_pictures_becomes_an_entry(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for index, picture in enumerate(smooth_pictures(3)):
        pixels = (255 * picture.permute(1, 2, 0)).byte().numpy()
        Image.fromarray(np.ascontiguousarray(pixels)).save(folder / f"{index}.png")
    path, results = learn_from(
        str(folder), tmp_path / "mine", tmp_path / "runs", TINY, progress=False
    )
    prior = md.zoo.load(path)
    assert isinstance(prior, RidgePrior)
    assert set(results["0.05"]) == {"noisy", "prior", "tv"}
    assert math.isfinite(results["0.05"]["prior"])
    card = md.zoo.card(path)
    assert card.kind == "prior"
    assert "3 pictures" in card.data
    log = (tmp_path / "runs" / "log.jsonl").read_text().splitlines()
    assert {json.loads(line)["stage"] for line in log} == {"weak", "convex"}


def test_the_psnr_of_a_known_error():
    assert psnr(torch.full((1, 1, 4, 4), 0.6), torch.full((1, 1, 4, 4), 0.5)) == pytest.approx(20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": 2}, "channels"),
        ({"modulus": 1.0}, "modulus"),
        ({"size": 4}, "odd"),
        ({"patches": PatchBatch(2, 9)}, "side must exceed"),
        ({"patches": PatchBatch(0, 24)}, "count must be"),
        ({"convex_share": 1.5}, "convex_share"),
    ],
)
def test_wrong_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)
    with pytest.raises(ValueError, match="pixels a side"):
        PriorLearning(smooth_pictures(1, 10), smooth_pictures(1, 40), TINY, "unused")
