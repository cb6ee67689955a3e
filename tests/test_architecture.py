"""The shape of the library: how it is divided and what importing it loads."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import mirrordescent
from mirrordescent.parts import Part

ROOT = Path(mirrordescent.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
ARGUMENTS = 12
LATE = (
    "cli",
    "__main__.py",
)  # commands import what they need when they run, so that --help is quick


def modules():
    found = pkgutil.walk_packages([str(ROOT)], "mirrordescent.")
    return [importlib.import_module(module.name) for module in found]


def test_no_constructor_takes_more_than_a_dozen_arguments():
    classes = {c for module in modules() for _, c in inspect.getmembers(module, inspect.isclass)}
    own = [
        c
        for c in classes
        if c.__module__.startswith("mirrordescent.") and not issubclass(c, Exception)
    ]
    many = {c.__qualname__: len(_arguments(c)) for c in own if len(_arguments(c)) > ARGUMENTS}
    assert many == {}


def _arguments(cls):
    try:
        return inspect.signature(cls).parameters
    except (TypeError, ValueError):  # of a protocol or an enumeration
        return {}


def test_stored_classes_have_different_names():
    """Entries name classes of the library without their modules."""
    parts = {c for module in modules() for _, c in inspect.getmembers(module, inspect.isclass)}
    names = [
        c.__qualname__
        for c in parts
        if issubclass(c, Part) and c.__module__.startswith("mirrordescent.")
    ]
    assert sorted(names) == sorted(set(names))


def test_every_exported_name_exists():
    names = {(m.__name__, name) for m in modules() for name in getattr(m, "__all__", ())}
    names |= {("mirrordescent", name) for name in mirrordescent.__all__}
    for module, name in names:
        found = importlib.import_module(module)
        assert hasattr(found, name), f"{module} exports {name}, which is not there"


def imports(path):
    """Yield what a file imports from the library, and whether it does so inside a function."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {
        id(node) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for node in ast.walk(f)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mirrordescent"):
            yield node.module, [alias.name for alias in node.names], id(node) in inner


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_private_name_crosses_a_module_and_no_import_hides(path):
    for module, names, late in imports(path):
        assert not [name for name in names if name.startswith("_") and not name.endswith("__")], (
            f"private names of {module}"
        )
        assert not late or path.relative_to(ROOT).parts[0] in LATE, (
            f"{module} is imported inside a function"
        )


def test_importing_the_library_brings_no_more_than_it_needs():
    code = "import sys, json, mirrordescent; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
    )
    unwanted = {
        "mirrordescent.learn",
        "mirrordescent.zoo",
        "matplotlib",
        "skimage",
        "sklearn",
        "PIL",
        "rich",
        "tyro",
    }
    assert not unwanted & set(loaded)
    for name in ("data", "learn", "optim", "theory", "zoo"):
        assert getattr(mirrordescent, name).__name__ == f"mirrordescent.{name}"
    with pytest.raises(AttributeError, match="has no attribute 'zo'"):
        mirrordescent.zo  # noqa: B018


@pytest.mark.parametrize(
    "module", ["oracles", "methods", "problems", "kernels", "solving", "optim", "theory", "restore"]
)
def test_every_room_can_be_entered_first(module, fresh_python):
    """A cycle would show in one order of imports or another."""
    done = fresh_python(f"import mirrordescent.{module}")
    assert done.returncode == 0, done.stderr
