"""Python files with problems of users: ``my_problems.py``."""

import importlib.util
import sys
from pathlib import Path
from typing import Any


def family_in(path: Path) -> Any:
    """Return the family of problems in a Python file: what it calls ``family``, or its one
    ProblemFamily.
    """
    from mirrordescent.learn import ProblemFamily

    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # so that classes in it can be stored by its name
    spec.loader.exec_module(module)
    if isinstance(found := vars(module).get("family"), ProblemFamily):
        return found
    own = [
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, ProblemFamily)
        and each.__module__ == path.stem
    ]
    if len(own) != 1:
        named = ", ".join(each.__name__ for each in own) or "none"
        raise ValueError(
            f"{path} must have one class of problems, a subclass of mirrordescent.learn.ProblemFamily, or an object "
            f"called family; it has {named}"
        )
    return own[0]()


def solver_of(what: str) -> Any:
    """Return the method of an entry of the zoo, or of a .safetensors file."""
    from mirrordescent import zoo
    from mirrordescent.methods import Method

    found = zoo.load(what)
    if not isinstance(found, Method):
        raise TypeError(
            f"{what} is a {type(found).__name__}, and not a method: give a solver that learn has written"
        )
    return found
