"""Experiments: the figures of the paper, with its claims as checks and the classical solvers beside
them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mirrordescent._internal.suggestions import require_known
from mirrordescent_lab.experiments import (
    attribution,
    baseline_grids,
    charlm,
    combined_maps,
    error_terms,
    fewshot,
    generalisation,
    imaging,
    inpaint_time,
    learned_again,
    moons,
    network_geometry,
    network_time,
    networks,
    phantoms,
    resnet,
    svm,
    tomography,
    transfer,
)
from mirrordescent_lab.experiments.result import Claim, Curve, Panel, Result, Table
from mirrordescent_lab.experiments.scales import Say, Scale
from mirrordescent_lab.provenance import recorded

EXPERIMENTS: dict[str, Callable[[Scale, Path | None, Say], Result]] = {
    "phantoms": phantoms.run,
    **{name: partial(imaging.run, task) for name, task in imaging.TASKS.items()},
    "svm": svm.run,
    "baseline-grids": baseline_grids.run,
    "inpaint-time": inpaint_time.run,
    "generalisation": generalisation.run,
    "tomography": tomography.run,
    "moons": moons.run,
    **{
        name: partial(networks.run, architecture)
        for name, architecture in networks.ARCHITECTURES.items()
    },
    **{f"{name}-time": partial(network_time.run, a) for name, a in networks.ARCHITECTURES.items()},
    "fewshot": fewshot.run,
    "transfer": transfer.run,
    "resnet": resnet.run,
    "network-geometry": network_geometry.run,
    "charlm": charlm.run,
    "combined-maps": combined_maps.run,
    "attribution": attribution.run,
    "learned-again": learned_again.run,
    "error-terms": error_terms.run,
}

__all__ = ["EXPERIMENTS", "Claim", "Curve", "Panel", "Result", "Scale", "Table", "reproduce"]


def reproduce(
    name: str,
    scale: Scale = "standard",
    out: Path = Path("out"),
    directory: Path | None = None,
    say: Say = print,
) -> list[Result]:
    """Run an experiment, or "all", and write its curves, figures, claims and summary to
    OUT/NAME.
    """
    require_known(name, [*EXPERIMENTS, "all"], "experiment")
    results = []
    for each in EXPERIMENTS if name == "all" else (name,):
        say(f"{each}, {scale} scale")
        with recorded("as in the sources") as provenance:
            result = EXPERIMENTS[each](scale, directory, say)
        result.provenance = provenance
        result.write(out / each)
        results.append(result)
    return results
