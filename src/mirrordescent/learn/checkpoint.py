"""Run folders that survive being killed at any moment.

A checkpoint is one safetensors file with a checksum, written beside the old one and then renamed
over it, so that there is always a whole one; the one before it is kept too, in case the disk
damages the newest. It holds every number the next meta-step depends on; the log is cut back to it
on resuming.
"""

import json
import math
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from mirrordescent._internal.files import read_whole, whole, write_whole

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None


class RunDamaged(ValueError):
    """A run folder that cannot be resumed."""


class RunBusy(OSError):
    """A run folder in which another process is learning."""


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

    def check(self) -> None:
        """Raise unless these can be the numbers of a run."""
        counts = (self.meta_step, self.best_step, self.skipped, self.log_bytes)
        numbers = (
            all(type(each) is int and each >= 0 for each in counts)
            and type(self.best_validation) is float
        )
        if not numbers or type(self.finished) is not bool or not isinstance(self.settings, dict):
            raise ValueError("what it says of its progress is none")


class RunFolder:
    """The checkpoint, the one before it, and the log of one run; one process at a time may
    hold it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.before = self.path / "checkpoint.before.safetensors"
        self.lines = self.path / "log.jsonl"
        self.board = _tensorboard(self.path)
        self._continues = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out, as far as the system can; what is killed lets go."""
        if fcntl is None:
            yield
            return
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunBusy(
                    f"another process is learning in {self.path}: wait for it to end, or choose another folder"
                ) from None
            except OSError:  # of a file system without locks
                pass
            yield

    def save(self, progress: Progress, **groups: Mapping[str, Tensor]) -> None:
        """Write all that the next meta-step depends on: groups of tensors by their names."""
        if self.lines.exists():
            with self.lines.open("rb+") as file:
                os.fsync(
                    file.fileno()
                )  # the checkpoint must not last longer than the lines it counts
                progress.log_bytes = file.seek(0, os.SEEK_END)
        tensors = {
            f"{group}.{name}": tensor
            for group, named in groups.items()
            for name, tensor in named.items()
        }
        self._keep_the_last()
        write_whole(tensors, {"progress": json.dumps(vars(progress))}, self.checkpoint)
        self._continues = True

    def _keep_the_last(self) -> None:
        """Keep the checkpoint that is about to be replaced, if it is of this run."""
        if self._continues and self.checkpoint.exists():
            with whole(self.before) as partial:
                shutil.copyfile(self.checkpoint, partial)
        else:
            self.before.unlink(missing_ok=True)

    def load(
        self, settings: dict[str, Any]
    ) -> tuple[Progress, dict[str, dict[str, Tensor]]] | None:
        """Return what was saved last by a run with these settings, or None if there was nothing
        yet.

        If the newest checkpoint is damaged, the one before it serves, with a warning.
        """
        if not self.checkpoint.exists() and not self.before.exists():
            return None
        try:
            progress, groups = self._read(self.checkpoint)
            self._continues = True
        except RunDamaged as error:
            if not self.before.exists():
                raise
            progress, groups = self._read(self.before)
            warnings.warn(
                f"{error}. Going on from the checkpoint before it, {self.before}", stacklevel=4
            )
        if progress.settings != settings:
            raise RunDamaged(
                f"{self.path} holds a run with other settings: choose another folder, or resume=False"
            )
        if self.lines.exists() and self.lines.stat().st_size > progress.log_bytes:
            os.truncate(self.lines, progress.log_bytes)
        return progress, groups

    def _read(self, path: Path) -> tuple[Progress, dict[str, dict[str, Tensor]]]:
        groups: dict[str, dict[str, Tensor]] = {}
        try:
            tensors, metadata = read_whole(path)
            progress = Progress(**json.loads(metadata["progress"]))
            progress.check()
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise RunDamaged(
                f"{path} cannot be resumed: {error}. To start afresh, resume=False"
            ) from error
        for key, tensor in tensors.items():
            group, _, name = key.partition(".")
            groups.setdefault(group, {})[name] = tensor
        return progress, groups

    def log(self, meta_step: int, **numbers: float) -> None:
        """Append a line to the log, and to that of TensorBoard if it is installed."""
        entry = {
            name: number if math.isfinite(number) else None for name, number in numbers.items()
        }
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
