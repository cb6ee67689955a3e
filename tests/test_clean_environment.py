"""A machine without a compiler, a network, a home folder or a clone: the wheel works, with kernels.

``nox`` does this for all Pythons.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from building import wheels
from building.compilation import CompilationError, local_compiler
from building.targets import TARGETS

SCRIPT = """
import os, subprocess, sys

def no_process(*_, **__):
    raise OSError("no process may be started")

import socket
import torch

def refused(*_, **__):
    raise OSError("no network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refused
subprocess.Popen.__init__ = os.system = no_process
import mirrordescent as md
from mirrordescent import kernels, optim, zoo

called = []
call = kernels.KernelFunction.__call__

def counting(self, **arguments):
    called.append(self.name)
    return call(self, **arguments)

kernels.KernelFunction.__call__ = counting
assert md.__file__.startswith(sys.prefix), md.__file__
assert kernels.available(), kernels.library()
problem = md.TVDenoising(torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
assert md.solve(problem, zoo.load("image-tv"), iterations=5, progress=False).ok
assert "amd_stencil" in called, called
assert bool(md.certify(problem, 1e-3).relative_gap <= 1e-3)
x = torch.nn.Parameter(torch.ones(3))
optimizer = optim.AMD([x])
x.grad = torch.ones(3)
called.clear()
optimizer.step()
assert called == ["amd_scaled"], called
matrix = torch.nn.Parameter(torch.eye(3))
matrix.grad = torch.ones(3, 3)
optim.SpectralDescent([("weight", matrix)], steps=10).step()
assert {"momenta", "adapted"} <= set(called), called
try:
    zoo.load("hf://nobody/nothing/entry")
    raise SystemExit("something was fetched without a network")
except (OSError, ImportError) as error:
    assert "hub" in str(error) or "fetched" in str(error), error
from mirrordescent import data, demo, recipes
assert data.names() and recipes.RECIPES and demo.learned_methods()
print("fine")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this platform: compiled by zig on Linux, else by the local compiler."""
    folder = tmp_path_factory.mktemp("wheel")
    if (sys.platform, platform.machine()) == ("linux", "x86_64"):
        return wheels.build_wheel("linux-x86_64", folder)
    try:
        local_compiler()
    except CompilationError as error:
        pytest.skip(str(error))
    return wheels.build_local_wheel(folder)


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """The Python of a new environment with the wheel, and with the dependencies of this one.

    A folder in a .pth file is added without its own .pth files, so editable packages stay behind.
    """
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.mark.skipif(os.name == "nt", reason="needs an empty PATH")
@pytest.mark.parametrize("home", ["missing", "unset"])
def test_no_compiler_no_network_no_home_no_clone(environment, home, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    clean = {"PATH": "", "OMP_NUM_THREADS": "1"}
    if home == "missing":
        clean["HOME"] = str(tmp_path / "nowhere")
    else:
        clean["MIRRORDESCENT_CACHE"] = str(tmp_path / "cache")
    (tmp_path / "script.py").write_text(
        "import sys\nfrom importlib.abc import MetaPathFinder\n"
        "class NoExperiments(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'mirrordescent_experiments':\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, NoExperiments())\n" + SCRIPT
    )
    done = subprocess.run(
        [str(environment), str(tmp_path / "script.py")],
        cwd=work,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "fine\n", done.stderr
    assert list(work.iterdir()) == []  # nothing is left in the current folder


MY_MAP = """
name = "my-map"
[family]
type = "inpainting"
source = "bundled"
size = 32
[map]
type = "conjugate"
filters = 2
[method]
name = "lsmd"
step = 0.3
[settings]
meta_steps = 2
"""
README = Path(__file__).parents[1] / "README.md"


def test_examples_of_the_readme_and_commands_work_without_a_clone(environment, tmp_path):
    """The examples are those of the page; commands write to the current folder."""
    shutil.copy(README, tmp_path / "page.md")
    (tmp_path / "my.toml").write_text(MY_MAP)
    examples = "import doctest, sys; sys.exit(doctest.testfile('page.md', False, verbose=True)[0])"
    commands = (
        ("data", "list"),
        ("learn", "my.toml"),
        ("diagnose", "out/zoo/my-map.safetensors", "--problem", "inpaint", "--iterations", "5"),
        ("demo", "--size", "32", "--iterations", "10"),
    )
    clean = {"PATH": "", "OMP_NUM_THREADS": "1", "MIRRORDESCENT_CACHE": str(tmp_path / "cache")}
    python = str(environment)
    for arguments in (("-c", examples), *(("-m", "mirrordescent", *each) for each in commands)):
        done = subprocess.run(
            [python, *arguments],
            cwd=tmp_path,
            env=clean,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stdout[-2000:], done.stderr[-2000:])
    assert (tmp_path / "out" / "demo" / "index.html").exists()


def test_the_wheel_is_for_this_platform_and_every_python(wheel):
    tags = wheel.name.removesuffix(".whl").split("-")[-3:]
    assert tags[:2] == ["py3", "none"]
    assert tags[2] != "any"
    if (sys.platform, platform.machine()) == ("linux", "x86_64"):
        assert tags[2] == TARGETS["linux-x86_64"].tag
