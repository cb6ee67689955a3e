"""Test the wheel on clean machines: ``nox``, or ``nox -s "wheel-3.12"``.

Every session builds the wheel and installs it with its extras into a new environment. Then it runs
the examples of the README and a few commands in an empty folder, without a clone, a compiler in
the PATH, a network or a home folder. Versions of Python that are not installed are skipped.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False

NO_NETWORK = """
import socket, sys

def refused(*_, **__):
    raise OSError("no network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refused
"""
EXAMPLES = """
import doctest, sys, pathlib
import mirrordescent
assert "site-packages" in mirrordescent.__file__, mirrordescent.__file__
text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
test = doctest.DocTestParser().get_doctest(text, {}, "README.md", "README.md", 0)
runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
results = runner.run(test)
assert results.attempted > 10 and not results.failed, results
from mirrordescent import kernels
assert kernels.available(), kernels.library()
print(f"{results.attempted} examples of the README")
"""


@nox.session(python=PYTHONS)
def wheel(session: nox.Session) -> None:
    """Install the wheel with its extras, and use it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        session.install("build")
        session.run(
            "python", "-m", "build", "--wheel", "--outdir", str(place), str(ROOT), silent=True
        )
        (built,) = place.glob("*.whl")
        session.install(f"{built}[all]", "--constraint", str(ROOT / "constraints.txt"))
        work = place / "work"
        work.mkdir()
        shutil.copy(ROOT / "README.md", place)
        (place / "examples.py").write_text(NO_NETWORK + EXAMPLES, encoding="utf-8")
        clean = {name: None for name in os.environ} | {
            "PATH": "",
            "HOME": str(place / "nowhere"),
            "LC_ALL": "C.UTF-8",
        }
        session.chdir(work)
        python = str(Path(session.bin) / "python")
        session.run(
            python,
            "-I",
            str(place / "examples.py"),
            str(place / "README.md"),
            env=clean,
            external=True,
        )
        session.run(python, "-I", "-m", "mirrordescent", "zoo", "verify", env=clean, external=True)
        session.run(python, "-I", "-m", "mirrordescent", "--version", env=clean, external=True)
        session.run(python, "-I", "-m", "mirrordescent", "data", "list", env=clean, external=True)
        if any(work.iterdir()):
            session.error(f"left behind: {list(work.iterdir())}")
