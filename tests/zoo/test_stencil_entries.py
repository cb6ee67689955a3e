"""The shipped stencils: ahead of PDHG where they were learned, harmless where they were not."""

from __future__ import annotations

import pytest
import torch

from mirrordescent import PDHG, TVDenoising, TVInpainting, certify, data, solve, zoo
from mirrordescent.methods import Safeguarded

SIDE = 12


def odd_problems():
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(2, 3, SIDE, SIDE, generator=generator)
    mask = torch.rand(SIDE, SIDE, generator=generator) >= 0.2
    one = torch.zeros(SIDE, SIDE).index_fill_(0, torch.tensor(5), 1.0)
    one[:, 1:] = 0
    constant = torch.full_like(image, 0.3)
    board = (torch.arange(SIDE)[:, None] + torch.arange(SIDE)) % 2 + 0.0 * image
    return {
        "constant": TVInpainting(constant, mask),
        "noise": TVInpainting(torch.randn(image.shape, generator=generator), mask),
        "one pixel known": TVInpainting(image, one),
        "small weight": TVInpainting(image, mask, 0.0015),
        "large weight": TVInpainting(image, mask, 15.0),
        "bytes": TVInpainting(255 * image, mask),
        "checkerboard": TVDenoising(board),
        "large weight, nothing missing": TVDenoising(image, 15.0),
        "one row": TVDenoising(image[..., :1, :].contiguous()),
        "one pixel": TVDenoising(image[..., :1, :1].contiguous()),
    }


@pytest.mark.parametrize("name", odd_problems())
@pytest.mark.parametrize("fill", [False, True])
def test_never_worse_than_the_start(name, fill):
    problem = odd_problems()[name]
    entry = "photo-inpaint-stencil" if problem.mask is not None else "ellipse-denoise-stencil"
    solution = solve(
        problem,
        Safeguarded(zoo.load(entry)),
        problem.start(fill=fill),
        iterations=400,
        check_every=10,
    )
    assert solution.ok
    assert (solution.trace.values.diff(dim=0) <= 0).all()


def photographs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    clean = data.photographs("bundled", "test", 64)[::5][:3]
    return clean + 0.05 * torch.randn(clean.shape, generator=generator), torch.rand(
        64, 64, generator=generator
    ) >= 0.2


@pytest.mark.parametrize(
    ("entry", "make", "fill"),
    [
        ("photo-inpaint-stencil", lambda y, mask: TVInpainting(mask * y, mask), True),
        ("photo-inpaint-stencil", lambda y, mask: TVInpainting(mask * y, mask), False),
        ("ellipse-denoise-stencil", lambda y, mask: TVDenoising(y), False),
    ],
    ids=["inpainting, filled", "inpainting", "denoising"],
)
def test_ahead_of_pdhg_at_equal_iterations(entry, make, fill):
    problem = make(*photographs())
    lower = certify(problem, 1e-5).lower
    x0 = problem.start(fill=fill)
    at = (5, 10, 20, 40)

    def gaps(method):
        values = solve(problem, method, x0, iterations=40, trace=at).trace.values
        return (values.double() - lower).mean(1)

    best = torch.stack([gaps(PDHG(ratio)) for ratio in (0.2, 0.4, 0.7, 1.0, 1.5, 2.0)]).amin(0)
    assert (gaps(zoo.load(entry)) < best / 2).all()


def test_they_work_in_double_precision():
    problem = TVDenoising(photographs()[0].double())
    solution = solve(problem, zoo.load("ellipse-denoise-stencil").double(), iterations=20)
    single = solve(
        TVDenoising(photographs()[0]), zoo.load("ellipse-denoise-stencil"), iterations=20
    )
    torch.testing.assert_close(single.value.double(), solution.value, rtol=1e-4, atol=1e-3)
