"""Users' Python files with classes of problems, such as ``my_problems.py``."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrordescent.learn import ProblemFamily
    from mirrordescent.methods import Method


def load_family(path: Path) -> "ProblemFamily":
    """Return the family of problems that a Python file defines.

    An object called ``family`` is preferred. Otherwise the file must define exactly one subclass of
    ``ProblemFamily``, which is constructed without arguments.
    """
    from mirrordescent.learn import ProblemFamily

    module = _load_module(path)
    family = vars(module).get("family")
    if isinstance(family, ProblemFamily):
        return family
    classes = [
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, ProblemFamily)
        and each.__module__ == module.__name__
    ]
    if len(classes) != 1:
        names = ", ".join(each.__name__ for each in classes) or "none"
        raise ValueError(
            f"{path} must define one subclass of mirrordescent.learn.ProblemFamily, "
            f"or an object called family; it defines {names}"
        )
    return classes[0]()


def _load_module(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} must be a Python file, with a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # files with learned solvers refer to classes by module name
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ValueError(f"{path} is not valid Python: {error}") from error
    return module


def import_modules(names: Iterable[str], folders: Iterable[Path]) -> None:
    """Import the modules that ``--import`` names, from Python's path or from some folders.

    Args:
        names: Names of the modules.
        folders: Folders to search first.
    """
    path = list(sys.path)
    sys.path[:0] = [str(folder) for folder in folders]
    try:
        for name in names:
            _import_module(name)
    finally:
        sys.path[:] = path


def _import_module(name: str) -> None:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"--import needs the name of a Python module, got {name!r}")
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"--import {name}: {error}") from error
    except SyntaxError as error:
        raise ValueError(f"--import {name}: the module is not valid Python: {error}") from error


def load_solver(source: str) -> "Method[Any]":
    """Return the method of a zoo entry or of a ``.safetensors`` file."""
    from mirrordescent import zoo
    from mirrordescent.methods import Method

    solver = zoo.load(source)
    if not isinstance(solver, Method):
        raise TypeError(
            f"{source} must be a solver, such as a file that mirrordescent learn has written; "
            f"it is a {type(solver).__name__}"
        )
    return solver
