"""Several processes that train one network, one of which is killed: the others end with an error
and do not wait for ever, and all of them, started again from the last checkpoint, end where an
uninterrupted run does.
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
from typing import Any

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

from campaigns.tally import Tally
from mirrordescent import optim
from mirrordescent._internal.files import whole
from mirrordescent.mirrors import Diagonal, HyperbolicEntropy, MirrorMap

# seconds after which somebody who still waits is taken to wait for ever
STEPS = 10
PATIENCE = 60.0
MIRRORS: dict[str, MirrorMap | None] = {
    "none": None,
    "diagonal": Diagonal(2.0),
    "hyperbolic": HyperbolicEntropy(0.5),
}
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Training:
    """Steps of a small network, spread over processes in one of two ways, with a checkpoint after
    every one of them.

    Args:
        folder: for checkpoints.
        world: the number of processes.
        spread: "DDP", replicas; or "FSDP", shards.
        optimiser, mirror: how it is trained, by name.
    """

    def __init__(self, folder: Path, world: int, spread: str, optimiser: str, mirror: str) -> None:
        self.folder = folder
        self.world = world
        self.spread = spread
        self.optimiser = optimiser
        self.mirror = mirror
        folder.mkdir(parents=True, exist_ok=True)

    def work(self, rank: int, meeting: Path) -> None:
        """Be one of the processes, until the end."""
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=self.world,
            timeout=timedelta(seconds=30),
        )
        generator = torch.Generator().manual_seed(0)
        model: nn.Module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).double()
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
        model = DistributedDataParallel(model) if self.spread == "DDP" else fully_shard(model)
        make = getattr(optim, self.optimiser)
        optimizer = make(model.named_parameters(), lr=0.05, mirror=MIRRORS[self.mirror])
        first = self._load(model, optimizer)
        batches = torch.randn(STEPS, 12, 3, generator=generator, dtype=torch.float64)
        for k in range(first, STEPS):
            optimizer.zero_grad()
            model(batches[k].chunk(self.world)[rank]).square().mean().backward()
            optimizer.step()
            self._save(model, optimizer, k + 1, rank)
        distributed.destroy_process_group()

    def _save(self, model: nn.Module, optimizer: Any, k: int, rank: int) -> None:
        state = get_state_dict(model, optimizer, options=WHOLE)
        if rank == 0:
            with whole(self.folder / "checkpoint.pt") as partial:
                torch.save({"k": k, "model": state[0], "optimizer": state[1]}, partial)

    def _load(self, model: nn.Module, optimizer: Any) -> int:
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return 0
        saved = torch.load(path, weights_only=True)
        set_model_state_dict(model, saved["model"], options=WHOLE)
        # To spread a state without any tensor is an AssertionError in torch, also for its own SGD.
        options = WHOLE if saved["optimizer"]["state"] else StateDictOptions()
        set_optimizer_state_dict(model, optimizer, saved["optimizer"], options=options)
        return int(saved["k"])

    def found(self) -> dict[str, Tensor]:
        """Return the parameters at the end."""
        saved = torch.load(self.folder / "checkpoint.pt", weights_only=True)
        return saved["model"] if saved["k"] == STEPS else {}

    def together(
        self, number: int, killed: int | None = None, after: float = 0.0
    ) -> list[int | None]:
        """Run all processes, of which one may be killed; return how they ended, None of those that
        did not.
        """
        meeting = self.folder / f"meeting{number}"
        children = [
            _start(lambda rank=rank: self.work(rank, meeting)) for rank in range(self.world)
        ]
        if killed is not None:
            time.sleep(after)
            os.kill(children[killed], signal.SIGKILL)
        return _ends(children)


def _start(work: Callable[[], None]) -> int:
    """Do something in a child; its exit code is 0, or 2 if something was raised."""
    child = os.fork()
    if child:
        return child
    code = 2
    try:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # gloo tells at length that somebody is gone
        work()
        code = 0
    finally:
        os._exit(code)


def _ends(children: list[int]) -> list[int | None]:
    """Return how all children ended; those that wait for ever are ended, and count as None."""
    codes: dict[int, int] = {}
    until = time.monotonic() + PATIENCE
    while len(codes) < len(children) and time.monotonic() < until:
        for child in set(children) - codes.keys():
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                codes[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    for child in set(children) - codes.keys():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return [codes.get(child) for child in children]


def run(tally: Tally) -> None:
    """Kill one of two to four processes again and again."""
    warnings.simplefilter("ignore")
    random = tally.random
    known: dict[tuple[Any, ...], tuple[dict[str, Tensor], float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in tally.cases():
            spread = random.choice(("DDP", "FSDP"))
            name = random.choice(("MD", "SMD", "AMD", "ASMD", "Preconditioned"))
            mirror = random.choice(list(MIRRORS))
            how = (random.choice((2, 2, 3, 4)), spread, name, mirror)
            if how not in known:
                alone = Training(Path(folder) / f"whole{number}", *how)
                began = time.monotonic()
                codes = alone.together(0)
                if any(codes):
                    tally.fault(f"{spread}, {name}", f"{how} ended with {codes}")
                    continue
                known[how] = alone.found(), time.monotonic() - began
            expected, seconds = known[how]
            training = Training(Path(folder) / f"run{number}", *how)
            killed = random.randrange(how[0])
            codes = training.together(0, killed, random.uniform(0, seconds))
            if None in codes:
                tally.fault(
                    f"{spread}, {name}, killed",
                    f"{codes.count(None)} of {how[0]} processes wait for ever",
                )
            ends = {0: "at the end", 2: "the others end with an error"}
            others = max(
                (code for i, code in enumerate(codes) if i != killed and code is not None),
                default=0,
            )
            tally.note(f"{spread}, one of {how[0]} killed", ends.get(others, f"exit code {others}"))
            codes = training.together(1)
            found = training.found() if not any(codes) else {}
            same = found.keys() == expected.keys() and all(
                torch.equal(found[each], expected[each]) for each in found
            )
            if same and found:
                tally.note(f"{spread}, resumed", "bit-identical")
            else:
                tally.fault(f"{spread}, {name}, resumed", f"{how} ended with {codes}, or elsewhere")
