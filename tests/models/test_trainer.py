"""transformers' Trainer on Tversky models: it trains, logs what layers do, and goes on after a kill."""

import copy
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from examples import train_gpt2
from similitude import FeatureBank, TverskyProjection, TverskySimilarity
from similitude.models.callback import TverskyCallback
from similitude.models.data_domain import DataDomain
from similitude.models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel
from similitude.models.resnet import TverskyResNetConfig, TverskyResNetForImageClassification

ROOT = Path(__file__).parents[2]
OF_A_LAYER = {"alpha", "beta", "theta", "inputs/present", "inputs/dead", "prototypes/present", "prototypes/dead"}
QUIET = dict(use_cpu=True, disable_tqdm=True, save_strategy="no", logging_steps=1, per_device_train_batch_size=4)


def logs(output: Path) -> dict[str, list[float]]:
    """All scalars that TensorBoard has of the one run in a folder."""
    (run,) = (output / "runs").iterdir()
    events = EventAccumulator(str(run)).Reload()
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def trained(model, rows, output, callbacks=(), **arguments) -> Trainer:
    arguments = TrainingArguments(output_dir=str(output), **{**QUIET, **arguments})
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=list(callbacks))
    trainer.train()
    return trainer


def losses(trainer: Trainer) -> list[float]:
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def gpt2() -> tuple[nn.Module, list[dict]]:
    config = TverskyGPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=31, n_positions=8, num_features=24, variant="all-1layer"
    )
    config.bos_token_id = config.eos_token_id = 0
    row = torch.arange(8)
    return TverskyGPT2LMHeadModel(config), [{"input_ids": row, "labels": row}] * 8


def resnet() -> tuple[nn.Module, list[dict]]:
    config = TverskyResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3, num_features=20
    )
    rows = [{"pixel_values": torch.full((3, 16, 16), float(i % 3)), "labels": i % 3} for i in range(12)]
    return TverskyResNetForImageClassification(config), rows


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize(
    ("make", "layers"),
    [(gpt2, ["transformer.h.0.mlp.projection", "transformer.h.1.mlp.projection", "lm_head"]), (resnet, ["classifier"])],
    ids=["gpt2", "resnet"],
)
def test_trainer_trains_and_logs_every_layer(make, layers, bf16, tmp_path):
    model, rows = make()
    trainer = trained(model, rows, tmp_path, [TverskyCallback()], bf16=bf16, max_steps=8, learning_rate=1e-2)
    found = losses(trainer)
    assert len(found) == 8
    assert found[-1] < 0.8 * found[0]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    logged = logs(tmp_path)
    assert {"train/loss", "train/learning_rate"} < logged.keys()
    assert {tag for tag in logged if tag.startswith("tversky/")} == {
        f"tversky/{layer}/{key}" for layer in layers for key in OF_A_LAYER
    }
    assert {len(values) for tag, values in logged.items() if tag.startswith("tversky/")} == {8}
    for layer in layers:
        for name in ("alpha", "beta", "theta"):
            assert logged[f"tversky/{layer}/{name}"][-1] == getattr(model.get_submodule(layer), name).item()
            assert len(set(logged[f"tversky/{layer}/{name}"])) == 8


class Network(nn.Module):
    """Layers of all kinds, with vectors of which it is plain who has which feature."""

    def __init__(self):
        super().__init__()
        self.bank = FeatureBank(4, 2)
        self.first = TverskyProjection(2, 3, features=self.bank)
        self.second = TverskyProjection(2, 2, features=self.bank, prototypes=nn.Parameter(torch.zeros(2, 2)))
        self.pairs = TverskySimilarity(2, features=self.bank, alpha=0.25)
        self.images = DataDomain(nn.Flatten(), TverskyProjection(2, 2, 3, theta=3.0), (1, 2))
        self.linear_images = DataDomain(nn.Flatten(), nn.Linear(2, 2), (1, 2))
        with torch.no_grad():
            self.bank.weight.copy_(torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]]))
            self.first.prototypes.copy_(torch.tensor([[1.0, 1], [1, -1], [1, 0]]))

    def forward(self, x, labels):
        out = self.first(x).sum() + self.pairs(a=x, b=x + 1).sum() + self.images(x.unflatten(1, (1, 2))).sum()
        return {"loss": out + self.second.cross_entropy(x, labels)}


