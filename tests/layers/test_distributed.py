"""Two processes end where one does: DDP, FSDP2, and prototypes sharded over a mesh. torchrun runs this file itself."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import RowwiseParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from similitude import FeatureBank, TverskyProjection, convert
from similitude.distributed import PrototypeParallel, shard
from similitude.models.callback import TverskyCallback
from similitude.models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel
from similitude.presence import upper_of

# 51 tokens do not divide by two.
TINY = dict(vocab_size=51, n_embd=16, n_layer=2, n_head=2, n_positions=12, bos_token_id=0, eos_token_id=0)
STILL = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
TOKENS = torch.randint(51, (4, 9), generator=torch.Generator().manual_seed(1))


def gpt2(variant="all-1layer", tied=True, **options) -> nn.Module:
    torch.manual_seed(0)
    config = TverskyGPT2Config(**TINY, **STILL, variant=variant, tie_word_embeddings=tied, num_features=24, **options)
    return TverskyGPT2LMHeadModel(config).double()


def untied() -> nn.Module:
    return gpt2("head", tied=False)


def cut() -> nn.Module:
    """With thresholds, a feature that is named and fixed, and prototypes that are no tokens."""
    torch.manual_seed(0)
    options = dict(variant="all-1layer", tie_word_embeddings=False, num_features=24, presence=0.3)
    model = TverskyGPT2LMHeadModel(TverskyGPT2Config(**TINY, **STILL, **options)).double()
    examples = torch.randn(60, 16, dtype=torch.float64)
    model.lm_head.features.name("ahead", examples[examples[:, 0] > 0], examples[examples[:, 0] < 0])
    return model


def converted() -> nn.Module:
    """A GPT-2 in which a bank is part of each block and of the head."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**TINY, **STILL))
    rules = {
        "transformer.h.*.mlp": dict(dim=16, num_prototypes=16),
        "lm_head": dict(prototypes="transformer.wte.weight"),
    }
    convert(model, rules, features=FeatureBank(num_features=24, dim=16))
    return model.double()


