"""The command line, as a user meets it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from mirrordescent import __version__, cli, demo


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["mirrordescent", *arguments])
    cli.main()


@pytest.mark.parametrize("fill", ["--fill", "--no-fill"])
def test_demo_prints_a_table_and_draws(monkeypatch, capsys, tmp_path, fill):
    monkeypatch.setattr(demo, "TUNED_AT", 5)
    monkeypatch.setenv("COLUMNS", "140")
    run(monkeypatch, "demo", "--out", str(tmp_path / "a" / "b"), "--size", "16", "--iterations", "20", fill)
    printed = capsys.readouterr().out
    for name in (*demo.LEARNED, "MD logit", "ASMD Euclidean", "GD", "Adam", "Nesterov", "PDHG"):
        assert name in printed
    picture = np.asarray(Image.open(tmp_path / "a" / "b" / "inpainting.png").convert("L"))
    assert picture.std() > 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--missing", "1.5"], "missing must be a share between 0 and 1"),
        (["--iterations", "0"], "iterations must be at least 1"),
        (["--size", "2"], "size must be at least 8"),
        (["--noise", "-1"], "noise must be ≥ 0"),
        (["--out", "/dev/null/out"], "/dev/null/out"),
    ],
)
def test_mistakes_end_in_one_line(monkeypatch, capsys, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, "demo", *arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


def test_unknown_commands_exit_with_2(monkeypatch, capsys):
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, "demmo")
    assert stop.value.code == 2
    assert "demo" in capsys.readouterr().err


def test_version(monkeypatch, capsys):
    run(monkeypatch, "version")
    assert capsys.readouterr().out.strip() == __version__


def test_importing_the_package_loads_nothing_heavy_but_torch():
    heavy = ("skimage", "sklearn", "matplotlib", "rich", "PIL", "pooch")
    script = f"import sys, mirrordescent; print([m for m in {heavy} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert loaded.strip() == "[]"
