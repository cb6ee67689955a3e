"""Progress bars: lines of text where there is no terminal."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest

from mirrordescent._internal import progress
from mirrordescent._internal.progress import ProgressBar, bar_labels


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_lines_have_the_label_the_count_and_the_description(capsys):
    with ProgressBar("solving", 10, True) as bar:
        bar.update(3, "mean value 0.5")
    assert lines(capsys) == ["solving 3/10, mean value 0.5"]


def test_bars_in_the_words_of_an_application_have_no_description_of_a_solve(capsys):
    with bar_labels(solving="photographs: iteration"), ProgressBar("solving", 10, True) as bar:
        bar.update(3, "mean value 0.5")
    with ProgressBar("solving", 10, True) as bar:
        bar.update(4, "mean value 0.5")
    assert lines(capsys) == ["photographs: iteration 3/10", "solving 4/10, mean value 0.5"]


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_shows_bars_if_it_has_widgets(widgets, monkeypatch):
    """Without ipywidgets, rich cannot update a bar in a notebook."""
    shell = type("ZMQInteractiveShell", (), {})()
    notebook = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    found = ModuleSpec("ipywidgets", None) if widgets else None
    monkeypatch.setattr(progress, "find_spec", lambda name: found)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    opened = []
    monkeypatch.setattr(progress, "_Bar", lambda *arguments: opened.append(arguments))
    bar = ProgressBar("solving", 10, None)
    if bar._is_due():
        bar._open()
    assert opened == ([("solving", 10, True)] if widgets else [])
