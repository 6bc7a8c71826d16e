"""GPT-2 and TverskyGPT-2 on a treebank: models as named, from scratch or from a checkpoint, and what is reported."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from similitude.reproduce import ptb
from similitude.reproduce.record import Record, RunError, paper
from similitude.reproduce.settings import changed

SIZES = dict(n_layer=2, n_embd=16, n_head=2, vocab_size=64, bos_token_id=63, eos_token_id=63)


def quiet(*_, **__):
    pass


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(1)
    GPT2LMHeadModel(GPT2Config(**SIZES)).save_pretrained(tmp_path / "gpt2")
    return str(tmp_path / "gpt2")


@pytest.mark.parametrize("network", ptb.NETWORKS)
@pytest.mark.parametrize("tied", [True, False])
def test_finetuning_starts_from_the_checkpoint(network, tied, checkpoint, tmp_path):
    config = replace(ptb.SMOKE, network=network, tied=tied, init="finetuned", source=checkpoint, epochs=1)
    made = ptb.make(config, 64)
    source = GPT2LMHeadModel.from_pretrained(checkpoint)
    assert torch.equal(made.transformer.wte.weight, source.transformer.wte.weight)
    assert torch.equal(made.transformer.h[1].attn.c_attn.weight, source.transformer.h[1].attn.c_attn.weight)
    rows = made.lm_head.weight if network == "baseline" else made.lm_head.prototypes
    assert (rows is made.transformer.wte.weight) == tied
    assert torch.equal(rows, source.transformer.wte.weight)
    result = ptb.run(config, Record(tmp_path / "run", "ptb", config, "cpu"), quiet)
    assert result["epoch"] == 1
    assert 1 < result["test"] < 100


def test_finetuning_is_in_32_bits_and_tied_as_asked_whatever_the_checkpoint_is(tmp_path):
    for tied in (True, False):
        torch.manual_seed(1)
        source = GPT2LMHeadModel(GPT2Config(**SIZES, tie_word_embeddings=tied)).half()
        source.save_pretrained(tmp_path / str(tied))
        for asked in (True, False):
            config = replace(
                ptb.SMOKE, network="baseline", init="finetuned", tied=asked, source=str(tmp_path / str(tied))
            )
            made = ptb.make(config, 64)
            assert made.dtype == torch.float32
            assert (made.lm_head.weight is made.transformer.wte.weight) == asked
            rows = source.transformer.wte.weight if asked else source.lm_head.weight
            assert torch.equal(made.lm_head.weight, rows.float())
    # Without a head that is neither tied nor there, none is made up.
    source.transformer.save_pretrained(tmp_path / "headless")
    with pytest.raises(RunError, match=r"they lack lm_head\.weight"):
        ptb.make(replace(config, source=str(tmp_path / "headless")), 64)


def test_parameters_are_the_papers():
    config = replace(ptb.Config(), num_features=8192)
    with torch.device("meta"):
        assert sum(p.numel() for p in ptb.make(config, 50257).parameters()) == 81_140_007
        untied = replace(config, network="baseline", tied=False)
        assert sum(p.numel() for p in ptb.make(untied, 50257).parameters()) == 163_037_184


def test_the_papers_rows_are_its_best_on_validation():
    best = {}
    for row in paper("ptb_validation_perplexity"):
        kind = row["model"], row["init"], row["tied_prototypes"] == "Y"
        # A cell that was left out, and NaN, are not less than any.
        if float(row["perplexity"] or "nan") < float(best.get(kind, {"perplexity": "inf"})["perplexity"]):
            best[kind] = row
    configs = [changed(ptb.Config(), row) for row in ptb.ROWS["paper"]]
    for c in configs:
        row = best.pop((c.network, c.init, c.tied))
        if c.network != "baseline":
            assert (str(c.num_features), c.intersection, c.difference) == tuple(
                row[name] for name in ("num_features", "intersection", "difference")
            )
    # All but those that its table of test perplexity leaves out, too.
    assert best.keys() == {("tversky-all-1layer", "finetuned", tied) for tied in (True, False)}


def test_no_checkpoint_is_one_sentence(tmp_path):
    config = replace(ptb.SMOKE, init="finetuned", source=str(tmp_path / "none"))
    with pytest.raises(RunError, match="no GPT-2 at") as error:
        ptb.make(config, 64)
    assert "\n" not in str(error.value)


def test_a_checkpoint_of_another_kind_or_too_small_is_one_sentence(checkpoint, tmp_path):
    from transformers import ResNetConfig, ResNetForImageClassification

    small = dict(embedding_size=8, hidden_sizes=[8], depths=[1])
    ResNetForImageClassification(ResNetConfig(**small)).save_pretrained(tmp_path / "resnet")
    (tmp_path / "cut").mkdir()
    for file in Path(checkpoint).iterdir():
        (tmp_path / "cut" / file.name).write_bytes(file.read_bytes()[:2000])
    for source, settings, sentence in (
        (str(tmp_path / "resnet"), {}, "must be of type 'gpt2'; it is of type 'resnet'"),
        (str(tmp_path / "cut"), {}, "no GPT-2 at"),
        (checkpoint, {"length": 2000}, "has 1024 positions and 64 tokens; length 2000 and 64 tokens are asked for"),
    ):
        config = replace(ptb.SMOKE, init="finetuned", source=source, **settings)
        with pytest.raises(RunError, match=sentence) as error:
            ptb.make(config, 64)
        assert "\n" not in str(error.value)


def test_perplexity_is_that_of_all_predicted_tokens():
    model = ptb.make(replace(ptb.SMOKE, dropout=0.0), 64).eval()
    tokens = torch.randint(64, (16 * 7 + 3,))
    config = replace(ptb.SMOKE, batch=4, length=16)
    losses = []
    for piece in tokens.split(16):
        losses += torch.nn.functional.cross_entropy(
            model(input_ids=piece[None]).logits[0, :-1], piece[1:], reduction="none"
        )
    assert len(losses) == 15 * 7 + 2
    expected = torch.stack(losses).mean().exp()
    assert ptb.perplexity(config, model, tokens) == pytest.approx(expected.item(), rel=1e-5)
    assert ptb.perplexity(config, model, tokens[:113]) == ptb.perplexity(config, model, tokens[:112])


def test_a_linear_heads_perplexity_is_not_of_rounded_logits():
    model = ptb.make(replace(ptb.SMOKE, network="baseline"), 64)
    hidden, tokens = torch.randn(2, 16, 16), torch.randint(64, (2, 16))
    exact = ptb.loss_of(model, hidden, tokens).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trained = ptb.loss_of(model, hidden, tokens)
        with torch.no_grad():
            measured = ptb.loss_of(model, hidden, tokens)
            halves = ptb.loss_of(model, hidden.bfloat16(), tokens)
    assert trained.item() != exact
    assert measured.item() == exact
    assert halves.item() == pytest.approx(exact, rel=1e-2)


def test_the_rate_rises_and_falls_to_0():
    config = changed(ptb.Config(), ["warmup=10", "schedule=cosine"])
    rates = [ptb.rate(config, step, 100) for step in range(101)]
    assert max(rates) == 1
    assert rates.index(1) in (9, 10)
    assert rates[-1] == 0
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_loss_that_is_no_number_ends_the_run(tmp_path):
    config = replace(ptb.SMOKE, lr=1e30, clip=1e30)
    with pytest.raises(RunError, match=r"the loss of epoch \d is (nan|inf); try a lower lr than 1e\+30"):
        ptb.run(config, Record(tmp_path, "ptb", config, "cpu"), quiet)


def test_validation_picks_and_test_reports(tmp_path, monkeypatch):
    scores = iter([50.0, 7.0, 40.0, 6.0, 45.0])  # validation, test, validation, test, validation
    monkeypatch.setattr(ptb, "perplexity", lambda *_: next(scores))
    config = replace(ptb.SMOKE, epochs=3)
    result = ptb.run(config, Record(tmp_path, "ptb", config, "cpu"), quiet)
    assert (result["epoch"], result["valid"], result["test"]) == (2, 40.0, 6.0)


@pytest.mark.parametrize("stopped", [False, True])
def test_the_model_that_is_left_is_the_one_that_is_reported(stopped, tmp_path, monkeypatch):
    scores, seen = iter([40.0, 6.0, 50.0, 45.0]), []  # validation, test, validation, validation
    monkeypatch.setattr(
        ptb,
        "perplexity",
        lambda _, model, __: (seen.append({k: v.clone() for k, v in ptb.distinct(model).items()}), next(scores))[1],
    )
    config = replace(ptb.SMOKE, epochs=3)

    def stop(step, steps, *_, **__):
        if stopped and step > steps * 2 / 3:
            raise KeyboardInterrupt

    record = Record(tmp_path, "ptb", config, "cpu")
    if stopped:
        with pytest.raises(KeyboardInterrupt):
            ptb.run(config, record, stop)
        record._lock.release()
        record = Record(tmp_path, "ptb", config, "cpu")
        [kept] = tmp_path.glob("checkpoint-*/best.safetensors")
        whole = kept.read_bytes()
        kept.write_bytes(whole[:100])
        with pytest.raises(RunError, match="its files are damaged"):
            ptb.run(config, record, quiet)
        kept.write_bytes(whole)
    record.finish(ptb.run(config, record, quiet))
    left = load_file(tmp_path / "model.safetensors")
    assert left.keys() == seen[0].keys()
    assert all(torch.equal(left[name], seen[0][name]) for name in left)
    assert any(not torch.equal(left[name], seen[-1][name]) for name in left)


def test_alpha_and_beta_of_blocks_have_a_rate_of_their_own():
    config = replace(ptb.SMOKE, network="tversky-all-1layer", difference_rate=10.0)
    model = ptb.make(config, 50)
    rates = {id(p): group["lr"] for group in ptb.groups(model, config) for p in group["params"]}
    names = {name: rates[id(p)] / config.lr for name, p in model.named_parameters()}
    fast = [name for name, rate in names.items() if rate == pytest.approx(10)]
    assert len(fast) == 2 * config.layers
    assert all("mlp.projection" in name and ("alpha" in name or "beta" in name) for name in fast)
    assert names["lm_head.alpha_gain"] == 1


def test_presence_is_of_a_head_alone():
    presence = [
        ptb.make(replace(ptb.SMOKE, network=name, presence=0.8), 50).config.presence for name in ptb.NETWORKS[1:]
    ]
    assert presence == [0.8, 0.5]


def result(recipe="paper", row="", valid=2.0, test=3.0, **settings):
    config = vars(replace(ptb.RECIPES[recipe], **settings))
    values = {"valid": valid, "test": test, "parameters": 1_000_000}
    return {"recipe": recipe, "row": row, "config": config, "result": values}


def lines(table) -> list[tuple]:
    return list(zip(*(column.cells for column in table.columns), strict=True))


def test_a_cell_is_the_mean_over_seeds_of_the_row_that_is_best_on_validation():
    linear = dict(network="baseline")
    runs = [result("tuned", "network=baseline", test=5.0, **linear)]
    runs += [result("tuned", "network=baseline lr=0.1", valid=1.0, test=7.0, seed=s, lr=0.1, **linear) for s in (0, 1)]
    # A rate is no row of the paper's recipe, nor is a width one of any.
    runs.append(result("paper", "network=baseline lr=0.1", valid=0.1, lr=0.1, **linear))
    runs.append(result("tuned", "network=baseline width=20", valid=0.1, width=20, heads=2, **linear))
    scratch = ptb.tables(runs)[0]
    [cell] = [line[-2:] for line in lines(scratch) if line[:2] == ("baseline", "yes")]
    assert cell == ("not run", "7.00 ± 0.00 (-105.81)")
    tuned = lines(ptb.tables(runs)[-1])
    assert [line[0] for line in tuned] == ["baseline, width 20", "baseline", "baseline"]
    assert [line[-1] for line in tuned] == ["1", "2", "1"]


def test_the_validation_table_pairs_settings_of_the_paper():
    bank = dict(num_features=8192, difference="ignorematch")
    runs = [
        result(row="intersection=min", valid=50.0, intersection="min", **bank),
        result(row="intersection=min level=feature", valid=50.0, intersection="min", level="feature", **bank),
        result(row="intersection=min num_features=7", valid=50.0, intersection="min", num_features=7),
        result(row="network=baseline num_features=7", valid=50.0, network="baseline", num_features=7),
    ]
    [table] = [table for table in ptb.tables(runs) if table.title.startswith("validation")]
    assert lines(table) == [
        ("baseline", "yes", "–", "–", "136.04", "50.00 (-86.04)"),
        ("all-1layer", "yes", "8192", "min + ignorematch", "125.86", "50.00 (-75.86)"),
    ]
    assert len(ptb.tables([])) == 2


def test_a_star_marks_what_stands_until_it_is_run_again():
    run = result(row="network=baseline", network="baseline")
    tested = [ptb.tables([r])[0].columns[5]._cells[2] for r in (run, run | {"caveat": "half of it"})]
    assert tested == ["3.00 (-109.81)", "3.00 (-109.81)*"]


def test_a_claim_is_judged_by_our_best_rows():
    linear, ours = result(row="network=baseline", network="baseline", test=4.0), result(test=3.0)
    claims = ptb.claims([linear, ours])
    assert [claim.verdict for claim in claims] == ["holds", "open", "open"]
    assert (claims[0].paper, claims[0].ours) == ("112.81 → 103.99", "paper's recipe: 4.00 → 3.00")
    assert ptb.claims([linear, result(test=4.5)])[0].verdict == "fails"
