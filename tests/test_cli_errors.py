"""How the command line tells a user's mistake from a bug, and how plug-ins add commands."""

from __future__ import annotations

import sys
import textwrap
from importlib.metadata import EntryPoint

import pytest

from mirrordescent import __main__, cli, zoo
from mirrordescent.cli import plugins
from mirrordescent.cli.errors import BUG, MISTAKE, describe


def run(monkeypatch, *arguments):
    """Return the exit code."""
    monkeypatch.setattr(sys, "argv", ["mirrordescent", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0


@pytest.mark.parametrize("group", [(), ("solve",), ("zoo",)])
def test_no_arguments_print_the_help(monkeypatch, capsys, group):
    assert run(monkeypatch, *group) in (0, None)
    printed = capsys.readouterr()
    assert printed.out.startswith(f"usage: {' '.join(('mirrordescent', *group))} [-h]")
    assert printed.err == ""


def test_the_overview_shows_how_to_begin(monkeypatch, capsys):
    run(monkeypatch, "--help")
    printed = " ".join(capsys.readouterr().out.split())
    assert "mirrordescent solve denoise photo.jpg" in printed
    assert "--debug" in printed


def failing(monkeypatch, function):
    """Let ``mirrordescent zoo list`` call a function that fails."""
    monkeypatch.setattr(zoo, "list", function)
    return "zoo", "list"


def library_function(body):
    """Return a function of a module of the library, from its source."""
    namespace = {"__name__": "mirrordescent.zoo"}
    exec(f"def function():\n{textwrap.indent(textwrap.dedent(body), '    ')}", namespace)
    return namespace["function"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import torch; torch.ones(2) @ torch.ones(3)", "RuntimeError"),
        ("len()", "TypeError"),
        ("{}['key']", "KeyError: key"),
        ("[][3]", "IndexError"),
        ("int('three')", "ValueError"),
        ("list(zip([1], [1, 2], strict=True))", "zip() argument 2 is longer"),
        ("import json; json.loads('{')", "JSONDecodeError"),
    ],
)
def test_an_error_of_python_or_torch_is_a_bug(monkeypatch, capsys, body, message):
    assert run(monkeypatch, *failing(monkeypatch, library_function(body))) == BUG
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("mirrordescent: internal error: ")
    assert message in first
    assert "mirrordescent.zoo, line" in first
    assert "bug in mirrordescent" in second
    assert "--debug" in second


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('raise ValueError("count must be at least 1, got 0")', "count must be at least 1, got 0"),
        ('raise TypeError("a\\n  b")', "a b"),
        ('raise KeyError("no such entry")', "no such entry"),
        ('raise RuntimeError("the device cannot be used")', "the device cannot be used"),
        ('raise ImportError("pip install it")', "pip install it"),
        ("open('/nowhere/at/all')", "/nowhere/at/all"),
        ("raise MemoryError", "MemoryError"),
        (
            """
            try:
                int("three")
            except ValueError as error:
                raise ValueError("count must be a number") from error
            """,
            "count must be a number",
        ),
        (
            """
            try:
                raise ValueError("first")
            finally:
                len("")
            """,
            "first",
        ),
    ],
)
def test_an_error_that_the_library_raises_is_a_mistake(monkeypatch, capsys, body, message):
    assert run(monkeypatch, *failing(monkeypatch, library_function(body))) == MISTAKE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mirrordescent: ")
    assert message in line
    assert "internal error" not in line


@pytest.mark.parametrize(
    "body",
    [
        "assert False, 'count is never 0 here'",
        "raise NotImplementedError",
        "raise ValueError('text' + 3)",
        "raise AttributeError('x')",
        """
        try:
            int("three")
        except ValueError:
            raise
        """,
        """
        def again():
            again()
        again()
        """,
    ],
)
def test_assertions_and_errors_in_error_messages_are_bugs(monkeypatch, capsys, body):
    assert run(monkeypatch, *failing(monkeypatch, library_function(body))) == BUG
    assert "internal error" in capsys.readouterr().err


@pytest.mark.parametrize("body", ["raise ValueError('given 0')", "int('three')"])
def test_debug_shows_the_traceback(monkeypatch, capsys, body):
    arguments = failing(monkeypatch, library_function(body))
    without = run(monkeypatch, *arguments)
    assert "Traceback" not in capsys.readouterr().err
    for position in range(3):
        with_debug = [*arguments[:position], "--debug", *arguments[position:]]
        assert run(monkeypatch, *with_debug) == without
        printed = capsys.readouterr().err
        assert printed.startswith("Traceback (most recent call last):")
        assert "in function" in printed
        assert printed.splitlines()[-1].startswith("mirrordescent: ")


