"""Distributed training in which one process is killed.

The other processes must end with an error instead of waiting for ever. Started again from the last
checkpoint, the processes must end where an uninterrupted run does.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from campaigns.children import equal_tensors
from campaigns.tally import Tally
from mirrordescent import optim
from mirrordescent._internal.files import whole
from mirrordescent.mirrors import Diagonal, HyperbolicEntropy, MirrorMap

STEPS = 10
"""Steps of a training."""

PATIENCE = 60.0
"""Seconds after which a process that still runs counts as waiting for ever."""

FAILED = 2
"""Exit code of a process that ended with an error."""

OPTIMISERS = ("MD", "SMD", "AMD", "ASMD", "Preconditioned")
MIRRORS: dict[str, MirrorMap | None] = {
    "none": None,
    "diagonal": Diagonal(2.0),
    "hyperbolic": HyperbolicEntropy(0.5),
}
FULL_STATE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Setup(NamedTuple):
    """How a network is trained.

    Attributes:
        processes: Number of processes.
        parallelism: "DDP" for replicas, or "FSDP" for shards.
        optimiser: Name of the optimiser.
        mirror: Name of the map.
    """

    processes: int
    parallelism: str
    optimiser: str
    mirror: str


class Training:
    """The training of a small network in several processes, with a checkpoint after every step.

    Args:
        folder: Folder for checkpoints.
        setup: How the network is trained.
    """

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.folder = folder
        self.setup = setup
        self.checkpoint = folder / "checkpoint.pt"
        folder.mkdir(parents=True, exist_ok=True)

    def work(self, rank: int, rendezvous: Path) -> None:
        """Train as one of the processes, from the last checkpoint to the end."""
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=self.setup.processes,
            timeout=timedelta(seconds=30),
        )
        generator = torch.Generator().manual_seed(0)
        model: nn.Module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).double()
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
        if self.setup.parallelism == "DDP":
            model = DistributedDataParallel(model)
        else:
            model = fully_shard(model)
        kind = getattr(optim, self.setup.optimiser)
        mirror = MIRRORS[self.setup.mirror]
        optimizer = kind(model.named_parameters(), lr=0.05, mirror=mirror)
        first = self._load(model, optimizer)
        batches = torch.randn(STEPS, 12, 3, generator=generator, dtype=torch.float64)
        for k in range(first, STEPS):
            optimizer.zero_grad()
            batch = batches[k].chunk(self.setup.processes)[rank]
            model(batch).square().mean().backward()
            optimizer.step()
            self._save(model, optimizer, k + 1, rank)
        distributed.destroy_process_group()

    def _save(self, model: nn.Module, optimizer: Any, k: int, rank: int) -> None:
        model_state, optimizer_state = get_state_dict(model, optimizer, options=FULL_STATE)
        if rank == 0:
            with whole(self.checkpoint) as partial:
                torch.save({"k": k, "model": model_state, "optimizer": optimizer_state}, partial)

    def _load(self, model: nn.Module, optimizer: Any) -> int:
        """Load the last checkpoint; return its number of steps."""
        if not self.checkpoint.exists():
            return 0
        saved = torch.load(self.checkpoint, weights_only=True)
        set_model_state_dict(model, saved["model"], options=FULL_STATE)
        # torch cannot distribute a state without tensors, not even for its own SGD.
        options = FULL_STATE if saved["optimizer"]["state"] else StateDictOptions()
        set_optimizer_state_dict(model, optimizer, saved["optimizer"], options=options)
        return int(saved["k"])

    def result(self) -> dict[str, Tensor]:
        """Return the parameters after the last step; nothing if there are steps left."""
        saved = torch.load(self.checkpoint, weights_only=True)
        return saved["model"] if saved["k"] == STEPS else {}

    def run(self, number: int, killed: int | None = None, after: float = 0.0) -> list[int | None]:
        """Run all processes and return their exit codes, None for those that do not end.

        Args:
            number: Number of the attempt.
            killed: Process to kill, if any.
            after: Seconds after which it is killed.
        """
        rendezvous = self.folder / f"rendezvous{number}"
        ranks = range(self.setup.processes)
        children = [_fork(lambda rank=rank: self.work(rank, rendezvous)) for rank in ranks]
        if killed is not None:
            time.sleep(after)
            os.kill(children[killed], signal.SIGKILL)
        return _wait(children)


def _fork(work: Callable[[], None]) -> int:
    """Run a function in a child and return its process id; the exit code is 0, or 2 on errors."""
    child = os.fork()
    if child:
        return child
    code = FAILED
    try:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        # gloo prints long messages when a process is gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        work()
        code = 0
    finally:
        os._exit(code)


def _wait(children: list[int]) -> list[int | None]:
    """Return the exit codes of all children; those that do not end are killed and give None."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE
    while len(codes) < len(children) and time.monotonic() < deadline:
        for child in set(children) - codes.keys():
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                codes[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    for child in set(children) - codes.keys():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return [codes.get(child) for child in children]


class Uninterrupted(NamedTuple):
    """Result and duration of a training without interruption."""

    result: dict[str, Tensor]
    seconds: float


def run(tally: Tally) -> None:
    """Run the campaign: kill one of two to four processes again and again."""
    warnings.simplefilter("ignore")
    random = tally.random
    references: dict[Setup, Uninterrupted] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in tally.cases():
            parallelism = random.choice(("DDP", "FSDP"))
            optimiser = random.choice(OPTIMISERS)
            mirror = random.choice(list(MIRRORS))
            setup = Setup(random.choice((2, 2, 3, 4)), parallelism, optimiser, mirror)
            if setup not in references:
                training = Training(folder / f"whole{number}", setup)
                started = time.monotonic()
                codes = training.run(0)
                if any(codes):
                    kind = f"{parallelism}, {optimiser}"
                    tally.fault(kind, f"{tuple(setup)} ended with {codes}")
                    continue
                seconds = time.monotonic() - started
                references[setup] = Uninterrupted(training.result(), seconds)
            _kill_and_resume(tally, Training(folder / f"run{number}", setup), references[setup])


def _kill_and_resume(tally: Tally, training: Training, reference: Uninterrupted) -> None:
    """Kill one process of a training, resume the training, and compare its result."""
    processes, parallelism, optimiser, _ = training.setup
    killed = tally.random.randrange(processes)
    codes = training.run(0, killed, tally.random.uniform(0, reference.seconds))
    if None in codes:
        hanging = f"{codes.count(None)} of {processes} processes wait for ever"
        tally.fault(f"{parallelism}, {optimiser}, killed", hanging)
    others = [code for i, code in enumerate(codes) if i != killed and code is not None]
    worst = max(others, default=0)
    outcomes = {0: "at the end", FAILED: "the others end with an error"}
    outcome = outcomes.get(worst, f"exit code {worst}")
    tally.note(f"{parallelism}, one of {processes} killed", outcome)
    codes = training.run(1)
    result = {} if any(codes) else training.result()
    if result.keys() == reference.result.keys() and equal_tensors(result, reference.result):
        tally.note(f"{parallelism}, resumed", "bit-identical")
    else:
        description = f"{tuple(training.setup)} ended with {codes}, or elsewhere"
        tally.fault(f"{parallelism}, {optimiser}, resumed", description)
