"""Fifteen tasks that no entry was learned on, to be looked at once for each version of an entry.

The first seven were published before the tasks for learning were extended. The others cover
convolutional, recurrent and graph networks, physics, fine-tuning, small batches, sparse embeddings
and noisy gradients. Nothing about an entry may be chosen by its losses on them.
"""

from __future__ import annotations

from functools import partial

from mirrordescent.recipes.general_tasks import GeneralTask
from mirrordescent_experiments.frozen.bandit import bandit
from mirrordescent_experiments.frozen.fine_tuning import continued_pretraining, minilm
from mirrordescent_experiments.frozen.graphs import gcn, sage
from mirrordescent_experiments.frozen.images import (
    row_lstm,
    separable_cnn,
    small_batch_cnn,
    vit,
    vit_of_batch,
    vit_of_parts,
)
from mirrordescent_experiments.frozen.language import mixture_of_experts, skip_gram, tied_gpt
from mirrordescent_experiments.frozen.physics import burgers, poisson, sine_network

FROZEN: tuple[GeneralTask, ...] = (
    GeneralTask("ViT", vit, 300),
    GeneralTask("mixture of experts", mixture_of_experts, 300),
    GeneralTask("physics residual", burgers, 600, decades=True),
    GeneralTask("tied GPT", tied_gpt, 500),
    GeneralTask("graph network", gcn, 150),
    GeneralTask("SIREN", sine_network, 400, decades=True),
    GeneralTask("fine-tuning of MiniLM", minilm, 80),
    GeneralTask("separable CNN", separable_cnn, 200),
    GeneralTask("LSTM over rows", row_lstm, 300),
    GeneralTask("GraphSAGE", sage, 200),
    GeneralTask("Poisson equation", poisson, 400, decades=True),
    GeneralTask("continued pretraining", continued_pretraining, 150),
    GeneralTask("CNN with batch 4", small_batch_cnn, 800),
    GeneralTask("skip-gram embeddings", skip_gram, 600),
    GeneralTask("policy gradient", bandit, 600),
)
EXPENSIVE = ("fine-tuning of MiniLM",)
"""Tasks with fewer seeds, since a run takes long."""

CONDITIONS: tuple[GeneralTask, ...] = (
    GeneralTask("ViT with batch 4", partial(vit_of_batch, 4), 300),
    GeneralTask("ViT with accumulation", vit_of_parts, 300),
)
"""Frozen tasks under other conditions."""

SAME_BATCHES = ("ViT with accumulation",)
"""Conditions that give rivals the gradients that they have on the task itself."""

OF_ANY_LENGTH = ("ViT", "CNN with batch 4", "tied GPT")
"""Tasks that are also run without the number of steps."""
