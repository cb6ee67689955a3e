"""Damaged checkpoints, references, archives, records and states, and all options.

Files of tensors get a valid checksum, so that the checks behind the checksum are tested.
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
from mirrordescent.learn import Draw
from mirrordescent.learn.checkpoint import RunDamaged
from mirrordescent.mirrors import HyperbolicEntropy
from mirrordescent.restore import plan_restoration
from mirrordescent.restore.jobs import Jobs, RestorationSettings
from mirrordescent.restore.records import RECORDS
from mirrordescent.restore.request import Request

OPTION_VALUES = [
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
HUGE_VALUES = ["99999999999", "1" + "0" * 30]
ITERATION_OPTIONS = ("--iterations",)
"""Options that get no huge values, because the command would really take so many steps."""

NUMBER_VALUES = ["-1", "0", "1", "3", "0.3", "1e-3", "1e-30", "1e30", "nan", "inf"]
SWITCH_VALUES = ["yes", "no", "auto"]
RECIPE_KEYS = (
    "name",
    "map.d",
    "map.type",
    "method.step",
    "settings.batch",
    "settings.horizon",
    "settings.optimiser.clip",
)
PLAUSIBLE_VALUES: dict[str, list[str]] = {
    **dict.fromkeys(
        ("--weight", "--tolerance", "--iterations", "--missing", "--seed", "--count", "--noise"),
        NUMBER_VALUES,
    ),
    **dict.fromkeys(("--isotropic", "--coupled", "--fused", "--keep-known"), SWITCH_VALUES),
    "--size": ["7", "8", "9"],
    "--json": [],
    "--verbose": [],
    "--resume": [],
    "--problem": ["denoise", "inpaint"],
    "--method": ["lamd", "pdhg", "gd", "dual-fista", "adam", "amd"],
    "--mirror": ["image-tv", "photo-inpaint-pair"],
    "--set": [
        f"{key}={value}"
        for key in RECIPE_KEYS
        for value in ("-1", "0", "2", "nan", "inf", "x", "[]", "1e30", "'..'")
    ],
    "--mask-white": ["known", "missing"],
    "--mask-colour": ["#ff00ff", "red", "#000"],
}
FOLDER_OPTIONS = ("out", "runs", "modules")
"""Options that the campaign sets itself."""

RECIPE = """
name = "bowls"
[family]
type = "campaigns.readers:SingleBowls"
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
    """Learning was stopped half-way."""


class SingleBowls(Bowls):
    """Bowls in single precision, the precision of methods in recipes."""

    def draw(self, seeds: Tensor) -> Draw:
        drawn = super().draw(seeds)
        problem = Quadratic(drawn.problem.A.float(), drawn.problem.centre.float())  # type: ignore[union-attr, operator]
        return Draw(problem, drawn.x0.float(), drawn.x0[:, 0].float())  # type: ignore[union-attr, index]


