"""``python -m campaigns NAME --minutes M --seed S``."""

import argparse
import sys
from pathlib import Path

import torch

from campaigns import faults, fuzz, kill, load, optimisers, processes, race, solves
from campaigns.tally import PAGE, Tally, write
from mirrordescent_experiments.provenance import recorded

CAMPAIGNS = {
    "fuzz": fuzz.run,
    "kill": kill.run,
    "disk": faults.disk,
    "memory": faults.memory,
    "clock": faults.clock,
    "solve": solves.run,
    "optim": optimisers.run,
    "processes": processes.run,
    "race": race.run,
    "load": load.run,
}

SMALL = {
    "fuzz": 200,
    "kill": 6,
    "disk": 4,
    "memory": 6,
    "clock": 1,
    "solve": 25,
    "optim": 15,
    "processes": 1,
    "race": 1,
    "load": 120,
}


def main() -> int:
    """Run a campaign and write what it found; the exit code is 1 if it found a fault."""
    parser = argparse.ArgumentParser(prog="campaigns", description="Look for faults.")
    parser.add_argument(
        "name", choices=[*CAMPAIGNS, "small"], help="small: a few cases of each, and no page"
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=None, help="cases after which to end")
    parser.add_argument("--page", type=Path, default=PAGE)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.name == "small":
        return max(_run(Tally(name, chosen.seed, 1.0, most)) for name, most in SMALL.items())
    tally = Tally(chosen.name, chosen.seed, chosen.minutes, chosen.most)
    code = _run(tally)
    write(tally, chosen.page)
    return code


def _run(tally: Tally) -> int:
    """Run a campaign, and print what it found."""
    with recorded(str(tally.seed)) as tally.provenance:
        CAMPAIGNS[tally.name](tally)
    print(tally.name)
    for case, count in sorted(tally.tried.items()):
        print(f"{count:8d}  {case}")
    for what, found in tally.measured.items():
        print(f"{what}: {found}")
    for kind, count in tally.found.items():
        print(f"FOUND {count} × {kind}: {tally.examples[kind]}")
    return 1 if tally.found else 0


if __name__ == "__main__":
    sys.exit(main())
