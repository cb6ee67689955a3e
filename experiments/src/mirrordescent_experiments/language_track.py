"""A language model in the form of an optimisation track: one task, tuned rivals, long runs.

As in the optimisation track of modded-nanogpt, the model, the data and the number of steps are
fixed, and optimisers are compared by the held-out loss at the end. The size is that of a CPU.
Rivals are tuned in short runs. The entry is not tuned.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mirrordescent import zoo
from mirrordescent._internal import cache
from mirrordescent.recipes.general_tasks import GeneralTask, Training
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.recipes.training_tasks import Make
from mirrordescent_experiments.contestants import Setting, Shape, TunableOptimiser, grid, has_soap
from mirrordescent_experiments.frozen.contestants import OURS, RIVALS, warmed_cosine
from mirrordescent_experiments.frozen.images import EncoderBlock
from mirrordescent_experiments.frozen.judgement import spread
from mirrordescent_experiments.frozen.language import (
    WORDS,
    LanguageModel,
    language_training,
    words,
)
from mirrordescent_experiments.intervals import p_value, paired
from mirrordescent_experiments.ledger import TEST_SEED, TUNING_SEED, Ledger, best_of, number
from mirrordescent_experiments.result import Claim, Curve, Panel, Result, Table
from mirrordescent_experiments.scales import Say, Scale


@dataclass(frozen=True)
class Size:
    """Size of the track.

    Args:
        width: Width of the model.
        blocks: Number of transformer blocks.
        batch: Number of sequences in a minibatch.
        length: Number of words in a sequence.
        tuning: Number of steps of the runs that rivals are tuned by.
        steps: Number of steps of the runs that are compared.
        networks: Number of networks of each optimiser.
    """

    width: int
    blocks: int
    batch: int
    length: int
    tuning: int
    steps: int
    networks: int


SIZES: dict[Scale, Size] = {
    "quick": Size(8, 1, 2, 8, 2, 4, 2),
    "standard": Size(160, 6, 8, 128, 400, 2000, 3),
    "paper": Size(256, 8, 16, 128, 400, 4000, 5),
}
HEAD_WIDTH = 32
QUANTITY = "held-out loss"


def model_of(size: Size) -> LanguageModel:
    """Return the language model, with an output layer of its own."""
    heads = max(1, size.width // HEAD_WIDTH)
    blocks: list[nn.Module] = [
        EncoderBlock(size.width, heads, causal=True) for _ in range(size.blocks)
    ]
    return LanguageModel(WORDS, size.width, size.length, blocks, tied=False)


def _training(size: Size, seed: int, directory: Path | None) -> Training:
    return language_training(model_of(size), words(), size.batch, size.length, seed)


def soap(lr: float, shape: Shape) -> Make:
    """SOAP with the schedule of the other rivals, for sides of up to 1024 entries."""
    from pytorch_optimizer import SOAP

    def make(model: nn.Module, steps: int) -> tuple[Optimizer, LRScheduler]:
        optimiser: Optimizer = SOAP(
            model.parameters(), lr, weight_decay=0.01, max_precondition_dim=1024
        )
        return optimiser, warmed_cosine(optimiser, steps)

    return make


def rivals() -> list[TunableOptimiser]:
    """Return AdamW, Muon with AdamW, and SOAP if it is installed."""
    found = list(RIVALS)
    if has_soap():
        found.append(TunableOptimiser("SOAP", soap, grid((1e-3, 3e-3, 1e-2), ("cosine",))))
    return found


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Tune the rivals in short runs, and compare everybody in long ones.

    Every run is kept when it ends, so that an interrupted experiment continues with the next run.
    """
    size = SIZES[scale]
    task = GeneralTask("language track", partial(_training, size), size.steps)
    path = None if scale == "quick" else cache.directory() / f"language-track-{scale}.json"
    ledger = Ledger(path, directory, say)
    contestants = [OURS, *(RIVALS if scale == "quick" else rivals())]
    chosen = {each.name: _tuned(ledger, task, each, size.tuning) for each in contestants}
    curves = {
        each.name: [
            list(map(number, ledger.follow(task, each, chosen[each.name], TEST_SEED + seed)))
            for seed in range(size.networks)
        ]
        for each in contestants
    }
    result = Result(
        "language-track",
        "A language model with tuned rivals",
        {
            "scale": scale,
            "entry": zoo.versioned(ENTRY),
            "parameters": sum(p.numel() for p in model_of(size).parameters()),
            "steps": size.steps,
            "words in a minibatch": size.batch * size.length,
            "networks": size.networks,
            "tuning": f"in runs of {size.tuning} steps, over at least three learning rates",
        },
    )
    marks = [0.1 * tenth * size.steps for tenth in range(1, 11)]
    result.panels[QUANTITY] = Panel(
        [
            Curve(name, [round(mark) for mark in marks], [0.0] * 10, torch.tensor(runs).double().T)
            for name, runs in curves.items()
        ],
        "nats a word",
        scales=("linear", "linear"),
    )
    ends = {name: torch.tensor([run[-1] for run in runs]) for name, runs in curves.items()}
    result.tables["At the end, mean over networks"] = ends_table(ends, chosen)
    if scale != "quick":
        result.claims = claims_of(ends)
    return result


def _tuned(ledger: Ledger, task: GeneralTask, contestant: TunableOptimiser, steps: int) -> Setting:
    """Return the setting of the least held-out loss after a short run."""
    if len(contestant.settings) == 1:
        return contestant.settings[0]
    return best_of(
        contestant.settings,
        lambda setting: number(ledger.run(task, contestant, setting, TUNING_SEED, steps).test_loss),
    )


def ends_table(ends: dict[str, Tensor], chosen: dict[str, Setting]) -> Table:
    """Return the held-out losses at the end, and the p-values of differences to the entry."""
    rows = []
    for name, losses in ends.items():
        rate = "–" if name == ENTRY else f"{chosen[name][0]:g}"
        p = "–" if name == ENTRY else f"{p_value(losses - ends[ENTRY]):.2g}"
        rows.append((name, rate, str(len(losses)), spread(losses.tolist()), p))
    return Table(("optimiser", "learning rate", "n", QUANTITY, "p"), rows)


def claims_of(ends: dict[str, Tensor]) -> list[Claim]:
    """Return the claim that the entry has a smaller loss than each rival, by 95 % intervals."""
    claims = []
    for name, losses in ends.items():
        if name == ENTRY:
            continue
        lead = paired(losses - ends[ENTRY])
        measured = f"lead {lead.mean:.3g} [{lead.low:.3g}, {lead.high:.3g}] nats, n = {len(losses)}"
        claims.append(
            Claim.by(f"a smaller held-out loss than tuned {name}", lead.low, lead.high, measured)
        )
    return claims
