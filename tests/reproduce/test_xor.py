"""The XOR grid: stacked models are what they are alone, and a run that was killed ends as one that was not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from similitude import TverskyProjection, parameter_groups
from similitude.reproduce import xor, xor_models
from similitude.reproduce.record import Record
from similitude.reproduce.xor_models import DIFFERENCES, INTERSECTIONS

PLAIN = dict(init="uniform", parametrization="plain")


def quiet(*_, **__):
    pass


@pytest.mark.parametrize("level", ["set", "feature"])
@pytest.mark.parametrize("K", [1, 4])
def test_stacked_models_give_what_single_layers_give(level, K):
    config = replace(xor.SMOKE, level=level, seeds=2)
    models = xor_models.start(config, K, "cpu")
    with torch.no_grad():
        models.constants.uniform_(0.2, 1.5)
    x = torch.tensor(xor.POINTS)
    S = xor_models.similarities(models, x, level)
    M = 3 * 3 * config.seeds
    assert len(S) == 12 * 2 * M
    for g, (intersection, difference) in enumerate((i, d) for i in INTERSECTIONS for d in DIFFERENCES):
        for normalize in (False, True):
            for m in (0, 5, M - 1):
                i = (g * 2 + normalize) * M + m
                options = dict(intersection=intersection, difference=difference, level=level, normalize=normalize)
                layer = TverskyProjection(2, 2, K, **options, **PLAIN)
                with torch.no_grad():
                    layer.prototypes.copy_(models.prototypes[i])
                    layer.features.weight.copy_(models.features[i])
                    for name, value in zip(("alpha", "beta", "theta"), models.constants[:, i].flatten(), strict=True):
                        getattr(layer, name).fill_(value)
                torch.testing.assert_close(S[i], layer(x), msg=f"{intersection} {difference} {normalize} {m}")


def test_a_stacked_model_trains_as_it_does_alone():
    config = replace(xor.SMOKE, steps=20, seeds=1)
    losses, _ = xor.train(config, 4, "cpu", quiet)
    models = xor_models.start(config, 4, "cpu")
    for i in (0, 50, 150):
        group, rest = divmod(i, 18)
        options = dict(intersection=INTERSECTIONS[group // 2], difference=DIFFERENCES[group % 2], level="set")
        layer = TverskyProjection(2, 2, 4, normalize=rest >= 9, **options, **PLAIN)
        with torch.no_grad():
            layer.prototypes.copy_(models.prototypes[i])
            layer.features.weight.copy_(models.features[i])
        x, y = torch.tensor(xor.POINTS), torch.tensor(xor.LABELS)
        optimizer = torch.optim.Adam(layer.parameters(), lr=config.lr)
        for _ in range(config.steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(layer(x), y).backward()
            optimizer.step()
        alone = torch.nn.functional.cross_entropy(layer(x), y).item()
        assert losses[i] == pytest.approx(alone, rel=1e-4)


def test_a_killed_run_ends_as_an_unbroken_one(tmp_path, monkeypatch):
    whole = xor.run(xor.SMOKE, Record(tmp_path / "whole", "xor", xor.SMOKE, "cpu"), quiet)
    train = xor.train

    def killed(config, K, *rest):
        if xor.SMOKE.num_features[1] == K:
            raise KeyboardInterrupt
        return train(config, K, *rest)

    monkeypatch.setattr(xor, "train", killed)
    with pytest.raises(KeyboardInterrupt):
        xor.run(xor.SMOKE, Record(tmp_path / "broken", "xor", xor.SMOKE, "cpu"), quiet)
    trained = []
    monkeypatch.setattr(xor, "train", lambda config, K, *rest: (trained.append(K), train(config, K, *rest))[1])
    again = xor.run(xor.SMOKE, Record(tmp_path / "broken", "xor", xor.SMOKE, "cpu"), quiet)
    assert again == whole
    assert trained == [xor.SMOKE.num_features[1]]


CALIBRATED = replace(xor.RECIPES["tuned"], num_features=(4, 8), seeds=2, steps=5)


def test_calibrated_layers_train_stacked_as_they_do_alone():
    config = replace(CALIBRATED, steps=20)
    losses = []
    for seed in range(config.seeds):
        torch.manual_seed(seed)
        layer = TverskyProjection(2, 2, 8, intersection="product", difference="subtractmatch", leak=config.leak)
        x, y = torch.tensor(xor.POINTS), torch.tensor(xor.LABELS)
        optimizer = torch.optim.Adam(
            parameter_groups(layer, config.lr, bank_rate=1.0, difference_rate=config.difference_rate)
        )
        for _ in range(config.steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(layer(x), y).backward()
            optimizer.step()
        losses.append(torch.nn.functional.cross_entropy(layer(x), y).item())
    together = xor.train_calibrated(config, 8, "cpu", quiet)
    assert together["loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-4)


def test_calibrated_layers_learn_xor_with_a_leak():
    config = replace(CALIBRATED, seeds=10, steps=500)
    assert xor.train_calibrated(config, 16, "cpu", quiet)["p_conv"] >= 0.9


def test_a_killed_run_of_calibrated_layers_ends_as_an_unbroken_one(tmp_path, monkeypatch):
    whole = xor.run(CALIBRATED, Record(tmp_path / "whole", "xor", CALIBRATED, "cpu"), quiet)
    assert [row["num_features"] for row in whole["rows"]] == [4, 8]
    train = xor.train_calibrated

    def killed(config, K, *rest):
        if K == 8:
            raise KeyboardInterrupt
        return train(config, K, *rest)

    monkeypatch.setattr(xor, "train_calibrated", killed)
    with pytest.raises(KeyboardInterrupt):
        xor.run(CALIBRATED, Record(tmp_path / "broken", "xor", CALIBRATED, "cpu"), quiet)
    trained = []
    monkeypatch.setattr(
        xor, "train_calibrated", lambda config, K, *rest: (trained.append(K), train(config, K, *rest))[1]
    )
    again = xor.run(CALIBRATED, Record(tmp_path / "broken", "xor", CALIBRATED, "cpu"), quiet)
    assert again == whole
    assert trained == [8]


def test_calibrated_runs_have_a_table_of_their_own_beside_the_papers():
    row = {"num_features": 8, "p_conv": 0.96, "p_conv_se": 0.03}
    config = {"start": "calibrated", "level": "set", "lr": 0.05, "leak": 0.2, "seed": 0}
    tuned = {"config": config, "row": "", "result": {"rows": [row]}}
    (table,) = xor.tables([tuned])
    assert table.columns[-1].header == "ours, set level, rate 0.05, leak 0.2, seed 0"
    assert [list(column.cells) for column in table.columns] == [
        ["8"],
        ["0.39 ± 0.01"],
        ["0.53 ± 0.02"],
        ["0.96 ± 0.03"],
    ]
    zeros = np.zeros(xor.shape(xor.SMOKE), np.float32)
    tables = xor.averages(xor.SMOKE, zeros, zeros.astype(np.uint8))
    grid = {
        "config": {"level": "feature", "seed": 0},
        "row": "level=feature",
        "result": {"tables": tables, "without_gmean": tables},
    }
    assert len(xor.tables([grid])) == 4
    assert len(xor.tables([grid, tuned])) == 5
    other = grid | {"row": "level=feature lr=0.5"}
    headings = [column.header for column in xor.tables([grid, other])[0].columns]
    assert headings[-2:] == ["ours, feature level", "ours, feature level, lr 0.5"]
    # No more than two fit beside the paper.
    third = grid | {"config": {"level": "set", "seed": 1}, "row": ""}
    assert xor.heading(third) == "set level, seed 1"
    assert [len(table.columns) for table in xor.tables([grid, other, third])][:2] == [5, 4]


def test_dead_are_prototypes_without_features_and_features_that_nobody_has():
    features = torch.eye(3)
    prototypes = torch.tensor([[-1.0, -1.0, -1.0], [1.0, -1.0, -1.0]])
    x = torch.tensor([[1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
    assert xor.dead(prototypes, features, x) == {"prototypes": 0.5, "features": pytest.approx(1 / 3, abs=1e-4)}
    # A feature that only a prototype has still gets a gradient, by f(B−A).
    assert xor.dead(prototypes, features, x - 5) == {"prototypes": 0.5, "features": pytest.approx(2 / 3, abs=1e-4)}


@pytest.mark.parametrize(
    ("settings", "words"), [(dict(start="calm"), "one of paper, calibrated"), (dict(leak=0.1), "leak=0.1")]
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        xor.Config(**settings)


def test_tables_count_every_model_once():
    config = xor.Config()
    right = np.zeros(xor.shape(config), np.uint8)
    right[INTERSECTIONS.index("min")] = 4
    tables = xor.averages(config, np.ones(right.shape, np.float32), right)
    assert right.size == 11_664
    for rows in tables.values():
        assert sum(row["n"] for row in rows) == 11_664
    best = tables["by_reductions"][:2]
    assert {row["intersection"] for row in best} == {"min"}
    assert [row["p_conv"] for row in best] == [1, 1]
    assert [len(rows) for rows in tables.values()] == [12, 9, 2, 6]
