"""Old names of the theory package keep working for one version, with a warning."""

from __future__ import annotations

import importlib
import sys

import pytest

from mirrordescent import theory
from mirrordescent.theory.assumptions import Verdict
from mirrordescent.theory.constants import KnownConstant, MapConstants
from mirrordescent.theory.dual_preconditioning import DualDescent
from mirrordescent.theory.recording import StepRecorder

MOVED_NAMES = [
    "Coupling",
    "DualDescent",
    "Energies",
    "Inconsistency",
    "Observed",
    "Setting",
    "UpdateErrors",
    "dual_descent",
    "dual_smoothness",
    "dual_update_error",
    "exact_geometry",
    "extreme_eigenvalues",
    "inconsistency",
    "inconsistency_over_box",
    "map_verdicts",
    "method_verdicts",
    "primal_update_error",
    "problem_verdicts",
]
MOVED_MODULES = {
    "beforehand": "prior_bounds",
    "dual": "dual_preconditioning",
    "findings": "diagnosis_results",
    "held": "bound_checks",
    "inconsistency": "inverse_consistency",
    "recommend": "recommendation",
    "watched": "recording",
}


@pytest.mark.parametrize("name", MOVED_NAMES)
def test_moved_names_warn_and_name_their_module(name, monkeypatch):
    monkeypatch.delitem(theory.__dict__, name, raising=False)
    with pytest.warns(DeprecationWarning, match=rf"mirrordescent\.theory\.\w+\.{name};"):
        found = getattr(theory, name)
    assert found.__name__ == name
    assert name not in theory.__all__


@pytest.mark.parametrize(
    ("old", "new"), [("Constant", KnownConstant), ("Watched", StepRecorder)], ids=str
)
def test_renamed_names_warn(old, new):
    with pytest.warns(DeprecationWarning, match=new.__name__):
        assert getattr(theory, old) is new


@pytest.mark.parametrize(("old", "new"), MOVED_MODULES.items())
def test_moved_modules_warn(old, new, monkeypatch):
    monkeypatch.delitem(sys.modules, f"mirrordescent.theory.{old}", raising=False)
    before = theory.__dict__.get(old)
    with pytest.warns(DeprecationWarning, match=f"theory.{new}"):
        module = importlib.import_module(f"mirrordescent.theory.{old}")
    target = importlib.import_module(f"mirrordescent.theory.{new}")
    public = [name for name in vars(target) if not name.startswith("_")]
    assert all(getattr(module, name) is getattr(target, name) for name in public)
    # Importing a submodule sets an attribute of the package: put back what was there.
    if before is None:
        delattr(theory, old)
    else:
        setattr(theory, old, before)


def test_a_module_named_like_a_function_can_be_called(monkeypatch):
    monkeypatch.delitem(sys.modules, "mirrordescent.theory.recommend", raising=False)
    monkeypatch.setattr(theory, "recommend", theory.recommend)  # restored afterwards
    with pytest.warns(DeprecationWarning, match="recommendation"):
        module = importlib.import_module("mirrordescent.theory.recommend")
    with pytest.raises(TypeError, match="no theorem is known for Adam"):
        module(None, None, __import__("mirrordescent").methods.Adam(0.1))


def test_renamed_attributes_of_results_warn():
    constant = KnownConstant(2.0, "formula")
    with pytest.warns(DeprecationWarning, match="KnownConstant.source"):
        assert constant.how == "formula"
    with pytest.warns(DeprecationWarning, match=r"Verdict.reason"):
        assert Verdict("a", "holds", "b").because == "b"
    with pytest.warns(DeprecationWarning, match="smallest_curvature"):
        assert MapConstants(constant, constant, 0.5).lowest == 0.5
    assert isinstance(DualDescent.falls, property)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = theory.nothing
