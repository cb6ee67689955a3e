"""Clean machines: ``nox``, or ``nox -s "wheel-3.12"``.

Every session builds the wheel, installs it and nothing else into an environment of its own, and
runs the README's first example and a few commands from it, in an empty folder: with no clone to be
found, no compiler in the PATH, no network and no home folder. Pythons that are not there are
skipped.
"""

from __future__ import annotations

import os
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
found = runner.run(test)
assert found.attempted > 10 and not found.failed, found
from mirrordescent import kernels
try:
    kernels.library()
    raise SystemExit("kernels were built without a compiler")
except kernels.BuildError as error:
    assert "no C compiler" in str(error), error
print(f"{found.attempted} examples of the README")
"""


def first_examples() -> str:
    """Return the README up to the first example that needs the clone."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text[: text.index("mirrordescent_lab")].rpartition("```python")[0]


@nox.session(python=PYTHONS)
def wheel(session: nox.Session) -> None:
    """Install the wheel alone, and use it."""
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        session.install("build")
        session.run(
            "python", "-m", "build", "--wheel", "--outdir", str(place), str(ROOT), silent=True
        )
        (built,) = place.glob("*.whl")
        session.install(str(built), "--constraint", str(ROOT / "constraints.txt"))
        work = place / "work"
        work.mkdir()
        (place / "README.md").write_text(first_examples(), encoding="utf-8")
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
        if any(work.iterdir()):
            session.error(f"left behind: {list(work.iterdir())}")
