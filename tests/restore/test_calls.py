"""One call restores an image of any kind, as the command line does."""

from __future__ import annotations

import io
import sys
import warnings

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent import cli
from mirrordescent._internal.image_arrays import psnr
from mirrordescent.restore import RestorationResult, read_photo
from mirrordescent.restore.degradation import as_kernel

pytestmark = pytest.mark.usefixtures("compiled")
SIDE = 64


def photograph():
    return md.data.bundled_photographs("test")[0][:, 120 : 120 + SIDE, 120 : 120 + SIDE]


def noisy(sigma=0.08):
    image = photograph()
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
    return (image + sigma * noise).clamp(0, 1)


def as_bytes(image):
    return (image * 255).round().byte().movedim(0, -1).numpy()


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["mirrordescent", "solve", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0


@pytest.mark.parametrize("task", ["denoise", "inpaint", "deblur", "upsample"])
def test_the_command_line_gives_the_same(tmp_path, monkeypatch, task):
    monkeypatch.chdir(tmp_path)
    pixels = as_bytes(noisy())
    mask = np.random.default_rng(1).random((SIDE, SIDE)) > 0.2
    Image.fromarray(pixels).save("photo.png")
    Image.fromarray(mask).save("mask.png")
    calls = {
        "denoise": ((), lambda: md.denoise(pixels)),
        "inpaint": (("--mask", "mask.png"), lambda: md.inpaint(pixels, mask)),
        "deblur": (
            ("--gaussian", 1.2, "--iterations", 20),
            lambda: md.deblur(pixels, md.problems.gaussian_kernel(1.2)),
        ),
        "upsample": (("--factor", 2, "--iterations", 20), lambda: md.upsample(pixels)),
    }
    monkeypatch.setattr("mirrordescent.restore.planning.OPERATOR_ITERATIONS", 20)
    options, call = calls[task]
    assert command(monkeypatch, task, "photo.png", *options) == 0
    written = np.asarray(Image.open("out/solve/photo.png"))
    assert np.array_equal(call(), written)


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x,
        lambda x: x.double(),
        lambda x: x.half(),
        lambda x: x[None].expand(2, -1, -1, -1),
        lambda x: x[0],
        lambda x: x[:1],
        lambda x: (x * 255).round().byte(),
        lambda x: x.movedim(0, -1).numpy(),
        lambda x: x.movedim(0, -1).double().numpy(),
        lambda x: x[0].numpy(),
        lambda x: (x.movedim(0, -1).numpy() * 65535).astype(np.uint16),
        lambda x: (x[0].numpy() * 65535).astype(">u2"),
        as_bytes,
        lambda x: np.stack([as_bytes(x)] * 2),
        lambda x: np.dstack([as_bytes(x), np.full((SIDE, SIDE), 77, np.uint8)]),
        lambda x: Image.fromarray(as_bytes(x)),
        lambda x: Image.fromarray(as_bytes(x)).convert("L"),
        lambda x: Image.fromarray(as_bytes(x)).convert("CMYK"),
        lambda x: Image.fromarray((x[0].numpy() * 65535).astype(np.uint16)),
        lambda x: Image.fromarray(x[0].numpy()),
    ],
)
def test_the_result_is_of_the_same_kind(convert):
    image = convert(noisy())
    result = md.denoise(image)
    assert type(result) is type(image)
    if isinstance(image, Image.Image):
        assert (result.mode, result.size) == (image.mode, image.size)
    else:
        assert (result.dtype, result.shape) == (image.dtype, image.shape)
    before, after, truth = (
        float(np.abs(np.diff(np.asarray(each, np.float64), axis=-2)).mean())
        for each in (image, result, convert(photograph()))
    )
    assert after < before
    assert after == pytest.approx(truth, rel=0.5)
    if np.asarray(image).shape[-1] == 4 and not isinstance(image, Image.Image):
        assert (result[..., 3] == 77).all()


def test_a_pillow_image_keeps_its_metadata_and_its_compression():
    exif = Image.Exif()
    exif[271] = "camera"
    exif[274] = 6  # orientation
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    file = io.BytesIO()
    Image.fromarray(as_bytes(noisy())).save(
        file, "jpeg", quality=90, exif=exif, icc_profile=profile
    )
    picture = Image.open(file)
    result = md.denoise(picture, return_result=True)
    assert isinstance(result, RestorationResult)
    assert result.image.info["icc_profile"] == profile
    assert result.image.getexif()[271] == "camera"
    assert result.image.getexif()[274] == 6
    assert result.images[0].noise is not None
    (as_array,) = md.denoise(np.asarray(picture), return_result=True).images
    assert as_array.x.shape == result.images[0].x.shape


def test_the_quality_is_that_of_the_chosen_weight():
    truth = photograph()
    y = noisy()
    by_hand = md.solve(
        md.TVDenoising(y[None]),
        md.proven(md.zoo.load("image-tv")),
        iterations=400,
        stop=md.gap(1e-3),
    ).x[0]
    found = md.denoise(y)
    assert psnr(found, truth) > psnr(by_hand.clamp(0, 1), truth)
    assert psnr(found, truth) > psnr(y, truth) + 3


