"""The choice of a level of the processor.

Tests that compare kernels with torch use the fixture ``every_level``.
"""

from __future__ import annotations

import pytest
import torch

from mirrordescent import kernels
from mirrordescent.kernels import call, loading, sources

pytestmark = pytest.mark.usefixtures("compiled")


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


def test_tests_on_every_level_call_its_functions(every_level):
    function = call.function("image_sums", torch.float32)
    assert function._function.__name__ == f"image_sums_float_{every_level}"
