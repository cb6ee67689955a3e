"""The pictures of section 5.2: a phantom, its reconstruction, and the total-variation result."""

from __future__ import annotations

from pathlib import Path

from mirrordescent import data
from mirrordescent.problems import TVDenoising
from mirrordescent.references import certify
from mirrordescent_experiments.result import Result
from mirrordescent_experiments.scales import Say, Scale

SIDES: dict[Scale, int] = {"quick": 48, "standard": 128, "paper": 128}


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Draw a phantom, reconstruct it from noisy projections, and minimise to a proven gap."""
    side = SIDES[scale]
    clean, noisy = data.noisy_phantoms(1, side, seed=4)
    problem = TVDenoising(noisy)
    optimum = certify(problem)
    gap = float(optimum.relative_gap.max())
    settings = {"scale": scale, "side": side, "λ": problem.weight, "certified relative gap": gap}
    result = Result("phantoms", "Ellipse phantoms", settings)
    result.pictures["phantom"] = {
        "clean": clean[0],
        "noisy": noisy[0],
        "minimiser of the TV objective": optimum.x[0].to(noisy),
    }
    return result
