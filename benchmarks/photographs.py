"""Restore photographs with the default settings, and compare with the best weight and scikit-image.

The photographs are the 100 test photographs of BSDS500, the middle 160×160 pixels of each, damaged
and stored as PNG with 8 bits. The tables show the mean PSNR in dB. `default` is the result of
`mirrordescent solve` without any option; it does not know the noise. `best weight` is the same
total variation with the best weight for every photograph, chosen with the original. The methods of
scikit-image are told the noise, and Chambolle's also gets the best of four weights.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image, ImageDraw
from skimage.restoration import denoise_nl_means, denoise_tv_chambolle, inpaint_biharmonic
from torch import Tensor

from benchmarks.measure import about, quick, table, verdict
from mirrordescent import TVInpainting, data, gap, kernels, proven, solve, zoo
from mirrordescent._internal.image_arrays import psnr
from mirrordescent.methods import Method
from mirrordescent.restore import plan_restoration, read_photo
from mirrordescent.restore.jobs import Jobs, RestorationSettings
from mirrordescent.restore.masks import Masks
from mirrordescent.restore.outcome import Outcome
from mirrordescent.restore.planning import Task
from mirrordescent.restore.request import Request

SIDE = 160
NOISES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
WEIGHTS = tuple(3.56 * 2 ** (k / 2) for k in range(-4, 4))  # times σ^1.245
CLEAN_WEIGHTS = (0.003, 0.01, 0.03)
CHAMBOLLE = (0.5, 1.0, 1.5, 2.0)  # times σ
# dB
DENOISING = 0.3
INPAINTING = 0.5


def photographs() -> list[Tensor]:
    """Return the middle of every test photograph."""
    found = data.bsds500("test")[: 3 if quick() else None]
    corners = [((p.shape[1] - SIDE) // 2, (p.shape[2] - SIDE) // 2) for p in found]
    return [
        p[:, i : i + SIDE, j : j + SIDE].contiguous()
        for p, (i, j) in zip(found, corners, strict=True)
    ]


def stored(image: Tensor) -> Tensor:
    """Return an image as a file of 8 bits has it."""
    return (image.clamp(0, 1) * 255).round() / 255


def defaults(
    task: Task, images: list[Tensor], mask: Tensor | None = None
) -> list[tuple[Tensor, Outcome]]:
    """Restore images as the command does, from files to files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        for index, image in enumerate(images):
            _picture(image).save(folder / "in" / f"{index:03}.png")
        if mask is not None:
            Image.fromarray(mask.numpy()).save(folder / "mask.png")
        settings = RestorationSettings(
            Request(task),
            folder / "out",
            Masks() if mask is None else Masks(folder / "mask.png"),
        )
        outcomes = Jobs(settings, [folder / "in"]).run(
            plan_restoration(task, fused=True, isotropic=True), progress=False
        )
        found = [
            (read_photo(o.record["output"]).colour, o) for o in outcomes if isinstance(o, Outcome)
        ]
    assert len(found) == len(images)
    return found


def best(y: Tensor, mask: Tensor | None, truth: Tensor, weights: tuple[float, ...]) -> float:
    """Return the PSNR with the weight that is best."""
    method = proven(cast(Method[Any], zoo.load("image-tv-isotropic")))

    def quality(weight: float) -> float:
        problem = TVInpainting(y[None], mask, weight, isotropic=True, coupled=True)
        rules: dict[str, Any] = {
            "iterations": 600,
            "stop": gap(1e-3),
            "check_every": 20,
            "fused": True,
        }
        x = solve(problem, method, problem.start(fill=True), **rules).x
        return psnr(cast(Tensor, x)[0].clamp(0, 1), truth)

    return max(map(quality, weights))


