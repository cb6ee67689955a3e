"""Shared by all tests."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from mirrordescent import kernels
from mirrordescent.kernels import call, loading

sys.path.insert(0, str(Path(__file__).parent))
from fresh_python import FreshPython

# Most tensors here are tiny, and threads that wait for each other on a busy machine cost more than
# they gain.
torch.set_num_threads(1)

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


numbers_of_caches = itertools.count()


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    """Keep tests away from the user's cache, and from each other's entries.

    The folder is created when it is used. ``tmp_path`` creates one for every test, which takes
    several milliseconds.
    """
    folder = tmp_path_factory.getbasetemp() / "caches" / str(next(numbers_of_caches))
    monkeypatch.setenv("MIRRORDESCENT_CACHE", str(folder))


@pytest.fixture(scope="session")
def fresh_python(tmp_path_factory):
    """Run code in a new process that has imported torch, and nothing of this library."""
    python = FreshPython(tmp_path_factory.mktemp("fresh_python"))
    yield python
    python.close()


@pytest.fixture
def compiled():
    """Skip a test if there are no compiled kernels."""
    try:
        kernels.library()
    except kernels.KernelsUnavailable as error:
        pytest.skip(str(error))


def levels():
    """Return the levels of the kernels that this processor supports, the fastest first."""
    try:
        return kernels.supported_levels()
    except kernels.KernelsUnavailable:
        return ()


@pytest.fixture(params=levels() or ["torch"])
def every_level(request, monkeypatch):
    """Run a test on every level of the kernels that this processor supports.

    A test that needs kernels also uses the fixture ``compiled``.
    """
    if request.param != "torch":
        monkeypatch.setattr(call, "level", lambda: request.param)
    return request.param


def forget_library():
    """Forget the loaded library, so that the next use looks for it again."""
    for cached in (loading.library, loading.supported_levels, loading.level, loading._loads):
        cached.cache_clear()


@pytest.fixture
def fresh_library():
    """Load the library anew in this test and after it."""
    forget_library()
    yield forget_library
    forget_library()


@pytest.fixture
def no_library(tmp_path, monkeypatch, fresh_library):
    """An installation without compiled kernels."""
    monkeypatch.setattr(loading, "library_path", lambda: tmp_path / "_lib" / "kernels.so")


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
        ),
    ]
)
def device(request):
    return torch.device(request.param)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def real_data():
    """The data directory, where there is one."""
    chosen = os.environ.get("MIRRORDESCENT_DATA")
    if not chosen:
        pytest.skip("needs real data: set MIRRORDESCENT_DATA to a folder with mnist/, omniglot/, …")
    return chosen


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    """An empty data directory, named by the variable."""
    empty = tmp_path / "data"
    monkeypatch.setenv("MIRRORDESCENT_DATA", str(empty))
    return empty