def test_usage_is_the_share_of_features_that_are_present_and_of_those_that_nobody_has(tmp_path):
    rows = [dict(x=torch.tensor(x), labels=0) for x in ([1.0, 1], [-1.0, 2])]
    trained(Network(), rows, tmp_path, [TverskyCallback()], max_steps=1, learning_rate=0.0)
    logged = {tag.removeprefix("tversky/"): values[-1] for tag, values in logs(tmp_path).items()}
    # Of 4 features the inputs have {0, 2} and {1, 2}; prototypes of the first layer {0, 2}, {0, 3} and {0}.
    for layer in ("first", "second", "pairs"):
        assert logged[f"{layer}/inputs/present"] == 0.5
        assert logged[f"{layer}/inputs/dead"] == 0.25
    assert logged["first/prototypes/present"] == pytest.approx(5 / 12)
    assert logged["first/prototypes/dead"] == 0.25
    assert (logged["second/prototypes/present"], logged["second/prototypes/dead"]) == (0, 1)
    assert "pairs/prototypes/present" not in logged
    assert (logged["pairs/alpha"], logged["images/theta"]) == (0.25, 3)
    assert not [tag for tag in logged if tag.startswith(("images/inputs", "linear_images"))]


def test_a_sample_is_spread_over_all_vectors():
    spread = TverskyCallback(sample=4)._sampled(torch.arange(20.0).reshape(2, 5, 2))
    assert spread.tolist() == [[0, 1], [6, 7], [12, 13], [18, 19]]
    assert len(TverskyCallback(sample=3)._sampled(torch.zeros(10, 2))) == 3
    assert len(TverskyCallback(sample=30)._sampled(torch.zeros(10, 2))) == 10


def test_the_callback_leaves_the_model_as_it_was(tmp_path):
    model, rows = gpt2()
    copies = []

    class Copying(TverskyCallback):
        def on_step_end(self, args, state, control, **kwargs):
            copies.append(copy.deepcopy(kwargs["model"]))

    trained(model, rows, tmp_path, [Copying()], max_steps=1)
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert "cross_entropy" not in model.lm_head.__dict__
    # A copy that was made meanwhile is of itself.
    assert copies[0].lm_head.cross_entropy.__self__ is copies[0].lm_head


def test_the_callback_refuses_what_it_cannot_log(tmp_path):
    with pytest.raises(ValueError, match="sample must be a whole number of 1 or more; got 0"):
        TverskyCallback(sample=0)
    rows = gpt2()[1]
    with pytest.raises(ValueError, match="leave 'tensorboard' out of report_to"):
        trained(gpt2()[0], rows, tmp_path, [TverskyCallback()], report_to="tensorboard")
    with pytest.raises(ValueError, match="Linear has no Tversky layers; leave TverskyCallback out"):
        trained(nn.Linear(2, 2), rows, tmp_path, [TverskyCallback()])


RUN = dict(QUIET, max_steps=12, save_strategy="steps", save_steps=4, learning_rate=1e-2, full_determinism=True)
TEXT = bytes(range(256)) * 12


class Steps(TrainerCallback):
    """Takes down the steps that are made, and kills the process after one of them."""

    def __init__(self, kill_at: int | None = None):
        self.kill_at, self.made = kill_at, []

    def on_step_end(self, args, state, control, **kwargs):
        self.made.append(state.global_step)
        if state.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def run(output: Path | str, steps: Steps, checkpoint: str | None = None) -> Trainer:
    trainer = train_gpt2.build(TEXT, output, **RUN)
    trainer.add_callback(steps)
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


# full_determinism sets variables and leaves them behind.
@mock.patch.dict(os.environ)
def test_a_run_that_was_killed_goes_on_and_ends_as_if_it_were_not(tmp_path):
    unbroken = run(tmp_path / "unbroken", Steps())

    output = tmp_path / "killed"
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); from models.test_trainer import Steps, run; "
        f"run({str(output)!r}, Steps(kill_at=7))"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [folder.name for folder in output.glob("checkpoint-*")] == ["checkpoint-4"]
    # As if a second kill had come in the middle of saving.
    (output / "checkpoint-8").mkdir()
    (output / "checkpoint-8" / "model.safetensors").write_bytes(b"\0" * 99)

    steps = Steps()
    resumed = run(output, steps, train_gpt2.last_checkpoint(output))
    assert steps.made == [*range(5, 13)]
    assert losses(resumed) == losses(unbroken)
    assert len(losses(resumed)) == 12
    for (name, there), here in zip(unbroken.model.named_parameters(), resumed.model.parameters()):
        assert torch.equal(there, here), name
