"""Run folders that survive being killed at any moment.

A checkpoint is one safetensors file, written beside the old one and then renamed over it, so that there is always a
whole one. It holds every number the next meta-step depends on; the log is cut back to it on resuming.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Generator, Tensor, nn

from mirrordescent.files import write_whole

CHECKPOINT, LOG = "checkpoint.safetensors", "log.jsonl"


class RunDamaged(ValueError):
    """A run folder that cannot be resumed."""


@dataclass
class Progress:
    """Where a run stands, besides its tensors."""

    meta_step: int = 0
    best_step: int = 0
    best_validation: float = float("inf")
    skipped: int = 0
    log_bytes: int = 0
    finished: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


class RunFolder:
    """The checkpoint and the log of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.board = _tensorboard(path)

    @property
    def exists(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return (self.path / CHECKPOINT).exists()

    def save(
        self,
        progress: Progress,
        module: nn.Module,
        best: dict[str, Tensor],
        optimiser: torch.optim.Optimizer,
        generator: Generator,
    ) -> None:
        """Write all that the next meta-step depends on."""
        log = self.path / LOG
        progress.log_bytes = log.stat().st_size if log.exists() else 0
        tensors = {f"module.{name}": tensor for name, tensor in module.state_dict().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
        for index, state in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
        tensors["generator"] = generator.get_state()
        write_whole(tensors, {"progress": json.dumps(vars(progress))}, self.path / CHECKPOINT)

    def load(
        self, module: nn.Module, optimiser: torch.optim.Optimizer, generator: Generator
    ) -> tuple[Progress, dict[str, Tensor]]:
        """Put a run back as it was, and return its progress and its best parameters."""
        path = self.path / CHECKPOINT
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
                progress = Progress(**json.loads((file.metadata() or {})["progress"]))
            module.load_state_dict(_below("module.", tensors))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise RunDamaged(f"{path} cannot be resumed: {error}") from error
        states: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _below("optimiser.", tensors).items():
            index, key = name.split(".", 1)
            states.setdefault(int(index), {})[key] = tensor
        optimiser.load_state_dict({**optimiser.state_dict(), "state": states})
        generator.set_state(tensors["generator"])
        self._cut_log(progress.log_bytes)
        return progress, _below("best.", tensors)

    def log(self, meta_step: int, **numbers: float) -> None:
        """Append a line to the log, and to TensorBoard's if it is installed."""
        entry = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
        with (self.path / LOG).open("a") as file:
            file.write(json.dumps({"meta_step": meta_step, **entry}) + "\n")
        if self.board is not None:
            for name, number in numbers.items():
                self.board.add_scalar(name, number, meta_step)

    def _cut_log(self, size: int) -> None:
        log = self.path / LOG
        if log.exists() and log.stat().st_size > size:
            os.truncate(log, size)


def _tensorboard(path: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(path)  #


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
