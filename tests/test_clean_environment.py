"""A machine without a compiler, a network, a home folder or a clone: the wheel works. On all
Pythons: ``nox``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SCRIPT = """
import socket
import torch

def refused(*_, **__):
    raise OSError("no network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refused
import mirrordescent as md
from mirrordescent import kernels, optim, zoo

assert md.__file__.startswith(HERE), md.__file__
problem = md.TVDenoising(torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
assert md.solve(problem, zoo.load("image-tv"), iterations=5, progress=False).ok
assert bool(md.certify(problem, 1e-3).relative_gap <= 1e-3)
x = torch.nn.Parameter(torch.ones(3))
optimizer = optim.AMD([x])
x.grad = torch.ones(3)
optimizer.step()
try:
    kernels.library()
    raise SystemExit("kernels were built without a compiler")
except kernels.BuildError as error:
    assert "no C compiler" in str(error), error
try:
    zoo.load("hf://nobody/nothing/entry")
    raise SystemExit("something was fetched without a network")
except (OSError, ImportError) as error:
    assert "hub" in str(error) or "fetched" in str(error), error
from mirrordescent import data, demo, recipes
assert data.names() and recipes.RECIPES and demo.learned_methods()
print("fine")
"""


@pytest.mark.skipif(os.name == "nt", reason="needs an empty PATH")
def test_no_compiler_no_network_no_home_no_clone(tmp_path):
    site = tmp_path / "site"
    work = tmp_path / "work"
    command = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(tmp_path),
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    work.mkdir()
    clean = {
        "PATH": "",
        "HOME": str(tmp_path / "nowhere"),
        "PYTHONPATH": str(site),
        "OMP_NUM_THREADS": "1",
    }
    (tmp_path / "script.py").write_text(
        f"import sys\nHERE = {str(site)!r}\nfrom importlib.abc import MetaPathFinder\n"
        "class NoExperiments(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'mirrordescent_experiments':\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, NoExperiments())\n" + SCRIPT
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        cwd=work,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "fine\n", done.stderr
    assert list(work.iterdir()) == []  # nothing is left in the folder somebody happens to be in
