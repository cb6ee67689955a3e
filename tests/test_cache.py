"""The cache on disk: keyed by content, whole or absent, never in the way."""

from __future__ import annotations

import os

import pytest
import torch

from mirrordescent import TVDenoising, TVInpainting, certify
from mirrordescent._internal import cache, files
from mirrordescent._internal.files import read_whole, write_whole
from mirrordescent.problems import Blur, gaussian_kernel
from mirrordescent.problems.fingerprint import fingerprint


@pytest.fixture
def problem():
    return TVDenoising(torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0)))


def full_disk(*_):
    raise OSError(28, "No space left on device")


def entries():
    return list(cache.directory().glob("*"))


def test_a_second_call_reads_the_first(problem, monkeypatch):
    first = certify(problem)
    monkeypatch.setattr("mirrordescent.references.certificate._compute", None)
    second = certify(problem)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.lower, second.lower)


def test_content_decides(problem):
    y = problem.y
    keys = set()
    variants = [
        problem,
        TVDenoising(y + 1e-6),
        TVDenoising(y, weight=0.2),
        TVDenoising(y, scale=1.0),
        TVDenoising(y.double()),
        TVInpainting(y, torch.eye(6)),
        TVInpainting(y, torch.eye(6), operator=Blur(gaussian_kernel(1.0))),
        TVInpainting(y, torch.eye(6), operator=Blur(gaussian_kernel(0.5, radius=3))),
    ]
    for variant in variants:
        keys.add(fingerprint(variant, "test"))
    assert len(keys) == len(variants)
    assert fingerprint(problem, "test") == fingerprint(TVDenoising(y.clone()), "test")
    assert fingerprint(problem, "another purpose") not in keys


def test_buffers_that_are_not_saved_count_too():
    def gain(value):
        module = Blur(gaussian_kernel(1.0))
        module.register_buffer("gain", torch.tensor(value), persistent=False)
        return module

    assert fingerprint(gain(1.0), "test") != fingerprint(gain(2.0), "test")


def test_an_operator_that_hides_its_content_is_not_cached(problem):
    class Opaque:
        norm = 1.0

        def A(self, x):
            return x

        def A_adjoint(self, y):
            return y

    hidden = TVInpainting(problem.y, torch.eye(6), operator=Opaque())
    assert fingerprint(hidden, "test") is None
    certify(hidden, 1e-3)
    assert entries() == []


def test_a_damaged_entry_is_computed_again(problem):
    first = certify(problem)
    (entry,) = entries()
    content = entry.read_bytes()
    flipped = content[:-5] + bytes([content[-5] ^ 4]) + content[-4:]
    for damage in (b"", b"garbage", content[:-20], flipped):
        entry.write_bytes(damage)
        assert torch.equal(certify(problem).x, first.x)
        assert len(entry.read_bytes()) > 100


def test_what_cannot_be_of_the_problem_is_computed_again(problem):
    """Though its checksum is right."""
    first = certify(problem)
    (entry,) = entries()
    kept = read_whole(entry)[0]
    batch = len(kept["value"])
    for wrong in (
        {"lower": kept["value"] + 1.0},
        {"value": kept["lower"] - 1.0},
        {"value": torch.full_like(kept["value"], torch.nan)},
        {"x": kept["x"][..., :-1]},
        {"lower": torch.zeros(batch + 1)},
        {"more": torch.zeros(1)},
        {"proven": torch.ones(2)},
    ):
        write_whole({**kept, **wrong}, {}, entry)
        found = certify(problem)
        assert torch.equal(found.x, first.x)
        assert torch.equal(found.lower, first.lower)
    write_whole({"x": kept["x"]}, {}, entry)
    assert torch.equal(certify(problem).value, first.value)


@pytest.mark.skipif(os.name == "nt", reason="needs /dev/null as a file")
def test_a_folder_that_cannot_be_written_does_no_harm(problem, monkeypatch):
    monkeypatch.setenv("MIRRORDESCENT_CACHE", "/dev/null/cache")
    assert certify(problem).relative_gap <= 1e-6


def test_an_interrupted_write_leaves_nothing(problem, monkeypatch):
    monkeypatch.setattr(files.os, "fsync", full_disk)
    certify(problem)
    assert entries() == []
