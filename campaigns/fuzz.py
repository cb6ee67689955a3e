"""Damaged and hostile files, documents and arguments: a result that is right, or one clear error,
nothing else.
"""

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
from campaigns.readers import Readers, told
from campaigns.tally import Tally
from mirrordescent import zoo
from mirrordescent._internal.files import Damaged, checksum, read_whole, write_whole
from mirrordescent.cli.output import outline, plain, visible
from mirrordescent.learn import read_recipe
from mirrordescent.mirrors import ConvICNN, Diagonal, LearnedPair
from mirrordescent.restore import read_photo
from mirrordescent.schedules import Prefix

# of the processor for one case, at most; kilobytes of growth
SECONDS = 10
MEMORY = 1 << 20
IN_MEMORY = "/dev/shm"  # a file system where writing costs nothing, if there is one
WORDS = [
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


class Hang(BaseException):
    """A case that takes too long."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raise in a case that takes too long."""

    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Fuzz:
    """One kind of case each, by name."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder = folder
        self.random = random
        pair = LearnedPair(*(ConvICNN(1, filters=2, layers=1) for _ in range(2)))
        methods = [
            md.SMD(pair, Prefix([0.1, 0.2])),
            md.AMD(Diagonal(nn.Parameter(torch.ones(3))), 0.1),
        ]
        self.entries = [zoo.save(method, folder / f"entry{i}") for i, method in enumerate(methods)]
        self.contents = [path.read_bytes() for path in self.entries]
        self.read = [read_whole(path) for path in self.entries]
        self.pictures = list(self._pictures())
        self.document = DOCUMENT

    def _pictures(self) -> Iterator[bytes]:
        generator = torch.Generator().manual_seed(0)
        pixels = (255 * torch.rand(9, 7, 3, generator=generator)).byte().numpy()
        for form in ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM", "TGA"):
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, form)
            yield file.getvalue()

    def entry(self) -> str:
        """Bytes of an entry, a checkpoint or a cached reference, all of which are read in
        one way.
        """
        which = self.random.randrange(len(self.entries))
        path = self.folder / "damaged.safetensors"
        path.write_bytes(damage_bytes(self.contents[which], self.random))
        try:
            tensors, metadata = read_whole(path)
        except Damaged:
            return "refused"
        good, said = self.read[which]
        same = tensors.keys() == good.keys() and all(
            torch.equal(tensors[name], good[name]) for name in good
        )
        if not same or metadata != said:
            raise AssertionError("the content changed silently")
        return "the same"

    def structure(self) -> str:
        """The description and the card of an entry, with a checksum that is right."""
        tensors, metadata = self.read[self.random.randrange(len(self.read))]
        told = dict(metadata)
        tensors = dict(tensors)
        for key in self.random.sample(("structure", "card"), self.random.choice((1, 2))):
            told[key] = json.dumps(damage_data(json.loads(told[key]), self.random))
        if self.random.random() < 0.2:
            name = self.random.choice(list(tensors))
            tensors[name] = self.random.choice(
                (tensors[name] * 1e30, tensors[name] * torch.nan, torch.zeros(2, 0))
            )
        del told["sha256"]
        assert checksum(tensors, told)
        path = self.folder / "hostile.safetensors"
        write_whole(tensors, told, path)
        with contextlib.suppress(zoo.EntryDamaged):
            shown = "\n".join(map(visible, outline(plain(zoo.card(path)))))
            if "\x1b" in shown:
                raise AssertionError("control characters reach the terminal")
        try:
            module = zoo.load(path)
        except EXPECTED_ERRORS:
            return "refused"
        if not all(bool(p.isfinite().all()) for p in module.parameters()):
            raise AssertionError("numbers that are not finite were loaded")
        return "loaded"

    def picture(self) -> str:
        """Bytes of an image file."""
        path = self.folder / "picture.png"
        path.write_bytes(damage_bytes(self.random.choice(self.pictures), self.random))
        try:
            photo = read_photo(path)
        except EXPECTED_ERRORS:
            return "refused"
        if not (
            bool(photo.colour.isfinite().all())
            and 0 <= float(photo.colour.min()) <= float(photo.colour.max()) <= 1
        ):
            raise AssertionError("pixels outside [0, 1]")
        return "read"

    def recipe(self) -> str:
        """A TOML document with odd values, or odd text."""
        table = self.random.choice(list(self.document))
        key = self.random.choice((*self.document[table], "type", "nonsense", table))
        value = self.random.choice(ODD_VALUES)
        tables = {**self.document, table: {**self.document[table], key: value}}
        text = "\n".join(
            f"[{name}]\n" + "\n".join(f"{k} = {_toml(v)}" for k, v in entries.items())
            for name, entries in tables.items()
        )
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
        """Arguments of the command line."""
        chosen = [self.random.choice(WORDS) for _ in range(self.random.randrange(1, 6))]
        return f"exit code {told(chosen)}"


DOCUMENT: dict[str, dict[str, Any]] = {
    "family": {"type": "svm", "first": 3, "second": 5, "C": 1.0},
    "map": {"type": "Diagonal", "d": 2.0},
    "method": {"name": "lsmd", "step": 0.2},
    "settings": {"meta_steps": 4, "horizon": 3, "batch": 2, "save_every": 2, "seed": 0},
    "settings.optimiser": {"learning_rate": 0.1, "decay": "cosine", "clip": 1.0},
    "settings.validation": {"every": 2, "batch": 2, "geometric": False},
}


def _toml(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return (
        json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
        if not isinstance(value, str)
        else repr(value)
    )


KINDS = {"entry": 30, "structure": 22, "picture": 22, "recipe": 8, "command": 0.3}
READ = {
    "checkpoint": 0.4,
    "reference": 3,
    "archive": 4,
    "library": 4,
    "record": 2,
    "line": 6,
    "state": 3,
    "options": 0.6,
}


def run(tally: Tally) -> None:
    """Try cases of all kinds."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if Path(IN_MEMORY).is_dir() else None) as folder:
        fuzz = Fuzz(Path(folder), tally.random)
        readers = Readers(Path(folder), tally.random)
        kinds = KINDS | READ
        for _ in tally.cases():
            kind = tally.random.choices(list(kinds), list(kinds.values()))[0]
            case: Callable[[], str] = getattr(fuzz if kind in KINDS else readers, kind)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            try:
                with limited():
                    tally.note(kind, case())
            except Hang:
                tally.fault(f"{kind}, a hang", f"more than {SECONDS} s")
            except Exception as error:
                tally.fault(f"{kind}, {type(error).__name__}", error)
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > MEMORY:
                tally.fault(f"{kind}, memory", "more than 1 GB")
