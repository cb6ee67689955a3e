"""A user's own entry: learned as a document says, and saved like those of the zoo."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mirrordescent.files import write_whole
from mirrordescent.learn import Config, Learned, OnDevice, learn
from mirrordescent.zoo.blueprint import describe
from mirrordescent.zoo.storage import save_entry


def learn_own(
    config: Config,
    runs: Path,
    out: Path,
    directory: Path | None = None,
    *,
    resume: bool = True,
    device: str = "cpu",
    progress: bool | None = None,
) -> tuple[Path, Learned]:
    """Learn what a document says, or go on where its run stopped; write it to OUT/NAME.safetensors and return that.

    The numbers of a map of one's own cannot be an entry of a zoo, whose files name only parts of the library: they are
    written as they are, to be read with :meth:`~mirrordescent.learn.config.Config.load`.
    """
    family = config.make_family(directory)
    if device != "cpu":
        family = OnDevice(family, device)
    example = family.validation(1).x0
    method = config.make_method(example)
    if isinstance(family, OnDevice):
        method.to(family.device)
    out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be written should be known before, not after
    result = learn(family, method, config.settings, folder=runs / config.name, resume=resume, progress=progress)
    path = out / f"{config.name}.safetensors"
    card: dict[str, Any] = {
        "name": config.name,
        "kind": "method",
        "description": config.description,
        "family": config.family,
        "map": config.map,
        "method": config.method,
        "settings": asdict(config.settings),
        "parameters": sum(p.numel() for p in method.parameters()),
        "best_meta_step": result.best_step,
        "best_validation": result.best_validation,
        "skipped_meta_steps": result.skipped,
    }
    try:
        describe(method)
    except TypeError:
        write_whole(method.state_dict(), {"card": json.dumps(card)}, path)
    else:
        save_entry(method, path, card)
    return path, result
