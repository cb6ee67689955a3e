"""The shipped priors: their facts, and what they do to pictures that were not used for learning."""

import math

import pytest
import torch
import torch.nn.functional as F

import mirrordescent as md
from mirrordescent import data
from mirrordescent.problems import RidgePrior, prior_denoising, prior_restoration
from mirrordescent.problems.prior_problems import FILLING_LEVEL

NAMES = ["photo-prior", "photo-prior-grey"]


def crop(prior, split="test", side=48):
    picture = data.bundled_photographs(split)[0][:, 100 : 100 + side, 120 : 120 + side]
    return (picture if prior.channels == 3 else picture.mean(0, keepdim=True)).unsqueeze(0)


def decibels(x, clean):
    return -10 * math.log10(float((x.clamp(0, 1) - clean).square().mean()))


@pytest.fixture(params=NAMES)
def prior(request):
    return md.zoo.load(request.param)


@pytest.mark.parametrize("sigma", [0.0, 0.003, 0.02, 0.07, 0.2, 1.0])
def test_denoising_is_strongly_convex_at_every_noise_level(prior, sigma):
    assert isinstance(prior, RidgePrior)
    weak = prior.term(sigma)
    assert weak.weakly_convex
    assert -0.95 < weak.convexity < 0
    assert weak.curvature < 12
    convex = prior.term(sigma, convex=True)
    assert convex.convexity == 0
    assert convex.nonnegative


@pytest.mark.parametrize("sigma", [0.02, 0.1])
def test_noise_is_removed_with_a_proof(prior, sigma):
    clean = crop(prior)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    noisy = clean + sigma * noise
    border = prior.border
    padded = F.pad(noisy, (border,) * 4, mode="reflect")
    problem = prior_denoising(padded, sigma, prior)
    method = md.zoo.load("photo-prior-denoise")
    run = md.solve(problem, method, iterations=60, stop=md.gap(1e-3), check_every=2)
    assert run.statuses == [md.Status.CONVERGED]
    assert int(run.steps[0]) <= 16
    denoised = run.x[..., border:-border, border:-border]
    gain = 2.0 if sigma == 0.02 else 6.0
    assert decibels(denoised, clean) > decibels(noisy, clean) + gain


def test_holes_are_filled_better_than_by_their_neighbours(prior):
    clean = crop(prior)
    mask = torch.rand(1, 1, 48, 48, generator=torch.Generator().manual_seed(1)) > 0.3
    problem = prior_restoration(clean, FILLING_LEVEL, prior, mask=mask)
    start = problem.parts[1].centre
    x = md.solve(problem, md.zoo.load("photo-prior-inpaint"), start, iterations=150).x
    hidden = ~mask.expand_as(clean)
    assert decibels(x[hidden], clean[hidden]) > decibels(start[hidden], clean[hidden]) + 1
