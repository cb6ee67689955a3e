"""Names of earlier versions: they still work, and warn with the name of the replacement."""

from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle
import pytest

import mirrordescent as md
from mirrordescent._internal import deprecation
from mirrordescent._internal.deprecation import MOVED_MODULES

CHILD = "import warnings; warnings.simplefilter('error'); "


def test_old_module_paths_warn_and_name_the_new_ones(fresh_python):
    """In a process of its own, since importing an old path binds it to the package."""
    code = f"""
import importlib, warnings
for old, new in {MOVED_MODULES!r}.items():
    target = importlib.import_module("mirrordescent." + new)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = importlib.import_module("mirrordescent." + old)
    missing = [name for name in dir(target) if not hasattr(module, name)]
    assert not missing, (old, missing)
    assert all(issubclass(w.category, DeprecationWarning) for w in caught), old
    assert any(target.__name__ in str(w.message) for w in caught), old
"""
    done = fresh_python(code)
    assert done.returncode == 0, done.stderr


def test_old_names_are_removed_after_one_version():
    """Raising the version to 0.4 fails here until the names that were renamed in 0.3 are gone."""
    version = md.__version__.rpartition(".")[0]
    assert version == deprecation.DEPRECATED_IN, (
        f"remove the names that were renamed in {deprecation.DEPRECATED_IN}, then set "
        f"DEPRECATED_IN to {version}"
    )
    assert deprecation.removal(version) == deprecation.REMOVED_IN == "0.4"


def test_every_warning_names_the_version_that_removes_the_name():
    import mirrordescent.automatic
    import mirrordescent.learn  # noqa: F401

    assert len(deprecation.RENAMED_ATTRIBUTES) > 3
    for module, renamed in deprecation.RENAMED_ATTRIBUTES.items():
        for old in renamed:
            with pytest.warns(DeprecationWarning, match="will be removed in version 0.4"):
                getattr(sys.modules[module], old)
    calls = [
        line
        for path in Path(md.__file__).parent.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "the old name will be removed" in line
    ]
    assert len(calls) == 1, "messages end with deprecation.OUTLOOK"


def test_functions_keep_their_names_beside_old_packages(fresh_python):
    """Importing a submodule by its old path must not replace md.solve by a module."""
    done = fresh_python(
        "import mirrordescent as md, mirrordescent.solve.loop, mirrordescent.auto.trial\n"
        "import torch\n"
        "problem = md.Quadratic(torch.ones(2), centre=torch.ones(1, 2))\n"
        "assert md.solve(problem, md.GD(0.5), iterations=5).ok\n"
        "assert callable(md.auto)\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "path", ["solving.loop", "automatic.trial", "_internal.cache", "zoo.storage"]
)
def test_every_module_can_be_imported_by_its_path(path, fresh_python):
    done = fresh_python(
        f"{CHILD}import mirrordescent.{path} as module; assert module.__name__.endswith('{path}')"
    )
    assert done.returncode == 0, done.stderr


def test_a_function_that_uses_the_library_can_be_sent_to_another_process(fresh_python):
    def minimise(centre):
        import torch

        problem = md.Quadratic(torch.ones(2), centre=torch.full((1, 2), centre))
        return float(md.solve(problem, md.GD(1.0), iterations=3).x[0, 0])

    sent = cloudpickle.dumps(minimise)
    code = f"import pickle; print(pickle.loads({sent!r})(2.0))"
    done = fresh_python(code)
    assert done.stdout.strip() == "2.0", done.stderr


def test_dir_shows_public_names_only():
    assert dir(md) == sorted(md.__all__)


def test_names_that_left_the_package_for_learning_warn(fresh_python):
    import mirrordescent.learn as learn

    for name, place in {
        "Learned": "learn.LearnResult",
        "SVMFamily": "learn.families.SVMFamily",
        "Stage": "learn.recipe.Stage",
        "RunDamaged": "learn.checkpoint.RunDamaged",
        "NothingLearned": "learn.trainer.NothingLearned",
        "moons_family": "learn.network_families.moons_family",
    }.items():
        with pytest.warns(DeprecationWarning, match=f"mirrordescent.{place}"):
            assert getattr(learn, name).__name__ == place.rpartition(".")[2]
    done = fresh_python(
        "import warnings; warnings.simplefilter('ignore')\n"
        "from mirrordescent.learn import unroll; assert callable(unroll)"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "import mirrordescent as md; md.HandOver",
        "from mirrordescent import HandOver",
        "from mirrordescent.methods import Relay",
        "from mirrordescent.methods.hand_over import HandOver",
        "from mirrordescent.methods.relay import Relay",
        "from mirrordescent.solve.stopping import Look",
    ],
)
def test_warnings_about_old_names_are_shown_for_the_line(line, tmp_path, fresh_python):
    """Python hides a DeprecationWarning that belongs to a library."""
    script = tmp_path / "script.py"
    script.write_text(line)
    done = fresh_python.script(script)
    assert done.returncode == 0, done.stderr
    old = line.rpartition(" ")[2].rpartition(".")[2]
    warned = [
        text for text in done.stderr.splitlines() if "script.py:1: DeprecationWarning" in text
    ]
    assert any(f".{old} was renamed to" in text for text in warned), done.stderr
