"""The entries for any image: harmless everywhere, ahead of PDHG for every weight and every hole,
and proven.
"""

import pytest
import torch
from tests.zoo.test_stencil_entries import odd_problems

import mirrordescent as md
from mirrordescent import TVDenoising, TVInpainting, data, solve, zoo
from mirrordescent.problems import Blur, gaussian_kernel

RATIOS = (0.1, 0.2, 0.4, 0.8, 1.5, 3.0)


@pytest.mark.parametrize("name", odd_problems())
@pytest.mark.parametrize("fill", [False, True])
def test_nothing_ends_above_its_start(name, fill):
    problem = odd_problems()[name]
    solution = solve(
        problem, zoo.load("image-tv"), problem.start(fill=fill), iterations=700, check_every=100
    )
    assert solution.ok
    assert (
        solution.value <= solution.trace.values[0] + 1e-6
    ).all()  # which may be the optimum already


def damaged(missing, weight, shape="scattered"):
    generator = torch.Generator().manual_seed(0)
    clean = data.photographs("bundled", "test", 64)[::5][:3]
    mask = torch.rand(64, 64, generator=generator) >= missing
    if shape == "blocks":
        mask = torch.ones(64, 64, dtype=torch.bool)
        mask[10:16, 5:60] = False
        mask[20:60, 40:46] = False
    y = clean + 0.05 * torch.randn(clean.shape, generator=generator)
    return TVInpainting(mask * y, mask, weight) if missing else TVDenoising(y, weight)


CASES = {
    "usual": (0.2, 0.15),
    "small weight": (0.2, 0.03),
    "large weight": (0.2, 1.5),
    "half": (0.5, 0.15),
    "most": (0.8, 0.15),
    "blocks": (0.2, 0.15, "blocks"),
    "denoising": (0.0, 0.15),
}


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", CASES)
def test_ahead_of_tuned_pdhg_after_thirty_steps(name):
    problem = damaged(*CASES[name])
    x0 = problem.start(fill=True)
    long = [
        solve(problem, md.PDHG(ratio), x0, iterations=3000, check_every=300).value
        for ratio in (0.1, 0.4, 1.5)
    ]
    least = torch.stack(long).amin(0)
    classical = [solve(problem, md.PDHG(ratio), x0, iterations=30).value for ratio in RATIOS]
    learned = solve(problem, zoo.load("image-tv"), x0, iterations=30).value
    assert float((learned - least).mean()) < 0.7 * min(
        float((value - least).mean()) for value in classical
    )


def test_pixels_from_0_to_255_behave_as_those_from_0_to_1():
    problem = damaged(0.2, 0.15)
    bright = TVInpainting(255 * problem.y, problem.mask, 255 * 0.15)
    method = zoo.load("image-tv")
    one, other = (solve(p, method, p.start(fill=True), iterations=20).x for p in (problem, bright))
    torch.testing.assert_close(one, other / 255, atol=1e-5, rtol=0)


def test_it_proves_what_it_found():
    problem = damaged(0.2, 0.15)
    found = solve(
        problem,
        md.proven(zoo.load("image-tv")),
        problem.start(fill=True),
        iterations=500,
        stop=md.gap(1e-3),
    )
    assert found.statuses == [md.Status.CONVERGED] * 3
    assert (found.lower <= found.value).all()


def test_isotropic_total_variation():
    y = damaged(0.0, 0.15).y
    problem = TVDenoising(y, 0.15, isotropic=True, coupled=True)
    long = solve(problem, md.PDHG(0.3), iterations=3000, check_every=300).value
    classical = [solve(problem, md.PDHG(ratio), iterations=30).value for ratio in RATIOS]
    learned = solve(problem, zoo.load("image-tv-isotropic"), iterations=30).value
    assert float((learned - long).mean()) < 0.8 * min(
        float((value - long).mean()) for value in classical
    )


def test_deblurring():
    generator = torch.Generator().manual_seed(0)
    clean = damaged(0.0, 0.15).y
    blur = Blur(gaussian_kernel(1.5))
    y = blur.A(clean) + 0.01 * torch.randn(clean.shape, generator=generator)
    problem = TVInpainting(y, None, 0.01, operator=blur)
    classical = [
        solve(problem, md.PDHG(ratio), y, iterations=40).value for ratio in (0.5, 1.5, 5.0)
    ]
    learned = solve(problem, zoo.load("image-tv-deblur"), y, iterations=40).value
    assert learned.mean() < min(value.mean() for value in classical)
