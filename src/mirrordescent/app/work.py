"""Photographs of the app, and the work on them in the background."""

from __future__ import annotations

import io
import math
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent._internal.progress import progress_listener
from mirrordescent.data.image_files import IMAGE
from mirrordescent.problems import gaussian_kernel, motion_kernel
from mirrordescent.restore.degradation import Degradation
from mirrordescent.restore.jobs import Jobs, RestorationSettings
from mirrordescent.restore.masks import Masks
from mirrordescent.restore.outcome import Failure, Outcome
from mirrordescent.restore.photo import Photo, read_photo
from mirrordescent.restore.planning import plan_restoration
from mirrordescent.restore.request import Request

PREVIEW_SIDE = 1600  # of the pictures that the page shows, in pixels
KEPT = 4  # photographs that are kept on the disk
TASKS = ("denoise", "inpaint", "deblur", "upsample")
LARGEST_NAME = 100  # characters
LONGEST_WAIT = 20.0  # seconds until cancelled work has ended


class Cancelled(Exception):
    """Raised inside the work when the user has cancelled it."""


class Busy(RuntimeError):
    """Another photograph is being restored."""


@dataclass
class Work:
    """The restoration of one photograph.

    Args:
        state: "running", "done", "failed" or "cancelled".
        message: What is being done, the result, or the error, in one line.
        share: Finished share of the work, or None if it is not known.
        output: The restored file.
    """

    state: str = "running"
    message: str = "estimating the noise"
    share: float | None = None
    output: Path | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    def listen(self, label: str, done: int, total: int) -> None:
        """Note the progress of a bar, and stop the work if it was cancelled."""
        if self.cancelled.is_set():
            raise Cancelled
        if label == "tiles":
            self.share = done / total
            self.message = f"tile {done} of {total}"
        elif label == "solving" and self.share is None:
            self.message = f"iteration {done}"

    def report(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {"state": self.state, "message": self.message, "share": self.share}


@dataclass
class OpenPhoto:
    """A photograph that was dropped on the page.

    Args:
        folder: Folder for its files.
        path: Its file.
        photo: Its pixels.
        work: The last work on it.
    """

    folder: Path
    path: Path
    photo: Photo
    work: Work | None = None

    @property
    def preview_size(self) -> tuple[int, int]:
        """Width and height of the pictures that the page shows."""
        width, height = self.photo.size
        factor = max(1.0, max(width, height) / PREVIEW_SIDE)
        return max(1, round(width / factor)), max(1, round(height / factor))

    def before(self) -> bytes:
        """Return a picture of the photograph as PNG."""
        return preview(self.photo, self.preview_size)

    def after(self) -> bytes:
        """Return a picture of the restored photograph as PNG, of the same size."""
        if self.work is None or self.work.output is None:
            raise FileNotFoundError("the photograph has not been restored yet")
        return preview(read_photo(self.work.output), self.preview_size)


class Studio:
    """The photographs of the page. One is restored at a time.

    Args:
        folder: Folder for all files, which the caller removes at the end.
        fused: Whether to use kernels in C; see :func:`~mirrordescent.solve`.
    """

    def __init__(self, folder: Path, fused: bool | None = None) -> None:
        self.folder = folder
        self.fused = fused
        self.photos: dict[str, OpenPhoto] = {}
        self._lock = threading.Lock()
        self._running: Work | None = None
        self._thread: threading.Thread | None = None

    def open(self, name: str, content: bytes) -> str:
        """Keep a photograph and return its identifier.

        Args:
            name: File name, of which only the last part and a known suffix are used.
            content: Content of the file.
        """
        identifier = secrets.token_urlsafe(12)
        folder = self.folder / identifier
        folder.mkdir(parents=True)
        path = folder / safe_name(name)
        path.write_bytes(content)
        try:
            photo = read_photo(path)
        except (OSError, ValueError) as error:
            _remove(folder)
            message = str(error).replace(str(path), name)
            raise ValueError(message) from error
        with self._lock:
            self.photos[identifier] = OpenPhoto(folder, path, photo)
            for old in list(self.photos)[:-KEPT]:
                if self.photos[old].work is None or self.photos[old].work is not self._running:
                    _remove(self.photos.pop(old).folder)
        return identifier

    def start(self, identifier: str, options: Mapping[str, Any], mask: bytes | None) -> Work:
        """Begin to restore a photograph.

        Args:
            identifier: The photograph.
            options: Task, strength and other settings of the page.
            mask: Picture of the mask for inpainting, white where pixels are missing; or None.
        """
        opened = self.photos[identifier]
        request = read_request(options)
        masks = Masks()
        if request.task == "inpaint" and mask is not None:
            masks = Masks(write_mask(mask, opened), white="missing")
        settings = RestorationSettings(request, opened.folder / "out", masks)
        work = Work()
        with self._lock:
            if self._running is not None and self._running.state == "running":
                raise Busy("another photograph is being restored: cancel it, or wait")
            self._running = work
            opened.work = work
        arguments = (work, opened, settings)
        self._thread = threading.Thread(target=self._run, args=arguments, daemon=True)
        self._thread.start()
        return work

    def _run(self, work: Work, opened: OpenPhoto, settings: RestorationSettings) -> None:
        """Restore a photograph as the command line does."""
        said: list[str] = []
        try:
            with progress_listener(work.listen):
                plan = plan_restoration(settings.task, isotropic=True, fused=self.fused)
                jobs = Jobs(settings, [opened.path], say=said.append)
                for outcome in jobs.run(plan, progress=False):
                    _note(work, outcome, opened)
        except Cancelled:
            work.message = "cancelled"
            work.state = "cancelled"
        except Exception as error:  # shown on the page; the server must go on
            work.message = str(error).replace(str(opened.path), opened.path.name)
            work.state = "failed"

    def cancel(self) -> None:
        """Cancel the work that is running."""
        if self._running is not None:
            self._running.cancelled.set()

    def close(self) -> None:
        """Cancel the work that is running, and wait for its end for some seconds.

        Files must not be removed, and the interpreter must not end, while a thread works.
        """
        self.cancel()
        if self._thread is not None:
            self._thread.join(LONGEST_WAIT)


def _note(work: Work, outcome: Outcome | Failure, opened: OpenPhoto) -> None:
    """Note the result of a photograph."""
    if isinstance(outcome, Failure):
        work.message = outcome.reason
        work.state = "failed"
        return
    _, _, words = outcome.line().partition(": ")
    work.message = words.replace("give it with --noise", "enter it under Noise")
    work.output = Path(outcome.record["output"])
    work.state = "done"


def read_request(options: Mapping[str, Any]) -> Request:
    """Return the request that the settings of the page stand for.

    Args:
        options: ``task``, and perhaps ``strength``, ``noise``, ``prior``, ``gaussian``, ``motion``
            (length and angle in degrees) or ``factor``.
    """
    task = options.get("task")
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    prior = options.get("prior", "auto")
    if prior not in ("auto", "tv", "photo"):
        raise ValueError(f"prior must be auto, tv or photo, got {prior!r}")
    degradation = Degradation()
    if task == "deblur" and options.get("motion") is not None:
        length, angle = map(_number, options["motion"])
        degradation = Degradation(motion_kernel(_within(length, 1, 99), math.radians(angle)))
    elif task == "deblur":
        degradation = Degradation(gaussian_kernel(_within(_number(options["gaussian"]), 0.3, 20)))
    elif task == "upsample":
        degradation = Degradation(factor=int(_number(options.get("factor", 2))))
    noise = options.get("noise")
    return Request(
        task,
        prior,
        None if noise is None else _number(noise),
        _number(options.get("strength", 1)),
        degradation=degradation,
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"a setting must be a number, got {value!r}")
    return float(value)


def _within(value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise ValueError(f"the size of a blur must be from {low} to {high} pixels, got {value:g}")
    return value


def safe_name(name: str) -> str:
    """Return a file name without folders, hidden files or control characters.

    >>> safe_name("../../etc/photo.jpg"), safe_name(".hidden"), safe_name("index.html")
    ('photo.jpg', 'photo', 'photo.html')
    """
    last = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join(char for char in last if char.isalnum() or char in " ._-()")
    if IMAGE.fullmatch(kept) and len(kept) <= LARGEST_NAME:
        return kept
    suffix = Path(kept).suffix
    return f"photo{suffix}" if 1 < len(suffix) <= 6 else "photo"


def preview(photo: Photo, size: tuple[int, int]) -> bytes:
    """Return a picture of a photograph as PNG, transparent where the photograph is.

    Args:
        photo: The photograph.
        size: Width and height of the picture.
    """
    from PIL import Image

    channels = photo.colour if len(photo.colour) == 3 else photo.colour.expand(3, -1, -1)
    if photo.alpha is not None:
        channels = torch.cat([channels, photo.alpha.unsqueeze(0)])
    width, height = size
    if (width, height) != photo.size:
        channels = _resize(channels, (height, width))
    pixels = (channels.clamp(0, 1) * 255).round().byte().movedim(0, -1).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png", compress_level=1)
    return file.getvalue()


def _resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(image.unsqueeze(0), size, mode="bilinear", antialias=True)[0]


def write_mask(content: bytes, opened: OpenPhoto) -> Path | None:
    """Write a mask of the page in the size of its photograph; None if nothing is marked.

    Args:
        content: Picture of the mask in the size of the preview, white where pixels are missing.
        opened: The photograph.
    """
    from PIL import Image

    path = opened.folder / "mask" / "mask.png"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    light = read_photo(path).colour.mean(0)
    if not bool((light >= 0.5).any()):
        return None
    width, height = opened.photo.size
    grown = F.interpolate(light[None, None], (height, width), mode="bilinear")[0, 0]
    Image.fromarray((grown >= 0.25).numpy()).save(path)  # marks cover blended edges
    return path


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