class Readers:
    """Cases by name. A method returns the outcome of a case, or raises if it found a fault.

    Args:
        folder: Folder to work in.
        random: Random generator of the cases.
    """

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder = folder
        self.random = random
        os.environ["MIRRORDESCENT_CACHE"] = str(folder / "cache")
        generator = torch.Generator().manual_seed(0)
        self.run = folder / "run"
        self._learn_half()
        self.checkpoint_content = read_whole(self.run / "checkpoint.safetensors")
        self.problem = TVDenoising(torch.rand(2, 1, 6, 5, generator=generator, dtype=torch.float64))
        self.certificate = certify(self.problem, 1e-2)
        (self.reference_path,) = (folder / "cache").glob("*.safetensors")
        self.reference_tensors = read_whole(self.reference_path)[0]
        self.images = folder / "images"
        self.archives = self._write_pictures(generator)
        self.out = folder / "done"
        self.plan = plan_restoration("denoise", iterations=2)
        list(self._jobs().run(self.plan, progress=False))
        self.records = (self.out / RECORDS).read_bytes()
        self.commands = self._commands()
        self.option_names = {name: _option_names(name) for name in self.commands}

    def _learn_half(self) -> None:
        def stop(step: int) -> None:
            if step == 9:
                raise Stopped

        with contextlib.suppress(Stopped):
            train(self.run, stop)

    def _write_pictures(self, generator: torch.Generator) -> list[bytes]:
        """Write three pictures to a folder; return them as a zip and as a tar archive."""
        self.images.mkdir()
        zip_file = io.BytesIO()
        tar_file = io.BytesIO()
        with (
            zipfile.ZipFile(zip_file, "w") as zip_archive,
            tarfile.open(fileobj=tar_file, mode="w:gz") as tar_archive,
        ):
            for i in range(3):
                path = self.images / f"{i}.png"
                pixels = (255 * torch.rand(10, 12, generator=generator)).byte().numpy()
                Image.fromarray(pixels).save(path)
                zip_archive.write(path, path.name)
                tar_archive.add(path, path.name)
        return [zip_file.getvalue(), tar_file.getvalue()]

    def _jobs(self) -> Jobs:
        return Jobs(
            RestorationSettings(Request("denoise", weight=0.15), self.out),
            [self.images],
            resume=True,
        )

    def _commands(self) -> dict[str, list[str]]:
        """Return a short command line for each command."""
        recipe = self.folder / "bowls.toml"
        recipe.write_text(RECIPE)
        picture = str(self.images / "0.png")
        sizes = ["--count", "2", "--size", "8", "--iterations", "3"]
        runs = str(self.folder / "runs")
        return {
            "denoise": ["solve", "denoise", picture, "--iterations", "3"],
            "inpaint": ["solve", "inpaint", picture, "--iterations", "3"],
            "compare": ["compare", "image-tv", *sizes, "--images", str(self.images)],
            "learn": ["learn", str(recipe), "--import", __name__, "--runs", runs],
        }

    def _damage_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors with one removed, added or replaced."""
        name = self.random.choice(list(tensors))
        tensor = tensors[name]
        fill = torch.nan if tensor.is_floating_point() else 1
        replacements = (
            tensor * 0,
            tensor[..., :0] if tensor.ndim else tensor[None],
            torch.tensor(3),
            tensor.to(torch.int32),
            None,
            torch.full_like(tensor, fill),
            tensor[None],
        )
        key = self.random.choice((name, name, "x.y", "optimiser.7.step"))
        replacement = self.random.choice(replacements)
        damaged = dict(tensors)
        if replacement is None:
            damaged.pop(key, None)
        else:
            damaged[key] = replacement
        return damaged

    def checkpoint(self) -> str:
        """Resume a run whose checkpoint has odd progress or odd tensors."""
        tensors, metadata = self.checkpoint_content
        metadata = {key: value for key, value in metadata.items() if key != "sha256"}
        if self.random.random() < 0.6:
            progress = json.loads(metadata["progress"])
            metadata["progress"] = json.dumps(damage_data(progress, self.random))
        else:
            tensors = self._damage_tensors(tensors)
        resumed = self.folder / "resumed"
        shutil.rmtree(resumed, ignore_errors=True)
        resumed.mkdir()
        shutil.copyfile(self.run / "log.jsonl", resumed / "log.jsonl")
        write_whole(tensors, metadata, resumed / "checkpoint.safetensors")
        try:
            train(resumed)
        except RunDamaged:
            return "refused"
        return "resumed"

    def reference(self) -> str:
        """Certify a problem whose cached reference has odd tensors."""
        write_whole(self._damage_tensors(self.reference_tensors), {}, self.reference_path)
        certificate = certify(self.problem, 1e-2)
        same_shape = certificate.x.shape == self.certificate.x.shape
        if not same_shape or not bool((certificate.lower <= certificate.value + 1e-6).all()):
            raise AssertionError(f"a bound of {certificate.lower} for {certificate.value}")
        return "read or found again"

    def archive(self) -> str:
        """Read pictures from a damaged zip or tar archive."""
        path = self.folder / "pictures.archive"
        path.write_bytes(damage_bytes(self.random.choice(self.archives), self.random))
        try:
            for _, picture in read_images(path):
                assert 0 <= float(picture.min()) <= float(picture.max()) <= 1
        except (DataDamaged, DataMissing):
            return "refused"
        return "read"

    def record(self) -> str:
        """Read a damaged list of finished photographs: damaged records are done again."""
        (self.out / RECORDS).write_bytes(damage_bytes(self.records, self.random))
        lines = self.records.decode().splitlines()
        original = {json.dumps(unsealed(line)["record"]) for line in lines}
        done = self._jobs().restored_before(self.plan)
        if {json.dumps(record) for record in done.values()} - original:
            raise AssertionError("a record changed silently")
        return f"{len(done)} of 3 are done"

    def line(self) -> str:
        """Read damaged JSON data with a checksum."""
        content = {"a": [1, 2.5, None, "é"], "b": {"c": True}}
        damaged = damage_bytes(sealed(content).encode(), self.random)
        try:
            read = unsealed(damaged.decode(errors="replace"))
        except Damaged:
            return "refused"
        if read != content:
            raise AssertionError("the content changed silently")
        return "the same"

    def state(self) -> str:
        """Load an odd state into an optimiser."""
        generator = torch.Generator().manual_seed(0)
        params = [nn.Parameter(torch.rand(shape, generator=generator)) for shape in ((3, 2), (2,))]
        kinds = (optim.AMD, optim.SMD, optim.Preconditioned)
        kind = kinds[self.random.randrange(3)]
        optimizer = kind(params, lr=0.1, mirror=HyperbolicEntropy())
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
        state = copy.deepcopy(optimizer.state_dict())
        try:
            optimizer.load_state_dict(_damage_state(state, self.random))
            optimizer.step()
        except EXPECTED_ERRORS:
            return "refused"
        return "loaded"

    def options(self) -> str:
        """Run a command with odd values of its options."""
        name = self.random.choice(list(self.option_names))
        arguments = [*self.commands[name], "--out", str(self.folder / "out")]
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        for _ in range(self.random.choice((1, 1, 2, 3))):
            option = self.random.choice(self.option_names[name])
            arguments.append(option)
            values = self._values(option)
            if values:
                arguments.append(self.random.choice(values))
        with contextlib.chdir(self.images):  # so that the value .. is a small folder
            return f"exit code {run_command(arguments)}"

    def _values(self, option: str) -> list[str]:
        """Return the values to choose from: often plausible ones, else any."""
        plausible = PLAUSIBLE_VALUES.get(option)
        if plausible is not None and self.random.random() < 0.7:
            return plausible
        values = [*OPTION_VALUES, str(self.images), str(self.images / "1.png")]
        if option not in ITERATION_OPTIONS:
            values += HUGE_VALUES
        return values


def run_command(arguments: list[str]) -> int:
    """Run the command line in this process and return its exit code.

    It raises AssertionError if the command ends with a traceback, another exit code than 0, 1 or
    2, an error without a message, or prints control characters.
    """
    previous = sys.argv
    sys.argv = ["mirrordescent", *arguments]
    output = io.StringIO()
    errors = io.StringIO()
    code: Any = 0
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            cli.main()
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.argv = previous
    message = errors.getvalue()
    crashed = "Traceback" in message or code not in (0, 1, 2)
    silent = code == 2 and not message
    control = "\x1b[2J" in message + output.getvalue()
    if crashed or silent or control:
        raise AssertionError(f"{arguments} ended with {code}: {message[-200:]}")
    return int(code)


def _option_names(command: str) -> list[str]:
    """Return all options of a command except those for its folders."""
    functions: dict[str, Callable[..., Any]] = {
        "compare": comparing.compare,
        "learn": learning.learn,
    }
    names: list[str] = []
    if command in functions:
        names = list(inspect.signature(functions[command]).parameters)[1:]
    else:
        tables: list[Any] = [solve.ObjectiveOptions, solve.MethodOptions, solve.OutputOptions]
        if command == "inpaint":
            tables.append(solve.MaskOptions)
        for table in tables:
            fields = dataclasses.fields(table)
            names += [field.name for field in fields if field.name != "images"]
    return [f"--{name.replace('_', '-')}" for name in names if name not in FOLDER_OPTIONS]


def _damage_state(state: dict[str, Any], random: Random) -> dict[str, Any]:
    """Return the state of an optimiser with an odd or missing option, or an odd tensor."""
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
            values = [torch.ones(5), torch.tensor(torch.nan), *ODD_VALUES]
            stored[key] = {**stored[key], field: random.choice(values)}
    return {"param_groups": [group], "state": stored}
