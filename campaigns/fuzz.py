"""Damaged and hostile files, documents and arguments: a correct result or a clear error."""

from __future__ import annotations

import contextlib
import io
import json
import resource
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from PIL import Image
from torch import nn

import mirrordescent as md
from campaigns.mutations import EXPECTED_ERRORS, ODD_VALUES, damage_bytes, damage_data
from campaigns.readers import Readers, run_command
from campaigns.tally import Tally
from mirrordescent import zoo
from mirrordescent._internal.files import Damaged, read_whole, write_whole
from mirrordescent.cli.output import outline, plain, visible
from mirrordescent.learn import read_recipe
from mirrordescent.mirrors import ConvICNN, Diagonal, LearnedPair
from mirrordescent.restore import read_photo
from mirrordescent.schedules import Prefix

MAX_SECONDS = 10
"""Processor time that a case may take."""

MAX_GROWTH = 1 << 20
"""Kilobytes by which a case may raise the peak memory."""

MEMORY_FOLDER = Path("/dev/shm")
"""A file system in memory, used if it exists."""

IMAGE_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM", "TGA")
ARGUMENTS = [
    "zoo",
    "show",
    "verify",
    "list",
    "solve",
    "denoise",
    "inpaint",
    "learn",
    "--weight",
    "nan",
    "-1",
    "1e999",
    "--mask",
    "/dev/null",
    "--json",
    "--out",
    "/dev/null/x",
    "hf://",
    "..",
    "a.toml",
    "entry0",
    "--set",
    "x=",
    "--iterations",
    "0",
    "--tolerance",
    "--method",
    "lamd",
    "version",
    "é",
    "",
]
RECIPE: dict[str, dict[str, Any]] = {
    "family": {"type": "svm", "first": 3, "second": 5, "C": 1.0},
    "map": {"type": "Diagonal", "d": 2.0},
    "method": {"name": "lsmd", "step": 0.2},
    "settings": {"meta_steps": 4, "horizon": 3, "batch": 2, "save_every": 2, "seed": 0},
    "settings.optimiser": {"learning_rate": 0.1, "decay": "cosine", "clip": 1.0},
    "settings.validation": {"every": 2, "batch": 2, "geometric": False},
}
FUZZ_WEIGHTS = {"entry": 30, "structure": 22, "picture": 22, "recipe": 8, "command": 0.3}
"""Relative frequency of the cases of :class:`Fuzz`."""

READER_WEIGHTS = {
    "checkpoint": 0.4,
    "reference": 3,
    "archive": 4,
    "record": 2,
    "line": 6,
    "state": 3,
    "options": 0.6,
}
"""Relative frequency of the cases of :class:`~campaigns.readers.Readers`."""


