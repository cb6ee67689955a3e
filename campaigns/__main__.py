"""Run a fault campaign: ``python -m campaigns NAME --minutes M --seed S``."""

import argparse
import sys
from pathlib import Path

import torch

from campaigns import bounds, faults, fuzz, kill, load, optimisers, processes, race, solves
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
    "bounds": bounds.run,
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
    "load": 60,
    "bounds": 23,
}
"""Number of cases of each campaign in the campaign ``small``."""


def main() -> int:
    """Run a campaign and write its page; return 1 if it found a fault, else 0."""
    parser = argparse.ArgumentParser(prog="campaigns", description="Look for faults.")
    parser.add_argument(
        "name", choices=[*CAMPAIGNS, "small"], help="small: a few cases of each, and no page"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="duration")
    parser.add_argument("--seed", type=int, default=None, help="seed of the cases, else the clock")
    parser.add_argument("--most", type=int, default=None, help="largest number of cases")
    parser.add_argument("--page", type=Path, default=PAGE, help="page to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.seed is None:
        arguments.seed = bounds.seed_of_clock()
    print(f"seed {arguments.seed}")
    if arguments.name == "small":
        tallies = [Tally(name, arguments.seed, 1.0, most) for name, most in SMALL.items()]
        return max(_run(tally) for tally in tallies)
    tally = Tally(arguments.name, arguments.seed, arguments.minutes, arguments.most)
    code = _run(tally)
    write(tally, arguments.page)
    return code


def _run(tally: Tally) -> int:
    """Run a campaign and print its outcomes; return the exit code."""
    tally.start()
    with recorded(str(tally.seed), CAMPAIGNS[tally.name]) as tally.provenance:
        CAMPAIGNS[tally.name](tally)
    print(tally.name)
    for case, count in sorted(tally.outcomes.items()):
        print(f"{count:8d}  {case}")
    for name, value in tally.measurements.items():
        print(f"{name}: {value}")
    for kind, count in tally.faults.items():
        print(f"FOUND {count} × {kind}: {tally.examples[kind]}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
