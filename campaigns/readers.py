"""What else is read: checkpoints, references, archives, kernels, lists of what was done, states;
and every option.

Files of tensors get a checksum that is right, so that what is tried is what comes after it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import io
import json
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from campaigns.children import Bowls, train
from campaigns.mutations import EXPECTED_ERRORS, ODD_VALUES, damage_bytes, damage_data
from mirrordescent import Quadratic, TVDenoising, certify, cli, optim
from mirrordescent._internal.files import Damaged, read_whole, sealed, unsealed, write_whole
from mirrordescent.cli import comparing, learning, solve
from mirrordescent.data.errors import DataDamaged, DataMissing
from mirrordescent.data.image_files import read_images
from mirrordescent.kernels import build
from mirrordescent.learn import Draw
from mirrordescent.learn.checkpoint import RunDamaged
from mirrordescent.mirrors import HyperbolicEntropy
from mirrordescent.restore import plan_restoration
from mirrordescent.restore.jobs import RECORDS, Jobs, RestorationSettings

VALUES = [
    "",
    "..",
    "nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "1",
    "7",
    "0.5",
    "1e999",
    "1e-320",
    "1e30",
    "auto",
    "yes",
    "no",
    "None",
    "é" * 50,
    "\x1b[2J",
    "/dev/null",
    "/dev/null/x",
    "a/b",
    "#ff00ff",
    "red",
    "lamd",
    "pdhg",
    "gd",
    "image-tv",
    "photo-inpaint-pair",
    "known",
    "missing",
    "cuda",
    "bundled",
    "denoise",
    "--json",
    "--",
    "[1]",
    "{}",
    "0x10",
]
HUGE = ["99999999999", "1" + "0" * 30]  # but not for iterations, which are taken on purpose
COUNTED = ("--iterations",)
NUMBERS = ["-1", "0", "1", "3", "0.3", "1e-3", "1e-30", "1e30", "nan", "inf"]
SWITCHES = ["yes", "no", "auto"]
KEYS = (
    "name",
    "map.d",
    "map.type",
    "method.step",
    "settings.batch",
    "settings.horizon",
    "settings.optimiser.clip",
)
LIKELY: dict[str, list[str]] = {
    **dict.fromkeys(
        ("--weight", "--tolerance", "--iterations", "--missing", "--seed", "--count", "--noise"),
        NUMBERS,
    ),
    **dict.fromkeys(("--isotropic", "--coupled", "--fused", "--keep-known"), SWITCHES),
    "--size": ["7", "8", "9"],
    "--json": [],
    "--verbose": [],
    "--resume": [],
    "--problem": ["denoise", "inpaint"],
    "--method": ["lamd", "pdhg", "gd", "dual-fista", "adam", "amd"],
    "--mirror": ["image-tv", "photo-inpaint-pair"],
    "--set": [
        f"{key}={value}"
        for key in KEYS
        for value in ("-1", "0", "2", "nan", "inf", "x", "[]", "1e30", "'..'")
    ],
    "--mask-white": ["known", "missing"],
    "--mask-colour": ["#ff00ff", "red", "#000"],
}


DOCUMENT = """
name = "bowls"
[family]
type = "campaigns.readers:Singles"
[map]
type = "diagonal"
[method]
name = "lsmd"
step = 0.02
[settings]
meta_steps = 2
horizon = 2
batch = 2
[settings.validation]
batch = 2
"""


class Stopped(Exception):
    """Learning that was ended half-way."""


class Singles(Bowls):
    """Bowls in single precision, as methods in documents are."""

    def draw(self, seeds: Tensor) -> Draw:
        drawn = super().draw(seeds)
        problem = Quadratic(drawn.problem.A.float(), drawn.problem.centre.float())  # type: ignore[union-attr, operator]
        return Draw(problem, drawn.x0.float(), drawn.x0[:, 0].float())  # type: ignore[union-attr, index]


class Readers:
    """One kind of case each, by name."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder = folder
        self.random = random
        os.environ["MIRRORDESCENT_CACHE"] = str(folder / "cache")
        self.run = folder / "run"
        self._learn_half()
        self.checkpointed = read_whole(self.run / "checkpoint.safetensors")
        generator = torch.Generator().manual_seed(0)
        self.problem = TVDenoising(torch.rand(2, 1, 6, 5, generator=generator, dtype=torch.float64))
        self.certified = certify(self.problem, 1e-2)
        (self.kept,) = (folder / "cache").glob("*.safetensors")
        self.reference_ = read_whole(self.kept)[0]
        self._write_pictures(generator)
        self.document = folder / "bowls.toml"
        self.document.write_text(DOCUMENT)
        self.library_ = random.randbytes(3000)
        runs = str(folder / "runs")
        pictures = str(self.images)
        self.commands = {
            "denoise": ["solve", "denoise", f"{pictures}/0.png", "--iterations", "3"],
            "inpaint": ["solve", "inpaint", f"{pictures}/0.png", "--iterations", "3"],
            "compare": [
                *[
                    "compare",
                    "image-tv",
                    "--count",
                    "2",
                    "--size",
                    "8",
                    "--iterations",
                    "3",
                    "--images",
                ],
                str(pictures),
            ],
            "learn": ["learn", str(self.document), "--import", __name__, "--runs", runs],
        }
        self.options_ = {name: _options(name) for name in self.commands}

    def _learn_half(self) -> None:
        def stop(step: int) -> None:
            if step == 9:
                raise Stopped

        with contextlib.suppress(Stopped):
            train(self.run, stop)

    def _write_pictures(self, generator: torch.Generator) -> None:
        self.images = self.folder / "images"
        zipped = io.BytesIO()
        tarred = io.BytesIO()
        self.images.mkdir()
        with (
            zipfile.ZipFile(zipped, "w") as archive,
            tarfile.open(fileobj=tarred, mode="w:gz") as other,
        ):
            for i in range(3):
                path = self.images / f"{i}.png"
                Image.fromarray(
                    (255 * torch.rand(10, 12, generator=generator)).byte().numpy()
                ).save(path)
                archive.write(path, path.name)
                other.add(path, path.name)
        self.archives = [zipped.getvalue(), tarred.getvalue()]
        self.out = self.folder / "done"
        list(self._jobs().run(plan_restoration("denoise", iterations=2), progress=False))
        self.records = (self.out / RECORDS).read_bytes()

    def _jobs(self) -> Jobs:
        return Jobs(RestorationSettings("denoise", self.out, 0.15), [self.images], resume=True)

    def _odd(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors one of which is left out, added, or another."""
        name = self.random.choice(list(tensors))
        tensor = tensors[name]
        others = (
            tensor * 0,
            tensor[..., :0] if tensor.ndim else tensor[None],
            torch.tensor(3),
            tensor.to(torch.int32),
            None,
            torch.full_like(tensor, torch.nan if tensor.is_floating_point() else 1),
            tensor[None],
        )
        made = {
            **tensors,
            self.random.choice((name, name, "x.y", "optimiser.7.step")): self.random.choice(others),
        }
        return {key: value for key, value in made.items() if value is not None}

    def checkpoint(self) -> str:
        """A run that says it is elsewhere."""
        tensors, metadata = self.checkpointed
        told = {key: value for key, value in metadata.items() if key != "sha256"}
        if self.random.random() < 0.6:
            told["progress"] = json.dumps(damage_data(json.loads(told["progress"]), self.random))
        else:
            tensors = self._odd(tensors)
        there = self.folder / "resumed"
        shutil.rmtree(there, ignore_errors=True)
        there.mkdir()
        shutil.copyfile(self.run / "log.jsonl", there / "log.jsonl")
        write_whole(tensors, told, there / "checkpoint.safetensors")
        try:
            train(there)
        except RunDamaged:
            return "refused"
        return "resumed"

    def reference(self) -> str:
        """A reference of another problem, or of none."""
        write_whole(self._odd(self.reference_), {}, self.kept)
        found = certify(self.problem, 1e-2)
        if found.x.shape != self.certified.x.shape or not bool(
            (found.lower <= found.value + 1e-6).all()
        ):
            raise AssertionError(f"a bound of {found.lower} for {found.value}")
        return "read or found again"

    def archive(self) -> str:
        """A zip or tar archive of pictures."""
        path = self.folder / "pictures.archive"
        path.write_bytes(damage_bytes(self.random.choice(self.archives), self.random))
        try:
            for _, picture in read_images(path):
                assert 0 <= float(picture.min()) <= float(picture.max()) <= 1
        except (DataDamaged, DataMissing):
            return "refused"
        return "read"

    def library(self) -> str:
        """A compiled library, which is not loaded unless it is what was compiled."""
        path = self.folder / "kernels.so"
        sealed_ = self.library_ + build._seal(self.library_)
        content = damage_bytes(sealed_, self.random)
        path.write_bytes(content)
        path.chmod(0o700)
        if build._trusted(path) and content != sealed_:
            raise AssertionError("it would be loaded")
        return "refused" if content != sealed_ else "the same"

    def record(self) -> str:
        """The list of photographs that are done: what is damaged in it is done again."""
        (self.out / RECORDS).write_bytes(damage_bytes(self.records, self.random))
        known = {
            json.dumps(unsealed(line)["record"]) for line in self.records.decode().splitlines()
        }
        found = self._jobs().done
        if {json.dumps(each) for each in found.values()} - known:
            raise AssertionError("a record changed silently")
        return f"{len(found)} of 3 are done"

    def line(self) -> str:
        """Plain data with a checksum."""
        content = {"a": [1, 2.5, None, "é"], "b": {"c": True}}
        try:
            found = unsealed(
                damage_bytes(sealed(content).encode(), self.random).decode(errors="replace")
            )
        except Damaged:
            return "refused"
        if found != content:
            raise AssertionError("the content changed silently")
        return "the same"

    def state(self) -> str:
        """The state of an optimiser, as a user may load it from anywhere."""
        generator = torch.Generator().manual_seed(0)
        params = [nn.Parameter(torch.rand(shape, generator=generator)) for shape in ((3, 2), (2,))]
        kinds = (optim.AMD, optim.SMD, optim.Preconditioned)
        optimizer = kinds[self.random.randrange(3)](params, lr=0.1, mirror=HyperbolicEntropy())
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
        state = copy.deepcopy(optimizer.state_dict())
        try:
            optimizer.load_state_dict(_changed_state(state, self.random))
            optimizer.step()
        except EXPECTED_ERRORS:
            return "refused"
        return "loaded"

    def options(self) -> str:
        """A command with odd values of its options."""
        name = self.random.choice(list(self.options_))
        chosen = [*self.commands[name], "--out", str(self.folder / "out")]
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        for _ in range(self.random.choice((1, 1, 2, 3))):
            option = self.random.choice(self.options_[name])
            values = [
                *VALUES,
                str(self.images),
                str(self.images / "1.png"),
                *(() if option in COUNTED else HUGE),
            ]
            likely = LIKELY.get(option)
            if likely is not None and self.random.random() < 0.7:
                values = likely
            chosen += [option, self.random.choice(values)] if values else [option]
        with contextlib.chdir(self.images):  # so that .. is small
            return f"exit code {told(chosen)}"


def told(arguments: list[str]) -> int:
    """Run the command line in this process; return its exit code, or raise if it ends in another
    way.
    """
    before = sys.argv
    sys.argv = ["mirrordescent", *arguments]
    out = io.StringIO()
    err = io.StringIO()
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.argv = before
    said = err.getvalue()
    if (
        "Traceback" in said
        or "\x1b[2J" in said + out.getvalue()
        or code not in (0, 1, 2)
        or (code == 2 and not said)
    ):
        raise AssertionError(f"{arguments} ended with {code}: {said[-200:]}")
    return int(code)


def _options(command: str) -> list[str]:
    """Return all options of a command."""
    functions: dict[str, Callable[..., Any]] = {
        "compare": comparing.compare,
        "learn": learning.learn,
    }
    if command in functions:
        names = list(inspect.signature(functions[command]).parameters)[1:]
    else:
        tables = (
            solve.SolverOptions,
            solve.OutputOptions,
            *((solve.MaskOptions,) if command == "inpaint" else ()),
        )
        names = [
            field.name
            for table in tables
            for field in dataclasses.fields(table)
            if field.name != "images"
        ]
    return [
        f"--{name.replace('_', '-')}" for name in names if name not in ("out", "runs", "modules")
    ]


def _changed_state(state: dict[str, Any], random: Random) -> dict[str, Any]:
    """Return the state of an optimiser with something odd in a group or beside a parameter."""
    group = dict(state["param_groups"][0])
    stored = dict(state["state"])
    match random.randrange(3):
        case 0:
            group[random.choice(list(group))] = random.choice(ODD_VALUES)
        case 1:
            del group[random.choice(list(group))]
        case _ if stored:
            key = random.choice(list(stored))
            field = random.choice([*stored[key], "x", "nonsense"])
            odd = [torch.ones(5), torch.tensor(torch.nan), *ODD_VALUES]
            stored[key] = {**stored[key], field: random.choice(odd)}
    return {"param_groups": [group], "state": stored}
