"""The command line, as a user meets it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from mirrordescent import __version__, cli, demo


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["mirrordescent", *arguments])
    cli.main()


@pytest.mark.parametrize("fill", ["--fill", "--no-fill"])
def test_demo_prints_tables_and_writes_a_page(monkeypatch, capsys, tmp_path, fill):
    monkeypatch.setattr(demo, "TUNED_AT", 5)
    monkeypatch.setattr(demo, "TRAINING_STEPS", 20)
    monkeypatch.setattr(demo, "ADAM", replace(demo.ADAM, settings=demo.ADAM.settings[:1]))
    monkeypatch.setenv("COLUMNS", "140")
    run(
        monkeypatch,
        "demo",
        "--out",
        str(tmp_path / "a" / "b"),
        "--size",
        "16",
        "--iterations",
        "20",
        fill,
    )
    printed = capsys.readouterr().out
    page = (tmp_path / "a" / "b" / "index.html").read_text(encoding="utf-8")
    for name in (
        *demo.learned_methods(),
        "GD",
        "Adam",
        "Nesterov",
        "PDHG",
        "k = 10",
        "k = 20",
        "test accuracy",
    ):
        assert name in printed
        assert name in page
    methods = len(demo.learned_methods()) + len(demo.RIVALS)
    assert page.count('src="data:image/png') == 2 * (
        methods + len(("damaged", "certified optimum", "original"))
    )


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


def test_a_reader_that_stops_is_no_mistake_and_an_old_name_is_explained(fresh_python):
    command = [sys.executable, "-c", "from mirrordescent.cli import main; main()", "zoo"]
    with subprocess.Popen(
        [*command, "list", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as stopped:
        stopped.stdout.close()
        assert stopped.stderr.read() == b""
    shown = fresh_python(
        "import sys; sys.argv = ['mirrordescent', 'zoo', 'show', 'photo-inpaint']\n"
        "from mirrordescent.cli import main; main()"
    )
    assert shown.returncode == 2
    assert shown.stderr == (
        "mirrordescent: the entry photo-inpaint was renamed in version 0.2: "
        "load 'photo-inpaint-pair'\n"
    )


def test_version(monkeypatch, capsys):
    run(monkeypatch, "version")
    assert capsys.readouterr().out.strip() == __version__


def test_the_overview_and_the_version_need_no_torch():
    for arguments in (["--version"], ["--help"], ["solve", "inpaint", "--help"], ["zoo", "--help"]):
        script = f"""
import sys
sys.argv = ["mirrordescent", *{arguments!r}]
from mirrordescent.cli import main
try:
    main()
except SystemExit:
    pass
print("torch" in sys.modules)
"""
        done = subprocess.run(
            [sys.executable, "-c", script], check=True, capture_output=True, text=True
        )
        assert done.stdout.splitlines()[-1] == "False"
        assert __version__ in done.stdout or "usage: mirrordescent" in done.stdout


def test_the_package_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "mirrordescent", "--version"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == __version__


def test_shells_can_complete(monkeypatch, capsys):
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, "--tyro-print-completion", "bash")
    assert not stop.value.code
    assert "inpaint" in capsys.readouterr().out


def test_data_are_fetched_and_checked_or_it_says_what_to_do(monkeypatch, capsys, tmp_path):
    fetched = []

    def retrieve(url, path, checksum):
        fetched.append(url)
        raise OSError("no network")

    monkeypatch.setattr("mirrordescent.data.download.download", retrieve)
    for name, message in (("mnist", "no network"), ("bsds500", "Put BSDS500_images.zip")):
        with pytest.raises(SystemExit) as stop:
            run(monkeypatch, "data", "fetch", name, "--directory", str(tmp_path))
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    assert len(fetched) == 1


def test_compare_prints_a_verdict_and_writes_a_page(monkeypatch, capsys, tmp_path):
    small = ("--count", "2", "--size", "24", "--iterations", "40", "--out", str(tmp_path))
    run(monkeypatch, "compare", "ellipse-denoise-stencil", "--problem", "denoise", *small)
    printed = capsys.readouterr().out
    assert "PDHG, tuned" in printed
    assert "ellipse-denoise-stencil reaches" in printed
    assert (tmp_path / "ellipse-denoise-stencil.html").is_file()


def test_importing_the_package_loads_nothing_heavy():
    heavy = ("torch", "skimage", "sklearn", "matplotlib", "rich", "PIL", "pooch")
    script = f"import sys, mirrordescent; print([m for m in {heavy} if m in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout
    assert loaded.strip() == "[]"


INTERRUPTED = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

# A shell lets its background processes ignore the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["mirrordescent", "zoo", "list"]
from mirrordescent.__main__ import main
main()
"""


# Torch imports NumPy from compiled code, and goes on without it whatever is raised there.
@pytest.mark.parametrize(
    "name", ["mirrordescent.cli", "tyro", "torch", "mirrordescent.zoo", "numpy.lib._utils_impl"]
)
def test_an_interruption_during_imports_is_one_line(name):
    command = [sys.executable, "-c", INTERRUPTED.format(name=name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "mirrordescent: interrupted\n")
