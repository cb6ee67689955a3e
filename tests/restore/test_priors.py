"""Learned priors in restoration, with a prior that is written down: smoothed total variation."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent import cli, kernels, zoo
from mirrordescent._internal.image_arrays import psnr
from mirrordescent.problems import RidgePrior, RidgeTable
from mirrordescent.problems.filter_banks import bank_bound
from mirrordescent.restore import deciding, objectives, plan_restoration, prior_objective
from mirrordescent.restore.deciding import prior_plan
from mirrordescent.restore.degradation import Degradation
from mirrordescent.restore.request import Request

pytestmark = pytest.mark.usefixtures("compiled")
SIDE = 48


def differences_prior(channels=3):
    """Return Σ h(differences), with the Huber function h, as a prior with filters."""
    filters = []
    for channel in range(channels):
        for shape in ((0, 1), (1, 0)):
            kernel = torch.zeros(channels, 3, 3)
            kernel[channel, 1, 1] = -1.0
            kernel[channel, 1 + shape[0], 1 + shape[1]] = 1.0
            filters.append(kernel)
    bank = torch.stack(filters)
    bank = bank / math.sqrt(bank_bound(bank))
    levels = torch.tensor([0.01, 0.2])
    nodes = torch.tensor([0.2, 0.5, 3.0])
    heights = torch.tensor([1.2, 1.5, 1.8]).expand(2, len(bank), 3).contiguous()
    table = RidgeTable(levels, torch.zeros(2, len(bank)), nodes, heights)
    return RidgePrior(bank, table, RidgeTable(levels, torch.zeros(2, len(bank)), nodes, heights))


def photograph(channels=3):
    image = md.data.bundled_photographs("test")[0][:, 120 : 120 + SIDE, 120 : 120 + SIDE]
    return image if channels == 3 else image.mean(0, keepdim=True)


def noisy(sigma=0.08, channels=3):
    image = photograph(channels)
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
    return image + sigma * noise


@pytest.mark.parametrize("channels", [1, 3])
def test_noise_is_removed_to_a_proven_gap(channels):
    y = noisy(channels=channels)
    result = md.denoise(y, prior=differences_prior(channels), return_result=True)
    assert result.statuses == [md.Status.CONVERGED]
    assert result.gap[0] <= 1e-3
    assert result.weight == [None]
    assert result.prior == ["RidgePrior"]
    assert psnr(result.image, photograph(channels)) > psnr(y, photograph(channels)) + 2


def test_strength_and_noise_decide_how_smooth_it_is():
    prior = differences_prior()

    def variation(**options):
        x = md.denoise(noisy(), prior=prior, **options)
        return float(x.diff(dim=1).abs().mean())

    assert variation(noise=0.08, strength=2.0) < variation(noise=0.08) < variation(noise=0.02)
    assert variation(noise=0.04, strength=2.0) == pytest.approx(variation(noise=0.08), rel=1e-3)


def test_the_answer_minimises_the_objective_of_the_continued_image():
    prior = differences_prior()
    y = noisy()
    x = md.denoise(y, prior=prior, noise=0.08, gap=1e-6)
    border = prior.border
    padded = F.pad(y[None], (border,) * 4, mode="reflect").double()
    problem = md.problems.prior_denoising(padded, 0.08, prior.double())
    best = md.certify(problem, 1e-8, cache=False)
    exact = md.solve(problem, md.FISTA(), iterations=500).x[0, :, border:-border, border:-border]
    assert best.proven
    assert (x - exact.clamp(0, 1)).abs().max() < 2e-3


def test_holes_are_filled_and_known_pixels_kept():
    image = photograph()
    known = torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(1)) > 0.3
    result = md.inpaint(image * known, known, prior=differences_prior(), return_result=True)
    assert torch.equal(result.image * known, image * known)
    assert psnr(result.image, image) > psnr(image * known, image) + 10
    assert result.gap[0] <= 1e-2


def test_blurs_are_undone_and_images_enlarged():
    image = photograph()
    prior = differences_prior()
    kernel = md.problems.gaussian_kernel(2.0)
    whole = md.data.bundled_photographs("test")[0][None]
    blurred = md.problems.Blur(kernel).A(whole)[0, :, 120 : 120 + SIDE, 120 : 120 + SIDE]
    x = md.deblur(blurred, kernel, prior=prior, noise=0.01)
    assert psnr(x, image) > psnr(blurred, image) + 0.6
    small = F.avg_pool2d(image[None], 2)[0]
    enlarged = md.upsample(small, prior=prior, noise=0.004)
    assert enlarged.shape == image.shape
    assert psnr(F.avg_pool2d(enlarged[None], 2)[0], small) > 35


def test_tiles_agree_with_the_whole_and_prove_its_gap(monkeypatch):
    prior = differences_prior()
    image = md.data.bundled_photographs("test")[0][:, :200, :180]
    y = image + 0.08 * torch.randn(image.shape, generator=torch.Generator().manual_seed(2))
    whole = md.denoise(y, prior=prior, noise=0.08, return_result=True)
    monkeypatch.setattr(objectives, "LARGEST_IMAGE", 1000)
    monkeypatch.setattr(objectives, "TILE", 128)
    tiled = md.denoise(y, prior=prior, noise=0.08, return_result=True)
    assert tiled.images[0].batch.tiles > 1
    assert (tiled.image - whole.image).abs().max() < 0.02
    batch = tiled.images[0].batch
    padded = F.pad(y[None], (prior.border,) * 4, mode="reflect").double()
    problem = md.problems.prior_denoising(padded, 0.08, prior.double())
    best = md.certify(problem, 1e-6, cache=False)
    first = float(problem.value(problem.start()))
    assert float(batch.value[0]) == pytest.approx(float(best.value), rel=1e-3)
    true_gap = (float(batch.value[0]) - float(best.value)) / (first - float(best.value))
    assert true_gap <= tiled.gap[0] + 1e-6
    assert tiled.gap[0] < 1e-2
    assert batch.whole


@pytest.mark.parametrize("entries", [1, 700, 2**19])
@pytest.mark.parametrize("size", [1.0, 1000.0])
def test_the_gap_of_a_whole_image_by_its_gradient(entries, size, monkeypatch):
    """‖∇f(x)‖²/(2μ) over f(y) − f(x) + ‖∇f(x)‖²/(2μ), in double precision and in strips."""
    monkeypatch.setattr(prior_objective, "STRIP", entries)
    prior = differences_prior()
    y = size * torch.rand(2, 3, 40, 30, generator=torch.Generator().manual_seed(3))
    sigma = torch.tensor([0.02, 0.08])
    noisy = prior_objective.PriorObjective(y, None, Degradation(), sigma, prior).for_tiles()
    x = noisy.y - 0.1 * noisy.problem().grad(noisy.y)
    found = noisy.whole(x)
    exact = md.problems.prior_denoising(noisy.y.double(), sigma.double(), prior.double())
    value = exact.value(x.double())
    squares = exact.grad(x.double()).square().sum((1, 2, 3))
    for sample in range(2):
        level = float(sigma[sample])
        alone = md.problems.prior_denoising(noisy.y[:1].double(), level, prior.double())
        bound = float(squares[sample]) / (2 * alone.strong_convexity())
        start = float(exact.value(noisy.y.double())[sample])
        gap = bound / (start - float(value[sample]) + bound)
        assert gap <= float(found.gap[sample]) * (1 + 1e-6) <= 1.01 * gap
    torch.testing.assert_close(found.value.double(), value, rtol=1e-6, atol=0)


def test_the_learned_prior_is_chosen_where_it_is_ahead(monkeypatch):
    prior = differences_prior()
    monkeypatch.setattr(deciding, "ENTRIES", {3: "own-prior"})
    real = deciding._load
    names = [*zoo.list(), "own-prior"]
    monkeypatch.setattr(zoo, "list", lambda: names)
    load = lambda name: prior if name == "own-prior" else real(name)  # noqa: E731
    monkeypatch.setattr(deciding, "_load", load)
    chosen = md.denoise(noisy(), noise=0.08, return_result=True)
    assert chosen.prior == ["own-prior"]
    strong = md.denoise(noisy(0.4).clamp(-1, 2), noise=0.4, return_result=True)
    assert strong.prior == ["tv"]
    assert md.denoise(noisy(), prior="tv", return_result=True).prior == ["tv"]
    assert md.denoise(noisy(), weight=0.1, return_result=True).prior == ["tv"]
    batch = torch.stack([noisy(0.02), noisy(0.08)])
    both = md.denoise(batch, return_result=True)
    assert both.prior == ["own-prior", "own-prior"]
    assert torch.allclose(both.image[1], md.denoise(noisy(0.08)), atol=1e-3)


def test_missing_and_blurred_pixels_use_the_prior_where_it_is_ahead():
    """Colour photographs use the shipped prior, blurred ones only with little noise."""
    known = torch.ones(1, SIDE, SIDE)
    known[:, 20:24] = 0
    kernel = torch.ones(3, 3) / 9

    def prior(task, image, *others, **options):
        return task(image, *others, return_result=True, **options).prior

    assert prior(md.inpaint, noisy() * known, known) == ["photo-prior"]
    assert prior(md.inpaint, noisy(channels=1) * known, known) == ["tv"]
    assert prior(md.inpaint, noisy() * known, known, noise=0.4) == ["tv"]
    assert prior(md.deblur, photograph(), kernel, noise=0.02) == ["photo-prior"]
    assert prior(md.deblur, photograph(), kernel, noise=0.02, strength=2.0) == ["tv"]
    assert prior(md.upsample, photograph()[:, :24, :24], noise=0.0) == ["tv"]


def test_tiles_without_missing_pixels_are_left_as_they_are(monkeypatch):
    monkeypatch.setattr(objectives, "LARGEST_IMAGE", 1000)
    monkeypatch.setattr(objectives, "TILE", 128)
    solved = []
    real = objectives._solve
    monkeypatch.setattr(objectives, "_solve", lambda *given: solved.append(1) or real(*given))
    image = md.data.bundled_photographs("test")[0][:, :140, :200]
    known = torch.ones(1, 140, 200)
    known[:, 100:104, 10:30] = 0
    options = {"prior": differences_prior(), "noise": 0.0, "gap": 0.1, "return_result": True}
    kept = md.inpaint(image * known, known, **options)
    tiles = kept.images[0].batch.tiles
    assert 0 < len(solved) < tiles
    assert torch.equal(kept.image * known, image * known)
    changed = md.inpaint(image * known, known, keep_known=False, **options)
    assert len(solved) > tiles
    assert not torch.equal(changed.image[..., 150:], image[..., 150:])
    holes = (1 - known).bool().expand_as(image)
    assert torch.equal(kept.image[holes], changed.image[holes])


def test_a_prior_in_a_file_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    zoo.save(differences_prior(), tmp_path / "mine.safetensors")
    pixels = (noisy().clamp(0, 1) * 255).round().byte().movedim(0, -1).numpy()
    Image.fromarray(pixels).save("photo.png")
    arguments = ["solve", "denoise", "photo.png", "--prior", "mine.safetensors", "--json"]
    monkeypatch.setattr(sys, "argv", ["mirrordescent", *arguments])
    cli.main()
    (image,) = json.loads(capsys.readouterr().out)["images"]
    assert image["prior"] == "mine"
    assert image["relative_gap"] <= 1e-3
    written = np.asarray(Image.open("out/solve/photo.png"))
    assert np.array_equal(written, md.denoise(pixels, prior=tmp_path / "mine.safetensors"))


def test_priors_that_cannot_be_used_are_explained():
    with pytest.raises(ValueError, match="not a prior of photographs"):
        md.denoise(noisy(), prior="image-tv")
    with pytest.raises(ValueError, match="learned for 1"):
        md.denoise(noisy(), prior=differences_prior(1))
    with pytest.raises(ValueError, match="give noise or strength instead"):
        md.denoise(noisy(), prior=differences_prior(), weight=0.1)


def test_options_hold_for_a_learned_prior(monkeypatch):
    """Kernels can be disabled, fused=True is no error, and iterations are kept."""
    calls = []
    original = kernels.ridge_gradient

    def recorded(*args):
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(kernels, "ridge_gradient", recorded)
    problem = md.problems.prior_denoising(noisy()[None], 0.08, differences_prior())
    with kernels.disabled():
        md.solve(problem, md.Nesterov(0.3), iterations=3)
    assert not calls
    if kernels.available():
        md.solve(problem, md.Nesterov(0.3), iterations=3)
        assert calls
    for fused in (None, False, *((True,) if kernels.available() else ())):
        plan = plan_restoration("denoise", iterations=7, fused=fused)
        assert prior_plan(Request("denoise"), plan).iterations == 7
        assert prior_plan(Request("denoise"), plan).fused in (None, False)