OWN = """
import torch
from mirrordescent.learn import ProblemFamily

class Mine(ProblemFamily):
    def draw(self, seeds):
        return torch.ones(2) @ torch.ones(3)
"""


def test_an_error_in_a_users_file_names_its_line(monkeypatch, capsys, tmp_path):
    file = tmp_path / "problems_of_mine.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, file.stem, None)
    for text, message in (
        (OWN, "error in problems_of_mine.py, line 7, in draw: RuntimeError: "),
        (OWN.replace("import torch\n", "import torsh\n"), "line 2, in <module>: ModuleNotFound"),
        (OWN.replace("seeds):", "seeds:"), "problems_of_mine.py is not valid Python"),
    ):
        file.write_text(text)
        assert run(monkeypatch, "solve", file.name) == MISTAKE
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


def test_a_missing_extra_is_named_in_one_line(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith("mirrordescent.cli")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tyro", None)
    with pytest.raises(SystemExit) as stop:
        __main__.main()
    assert stop.value.code == MISTAKE
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'mirrordescent[cli]'" in line


def test_an_error_without_a_traceback_is_a_bug():
    described = describe(ValueError("zip"))
    assert described.exit_code == BUG
    assert described.lines[0] == "internal error: ValueError: zip"


PLUGIN = """
from tyro.extras import SubcommandApp

def greet(name: str, loud: bool = False) -> int:
    '''Greet a person.

    Args:
        name: Name of the person.
    '''
    print(f"hello {name}")
    if name == "nobody":
        raise ValueError("name must be a person's")
    return len(name)

def unreadable(argument: "Nonsense") -> None:
    '''Take an argument that cannot be read.'''

app = SubcommandApp()
app.__doc__ = "A group of commands."

@app.command
def first() -> None:
    '''Print 1.'''
    print(1)

@app.command
def second() -> None:
    '''Print 2.'''
    print(2)

number = 3
"""


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    """Return a function that installs entry points, by names, of the module in PLUGIN."""
    (tmp_path / "fake_plugin.py").write_text(PLUGIN)
    (tmp_path / "exiting_plugin.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)

    def install(**values):
        points = [EntryPoint(name, value, plugins.GROUP) for name, value in values.items()]
        monkeypatch.setattr(plugins, "entry_points", lambda group: points)

    yield install
    sys.modules.pop("fake_plugin", None)


def test_a_plugin_adds_commands(monkeypatch, capsys, plugin):
    plugin(greet="fake_plugin:greet", numbers="fake_plugin:app")
    run(monkeypatch, "--help")
    printed = capsys.readouterr().out
    assert "Greet a person." in printed
    assert "A group of commands." in printed
    assert run(monkeypatch, "greet", "--name", "Ada") == 3
    assert capsys.readouterr().out == "hello Ada\n"
    assert run(monkeypatch, "numbers", "second") == 0
    assert capsys.readouterr().out == "2\n"
    assert run(monkeypatch, "greet", "--name", "nobody") == MISTAKE
    assert capsys.readouterr().err == "mirrordescent: name must be a person's\n"
    plugin()
    run(monkeypatch, "--help")
    assert "greet" not in capsys.readouterr().out
    assert run(monkeypatch, "greet", "--name", "Ada") == MISTAKE


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("absent_plugin:greet", "No module named 'absent_plugin'"),
        ("fake_plugin:absent", "absent"),
        ("fake_plugin:number", "must be a function"),
        ("fake_plugin:unreadable", "Nonsense"),
        ("exiting_plugin:greet", "SystemExit"),
    ],
)
def test_a_broken_plugin_breaks_nothing_else(monkeypatch, capsys, plugin, value, reason):
    plugin(broken=value, greet="fake_plugin:greet")
    assert run(monkeypatch, "greet", "--name", "Ada") == 3
    printed = capsys.readouterr()
    assert printed.out == "hello Ada\n"
    assert printed.err.startswith(f"mirrordescent: the command 'broken' of {value} was not loaded")
    assert reason in printed.err
    assert run(monkeypatch, "--help") in (0, None)
    assert "Greet a person." in capsys.readouterr().out
    assert run(monkeypatch, "broken") == MISTAKE
    capsys.readouterr()
    assert run(monkeypatch, "zoo", "verify") == 0  # plug-ins are not loaded for it
    assert capsys.readouterr().err == ""


def test_a_plugin_replaces_no_command(monkeypatch, capsys, plugin):
    plugin(zoo="fake_plugin:greet")
    assert run(monkeypatch, "zoo", "list") == 0
    capsys.readouterr()
    run(monkeypatch, "--help")
    assert "another command has this name" in capsys.readouterr().err