def denoising(images: list[Tensor]) -> Iterator[tuple[str, ...]]:
    """Yield the row of every noise."""
    generator = torch.Generator().manual_seed(17)
    for sigma in NOISES:
        noisy = [stored(x + sigma * torch.randn(x.shape, generator=generator)) for x in images]
        ours = defaults("denoise", noisy)
        if not sigma:
            kept = sum(torch.equal(x, truth) for (x, _), truth in zip(ours, images, strict=True))
            errors = [
                psnr(x, truth)
                for (x, _), truth in zip(ours, images, strict=True)
                if not torch.equal(x, truth)
            ]
            worst = f"; the others have at least {min(errors):.1f} dB" if errors else ""
            yield (
                "0",
                "∞",
                f"{kept} of {len(images)} as they were{worst}",
                "∞",
                "∞",
                "∞",
                verdict(kept == len(images)),
            )
            continue
        rows = []
        for (x, _), y, truth in zip(ours, noisy, images, strict=True):
            theirs = _by_scikit_image(y, truth, sigma)
            weights = tuple(weight * sigma**1.245 for weight in WEIGHTS)
            top = best(y, None, truth, weights)
            rows.append((psnr(y, truth), psnr(x, truth), top, *theirs))
        before, mine, top, *theirs = torch.tensor(rows).mean(0).tolist()
        worst = min(row[1] - row[0] for row in rows)
        met = mine >= top - DENOISING and mine >= max(theirs) - DENOISING and worst >= 0
        gain = f"{mine:.2f} (least gain {worst:.2f})"
        yield (
            f"{sigma:g}",
            f"{before:.2f}",
            gain,
            *(f"{each:.2f}" for each in (top, *theirs)),
            verdict(met),
        )


def inpainting(images: list[Tensor]) -> Iterator[tuple[str, ...]]:
    """Yield the row of every kind of damage."""
    generator = torch.Generator().manual_seed(18)
    scattered = torch.rand(SIDE, SIDE, generator=generator) >= 0.3
    for name, mask, sigma in (
        ("text, no noise", written(), 0.0),
        ("30 % missing, no noise", scattered, 0.0),
        ("30 % missing, noise 0.05", scattered, 0.05),
    ):
        noisy = [
            stored(x + sigma * torch.randn(x.shape, generator=generator)) * mask for x in images
        ]
        rows = []
        for (x, _), y, truth in zip(defaults("inpaint", noisy, mask), noisy, images, strict=True):
            weights = (
                CLEAN_WEIGHTS if not sigma else tuple(weight * sigma**1.245 for weight in WEIGHTS)
            )
            top = best(y, mask, truth, weights)
            other = inpaint_biharmonic(y.movedim(0, -1).numpy(), ~mask.numpy(), channel_axis=-1)
            rows.append((psnr(y, truth), psnr(x, truth), top, _psnr(other, truth)))
        before, mine, top, theirs = torch.tensor(rows).mean(0).tolist()
        met = mine > theirs if sigma else mine >= theirs - INPAINTING
        yield name, *(f"{each:.2f}" for each in (before, mine, top, theirs)), verdict(met)


def written() -> Tensor:
    """Return a mask with lines of text missing."""
    page = Image.new("L", (SIDE, SIDE), 255)
    pen = ImageDraw.Draw(page)
    for top in range(2, SIDE, 27):
        pen.text((2 + top % 5, top), "the quick brown fox jumps over it", fill=0, font_size=16)
    return torch.from_numpy(np.array(page) > 127)


def _by_scikit_image(y: Tensor, truth: Tensor, sigma: float) -> tuple[float, float]:
    pixels = y.movedim(0, -1).numpy()
    chambolle = (denoise_tv_chambolle(pixels, weight=w * sigma, channel_axis=-1) for w in CHAMBOLLE)
    means = denoise_nl_means(
        pixels, 5, 6, h=0.8 * sigma, sigma=sigma, fast_mode=True, channel_axis=-1
    )
    return max(_psnr(each, truth) for each in chambolle), _psnr(means, truth)


def _psnr(pixels: Any, truth: Tensor) -> float:
    return psnr(torch.from_numpy(pixels).movedim(-1, 0).clamp(0, 1), truth)


def _picture(image: Tensor) -> Image.Image:
    return Image.fromarray((image * 255).round().byte().movedim(0, -1).numpy())


def main() -> str:
    """Measure."""
    kernels.library()
    images = photographs()
    first = ("noise", "input", "default", "best weight", "Chambolle", "non-local means", "")
    second = ("damage", "input", "default", "best weight, nothing kept", "biharmonic", "")
    return (
        f"{about(__doc__)}\n{table(first, denoising(images))}\n{table(second, inpainting(images))}"
    )


if __name__ == "__main__":
    print(main())
