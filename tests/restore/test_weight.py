"""The weight that is chosen is nearly the best there is, and noise is known from the
picture alone.
"""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent._internal.image_arrays import as_images, psnr
from mirrordescent.restore import choose_weight, estimate_noise
from mirrordescent.restore.compression import compression_of, standard_compression
from mirrordescent.restore.noise import Noise
from mirrordescent.restore.weight import ANISOTROPIC, NEGLIGIBLE, POWER, first_weight

VARIANTS = [{"isotropic": True, "coupled": True}, {"isotropic": True}, {}]


def photograph(size=128):
    return md.data.bundled_photographs("train")[0][:, 50 : 50 + size, 150 : 150 + size]


def with_noise(image, sigma, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return image + sigma * torch.randn(image.shape, generator=generator)


@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_noise_is_estimated_on_known_pixels(sigma, missing):
    image = photograph()
    mask = torch.rand(1, 1, 128, 128, generator=torch.Generator().manual_seed(1)) >= missing
    y = torch.where(mask, with_noise(image, sigma), 0.9)  # what is missing may be anything
    (found,) = estimate_noise(y, mask)
    (own,) = estimate_noise(torch.where(mask, image, 0.9), mask)  # it has some grain of its own
    assert not found.shared
    assert found.level == pytest.approx((sigma**2 + own.level**2) ** 0.5, rel=0.1)
    assert own.level < NEGLIGIBLE


def test_noise_of_a_batch_of_a_clean_picture_and_of_too_little():
    image = photograph()
    found = estimate_noise(torch.stack([image, with_noise(image, 0.1)]))
    assert found[0].level < NEGLIGIBLE
    assert found[1].level == pytest.approx(0.1, rel=0.1)
    assert estimate_noise(torch.rand(1, 3, 2, 2))[0].level == 0
    assert estimate_noise(torch.full((1, 3, 20, 20), 0.5))[0].level < NEGLIGIBLE / 5


def test_blocks_with_texture_do_not_count_as_noise():
    """A third of the blocks has little texture, which is enough to see the noise."""
    generator = torch.Generator().manual_seed(0)
    texture = 0.2 + 0.6 * torch.rand(1, 1, 240, 240, generator=generator)
    texture[..., :80] = 0.5
    (found,) = estimate_noise(with_noise(texture, 0.05))
    assert found.level == pytest.approx(0.05, rel=0.1)


def test_noise_of_grey_pictures_and_of_jpeg_files():
    image = md.data.bundled_photographs("train")[0]
    grey = image.mean(0, keepdim=True)
    assert estimate_noise(grey[None])[0].level < NEGLIGIBLE
    (found,) = estimate_noise(with_noise(grey, 0.08)[None])
    assert found.certain
    assert found.level == pytest.approx(0.08, rel=0.15)
    stored, compression = compress(with_noise(image, 0.1), 92)
    reference, _ = compress(image, 92)
    (found,) = estimate_noise(stored, compression=[compression])
    assert found.shared
    assert found.certain
    assert found.level == pytest.approx(float((stored - reference).square().mean().sqrt()), rel=0.2)


def compress(image, quality):
    pixels = (image.clamp(0, 1) * 255).byte().movedim(0, -1).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "jpeg", quality=quality)
    picture = Image.open(file)
    return as_images(picture), compression_of(picture)


@pytest.mark.parametrize("side", [64, 96, 128])
def test_ten_per_cent_of_noise_is_never_called_clean(side):
    """Squares all over the bundled photographs, grey, as they are and with noise."""
    squares = md.data.photographs("bundled", "test", side)[:24].mean(1, keepdim=True)
    found = estimate_noise(with_noise(squares, 0.1))
    assert all(each.certain for each in found)
    levels = torch.tensor([each.level for each in found])
    assert ((levels / 0.1 - 1).abs() < 0.15).float().mean() >= 0.95


