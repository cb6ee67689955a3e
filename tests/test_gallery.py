"""The notebooks of the gallery: every one runs, and its hidden cells check what it shows."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import re
import warnings
from pathlib import Path

import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

GALLERY = Path(__file__).parents[1] / "docs" / "gallery"
NOTEBOOKS = sorted(path for path in GALLERY.glob("*.md") if path.stem != "index")
CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HIDDEN = ":tags: [remove-cell]\n"
LONGEST = 75
"""Largest number of lines of code on a page: one screen."""


def cells_of(path):
    """Return the code that is shown, and the code of the hidden cells."""
    cells = CELL.findall(path.read_text(encoding="utf-8"))
    shown = [cell for cell in cells if not cell.startswith(HIDDEN)]
    hidden = [cell.removeprefix(HIDDEN) for cell in cells if cell.startswith(HIDDEN)]
    return shown, hidden


def missing_packages(code):
    """Return the imported packages that are not installed."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).partition(".")[0])
    return sorted(name for name in names if importlib.util.find_spec(name) is None)


def test_the_gallery_is_complete():
    assert len(NOTEBOOKS) >= 11
    index = (GALLERY / "index.md").read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        assert f":link: {path.stem}\n" in index, f"{path.name} is not in the index of the gallery"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_and_show_what_they_say(path, tmp_path, monkeypatch):
    shown, hidden = cells_of(path)
    assert hidden, "a hidden cell checks what the notebook shows"
    assert all("assert" in cell for cell in hidden)
    text = path.read_text(encoding="utf-8")
    assert "```{run-time}" in text
    assert re.search(r"\brivals?\b", text), "a notebook names its rival, or says that there is none"
    assert sum(len(cell.splitlines()) for cell in shown) <= LONGEST
    missing = missing_packages("\n".join(shown))
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    monkeypatch.chdir(tmp_path)
    plt.close("all")
    namespace = {"__name__": "__main__"}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("default")  # of other packages
        for number, cell in enumerate([*shown, *hidden]):
            exec(compile(cell, f"{path.name}, cell {number}", "exec"), namespace)
    assert plt.get_fignums(), "a notebook shows a picture"
    plt.close("all")
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "cache"])
