"""Every level of the processor computes the same as torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mirrordescent import kernels
from mirrordescent.kernels import loading, sources

ROOT = Path(__file__).parents[2]
COMPARISONS = (
    "tests/methods/test_kernels.py",
    "tests/mirrors/test_matrix_kernels.py",
    "tests/mirrors/test_power_kernels.py",
    "tests/test_moment_kernels.py",
    "tests/methods/test_signals.py",
    "tests/problems/test_grid_tv.py",
    "tests/problems/test_holes.py",
    "tests/problems/test_features.py",
    "tests/problems/test_ridge_kernels.py",
    "tests/optim/test_compiled.py",
)
"""Tests that compare kernels with torch."""

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.mark.parametrize("level", loading.LEVELS[1:])
def test_comparisons_with_torch_pass_on_lower_levels(level):
    """The fastest level is used by all other tests."""
    if level not in kernels.supported_levels()[1:]:
        pytest.skip(f"{level} is the fastest level here, or is not supported")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *COMPARISONS],
        cwd=ROOT,
        env={**os.environ, loading.LEVEL_VARIABLE: level},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.parametrize("level", loading.LEVELS)
def test_the_variable_chooses_the_level(level, monkeypatch, fresh_library):
    if level not in kernels.supported_levels():
        pytest.skip(f"{level} is not supported here")
    fresh_library()
    monkeypatch.setenv(loading.LEVEL_VARIABLE, level)
    assert kernels.level() == level
    function = kernels.KernelFunction("image_sums", torch.float32)
    assert function._function.__name__ == f"image_sums_float_{level}"


def test_the_fastest_level_is_the_default(monkeypatch, fresh_library):
    monkeypatch.delenv(loading.LEVEL_VARIABLE, raising=False)
    assert kernels.level() == kernels.supported_levels()[0]
    assert kernels.supported_levels()[-1] == "baseline"


def test_an_unknown_level_is_an_error(monkeypatch, fresh_library):
    monkeypatch.setenv(loading.LEVEL_VARIABLE, "avx1024")
    with pytest.raises(kernels.KernelsUnavailable, match=r"must be one of .*baseline.*got avx1024"):
        kernels.level()
    with pytest.warns(RuntimeWarning, match="avx1024"):
        assert not kernels.available()


def test_every_level_has_every_kernel():
    library = kernels.library()
    for symbol in sources.symbols(kernels.supported_levels()):
        assert hasattr(library, symbol), symbol
    assert not hasattr(library, "kernel_level_missing")