class TimeLimitExceeded(BaseException):
    """A case takes too long."""


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raise TimeLimitExceeded inside this context after MAX_SECONDS of processor time."""

    def stop(*_: object) -> None:
        raise TimeLimitExceeded

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


class Fuzz:
    """Cases by name. A method returns the outcome of a case, or raises if it found a fault.

    Args:
        folder: Folder to work in.
        random: Random generator of the cases.
    """

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder = folder
        self.random = random
        pair = LearnedPair(ConvICNN(1, filters=2, layers=1), ConvICNN(1, filters=2, layers=1))
        methods = [
            md.SMD(pair, Prefix([0.1, 0.2])),
            md.AMD(Diagonal(nn.Parameter(torch.ones(3))), 0.1),
        ]
        self.entries = [zoo.save(method, folder / f"entry{i}") for i, method in enumerate(methods)]
        self.contents = [path.read_bytes() for path in self.entries]
        self.read = [read_whole(path) for path in self.entries]
        self.pictures = list(self._pictures())

    def _pictures(self) -> Iterator[bytes]:
        """Yield a random picture in several formats."""
        generator = torch.Generator().manual_seed(0)
        pixels = (255 * torch.rand(9, 7, 3, generator=generator)).byte().numpy()
        for image_format in IMAGE_FORMATS:
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, image_format)
            yield file.getvalue()

    def entry(self) -> str:
        """Damage the bytes of an entry; checkpoints and cached references are read alike."""
        index = self.random.randrange(len(self.entries))
        path = self.folder / "damaged.safetensors"
        path.write_bytes(damage_bytes(self.contents[index], self.random))
        try:
            tensors, metadata = read_whole(path)
        except Damaged:
            return "refused"
        expected, expected_metadata = self.read[index]
        same = tensors.keys() == expected.keys() and metadata == expected_metadata
        if not same or not all(torch.equal(tensors[name], expected[name]) for name in expected):
            raise AssertionError("the content changed silently")
        return "the same"

    def structure(self) -> str:
        """Damage the description and the card of an entry, with a valid checksum."""
        tensors, metadata = self.read[self.random.randrange(len(self.read))]
        tensors = dict(tensors)
        metadata = dict(metadata)
        for key in self.random.sample(("structure", "card"), self.random.choice((1, 2))):
            metadata[key] = json.dumps(damage_data(json.loads(metadata[key]), self.random))
        if self.random.random() < 0.2:
            name = self.random.choice(list(tensors))
            tensor = tensors[name]
            replacements = (tensor * 1e30, tensor * torch.nan, torch.zeros(2, 0))
            tensors[name] = self.random.choice(replacements)
        del metadata["sha256"]
        path = self.folder / "hostile.safetensors"
        write_whole(tensors, metadata, path)
        self._check_card(path)
        try:
            module = zoo.load(path)
        except EXPECTED_ERRORS:
            return "refused"
        if not all(bool(p.isfinite().all()) for p in module.parameters()):
            raise AssertionError("numbers that are not finite were loaded")
        return "loaded"

    def _check_card(self, path: Path) -> None:
        """Check that no control characters of a card reach the terminal."""
        with contextlib.suppress(zoo.EntryDamaged):
            shown = "\n".join(map(visible, outline(plain(zoo.card(path)))))
            if "\x1b" in shown:
                raise AssertionError("control characters reach the terminal")

    def picture(self) -> str:
        """Damage the bytes of an image file."""
        path = self.folder / "picture.png"
        path.write_bytes(damage_bytes(self.random.choice(self.pictures), self.random))
        try:
            colour = read_photo(path).colour
        except EXPECTED_ERRORS:
            return "refused"
        if not bool(colour.isfinite().all()) or colour.min() < 0 or colour.max() > 1:
            raise AssertionError("pixels outside [0, 1]")
        return "read"

    def recipe(self) -> str:
        """Read a TOML document with an odd value, and sometimes with damaged text."""
        table = self.random.choice(list(RECIPE))
        key = self.random.choice((*RECIPE[table], "type", "nonsense", table))
        value = self.random.choice(ODD_VALUES)
        text = _toml_document({**RECIPE, table: {**RECIPE[table], key: value}})
        if self.random.random() < 0.3:
            text = damage_bytes(text.encode(), self.random).decode(errors="replace")
        path = self.folder / "mine.toml"
        path.write_text(text)
        try:
            recipe = read_recipe(path)
            family = recipe.family(None)
            recipe.method(torch.Generator().manual_seed(0), family)
        except EXPECTED_ERRORS:
            return "refused"
        return "read"

    def command(self) -> str:
        """Run the command line with random arguments."""
        arguments = [self.random.choice(ARGUMENTS) for _ in range(self.random.randrange(1, 6))]
        return f"exit code {run_command(arguments)}"


def _toml_document(tables: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, entries in tables.items():
        lines.append(f"[{name}]")
        lines.extend(f"{key} = {_toml_value(value)}" for key, value in entries.items())
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    """Write a value as TOML; None is written as nothing, which is a syntax error."""
    if value is None:
        return ""
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, dict):
        pairs = [f"{key} = {_toml_value(item)}" for key, item in value.items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


def run(tally: Tally) -> None:
    """Run the campaign."""
    warnings.simplefilter("ignore")
    parent = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        fuzz = Fuzz(Path(folder), tally.random)
        readers = Readers(Path(folder), tally.random)
        weights = FUZZ_WEIGHTS | READER_WEIGHTS
        for _ in tally.cases():
            kind = tally.random.choices(list(weights), list(weights.values()))[0]
            source = fuzz if kind in FUZZ_WEIGHTS else readers
            _try_case(tally, kind, getattr(source, kind))


def _try_case(tally: Tally, kind: str, case: Callable[[], str]) -> None:
    """Run a case with limits on time and memory, and count its outcome."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with time_limit():
            tally.note(kind, case())
    except TimeLimitExceeded:
        tally.fault(f"{kind}, a hang", f"more than {MAX_SECONDS} s")
    except Exception as error:
        tally.fault(f"{kind}, {type(error).__name__}", error)
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory > MAX_GROWTH:
        tally.fault(f"{kind}, memory", "more than 1 GB")
