"""The experiment on legible features: its data, its ten layers, and what it reports."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from similitude import TverskyProjection
from similitude.interpret import legibility as measure_legibility
from similitude.reproduce import language, legibility
from similitude.reproduce.data import attributed, made_up
from similitude.reproduce.record import Record, RunError
from similitude.reproduce.settings import changed

DIGITS = attributed.digits(train=300, test=0, fake=300)


def quiet(*_, **__):
    pass


def of(**settings) -> legibility.Config:
    return replace(legibility.SMOKE, **settings)


def made(config: legibility.Config, data: attributed.Attributed = DIGITS, seed: int = 0) -> nn.Module:
    """A layer at its start."""
    torch.manual_seed(seed)
    layer = legibility.make(config, data)
    legibility.start(config, layer, data)
    return layer


def test_digits_are_of_a_quarter_of_the_size_and_centred_by_the_training_digits():
    assert DIGITS.train_x.shape == (300, 196)
    assert DIGITS.test_x.shape == (75, 196)
    assert DIGITS.has.shape == (75, 29)
    assert DIGITS.known_has.shape == (300, 29)
    assert DIGITS.train_x.mean(0).abs().max() < 1e-5
    assert DIGITS.train_x.std().item() == pytest.approx(1)
    assert DIGITS.test_x.mean(0).abs().max() > 1e-3
    assert torch.equal(DIGITS.objects, DIGITS.test_x)
    assert torch.equal(DIGITS.classes, DIGITS.test_y)
    assert DIGITS.outputs == 10


def test_planted_attributes_are_sparse_independent_and_readable():
    data = attributed.planted()
    share = data.known_has.double().mean(0)
    assert share.min() > 0.02
    assert share.max() < 0.1
    assert (torch.corrcoef(data.known_has.T.double()) - torch.eye(40)).abs().max() < 0.06
    found = measure_legibility(nn.Linear(100, 4), data.objects, (data.has, data.names))
    assert found.ceiling.mcc.min() > 0.7
    assert torch.equal(attributed.planted().train_x, data.train_x)
    assert set(data.train_y.tolist()) == set(range(10))


def test_neighbours_are_counted_on_both_sides(monkeypatch):
    monkeypatch.setattr(attributed, "NEIGHBOURS", 2)
    found = attributed.neighbours(torch.tensor([0, 1, 2, 0, 1, 1]), 3)
    assert found.tolist() == [[[0, 0], [0, 2]], [[2, 1], [0, 1]], [[0, 1], [1, 0]]]  # 2 is too rare to be counted


def test_words_with_the_same_neighbours_have_the_same_vectors(monkeypatch):
    monkeypatch.setattr(attributed, "WIDTH", 6)
    # 4 and 5 stand between 0 and 1, 6 and 7 between 2 and 3.
    generator = torch.Generator().manual_seed(0)
    text = []
    for kind, word in zip(*(torch.randint(2, (4000,), generator=generator) for _ in range(2)), strict=True):
        text += [2 * int(kind), 4 + 2 * int(kind) + int(word), 2 * int(kind) + 1]
    state = torch.random.get_rng_state()
    x = nn.functional.normalize(attributed.word_vectors(torch.tensor(text), 8), dim=-1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert x[4] @ x[5] > 0.95
    assert x[6] @ x[7] > 0.95
    assert x[4] @ x[6] < 0.5


@pytest.mark.skipif("SIMILITUDE_DATA" not in os.environ, reason="needs the Penn Treebank: set SIMILITUDE_DATA")
def test_words_are_those_of_the_penn_treebank():
    data = attributed.words()
    assert data.train_x.shape == (10_000, 100)
    assert data.train_x.norm(dim=-1).allclose(torch.tensor(10.0))
    assert data.train_y.shape == data.test_y.shape == (10_000, 2, 400)
    assert data.outputs == 800
    assert data.has.shape == (len(data.objects), 15)
    assert data.has[:, data.names.index("past tense")].sum() > 300
    assert torch.equal(data.weights.argsort(descending=True, stable=True), torch.arange(10_000))


@pytest.mark.parametrize("layer", legibility.LAYERS)
def test_every_layer_learns_its_made_up_data_and_reports_it(layer, tmp_path):
    config = of(layer=layer, steps=150, made_up=600)
    record = Record(tmp_path / "run", "legibility", config, "cpu")
    result = record.finish(legibility.run(config, record, quiet))["result"]
    assert len(result["score"]) == len(result["legibility"]) == config.seeds
    assert min(result["score"]) > 35  # chance is 10
    assert set(result["legibility"][0]) >= {"layer", "k-means", "random", "shuffled", "ceiling", "presence", "deciding"}
    assert "stable" in result["legibility"][0]["layer"]
    assert len(result["attributes"][0]) > 15
    assert len(result["neighbours"]) == config.seeds
    with np.load(tmp_path / "run" / "images.npz") as images:
        assert images["features"].shape == (min(legibility.PICTURES, 10 if layer == "linear" else 40), 14, 14)
    assert ("impurity" in result["legibility"][0]) == (layer == "named")
    if layer == "named":
        assert result["legibility"][0]["impurity"] < 0.6 * result["legibility"][0]["impurity by chance"]
        assert result["legibility"][0]["layer"]["recovered"] > result["legibility"][0]["k-means"]["recovered"] + 0.2


def test_layers_are_what_they_are_called():
    config = of(num_features=64)
    layers = {layer: made(replace(config, layer=layer)) for layer in legibility.LAYERS}
    start = {layer: {k: v.clone() for k, v in of.state_dict().items()} for layer, of in layers.items()}
    for layer, module in layers.items():
        legibility.fit(replace(config, layer=layer, lr=0.05), module, DIGITS, 0, quiet)
    assert isinstance(layers["linear"], nn.Linear)
    assert isinstance(layers["mlp"], nn.Sequential)
    banks = {layer: module.features for layer, module in layers.items() if isinstance(module, TverskyProjection)}
    assert {layer for layer, bank in banks.items() if bank.threshold is None} == {"default", "full-rate"}
    moved = {
        layer: (bank.weight - start[layer]["features.weight"]).abs().mean().item() for layer, bank in banks.items()
    }
    assert moved["random"] == moved["k-means"] == 0
    assert moved["full-rate"] > 4 * moved["default"] > 0
    assert min(moved[layer] for layer in ("let-go", "held", "mixed", "rebuilt")) > 0
    share = {layer: (bank(DIGITS.train_x) > 0).float().mean(0) for layer, bank in banks.items()}
    assert (share["held"] - 0.1).abs().mean() < (share["let-go"] - 0.1).abs().mean()
    assert len(banks["mixed"].notes.framed) == 32
    named = banks["named"]
    assert len(named.names) > 15
    fixed = sorted(named.names)
    assert torch.equal(named.weight[fixed], start["named"]["features.weight"][fixed])
    assert torch.equal(layers["k-means"].features.threshold, start["k-means"]["features.threshold"])


def test_rebuilt_leaves_less_unexplained_than_the_same_without_its_loss(monkeypatch):
    left = []
    for weight in (0.3, 0.0):
        monkeypatch.setitem(legibility.BANKS["rebuilt"], "reconstruction", weight)
        layer = made(of(layer="rebuilt"))
        legibility.fit(of(layer="rebuilt", lr=0.05), layer, DIGITS, 0, quiet)
        left.append(layer.reconstruction(DIGITS.train_x).item())
    assert left[0] < left[1] - 0.01


def test_a_stopped_run_goes_on_and_comes_out_the_same(tmp_path, monkeypatch):
    config = of(layer="named")
    whole = legibility.run(config, Record(tmp_path / "whole", "legibility", config, "cpu"), quiet)
    measure, count = legibility.measure, []

    def stopping(*arguments):
        if len(count) == 1:
            raise KeyboardInterrupt
        count.append(1)
        return measure(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(legibility, "measure", stopping)
        with pytest.raises(KeyboardInterrupt):
            legibility.run(config, Record(tmp_path / "halves", "legibility", config, "cpu"), quiet)
    assert legibility.run(config, Record(tmp_path / "halves", "legibility", config, "cpu"), quiet) == whole


def test_with_a_rate_of_0_the_start_is_reported(tmp_path):
    config = of(lr=0.0, seeds=1)
    result = legibility.run(config, Record(tmp_path / "run", "legibility", config, "cpu"), quiet)
    data = legibility.load(config)
    assert result["score"] == [legibility.measure(made(config, data), data)]


def test_clothing_is_made_of_its_pictures_as_digits_are(monkeypatch):
    monkeypatch.setattr(attributed, "fashion_mnist", lambda: made_up.synthetic_digits(120))
    data = legibility.load(of(data="fashion", made_up=0, train=80, test=40))
    assert (data.train_x.shape, data.test_x.shape, data.picture) == ((80, 196), (40, 196), (14, 14))
    assert len(data.names) == 28
    assert data.train_x.mean(0).abs().max() < 1e-5
    assert data.has[:, data.names.index("trousers")].equal(data.test_y == 1)


def test_the_score_of_words_is_the_perplexity_of_their_neighbours():
    layer = nn.Linear(3, 8)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    counts = torch.randint(5, (10, 2, 4)).float()
    x = torch.randn(10, 3)
    data = attributed.Attributed(x, counts, x, counts, x, x > 0, ["a", "b", "c"], x, x > 0, {})
    assert data.outputs == 8
    assert legibility.measure(layer, data) == pytest.approx(4)
    torch.testing.assert_close(legibility.each(layer(x), counts), torch.full((10,), 4.0).log() * 2 / 2)


def test_rows_are_drawn_by_their_weights():
    x = torch.randn(10, 3)
    y = torch.arange(10) % 2
    weights = torch.zeros(10)
    weights[:4] = 1
    data = attributed.Attributed(x, y, x, y, x, x > 0, ["a", "b", "c"], x, x > 0, {}, weights=weights)
    seen = []
    layer = nn.Linear(3, 2)
    layer.register_forward_hook(lambda _, given, out: seen.append(given[0]))
    legibility.fit(of(layer="linear", batch=4, steps=3), layer, data, 0, quiet)
    for rows in seen:
        assert {tuple(row) for row in rows.tolist()} == {tuple(row) for row in x[:4].tolist()}


def test_unit_keeps_features_at_length_1_and_is_in_the_label():
    data = DIGITS
    for unit in (False, True):
        config = of(layer="held", unit=unit)
        layer = made(config, data)
        legibility.fit(config, layer, data, 0, quiet)
        lengths = layer.features.weight.norm(dim=-1)
        assert bool(((lengths - 1).abs() < 1e-5).all()) == unit
    rows = legibility.ROWS["words"]
    assert ["layer=held", "unit=true"] in rows
    result = {"score": [1.0], "legibility": [measure_legibility(layer, data.objects, (data.has, data.names)).summary()]}
    run = {"config": vars(config), "result": result, "recipe": "paper", "row": "layer=held unit=True"}
    assert next(iter(legibility.tables([run])[0].columns[0].cells)) == "held, unit"


def test_tables_have_the_layer_beside_its_baselines():
    one = {"mcc": 0.4, "recovered": 0.25, "probe": 0.5, "auc": 0.8, "stable": 0.7}
    read = {"layer": one, "k-means": {**one, "mcc": 0.3, "recovered": 0.1}, "random": {**one, "mcc": 0.2}}
    read["shuffled"] = {**one, "recovered": 0.0}
    less = {**read, "deciding": 10.0, "random": {**one, "mcc": 0.35}, "shuffled": {**one, "recovered": 0.03}}
    read |= {"presence": 0.12, "featureless": 0.001, "deciding": None}
    runs = []
    for layer, data in (("let-go", "digits"), ("linear", "digits"), ("let-go", "words")):
        config = vars(legibility.Config(data=data, layer=layer))
        result = {"score": [90.0, 92.0], "legibility": [{**read, "deciding": None}, less]}
        runs.append({"config": config, "result": result, "recipe": "paper", "row": f"layer={layer}"})
    runs[2]["row"] = "data=words layer=let-go"
    runs[0]["result"] |= {"neighbours": [0.4, 0.5]}
    first, second, pictures, third, _ = legibility.tables(runs)
    cells = list(zip(*(column.cells for column in first.columns), strict=True))
    assert cells == [
        ("linear", "91.00 ± 1.00", "0.40", "0.30", "0.28", "25", "10"),
        ("let-go", "91.00 ± 1.00", "0.40", "0.30", "0.28", "25", "10"),
    ]
    assert next(zip(*(column.cells for column in second.columns), strict=True)) == (
        "linear", "3", "+0.05", "0.50", "0.80", "0.70", "12", "0.1", "10",
    )  # fmt: skip
    assert [list(column.cells) for column in pictures.columns] == [
        ["linear", "let-go"], ["–", "0.45"], ["–", "–"], ["–", "–"], ["–", "–"],
    ]  # fmt: skip
    assert third.columns[1].header == "perplexity"


# A language model that is read


def of_text(**settings) -> legibility.Config:
    smoke = {"num_features": 24, "steps": 60, "batch": 16, "seeds": 1, "made_up": 1500}
    return replace(legibility.RECIPES["text"], **{**smoke, **settings})


@pytest.mark.parametrize("layer", language.LAYERS)
def test_a_language_model_learns_its_text_and_a_reading_bank_finds_its_words(layer, tmp_path):
    config = of_text(layer=layer)
    record = Record(tmp_path / "run", "legibility", config, "cpu")
    result = record.finish(legibility.run(config, record, quiet))["result"]
    # Five words a sentence: a name, one of 16 verbs, "in", one of 20 places, the end.
    assert (20 * 16 * 20) ** 0.2 < result["score"][0] < 10
    (banks,) = result["banks"]
    own = {language.OWN} if layer == "default" else set()
    assert set(banks) == {language.READING, language.RANDOM, language.TOKENS, *own}
    assert banks[language.READING]["layer"]["probe"] > max(0.6, banks[language.RANDOM]["layer"]["probe"] + 0.3)
    assert result["legibility"][0] == banks[language.READING]
    (table,) = legibility.tables([{"config": vars(config), "result": result, "recipe": "text", "row": ""}])
    assert len(table.rows) == len(banks)
    assert next(iter(table.columns[2].cells)) == (language.OWN if layer == "default" else language.READING)


def test_a_language_model_with_a_rate_of_0_knows_how_often_words_are(tmp_path):
    config = of_text(lr=0.0, steps=1)
    result = legibility.run(config, Record(tmp_path / "run", "legibility", config, "cpu"), quiet)
    data = attributed.text(config.made_up)
    share = data.counts / data.counts.sum()
    usual = (-(share * share.clamp(min=1e-12).log()).sum()).exp().item()
    assert result["score"][0] == pytest.approx(usual, rel=0.3)


def test_a_stopped_language_model_comes_out_the_same(tmp_path, monkeypatch):
    config = of_text(seeds=2, steps=3)
    whole = legibility.run(config, Record(tmp_path / "whole", "legibility", config, "cpu"), quiet)
    read, count = language.readings, []

    def stopping(*arguments):
        if len(count) == 1:
            raise KeyboardInterrupt
        count.append(1)
        return read(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(language, "readings", stopping)
        with pytest.raises(KeyboardInterrupt):
            legibility.run(config, Record(tmp_path / "halves", "legibility", config, "cpu"), quiet)
    assert legibility.run(config, Record(tmp_path / "halves", "legibility", config, "cpu"), quiet) == whole


def test_windows_are_followed_by_the_next_words():
    seen = [(x.tolist(), y.tolist()) for x, y in language.windows(torch.arange(9), 2)]
    assert seen == [([[0, 1, 2, 3], [4, 5, 6, 7]], [[1, 2, 3, 4], [5, 6, 7, 8]])]


def test_a_state_does_not_see_the_words_that_follow():
    torch.manual_seed(0)
    model = language.LanguageModel(torch.ones(30)).eval()
    x = torch.arange(10)[None]
    changed_x = x.clone()
    changed_x[0, 6:] = 20
    torch.testing.assert_close(model.states(x)[:, :6], model.states(changed_x)[:, :6])
    assert not torch.allclose(model.states(x)[:, 6:], model.states(changed_x)[:, 6:])


@pytest.mark.skipif("SIMILITUDE_DATA" not in os.environ, reason="needs the Penn Treebank: set SIMILITUDE_DATA")
def test_the_text_is_the_penn_treebank():
    data = attributed.text()
    assert len(data.counts) == 3000
    assert data.counts.sum() == len(data.train) == 929_589
    assert data.has.shape == (len(data.read), 15)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data=birds", "one of digits, fashion, planted, words, tables, text; got 'birds'"),
        ("layer=letgo", "one of linear, mlp, default"),
        ("seeds=0", "1 or more"),
        ("presence=1", "between 0 and 1"),
    ],
)
def test_wrong_settings_get_one_sentence(setting, words):
    with pytest.raises(RunError, match=words):
        changed(legibility.SMOKE, [setting])


def test_a_name_for_each_attribute_needs_as_many_features():
    with pytest.raises(RunError, match="num_features must be 29 or more, one for each attribute that is named; got 20"):
        made(of(layer="named", num_features=20))
