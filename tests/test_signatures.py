"""Signatures of public classes: they name the arguments of the constructor."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import mirrordescent
from mirrordescent.mirrors import MirrorMap

ANY_ARGUMENTS = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def public_classes():
    """Return the classes of all public modules, except exceptions, dicts and protocols."""
    classes = set()
    for module in pkgutil.walk_packages(mirrordescent.__path__, "mirrordescent."):
        if "_internal" in module.name or module.name.endswith("__main__"):
            continue
        for name, found in vars(importlib.import_module(module.name)).items():
            if name.startswith("_") or not inspect.isclass(found):
                continue
            if not found.__module__.startswith("mirrordescent"):
                continue
            if issubclass(found, (BaseException, dict)) or getattr(found, "_is_protocol", False):
                continue
            classes.add(found)
    return sorted(classes, key=lambda each: (each.__module__, each.__qualname__))


def takes_anything(cls):
    """Whether the signature of a class is (*args, **kwargs)."""
    parameters = inspect.signature(cls).parameters.values()
    return {parameter.kind for parameter in parameters} == ANY_ARGUMENTS


def test_constructors_name_their_arguments():
    classes = public_classes()
    assert len(classes) > 300
    assert [
        f"{each.__module__}.{each.__qualname__}" for each in classes if takes_anything(each)
    ] == []


def test_the_check_finds_classes_that_take_anything():
    class Anything:
        def __init__(self, *args, **kwargs):
            pass

    assert takes_anything(Anything)


def test_arguments_of_a_class_without_any_are_refused():
    with pytest.raises(TypeError, match="positional argument"):
        mirrordescent.mirrors.SimplexEntropy(0.5)
    assert str(inspect.signature(MirrorMap)).startswith("()")
