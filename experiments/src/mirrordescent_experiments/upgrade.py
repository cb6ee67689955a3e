"""Rewrite entries that were saved by version 0.1 for this version.

python -m mirrordescent_experiments.upgrade FILE …
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from mirrordescent.parts import find
from mirrordescent.zoo import Card, save

OLD_ARGUMENTS = {"AMD": {"answer": "returns"}, "Relative": {"base": "oracle"}}


def build(blueprint: dict[str, Any]) -> Any:
    """Make what a blueprint of version 0.1 describes; the learned numbers are not in it."""
    arguments = {key: _built(value) for key, value in blueprint.items() if key != "type"}
    kind = blueprint["type"]
    if kind in _MAKERS:
        return _MAKERS[kind](**arguments)
    renamed = OLD_ARGUMENTS.get(kind, {})
    return find(kind)(**{renamed.get(key, key): value for key, value in arguments.items()})


def upgrade(path: Path, out: Path | None = None) -> None:
    """Rewrite an entry, in its place unless another is given."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    module = build(json.loads(metadata["blueprint"]))
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    module.to(dtypes.pop() if len(dtypes) == 1 else None).load_state_dict(tensors)
    save(module, out or path, card_of(json.loads(metadata["card"]), path.stem))


def card_of(old: dict[str, Any], name: str) -> Card:
    """Sort what a card of version 0.1 says into a card of this version."""
    stages = [
        {"settings": settings, **outcome}
        for settings, outcome in (
            (
                old.get("settings"),
                {
                    "best_meta_step": old.get("best_meta_step"),
                    "skipped": old.get("skipped_meta_steps"),
                },
            ),
            (old.get("refinement"), {"best_meta_step": old.get("best_refinement_step")}),
        )
        if settings
    ]
    used = (
        "minibatch",
        "learning_minibatch",
        "accelerated_scale",
        "descent_scale",
        "descent_shape",
        "step_sizes",
    )
    return Card(
        name=str(old.get("name", name)),
        description=str(old.get("description", "")),
        family=str(old.get("family", "")),
        data=str(old.get("data", "")),
        stages=stages,
        parameters=old.get("parameters"),
        held_out=old.get("held_out", {}),
        use={key: old[key] for key in (*used, "map_parameters") if old.get(key) is not None},
    )


def _built(value: Any) -> Any:
    if isinstance(value, dict) and "type" in value:
        return build(value)
    return [_built(item) for item in value] if isinstance(value, list) else value


def _groups(shape: list[int], count: int) -> Tensor:
    return (torch.arange(math.prod(shape)) % count).reshape(shape)


def _tied(kind: str) -> Callable[..., Any]:
    def make(shape: list[int], count: int, **rule: Any) -> Any:
        slope = {"slope": 1 + rule["floor"]} if "floor" in rule else {}
        return find(kind)(_groups(shape, count), **slope, **rule)  # type: ignore[call-arg]

    return make


def _power_laws(counts: list[int], power: float, bound: float | None) -> Any:
    values = torch.full((len(counts),), 1.0 if bound is None else bound / 2)
    return find("PowerLaws")(counts, values, power, bound or math.inf)  # type: ignore[call-arg]


def _amd(mirror: Any, regulariser: Any, answer: str, **rest: Any) -> Any:
    return find("AMD")(mirror, regulariser=regulariser or mirror, returns=answer, **rest)  # type: ignore[call-arg]


_MAKERS: dict[str, Callable[..., Any]] = {
    "AMD": _amd,
    "Diagonal": lambda shape: find("Diagonal")(nn.Parameter(torch.ones(shape))),  # type: ignore[call-arg]
    "Multipliers": _tied("Multipliers"),
    "Spline": _tied("Spline"),
    "PowerLaws": _power_laws,
    "Prefix": lambda count, **rule: find("Prefix")(torch.ones(count), **rule),  # type: ignore[call-arg]
    "Interpolated": lambda counts: find("Interpolated")(counts, torch.ones(len(counts))),  # type: ignore[call-arg]
    "Layerwise": lambda names, maps, shapes: find("Layerwise")(  # type: ignore[call-arg]
        dict(zip(names, maps, strict=True)),
        None if shapes is None else dict(zip(names, shapes, strict=True)),
    ),
    "Initialisation": lambda shapes: find("Initialisation")(  # type: ignore[call-arg]
        {name: torch.zeros(shape) for name, shape in shapes.items()}
    ),
}


if __name__ == "__main__":
    for given in sys.argv[1:]:
        upgrade(Path(given))
        print(f"{given} is upgraded")
