"""The compiled library: found in the package, never compiled here, and refused if it is stale."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mirrordescent as md
from mirrordescent import kernels, optim
from mirrordescent.kernels import loading, sources

PROBLEM = md.TVDenoising(torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)))


def use(fused):
    """Solve a problem and step an optimiser, and return whether the latter uses kernels."""
    md.solve(PROBLEM, md.PDHG(0.3), iterations=3, fused=fused, progress=False)
    optimizer = optim.MD([torch.nn.Parameter(torch.ones(3))], fused=fused)
    return all(executor.uses_kernels for executor in optimizer._executors)


@pytest.fixture
def counted(monkeypatch):
    """Names of the kernels that are called."""
    names = []
    call = kernels.KernelFunction.__call__

    def counting(self, **arguments):
        names.append(self.name)
        return call(self, **arguments)

    monkeypatch.setattr(kernels.KernelFunction, "__call__", counting)
    return names


def test_kernels_are_used_by_default(compiled, counted):
    assert use(None)
    assert "primal_dual" in counted


def test_fused_false_uses_none(compiled, counted):
    assert not use(False)
    assert "primal_dual" not in counted


def test_without_a_library_the_default_is_torch(no_library, counted, recwarn):
    assert not use(None)
    assert not counted
    assert not recwarn.list


@pytest.mark.parametrize("why", ["", "there was no C compiler"])
def test_fused_true_requires_a_library(no_library, tmp_path, monkeypatch, why):
    failure = tmp_path / "failure.txt"
    monkeypatch.setattr(loading, "failure_path", lambda: failure)
    if why:
        failure.write_text(why)
    with pytest.raises(kernels.KernelsUnavailable, match=rf"make kernels.*fused=False.*{why}"):
        use(True)


def test_a_stale_library_is_refused(compiled, fresh_library, monkeypatch):
    """If the sources change after the compilation, kernels are not used, and a warning says why."""
    monkeypatch.setattr(loading, "source_hash", lambda: "0" * 32)
    with pytest.raises(kernels.KernelsUnavailable, match=r"other C sources.*make kernels"):
        kernels.library()
    with pytest.warns(RuntimeWarning, match=r"C kernels are not used.*make kernels"):
        assert not kernels.available()
    assert not use(None)  # the warning is given once


def test_the_hash_depends_on_every_source(tmp_path, monkeypatch):
    for path in (*sources.sources("c"), *sources.sources("h")):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    original = sources.source_hash()
    for path in (*sources.sources("c"), *sources.sources("h")):
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        assert sources.source_hash() != original
        path.write_bytes(before)
    assert sources.source_hash() == original


@pytest.mark.parametrize("content", [b"", b"not a library"])
def test_a_file_that_is_no_library(tmp_path, monkeypatch, fresh_library, content):
    broken = tmp_path / sources.library_name()
    broken.write_bytes(content)
    monkeypatch.setattr(loading, "library_path", lambda: broken)
    with pytest.raises(kernels.KernelsUnavailable, match=r"cannot be loaded.*reinstall"):
        kernels.library()
    with pytest.warns(RuntimeWarning, match="cannot be loaded"):
        assert not kernels.available()


def test_nothing_is_compiled_or_started_by_an_import():
    """A program that imports the kernels starts no process, and no thread for them."""
    program = """
import subprocess, os, sys, threading
def refused(*_, **__):
    raise AssertionError("a process was started")
subprocess.Popen.__init__ = os.system = os.fork = refused
import torch
before = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
import mirrordescent as md
from mirrordescent import kernels
md.solve(md.TVDenoising(torch.rand(1, 1, 8, 8)), md.PDHG(0.3), iterations=2, progress=False)
after = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
print(after - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "0\n", done.stderr


def test_every_kernel_has_a_declaration():
    text = "".join(path.read_text(encoding="utf-8") for path in sources.sources("h"))
    names = {name for _, name, _ in sources.declarations()}
    assert text.count("\nEXPORT ") == len(names) > 10
    assert {"primal_dual", "dual_fista", "directions", "adapted"} <= names
    assert all(Path(path).exists() for path in sources.sources("c"))
