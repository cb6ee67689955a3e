"""SpectralDescent with the tools around training: mixed precision, checkpointing, trainers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from mirrordescent import optim


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)
    )


def batch(k):
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(k))
    return x, x[:, :2] * x[:, 2:4]


def train(model, optimizer, steps, forward=None, first=0):
    for k in range(first, first + steps):
        x, y = batch(k)
        optimizer.zero_grad()
        loss = F.mse_loss((forward or model)(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def assert_same_weights(first, second, **tolerances):
    for p, q in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(p, q, **tolerances)


def test_gradients_that_overflow_are_skipped_by_a_gradient_scaler():
    model = network()
    optimizer = optim.SpectralDescent(model, steps=10, nonfinite=None)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = copy.deepcopy(model)
    for overflow in (True, False):
        optimizer.zero_grad()
        x, y = batch(0)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss * (torch.inf if overflow else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        if overflow:
            assert_same_weights(model, before, rtol=0, atol=0)
            assert optimizer.param_groups[0]["k"] == 0
    assert optimizer.param_groups[0]["k"] == 1
    assert not torch.equal(model[0].weight, before[0].weight)


def test_gradient_checkpointing_changes_nothing():
    first = network()
    second = network()
    train(first, optim.SpectralDescent(first, steps=5), 5)

    def forward(x):
        hidden = checkpoint(second[:3], x, use_reentrant=False)
        return second[3:](hidden)

    train(second, optim.SpectralDescent(second, steps=5), 5, forward)
    assert_same_weights(first, second)


@pytest.mark.parametrize("steps", [5, None])
def test_a_compiled_model_has_the_roles_and_steps_of_the_model(steps):
    first = network()
    second = network()
    compiled = torch.compile(second, backend="eager")
    expected = optim.SpectralDescent(first, steps=steps)
    optimizer = optim.SpectralDescent(compiled, steps=steps)
    assert list(optimizer._roles.values()) == list(expected._roles.values())
    train(first, expected, 5)
    train(second, optimizer, 5, compiled)
    assert_same_weights(first, second)


def test_a_compiled_step_averages_weights():
    first = network()
    second = network()
    expected = optim.SpectralDescent(first)
    optimizer = optim.SpectralDescent(second)
    step = torch.compile(optimizer.step, backend="eager", fullgraph=True)
    for k in range(4):
        train(first, expected, 1, first=k)
        x, y = batch(k)
        optimizer.zero_grad()
        F.mse_loss(second(x), y).backward()
        step()
    with expected.averaged(), optimizer.averaged():
        assert_same_weights(first, second)


def test_accumulated_gradients_are_the_gradient_of_the_whole_batch():
    """Up to rounding errors, which grow by a bounded factor."""
    first = network().double()
    second = network().double()
    whole = optim.SpectralDescent(first, steps=5)
    parts = optim.SpectralDescent(second, steps=5)
    for k in range(5):
        x, y = (tensor.double() for tensor in batch(k))
        for model, optimizer, count in ((first, whole, 1), (second, parts, 4)):
            optimizer.zero_grad()
            for inputs, targets in zip(x.chunk(count), y.chunk(count), strict=True):
                (F.mse_loss(model(inputs), targets) / count).backward()
            optimizer.step()
    assert_same_weights(first, second, rtol=1e-6, atol=1e-8)


def test_a_run_of_adamw_is_continued():
    """A state of AdamW has nothing to continue from: construct with the weights alone."""
    model = network()
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, adamw, 30)
    optimizer = optim.SpectralDescent(model, steps=60)
    with pytest.raises(ValueError, match="cannot be loaded"):
        optimizer.load_state_dict(adamw.state_dict())
    x, y = batch(-1)
    before = F.mse_loss(model(x), y).item()
    train(model, optimizer, 60, first=30)
    assert F.mse_loss(model(x), y).item() < before


@pytest.mark.parametrize(("steps", "expected"), [(10, 8), (None, 12)])
def test_bytes_of_state_for_each_parameter(steps, expected):
    """As AdamW, which has 8, and 4 more for averages; numbers for each tensor come on top."""
    model = nn.Sequential(nn.Linear(100, 200, bias=False), nn.Linear(200, 100, bias=False))
    optimizer = optim.SpectralDescent(model, steps=steps)
    model(torch.randn(4, 100)).square().mean().backward()
    optimizer.step()
    states = optimizer.state_dict()["state"].values()
    tensors = [value for fields in states for value in fields.values() if torch.is_tensor(value)]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert size / sum(p.numel() for p in model.parameters()) == pytest.approx(expected, rel=1e-3)


class Examples(Dataset):
    """Batches of the same task as examples of a data set."""

    def __init__(self):
        self.x, self.y = batch(0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.y[i]}


def test_trainer_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, x, labels):
            outputs = self.network(x)
            return {"loss": F.mse_loss(outputs, labels), "logits": outputs}

    model = Model()
    before = copy.deepcopy(model)
    settings = transformers.TrainingArguments(
        str(tmp_path),
        max_steps=8,
        per_device_train_batch_size=16,
        lr_scheduler_type="constant",
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_steps=4,
        learning_rate=1.0,
    )
    trainer = transformers.Trainer(
        model,
        settings,
        train_dataset=Examples(),
        eval_dataset=Examples(),
        optimizer_cls_and_kwargs=(optim.SpectralDescent, {"model": model, "steps": 8}),
    )
    trainer.train()
    assert trainer.optimizer.optimizer.param_groups[0]["k"] == 8
    assert trainer.evaluate()["eval_loss"] < trainer.state.log_history[0]["loss"]
    assert not torch.equal(model.network[0].weight, before.network[0].weight)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of Lightning with torch 2.13
def test_lightning(tmp_path):
    lightning = pytest.importorskip("pytorch_lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def training_step(self, examples, index):
            return F.mse_loss(self.network(examples["x"]), examples["labels"])

        def configure_optimizers(self):
            return optim.SpectralDescent(self, steps=int(self.trainer.estimated_stepping_batches))

    module = Module()
    before = copy.deepcopy(module.network)
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, DataLoader(Examples(), batch_size=16))
    assert trainer.optimizers[0].param_groups[0]["k"] == 8
    assert not torch.equal(module.network[0].weight, before[0].weight)