class Stack(nn.Module):
    """Blocks that share a bank which nothing outside of them has."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        bank = FeatureBank(24, 16)
        self.embedding = nn.Embedding(51, 16)
        self.blocks = nn.ModuleList([nn.Sequential(TverskyProjection(16, 16, features=bank)) for _ in range(2)])
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return x


def labelled(model: nn.Module, tokens: Tensor) -> Tensor:
    return model(tokens, labels=tokens).loss


def of_logits(model: nn.Module, tokens: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), tokens.flatten())


def squares(model: nn.Module, tokens: Tensor) -> Tensor:
    return model(tokens).square().mean()


def by_ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def by_block(model: nn.Module) -> nn.Module:
    for block in model.transformer.h:
        fully_shard(block)
    return fully_shard(model)


def by_shard(model: nn.Module) -> nn.Module:
    return shard(model, model.blocks if isinstance(model, Stack) else model.transformer.h)


def by_prototypes(model: nn.Module, **options) -> nn.Module:
    tied_to = None if model.lm_head.owns_prototypes else model.transformer.wte
    return parallelize_module(model, mesh(), {"lm_head": PrototypeParallel(tied_to=tied_to, **options)})


def by_logits(model: nn.Module) -> nn.Module:
    return by_prototypes(model, output_layouts=Shard(-1), use_local_output=False)


def mesh():
    return init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    spread: Callable[[nn.Module], nn.Module]
    loss: Callable[[nn.Module, Tensor], Tensor] = labelled
    halves: bool = True  # Whether each process has half of the batch.


CASES = {
    "ddp": Case(gpt2, by_ddp),
    "ddp, bank in each block": Case(converted, by_ddp, of_logits),
    "fsdp, block by block": Case(gpt2, by_block),
    "fsdp, bank in each block": Case(converted, by_shard, of_logits),
    "fsdp, bank in blocks only": Case(Stack, by_shard, squares),
    "tp": Case(gpt2, by_prototypes, halves=False),
    "ddp, thresholds": Case(cut, by_ddp),
    "fsdp, thresholds": Case(cut, by_block),
    "fsdp, thresholds of a bank in each block": Case(cut, by_shard),
    "tp, thresholds": Case(cut, by_prototypes, halves=False),
    "tp, untied": Case(untied, by_prototypes, halves=False),
    "tp, whole logits": Case(gpt2, by_prototypes, of_logits, halves=False),
    "tp, loss_parallel": Case(gpt2, by_logits, of_logits, halves=False),
}


def trained(case: Case, alone: bool) -> dict:
    """Losses and parameters of five steps, with gradients clipped as docs/guides/processes.md does it."""
    model = case.make()
    model = model if alone else case.spread(model)
    tokens = TOKENS.chunk(2)[dist.get_rank()] if case.halves and not alone else TOKENS
    sharded = [p for p in model.parameters() if isinstance(p, DTensor)]
    whole = [p for p in model.parameters() if not isinstance(p, DTensor)]
    groups = [group for group in (sharded, whole) if group]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=1e-2, foreach=True)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = case.loss(model, tokens)
        loss.backward()
        norms = [plain(get_total_norm([p.grad for p in group])) for group in groups]
        norm = torch.stack(norms).norm()
        for group in groups:
            clip_grads_with_norm_(group, max_norm=0.1, total_norm=norm)
        optimizer.step()
        losses.append(plain(loss.detach()))
    losses = torch.stack(losses)
    if case.halves and not alone:
        dist.all_reduce(losses)
        losses /= 2
    parameters = {name.removeprefix("module."): plain(p.detach()) for name, p in model.named_parameters()}
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, TverskyProjection)]
    logged = {f"{name.removeprefix('module.')} {k}": v for name, m in layers for k, v in TverskyCallback()._values(m)}
    # In evaluation no gradients are asked for, which is another way through DTensors.
    with torch.no_grad():
        answers = model.eval()(TOKENS)
    answers = plain(getattr(answers, "logits", answers))
    return dict(losses=losses, parameters=parameters, logged=logged, answers=answers)


def plain(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


LOSSES = {
    "mean": dict(),
    "sum": dict(reduction="sum", label_smoothing=0.1, z_loss=0.2),
    "none": dict(reduction="none", ignore_index=3),
}


def loss_and_gradients(options: dict, alone: bool) -> dict[str, Tensor]:
    """Of a layer with bias, by its inputs and parameters; one of the targets is ignored."""
    torch.manual_seed(0)
    layer = TverskyProjection(6, 5, 8, bias=True, intersection="min", learnable=("alpha", "theta"), dtype=torch.float64)
    nn.init.normal_(layer.bias)
    x = torch.randn(3, 2, 6, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[0, 4], [options.get("ignore_index", -100), 2], [3, 1]])
    if not alone:
        parallelize_module(layer, mesh(), PrototypeParallel())
    loss = layer.cross_entropy(x, target, **options)
    (loss * torch.arange(1.0, loss.numel() + 1).reshape(loss.shape)).sum().backward()
    return {"loss": loss.detach(), "x": x.grad} | {name: plain(p.grad) for name, p in layer.named_parameters()}


def by_trainer(output: Path | str, batch: int) -> dict[str, Tensor]:
    """Parameters after five steps, in batches of ``batch`` rows to a process, of different lengths."""
    model = gpt2()
    rows = [{"input_ids": row, "labels": row.where(torch.arange(9) < 4 + i, -100)} for i, row in enumerate(TOKENS)]
    arguments = dict(max_steps=5, logging_steps=1, save_strategy="no", disable_tqdm=True, use_cpu=True)
    arguments = TrainingArguments(output_dir=str(output), per_device_train_batch_size=batch, **arguments)
    Trainer(model, arguments, train_dataset=rows, callbacks=[TverskyCallback()]).train()
    return {name: p.detach() for name, p in model.named_parameters()}


def held() -> dict[str, Tensor]:
    """Thresholds of both processes after a batch of their own, and those of the batches by themselves."""
    torch.manual_seed(0)
    layer = TverskyProjection(6, 5, 8, bias=True, presence=0.2, hold=True)
    x = torch.randn(2, 50, 6, generator=torch.Generator().manual_seed(3))[dist.get_rank()]
    own = upper_of(x, layer.features.weight.detach(), 0.2)
    layer(x)
    found = {"own": own, "held": layer.features.threshold}
    for name, value in found.items():
        both = [torch.empty_like(value) for _ in range(2)]
        dist.all_gather(both, value)
        found[name] = torch.stack(both)
    return found


def refusals() -> dict[str, str]:
    """What is said of what cannot be."""
    tied, other, few, own = gpt2(), nn.Embedding(51, 16), TverskyProjection(2, 1, 3), converted()
    two = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    own.transformer.h[0].mlp.prototypes = nn.Parameter(torch.zeros(16, 16))
    own.transformer.h[1].mlp.prototypes = own.transformer.h[0].mlp.prototypes
    attempts = {
        "tied": lambda: parallelize_module(tied, mesh(), {"lm_head": PrototypeParallel()}),
        "other": lambda: parallelize_module(tied, mesh(), {"lm_head": PrototypeParallel(tied_to=other)}),
        "both": lambda: parallelize_module(
            tied, mesh(), {"transformer.wte": RowwiseParallel(), "lm_head": PrototypeParallel()}
        ),
        "few": lambda: parallelize_module(few, mesh(), PrototypeParallel()),
        "linear": lambda: PrototypeParallel()._apply(nn.Linear(2, 2), mesh()),
        "mesh": lambda: PrototypeParallel()._apply(untied().lm_head, two),
        "block": lambda: shard(own, ["transformer.h.0"]),
        "groups": lambda: shard(own, own.transformer.h),
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except (TypeError, ValueError) as error:
            said[name] = str(error)
    return said


def main(output: str) -> None:
    # Shorter than the wait for torchrun, so that a process left alone ends by itself.
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    found: dict = {}
    for name, case in CASES.items():
        with loss_parallel() if "loss_parallel" in name else nullcontext():
            found[name] = trained(case, alone=False)
    found |= {f"loss {name}": loss_and_gradients(options, alone=False) for name, options in LOSSES.items()}
    whole = StateDictOptions(full_state_dict=True)
    found["named"] = get_model_state_dict(by_shard(cut()), options=whole)
    found["states"] = [get_model_state_dict(spread(gpt2()), options=whole) for spread in (by_shard, by_prototypes)]
    found["held"] = held()
    found["refusals"] = refusals()
    found["trainer"] = by_trainer(f"{output}/trainer", batch=2)
    if dist.get_rank() == 0:
        torch.save(found, f"{output}/found.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[dict, Path]:
    """What two processes found, and where they wrote."""
    output = tmp_path_factory.mktemp("two")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[1:3])),
    }
    environment["CUDA_VISIBLE_DEVICES"] = ""  # two processes would want two of them
    command = [*torchrun, __file__, str(output)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        said = process.communicate(timeout=180)[1]
    except subprocess.TimeoutExpired:
        # Asked to end, torchrun ends its processes too.
        process.terminate()
        said = process.communicate()[1]
    assert process.returncode == 0, said
    return torch.load(output / "found.pt"), output


def assert_same(here: dict[str, Tensor], there: dict[str, Tensor]) -> None:
    assert here.keys() == there.keys()
    for name in here:
        torch.testing.assert_close(here[name], there[name], rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", CASES)
def test_two_processes_end_where_one_does(name, two):
    here, there = trained(CASES[name], alone=True), two[0][name]
    torch.testing.assert_close(here["losses"], there["losses"], rtol=1e-9, atol=0)
    assert_same(here["parameters"], there["parameters"])
    torch.testing.assert_close(here["answers"], there["answers"], rtol=1e-7, atol=1e-7)
    assert here["logged"] == pytest.approx(there["logged"])
    assert here["losses"][-1] < here["losses"][0]


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_over_shares_of_prototypes_is_the_loss_over_all(name, two):
    assert_same(loss_and_gradients(LOSSES[name], alone=True), two[0][f"loss {name}"])


@pytest.mark.parametrize("i", [0, 1], ids=["fsdp", "tp"])
def test_a_state_gathered_from_all_processes_loads_in_one(i, two):
    model, start = gpt2(), gpt2()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    model.load_state_dict(two[0]["states"][i])
    assert_same(dict(model.named_parameters()), dict(start.named_parameters()))
    assert model.lm_head.prototypes is model.transformer.wte.weight


def test_held_thresholds_are_averaged_over_processes(two):
    found = two[0]["held"]
    assert torch.equal(found["held"][0], found["held"][1])
    torch.testing.assert_close(found["held"][0], found["own"].mean(0))


def test_names_are_in_a_state_gathered_from_all_processes(two):
    start, model = cut(), gpt2(tied=False, presence=0.3)
    model.load_state_dict(two[0]["named"])
    assert (
        model.lm_head.features.names
        == start.lm_head.features.names
        == {next(iter(start.lm_head.features.names)): "ahead"}
    )
    assert_same(dict(model.named_parameters()), dict(start.named_parameters()))


def test_trainer_on_two_processes_ends_where_it_does_on_one_and_only_the_first_logs(two, tmp_path):
    assert_same(by_trainer(tmp_path, batch=4), two[0]["trainer"])
    assert len(list((two[1] / "trainer" / "runs").rglob("events*"))) == 1


def test_what_cannot_be_sharded_is_refused(two):
    said = two[0]["refusals"]
    assert "pass tied_to=" in said["tied"]
    assert "pass tied_to=" in said["both"]
    assert said["other"] == "tied_to must be the embedding whose weight the prototypes are; got another one."
    assert said["few"] == "1 prototypes leave some of 2 processes without any; use a smaller mesh."
    assert said["linear"] == "PrototypeParallel takes a TverskyProjection; got Linear."
    assert "a mesh of one axis, such as mesh['tp']" in said["mesh"]
    assert said["block"] == "blocks must be modules of the model; got str, which is not one of it."
    assert said["groups"].startswith("transformer.h.0.mlp.prototypes would be in several groups")


if __name__ == "__main__":
    main(sys.argv[1])