def test_the_result_says_how_it_was_found():
    result = md.denoise(noisy(), return_result=True, noise=0.08, strength=0.5, prior="tv")
    full = md.denoise(noisy(), return_result=True, noise=0.08, prior="tv")
    assert result.noise == [0.08]
    assert result.prior == ["tv"]
    assert result.weight[0] < full.weight[0]
    assert result.statuses == [md.Status.CONVERGED]
    assert result.gap[0] <= 1e-3
    exact = md.denoise(noisy(), weight=0.1, gap=1e-4, return_result=True)
    assert exact.weight == [pytest.approx(0.1)]
    assert exact.gap[0] <= 1e-4
    assert exact.noise == [None]


def test_masks_of_all_kinds():
    image = photograph()
    known = torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(2)) > 0.3
    expected = md.inpaint(image * known, known)
    assert torch.equal(expected * known, image * known)
    for mask in (known.numpy(), known.float(), Image.fromarray(known.numpy()), known[None]):
        assert torch.equal(md.inpaint(image * known, mask), expected)
    assert torch.equal(md.inpaint(image * known, ~known, white="missing"), expected)
    assert psnr(expected, image) > psnr(image * known, image) + 10


def test_blurs_are_undone_without_assumptions_about_the_border():
    whole = md.data.bundled_photographs("test")[0][None]
    kernel = md.problems.gaussian_kernel(1.2)
    blurred = md.problems.Blur(kernel).A(whole)[0, :, 120 : 120 + SIDE, 120 : 120 + SIDE]
    noise = torch.randn(blurred.shape, generator=torch.Generator().manual_seed(3))
    y = blurred + 0.005 * noise
    x = md.deblur(y, kernel.numpy(), noise=0.005, prior="tv")
    assert psnr(x, photograph()) > psnr(y, photograph()) + 1
    rim = (x - photograph())[:, :4].square().mean() / (y - photograph())[:, :4].square().mean()
    assert rim < 1


def test_enlarging_is_better_than_interpolation():
    truth = photograph()
    small = F.avg_pool2d(truth[None], 2)[0]
    x = md.upsample(small, prior="tv")
    assert x.shape == truth.shape
    bicubic = F.interpolate(small[None], scale_factor=2, mode="bicubic")[0]
    assert psnr(x, truth) > psnr(bicubic, truth)
    assert psnr(F.avg_pool2d(x[None], 2)[0], small) > 35  # it explains the data


def test_a_photograph_without_noise_is_left_as_it_is():
    image = photograph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(md.denoise(image), image)
    assert torch.equal(md.denoise(image, noise=0.0), image)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image": np.zeros((8, 8), np.int64)}, "bytes, 16-bit integers"),
        ({"image": np.full((8, 8), 100.0)}, "divide them by the largest"),
        ({"image": np.full((8, 8), np.nan)}, "NaN"),
        ({"image": np.zeros((3, 8, 8, 8))}, "at most 4 channels"),
        ({"image": torch.zeros(5, 8, 8)}, "1 or 3 channels"),
        ({"image": [1, 2]}, "got list"),
        ({"image": np.zeros((8, 8)), "noise": 25.0}, "0.05 for"),
        ({"image": np.zeros((8, 8)), "strength": 0.0}, "strength must be positive"),
        ({"image": np.zeros((8, 8)), "weight": 0.1, "noise": 0.1}, "either a weight"),
        ({"image": np.zeros((8, 8)), "prior": "nonsense"}, "nonsense"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    with pytest.raises((ValueError, TypeError, KeyError), match=message):
        md.denoise(**arguments)


def test_mistakes_in_masks_and_kernels_are_explained():
    image = np.zeros((8, 8))
    with pytest.raises(ValueError, match="same size"):
        md.inpaint(image, np.ones((4, 4)))
    with pytest.raises(ValueError, match="no known pixel"):
        md.inpaint(image, np.zeros((8, 8)))
    with pytest.raises(ValueError, match="positive entry"):
        md.deblur(image, torch.zeros(3, 3))
    with pytest.raises(ValueError, match="not negative"):
        md.deblur(image, -torch.ones(3, 3))
    with pytest.raises(ValueError, match="at least 2"):
        md.upsample(image, 1)


def test_a_missed_gap_is_said():
    with pytest.warns(UserWarning, match="was required"):
        md.upsample(as_bytes(photograph()), gap=1e-9)


def test_a_file_is_restored_as_its_pixels_are(tmp_path):
    Image.fromarray(as_bytes(noisy())).save(tmp_path / "a.png")
    photo = read_photo(tmp_path / "a.png")
    assert torch.equal(
        md.denoise(photo.colour),
        md.denoise(Image.open(tmp_path / "a.png"), return_result=True).images[0].x,
    )


@pytest.mark.parametrize("shape", [(3, 3), (2, 3), (3, 4), (2, 2)])
def test_kernels_get_odd_sides_and_sum_1(shape):
    kernel = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    found = as_kernel(kernel)
    height, width = shape
    assert found.shape == (height + 1 - height % 2, width + 1 - width % 2)
    torch.testing.assert_close(found[:height, :width], kernel / kernel.sum())
    assert float(found.sum()) == pytest.approx(1)
