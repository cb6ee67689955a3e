"""Other people's solvers of the same problems, each left out if its package is not installed.

Most of them report nothing on the way, and solve one plane at a time: they are rerun for growing
numbers of iterations, plane by plane, in the precision that they work in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.races import Family, TVRace
from mirrordescent.problems import TVInpainting

GROWING = sorted({round(10 ** (i / 10)) for i in range(30)})  # iterations: 1, …, 794
PATIENCE = 1.0  # seconds
MARGINS = (0, 8)  # of mirrored pixels, for split Bregman
PROX_TV = ("dr", "pd", "yang", "condat", "chambolle-pock", "kolmogorov")
PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0)  # of ADMM
PRIMAL_STEPS = (0.01, 0.03, 0.1, 0.3)  # of deepinv
PACKAGES = {"skimage": "scikit-image", "prox_tv": "prox_tv", "deepinv": "deepinv"}
NEEDS = {
    "skimage": "for split Bregman and Chambolle's method",
    "prox_tv": "for its own methods and for ADMM with exact total variation along rows and columns",
    "deepinv": "for its TV prox",
}


def missing() -> list[str]:
    """Say which packages are not installed, and what is left out for this."""
    return [f"{PACKAGES[name]} ({what})" for name, what in NEEDS.items() if not _importable(name)]


def families(problem: TVInpainting) -> list[Family]:
    """Return the solvers that minimise this very function."""
    found = []
    denoising = problem.mask is None
    isotropic = problem.isotropic
    if _importable("skimage") and denoising and not isotropic:
        variants = [Rerun(bregman, margin) for margin in MARGINS]
        found.append(
            Family("scikit-image, split Bregman", "peer", variants, equal_cost=False, slow=True)
        )
    if _importable("skimage") and denoising and isotropic:
        found.append(Family("scikit-image, Chambolle", "peer", [Rerun(chambolle, 0)]))
    if _importable("prox_tv") and denoising and not isotropic:
        variants = [Rerun(prox_tv, name) for name in PROX_TV]
        found.append(Family("prox_tv", "peer", variants, equal_cost=False, slow=True))
    if _importable("prox_tv") and not isotropic:
        lines = [LineADMM(penalty) for penalty in PENALTIES]
        found.append(Family("ADMM, exact TV of lines", "classical", lines, slow=True))
    if _importable("deepinv") and denoising and isotropic:
        found.append(
            Family("deepinv", "peer", [Rerun(deepinv, tau) for tau in PRIMAL_STEPS], slow=True)
        )
    return found


def _importable(name: str) -> bool:
    if find_spec(name) is None:
        return False
    try:
        import_module(name)
    except (ImportError, OSError):  # a part of it, or a library that it needs, is missing
        return False
    return True


@dataclass(frozen=True)
class Rerun:
    """A function of the problem, a setting and a number of iterations, called anew for every
    number.
    """

    function: Callable[[TVInpainting, Any, int], Tensor]
    setting: Any
    patience: float = 4 * PATIENCE  # of which the last run takes about a fifth

    def path(self, race: TVRace) -> Iterator[tuple[int, Tensor]]:
        """Run for growing numbers of iterations."""
        return ((k, self.run(race, k)) for k in GROWING)

    def run(self, race: TVRace, iterations: int) -> Tensor:
        return self.function(race.problem, self.setting, iterations)


def bregman(problem: TVInpainting, margin: int, iterations: int) -> Tensor:
    """scikit-image's split Bregman method: |Dx|₁ + (w/2)‖x − y‖² is a multiple of f for w = 2/λ.

    It solves our problem except at the border, where it keeps the pixels as observed: hence a
    margin of mirrored ones.
    """
    denoise = import_module("skimage.restoration").denoise_tv_bregman
    inside = slice(margin, -margin or None)
    images = np.pad(
        _planes(problem.y).numpy(), ((0, 0), (margin, margin), (margin, margin)), mode="symmetric"
    )
    options = {
        "weight": 2 / problem.weight,
        "max_num_iter": iterations,
        "eps": 0.0,
        "isotropic": False,
    }
    return _images([denoise(image, **options)[inside, inside] for image in images], problem.y)


def chambolle(problem: TVInpainting, _: Any, iterations: int) -> Tensor:
    """scikit-image's method of Chambolle: ½‖x − y‖² + w|Dx| with |Dx| isotropic is a multiple of f
    for w = λ/2.
    """
    denoise = import_module("skimage.restoration").denoise_tv_chambolle
    options = {"weight": problem.weight / 2, "max_num_iter": iterations, "eps": 0.0}
    return _images([denoise(image, **options) for image in _planes(problem.y).numpy()], problem.y)


def prox_tv(problem: TVInpainting, method: str, iterations: int) -> Tensor:
    """proxTV's methods: ½‖x − y‖² + w‖Dx‖₁ is a multiple of f for w = λ/2. Two of them use several
    threads.
    """
    solve = import_module("prox_tv").tv1_2d
    weight = problem.weight / 2
    options = {"n_threads": torch.get_num_threads(), "max_iters": iterations, "method": method}
    return _images(
        [solve(image, weight, **options) for image in _planes(problem.y).numpy()], problem.y
    )


def deepinv(problem: TVInpainting, tau: float, iterations: int) -> Tensor:
    """deepinv's prox of isotropic total variation, for the whole batch: ½‖x − y‖² + γ|Dx| with γ =
    λ/2.
    """
    denoiser = import_module("deepinv").models.TVDenoiser(tau=tau, n_it_max=iterations, crit=0.0)
    return denoiser(problem.y, problem.weight / 2)


def _planes(y: Tensor) -> Tensor:
    return y.flatten(0, 1)


def _images(planes: list[np.ndarray], like: Tensor) -> Tensor:
    return torch.from_numpy(np.stack(planes)).to(like.dtype).reshape(like.shape)


@dataclass(frozen=True)
class LineADMM:
    """ADMM, with the total variations of rows and of columns each minimised exactly. With ρ the
    penalty:

    .. code-block:: none

        x⁺ = argmin s‖Z(x − y)‖² + (ρ/2)Σᵢ‖x − rᵢ + pᵢ‖²                 i = 1, 2: rows, columns
        rᵢ⁺ = argmin sλ·TVᵢ(r) + (ρ/2)‖r − x⁺ − pᵢ‖²,   pᵢ⁺ = pᵢ + x⁺ − rᵢ⁺

    All lines are solved by one call of proxTV's taut string, as one long line whose pieces are not
    tied.
    """

    penalty: float
    patience: float = PATIENCE

    def path(self, race: TVRace) -> Iterator[tuple[int, Tensor]]:
        """Look after every iteration."""
        return enumerate(self._iterates(race), 1)

    def run(self, race: TVRace, iterations: int) -> Tensor:
        return next(islice(self._iterates(race), iterations - 1, None))

    def _iterates(self, race: TVRace) -> Iterator[Tensor]:
        problem = race.problem
        rho = self.penalty
        y = problem.y.double().numpy()
        start = race.x0.double().numpy()
        seen = (
            2
            * problem.scale
            * (np.ones_like(y) if problem.mask is None else problem.mask.double().numpy())
        )
        r = [start, start]
        p = [np.zeros_like(start)] * 2
        while True:
            x = (seen * y + rho * (r[0] - p[0] + r[1] - p[1])) / (seen + 2 * rho)
            for i, axis in enumerate((-1, -2)):
                ahead = x + p[i]
                r[i] = exact_lines(ahead, axis, problem.kink / rho)
                p[i] = ahead - r[i]
            yield torch.from_numpy(x).to(race.x0.dtype)


def exact_lines(x: np.ndarray, axis: int, weight: float) -> np.ndarray:
    """argmin_r ½‖r − x‖² + weight·(the total variation of r along an axis)."""
    lines = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    ties = np.full(lines.size - 1, weight)
    ties[lines.shape[-1] - 1 :: lines.shape[-1]] = 0.0
    solved = import_module("prox_tv").tv1w_1d(lines.ravel(), ties)
    return np.moveaxis(solved.reshape(lines.shape), -1, axis)