def test_uncertain_noise_is_said_to_be(monkeypatch):
    """Weak noise in a picture that is nothing but texture cannot be told from it."""
    texture = torch.rand(1, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    smooth = F.avg_pool2d(texture, 2, stride=1)
    (found,) = estimate_noise(0.5 + 0.1 * (smooth - 0.5))
    (choice,) = choose_weight(md.TVDenoising(0.5 + 0.1 * (smooth - 0.5)), noise=[found])
    assert choice.certain == found.certain


def test_the_old_argument_still_works():
    image = photograph()[None]
    with pytest.warns(DeprecationWarning, match="renamed to compression="):
        assert estimate_noise(image, halved=[True])[0].shared


def test_scattered_pixels_of_grey_pictures_leave_diagonal_details():
    grey = md.data.bundled_photographs("train")[0].mean(0, keepdim=True)[None]
    mask = torch.rand(grey.shape, generator=torch.Generator().manual_seed(3)) > 0.4
    (found,) = estimate_noise(with_noise(grey, 0.1) * mask, mask)
    assert found.certain
    assert found.level == pytest.approx(0.1, rel=0.15)
    (found,) = estimate_noise(grey * mask, mask)
    assert not found.certain


@pytest.mark.parametrize(
    "variant", VARIANTS, ids=["isotropic and coupled", "isotropic", "anisotropic"]
)
@pytest.mark.parametrize("sigma", [0.03, 0.1])
def test_the_weight_is_near_the_best(compiled, variant, sigma):
    image = photograph()
    y = with_noise(image, sigma)[None]
    method = md.proven(md.zoo.load("image-tv-isotropic" if variant else "image-tv"))

    def quality(weight):
        problem = md.TVDenoising(y, weight, **variant)
        return psnr(
            md.solve(problem, method, iterations=400, stop=md.gap(1e-3), check_every=20).x[0], image
        )

    (choice,) = choose_weight(md.TVDenoising(y, **variant))
    assert choice.noise == pytest.approx(sigma, rel=0.1)
    best = max(quality(choice.weight * factor) for factor in (0.35, 0.5, 0.7, 1, 1.4, 2, 2.8))
    assert quality(choice.weight) > best - 0.15
    for point in choice.path:  # the errors that Stein's formula estimates are those there are
        assert -10 * torch.tensor(point.risk).log10() == pytest.approx(
            quality(point.weight), abs=0.6
        )


def test_a_batch_has_a_weight_for_each_and_missing_pixels_do_not_matter(compiled):
    image = photograph(96)
    mask = torch.rand(1, 1, 96, 96, generator=torch.Generator().manual_seed(2)) > 0.3
    y = torch.stack([with_noise(image, 0.02), with_noise(image, 0.1)])
    variant = {"isotropic": True, "coupled": True}
    choices = choose_weight(md.TVInpainting(mask * y, mask, **variant))
    others = choose_weight(md.TVInpainting(torch.where(mask, y, 0.3), mask, **variant))
    assert choices[0].weight < choices[1].weight / 3
    assert [c.weight for c in choices] == pytest.approx([c.weight for c in others], rel=1e-3)
    problem = md.TVInpainting(mask * y, mask, torch.tensor([c.weight for c in choices]), **variant)
    assert problem.weight.shape == (2,)


def test_no_noise_means_that_what_is_known_is_kept():
    image = photograph(64)[None]
    mask = torch.ones(1, 1, 64, 64).index_fill_(2, torch.tensor([30, 31]), 0.0)
    for problem in (md.TVDenoising(image), md.TVInpainting(mask * image, mask)):
        (choice,) = choose_weight(problem)
        assert choice.clean
        assert choice.path == ()
        assert choice.weight > 0


def test_pixels_that_are_predicted_better_than_the_noise_say_that_it_is_less(compiled, monkeypatch):
    image = photograph(96)
    monkeypatch.setattr(
        "mirrordescent.restore.weight.estimate_noise",
        lambda y, mask, halved, compression: [Noise(0.3)] * len(y),
    )
    (choice,) = choose_weight(
        md.TVDenoising(with_noise(image, 0.05)[None], isotropic=True, coupled=True)
    )
    assert choice.noise < 0.2


@pytest.mark.parametrize("quality", [30, 75, 95])
def test_standard_tables_are_those_that_pillow_writes(quality):
    _, compression = compress(photograph(16), quality)
    assert compression == standard_compression(quality)


def test_noise_that_is_given_is_not_estimated(compiled):
    y = with_noise(photograph(64), 0.05)[None]
    variant = {"isotropic": True, "coupled": True}
    choices = [
        choose_weight(md.TVDenoising(y, **variant), noise=sigma)[0] for sigma in (0.02, 0.05, 0.1)
    ]
    assert [choice.noise for choice in choices] == [0.02, 0.05, 0.1]
    assert choices[0].weight < choices[1].weight < choices[2].weight


def test_an_operator_is_refused():
    blur = md.problems.Blur(md.problems.motion_kernel(3, angle=0.0))
    with pytest.raises(ValueError, match="without an operator"):
        choose_weight(md.TVInpainting(torch.rand(1, 3, 16, 16), None, operator=blur))


def test_the_first_weight_depends_on_the_form_of_the_variation():
    image = torch.rand(1, 3, 8, 8)

    def weight(level=0.1, **form):
        return first_weight(md.TVDenoising(image, 0.1, **form), level)

    coupled = weight(isotropic=True, coupled=True)
    assert weight(isotropic=True) == pytest.approx(coupled / 3**0.5)
    assert weight() == pytest.approx(ANISOTROPIC * weight(isotropic=True))
    assert weight(0.2, isotropic=True) == pytest.approx(2**POWER * weight(isotropic=True))
