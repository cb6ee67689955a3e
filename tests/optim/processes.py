"""Training of one network by two processes, for test_distributed.py."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from mirrordescent import optim
from mirrordescent.execution import matrices
from mirrordescent.kernels import KernelsUnavailable
from mirrordescent.mirrors import (
    Diagonal,
    HyperbolicEntropy,
    SquaredPNorm,
    layerwise,
    spectral_by_kind,
)

WORLD = 2
# Every optimiser, and maps with all kinds of tensors: none, one number, numbers that all shards
# share ("tensor"), numbers that are sharded ("orbit": one for each row of the output layer),
# tables of numbers, and maps that need the whole tensor.
CASES = [
    ("SMD", "euclidean"),
    ("AMD", "diagonal"),
    ("ASMD", "hyperbolic"),
    ("AMD", "diagonal-tensor"),
    ("MD", "diagonal-orbit"),
    ("AMD", "diagonal-orbit"),
    ("SMD", "spline-orbit"),
    ("Preconditioned", "kinds"),
    ("Preconditioned", "adaptive"),
    ("Preconditioned", "whole"),
    ("SpectralDescent", "known"),
    ("SpectralDescent", "unknown"),
]


def model_of():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)
    ).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


def mirror_of(kind, model):
    match kind.split("-"):
        case ["euclidean" | "known" | "unknown"]:
            return None
        case ["hyperbolic"]:
            return HyperbolicEntropy(0.5)
        case ["diagonal"]:
            return Diagonal(2.0).double()
        case ["whole"]:
            return SquaredPNorm(1.5)
        case ["kinds" | "adaptive"]:
            return spectral_by_kind().double()
    kind, ties = kind.split("-")
    mirror = layerwise(model, kind, ties=ties)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in mirror.parameters():
            p.add_(0.5 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return mirror


def optimiser_of(name, kind, model, mirror=None, **options):
    mirror = mirror if mirror is not None else mirror_of(kind, model)
    if name == "SpectralDescent":
        steps = 6 if kind == "known" else None
        return optim.SpectralDescent(model, steps=steps, **options)
    options |= {"second_momentum": 0.9} if kind == "adaptive" else {}
    return getattr(optim, name)(model.named_parameters(), lr=0.1, mirror=mirror, **options)


def train(model, optimizer, first, last, rank=None):
    """Take a step on the mean loss of every batch; each process has its share of a batch."""
    generator = torch.Generator().manual_seed(1)
    batches = torch.randn(20, 8, 3, generator=generator, dtype=torch.float64)[first:last]
    for batch in batches if rank is None else batches.chunk(WORLD, 1)[rank]:
        optimizer.zero_grad()
        model(batch).square().sum(-1).mean().backward()
        optimizer.step()
    return {
        name.removeprefix("module."): _whole(p.detach()).clone()
        for name, p in model.named_parameters()
    }


def _whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def alone(name, kind, steps=6, **options):
    model = model_of()
    return train(model, optimiser_of(name, kind, model, **options), 0, steps)


def sharded(name, kind, **options):
    model = model_of()
    mirror = mirror_of(
        kind, model
    )  # before the network is sharded, as its symmetries are of the whole
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model, optimiser_of(name, kind, model, mirror, **options)


def distance(first, second):
    return max(float((first[name] - second[name]).abs().max()) for name in second)


def checks(rank):
    """Return the results by name: distances from a single process, and messages."""
    found = {}
    for name, kind in CASES:
        # Without kernels for matrices, whose last digits differ: only processes are compared.
        options = {"fused": False} if name in ("Preconditioned", "SpectralDescent") else {}
        expected = alone(name, kind, **options)
        model, optimizer = sharded(name, kind, **options)
        found[f"FSDP {name} {kind}"] = distance(train(model, optimizer, 0, 6, rank), expected)
        replica = model_of()
        mirror = mirror_of(kind, replica)
        replica = DistributedDataParallel(replica)
        optimizer = optimiser_of(name, kind, replica, mirror, **options)
        found[f"DDP {name} {kind}"] = distance(train(replica, optimizer, 0, 6, rank), expected)
    found["DDP matrices"], found["FSDP matrices"] = _matrices(rank)
    found["FSDP compiled"] = _compiled(rank)
    found["FSDP clipped"] = _clipped(rank)
    found["FSDP resumed"] = _resumed(rank)
    found["FSDP whole"] = _message(lambda: sharded("SMD", "whole"))
    found["FSDP not finite"], found["FSDP moved"] = _not_finite(rank)
    return found


def _matrices(rank):
    """Return the shapes of the matrices whose directions this process has computed."""
    seen = []

    def counted(maps, tensors, fused=False):
        seen.extend(list(tensor.shape) for tensor in tensors)
        return compute(maps, tensors, fused)

    compute = matrices.matrix_directions
    matrices.matrix_directions = counted
    try:
        replica = DistributedDataParallel(model_of())
        train(replica, optim.SpectralDescent(replica, steps=6), 0, 1, rank)
        replicated = list(seen)
        seen.clear()
        model, optimizer = sharded("SpectralDescent", "known")
        train(model, optimizer, 0, 1, rank)
    finally:
        matrices.matrix_directions = compute
    return replicated, seen


def _compiled(rank):
    try:
        model, optimizer = sharded("AMD", "diagonal-orbit", fused=True)
    except KernelsUnavailable:
        return None
    return distance(
        train(model, optimizer, 0, 6, rank), alone("AMD", "diagonal-orbit", fused=False)
    )


def _clipped(rank):
    model, optimizer = sharded("AMD", "diagonal-orbit", max_grad_norm=0.01)
    return distance(
        train(model, optimizer, 0, 6, rank), alone("AMD", "diagonal-orbit", max_grad_norm=0.01)
    )


def _resumed(rank):
    """Save and load with the distributed checkpoints of torch, into a new optimiser."""
    model, optimizer = sharded("AMD", "diagonal-orbit")
    train(model, optimizer, 0, 3, rank)
    saved = get_optimizer_state_dict(model, optimizer)
    mirror = mirror_of("diagonal-orbit", model_of())
    again = optimiser_of("AMD", "diagonal-orbit", model, mirror)
    set_optimizer_state_dict(model, again, saved)
    return distance(train(model, again, 3, 6, rank), alone("AMD", "diagonal-orbit"))


def _not_finite(rank):
    """Put a NaN into the shard of one process: all must raise, and no parameter may change."""
    model, optimizer = sharded("AMD", "diagonal")
    before = train(model, optimizer, 0, 1, rank)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    if rank == 1:
        model[2].weight.grad.to_local().fill_(math.nan)
    message = _message(optimizer.step)
    return message, distance(train(model, optimizer, 0, 0, rank), before)


def _message(call):
    try:
        call()
    except (ValueError, FloatingPointError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def work(rank, folder):
    """Join the process group, run the checks, and write the results of this process."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank))
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD
    )
    Path(folder, f"{rank}.json").write_text(json.dumps(checks(rank)))
    distributed.destroy_process_group()
    os._exit(0)  # threads of torch sometimes abort a process that is taken down in the usual way
