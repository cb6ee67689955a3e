"""Run folders that survive being killed at any moment.

A checkpoint is one safetensors file, written beside the old one and then renamed over it, so that there is always a
whole one. It holds every number the next meta-step depends on; the log is cut back to it on resuming.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from mirrordescent.files import write_whole


class RunDamaged(ValueError):
    """A run folder that cannot be resumed."""


@dataclass
class Progress:
    """Where a run stands, besides its tensors."""

    settings: dict[str, Any]
    meta_step: int = 0
    best_step: int = 0
    best_validation: float = float("inf")
    skipped: int = 0
    log_bytes: int = 0
    finished: bool = False


class RunFolder:
    """The checkpoint and the log of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.checkpoint, self.lines = self.path / "checkpoint.safetensors", self.path / "log.jsonl"
        self.board = _tensorboard(self.path)

    def save(self, progress: Progress, **groups: Mapping[str, Tensor]) -> None:
        """Write all that the next meta-step depends on: groups of tensors by their names."""
        progress.log_bytes = self.lines.stat().st_size if self.lines.exists() else 0
        tensors = {f"{group}.{name}": tensor for group, named in groups.items() for name, tensor in named.items()}
        write_whole(tensors, {"progress": json.dumps(vars(progress))}, self.checkpoint)

    def load(self, settings: dict[str, Any]) -> tuple[Progress, dict[str, dict[str, Tensor]]] | None:
        """Return what was saved last by a run with these settings, or None if there was nothing yet."""
        if not self.checkpoint.exists():
            return None
        groups: dict[str, dict[str, Tensor]] = {}
        try:
            with safe_open(self.checkpoint, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - not a dict
                    group, _, name = key.partition(".")
                    groups.setdefault(group, {})[name] = file.get_tensor(key)
                progress = Progress(**json.loads((file.metadata() or {})["progress"]))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise RunDamaged(f"{self.checkpoint} cannot be resumed: {error}") from error
        if progress.settings != settings:
            raise RunDamaged(f"{self.path} holds a run with other settings: choose another folder, or resume=False")
        if self.lines.exists() and self.lines.stat().st_size > progress.log_bytes:
            os.truncate(self.lines, progress.log_bytes)
        return progress, groups

    def log(self, meta_step: int, **numbers: float) -> None:
        """Append a line to the log, and to that of TensorBoard if it is installed."""
        entry = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
        with self.lines.open("a") as file:
            file.write(json.dumps({"meta_step": meta_step, **entry}) + "\n")
        if self.board is not None:
            for name, number in numbers.items():
                self.board.add_scalar(name, number, meta_step)


def _tensorboard(path: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(path)
