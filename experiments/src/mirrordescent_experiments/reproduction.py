"""All experiments by name, and the function that runs and writes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mirrordescent._internal.suggestions import require_known
from mirrordescent_experiments import (
    attribution,
    baseline_grids,
    charlm,
    combined_maps,
    error_terms,
    fewshot,
    frozen_tasks,
    generalisation,
    imaging_experiments,
    inpaint_time,
    language_track,
    learned_again,
    moons,
    network_geometry,
    network_time,
    network_training_curves,
    phantom_reconstructions,
    photographs,
    resnet,
    svm,
    tomography_experiment,
    transfer,
)
from mirrordescent_experiments.provenance import recorded
from mirrordescent_experiments.result import Result
from mirrordescent_experiments.scales import Say, Scale

EXPERIMENTS: dict[str, Callable[[Scale, Path | None, Say], Result]] = {
    "phantoms": phantom_reconstructions.run,
    **{
        name: partial(imaging_experiments.run, task)
        for name, task in imaging_experiments.TASKS.items()
    },
    "svm": svm.run,
    "baseline-grids": baseline_grids.run,
    "inpaint-time": inpaint_time.run,
    "generalisation": generalisation.run,
    "tomography": tomography_experiment.run,
    "moons": moons.run,
    **{
        name: partial(network_training_curves.run, architecture)
        for name, architecture in network_training_curves.ARCHITECTURES.items()
    },
    **{
        f"{name}-time": partial(network_time.run, a)
        for name, a in network_training_curves.ARCHITECTURES.items()
    },
    "fewshot": fewshot.run,
    "transfer": transfer.run,
    "resnet": resnet.run,
    "network-geometry": network_geometry.run,
    "frozen-tasks": frozen_tasks.run,
    "language-track": language_track.run,
    "charlm": charlm.run,
    "combined-maps": combined_maps.run,
    "attribution": attribution.run,
    "learned-again": learned_again.run,
    "error-terms": error_terms.run,
    "photographs": photographs.run,
}

__all__ = ["EXPERIMENTS", "reproduce"]


def reproduce(
    name: str,
    scale: Scale = "standard",
    out: Path = Path("out"),
    directory: Path | None = None,
    say: Say = print,
) -> list[Result]:
    """Run an experiment, or "all", and write its results to OUT/NAME."""
    require_known(name, [*EXPERIMENTS, "all"], "experiment")
    results = []
    for each in EXPERIMENTS if name == "all" else (name,):
        say(f"{each}, {scale} scale")
        with recorded("as in the sources", EXPERIMENTS[each]) as provenance:
            result = EXPERIMENTS[each](scale, directory, say)
        result.provenance = provenance
        result.write(out / each)
        results.append(result)
    return results
