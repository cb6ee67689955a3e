"""Threads of the kernels: equal results for any number, after a fork, with several callers."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager

import pytest
import torch

import mirrordescent as md
from mirrordescent import kernels, optim

pytestmark = pytest.mark.usefixtures("compiled")


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def problem():
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(3, 1, 150, 140, generator=generator)
    mask = torch.rand(3, 1, 150, 140, generator=generator) > 0.3
    return md.TVInpainting(y, mask, weight=0.1)


def images():
    """Results of all kernels on images."""
    task = problem()
    solution = md.solve(task, md.PDHG(0.3), iterations=20, fused=True, progress=False)
    smooth = md.TVDenoising(task.y, weight=0.2)
    dual = md.solve(smooth, md.DualFISTA(), iterations=4, fused=True, progress=False)
    sums = kernels.image_sums(task.y, task.mask, task.y)
    return [solution.x, solution.lower, dual.x, sums, kernels.hole_depths(task.mask, 5)]


def lists():
    """Results of kernels on lists of tensors."""
    generator = torch.Generator().manual_seed(1)
    x = [torch.randn(shape, generator=generator) for shape in [(300, 700), (5,), (200_000,)]]
    m = [torch.zeros_like(each) for each in x]
    return [*kernels.powers(x, 0.3), *kernels.momenta(m, x, 0.9), *m]


@pytest.mark.parametrize("compute", [images, lists])
def test_results_do_not_depend_on_the_number_of_threads(compute):
    alone = compute()
    for count in (2, 3):
        with threads(count):
            for one, other in zip(alone, compute(), strict=True):
                assert torch.equal(one, other)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    with threads(3):
        x = [torch.ones(300_000)]
        expected = kernels.powers(x, 0.5)[0]
        child = os.fork()
        if child == 0:
            code = 1
            try:
                repeated = [kernels.powers(x, 0.5)[0] for _ in range(3)]
                same = all(bytes(each.numpy()) == bytes(expected.numpy()) for each in repeated)
                code = 0 if same else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _thread_count():
    return len(os.listdir("/proc/self/task"))


def test_several_callers_at_once():
    """One caller has the pool, and the others work alone."""
    expected = lists()
    wrong = []

    def repeat():
        for _ in range(20):
            found = lists()
            if not all(map(torch.equal, found, expected)):
                wrong.append(found)

    with threads(2):
        callers = [threading.Thread(target=repeat) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(60)
    assert not any(caller.is_alive() for caller in callers)
    assert not wrong


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs /proc")
def test_small_work_starts_no_threads():
    with threads(8):
        before = _thread_count()
        kernels.powers([torch.ones(100)], 0.5)
        x = torch.nn.Parameter(torch.ones(10))
        x.grad = torch.ones(10)
        optim.MD([x], fused=True).step()
        assert _thread_count() <= before  # threads of other tests may end
