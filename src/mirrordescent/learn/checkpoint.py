"""Run folders with checkpoints and a log, which survive a killed process.

A checkpoint is a safetensors file with a checksum. It is written beside the previous one and then
renamed, so that a complete checkpoint exists at all times. The previous checkpoint is kept in case
the disk damages the newest. A checkpoint holds everything that the next meta-step depends on. When
a run is resumed, the log is truncated to the length that it had at the checkpoint.
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
    """The state of a run apart from its tensors. The fields are stored in checkpoints.

    Args:
        settings: Settings of the run, as plain data.
        meta_step: Number of finished meta-steps.
        best_step: Number of the meta-step with the best validation score.
        best_validation: Best validation score.
        skipped: Number of meta-steps without an update.
        log_bytes: Length of the log in bytes.
        finished: Whether the run has stopped early.
    """

    settings: dict[str, Any]
    meta_step: int = 0
    best_step: int = 0
    best_validation: float = float("inf")
    skipped: int = 0
    log_bytes: int = 0
    finished: bool = False

    def check(self) -> None:
        """Raise if a field has a value that no run can have."""
        counts = (self.meta_step, self.best_step, self.skipped, self.log_bytes)
        valid = (
            all(type(count) is int and count >= 0 for count in counts)
            and type(self.best_validation) is float
            and type(self.finished) is bool
            and isinstance(self.settings, dict)
        )
        if not valid:
            raise ValueError("its progress record is invalid")


class RunFolder:
    """The newest checkpoint, the previous checkpoint, and the log of a run.

    Args:
        path: Folder of the run, created if necessary.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.previous = self.path / "checkpoint.before.safetensors"
        self.log_file = self.path / "log.jsonl"
        self.tensorboard = _tensorboard(self.path)
        self._checkpoint_is_ours = False

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude other processes in this context.

        The lock ends with the process. Systems without locks do without it.
        """
        if fcntl is None:
            yield
            return
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunBusy(
                    f"another process is learning in {self.path}: "
                    "wait until it has finished, or choose another folder"
                ) from None
            except OSError:  # the file system has no locks
                pass
            yield

    def save(self, progress: Progress, **groups: Mapping[str, Tensor]) -> None:
        """Write a checkpoint.

        Args:
            progress: State of the run; its ``log_bytes`` are updated.
            groups: Tensors by name, in named groups.
        """
        if self.log_file.exists():
            with self.log_file.open("rb+") as file:
                # The lines that the checkpoint counts must be on the disk before it.
                os.fsync(file.fileno())
                progress.log_bytes = file.seek(0, os.SEEK_END)
        tensors = {}
        for group, named in groups.items():
            for name, tensor in named.items():
                tensors[f"{group}.{name}"] = tensor
        self._keep_previous()
        write_whole(tensors, {"progress": json.dumps(vars(progress))}, self.checkpoint)
        self._checkpoint_is_ours = True

    def _keep_previous(self) -> None:
        """Keep the checkpoint that is about to be replaced, if it belongs to this run."""
        if not self._checkpoint_is_ours or not self.checkpoint.exists():
            self.previous.unlink(missing_ok=True)
            return
        with whole(self.previous) as partial:
            shutil.copyfile(self.checkpoint, partial)

    def load(
        self, settings: dict[str, Any]
    ) -> tuple[Progress, dict[str, dict[str, Tensor]]] | None:
        """Return the state and the tensors of the newest checkpoint, or None without a checkpoint.

        If the newest checkpoint is damaged, the previous one is used, with a warning.

        Args:
            settings: Settings of the run, which must agree with those of the checkpoint.
        """
        if not self.checkpoint.exists() and not self.previous.exists():
            return None
        try:
            progress, groups = self._read(self.checkpoint)
            self._checkpoint_is_ours = True
        except RunDamaged as error:
            if not self.previous.exists():
                raise
            progress, groups = self._read(self.previous)
            warnings.warn(
                f"{error}. Continuing from the previous checkpoint, {self.previous}", stacklevel=4
            )
        if progress.settings != settings:
            raise RunDamaged(
                f"{self.path} holds a run with other settings: choose another folder, or start a "
                "new run with resume=False"
            )
        if self.log_file.exists() and self.log_file.stat().st_size > progress.log_bytes:
            os.truncate(self.log_file, progress.log_bytes)
        return progress, groups

    def _read(self, path: Path) -> tuple[Progress, dict[str, dict[str, Tensor]]]:
        try:
            tensors, metadata = read_whole(path)
            progress = Progress(**json.loads(metadata["progress"]))
            progress.check()
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise RunDamaged(
                f"{path} cannot be resumed: {error}. Start a new run with resume=False"
            ) from error
        groups: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            group, _, name = key.partition(".")
            groups.setdefault(group, {})[name] = tensor
        return progress, groups

    def log(self, meta_step: int, **numbers: float) -> None:
        """Append a line to the log, and to that of TensorBoard if it is installed."""
        entry: dict[str, float | None] = {"meta_step": meta_step}
        for name, number in numbers.items():
            entry[name] = number if math.isfinite(number) else None
        with self.log_file.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        if self.tensorboard is not None:
            for name, number in numbers.items():
                self.tensorboard.add_scalar(name, number, meta_step)


def _tensorboard(path: Path) -> Any:
    """Return a writer for TensorBoard, or None if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(path)
