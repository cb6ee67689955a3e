"""Helpers of the tests of the optimisers."""

from __future__ import annotations

import torch
from torch import nn

from mirrordescent import methods, optim

OPTIMISERS = [optim.MD, optim.SMD, optim.AMD, optim.ASMD]


def choices(optimizer, group=0):
    """Return the ways in which the parameters of a group are stepped."""
    executor = optimizer._executors[group]
    return [executor.choices[update] for update in executor.updates]


def parameters(*shapes, dtype=torch.float64, positive=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    raw = [0.1 * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [nn.Parameter((0.3 + tensor.abs() if positive else tensor).to(dtype)) for tensor in raw]


def pull(params, seed):
    """Set every gradient to the distance of the parameter from a random point."""
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        centre = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
        p.grad = (p.detach() - centre).to(p.dtype)


def run(optimizer, params, steps, first=0):
    """Take steps along the gradients of ``pull``; return all points."""
    points = []
    for k in range(first, first + steps):
        pull(params, k)
        optimizer.step()
        points.append([p.detach().clone() for p in params])
    return points


def run_pure(method, params, steps):
    """Take the same steps by the pure method, on each parameter as a batch of one.

    The first gradient is taken at the parameters, where an inexact pair would have it at
    ∇M*(∇M(x)).
    """
    samples = [p.detach()[None].clone() for p in params]
    states = [method.init(sample)._replace(x=sample) for sample in samples]
    points = []
    for k in range(steps):
        here = [state.x[0].detach().clone() for state in states]
        pull(here, k)
        states = [method.update(state, x.grad[None]) for state, x in zip(states, here, strict=True)]
        points.append([state.x[0].detach() for state in states])
    return points


def pure(optimiser, mirror, t, **options):
    return getattr(methods, optimiser.__name__)(mirror, t, **options)
