"""ResNet and TverskyResNet on images: conditions do what they say, and digits become images."""

from dataclasses import replace

import pytest
import torch
from transformers import ResNetConfig, ResNetForImageClassification

from similitude.reproduce import resnet
from similitude.reproduce.data import resnet_keras
from similitude.reproduce.record import Record, RunError

TINY = dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])


def quiet(*_, **__):
    pass


@pytest.mark.parametrize("network", resnet.NETWORKS)
@pytest.mark.parametrize("condition", resnet.CONDITIONS)
def test_every_condition_trains_what_it_should(network, condition, tmp_path):
    config = replace(resnet.SMOKE, network=network, condition=condition, epochs=1)
    made = {}
    make = resnet.make
    resnet_make = lambda c, n: made.setdefault("model", make(c, n))  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resnet, "make", resnet_make)
        result = resnet.run(config, Record(tmp_path, "resnet", config, "cpu"), quiet)
    start, end = make(config.filled(), 10).state_dict(), made["model"].state_dict()
    moved = {name for name in start if not torch.equal(start[name], end[name])}
    assert any(name.startswith("classifier") for name in moved)
    assert any(name.startswith("resnet") for name in moved) == (condition != "frozen")
    assert 0 <= result["accuracy"] <= 1


def test_images_are_counted_while_they_are_encoded(tmp_path):
    told = []
    config = replace(resnet.SMOKE, condition="frozen", epochs=1, made_up=600)
    progress = lambda step, steps, what, **_: told.append((what, step, steps))  # noqa: E731
    resnet.run(config, Record(tmp_path, "resnet", config, "cpu"), progress)
    steps, totals = zip(*((step, steps) for what, step, steps in told if what == "encoding images"))
    assert len(steps) > 2
    assert list(steps) == sorted(set(steps))
    assert set(totals) == {steps[-1]}


@pytest.mark.gpu
def test_a_gpu_learns_its_images_by_heart(tmp_path):
    """As a CPU does, which ends at 0.05 to 0.1: a batch that is not what its labels say cannot be learned."""
    config = replace(resnet.SMOKE, network="baseline", epochs=60, checkpoint_every=20, dropout=0.0)
    curve = resnet.run(config, Record(tmp_path, "resnet", config, "cuda"), quiet)["curve"]
    assert curve[-1][1] < 0.3


def test_a_frozen_backbone_gives_the_head_what_the_whole_model_gives_it():
    config = replace(resnet.SMOKE, network="baseline", condition="frozen").filled()
    model = resnet.make(config, 10).eval()
    x = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8)
    network = resnet.Network(config, model)
    torch.testing.assert_close(resnet.head_of(model)(resnet.encode(network, x)), network(x))


def test_digits_become_images_of_three_colours():
    digits = torch.zeros(2, 28, 28, dtype=torch.uint8)
    digits[:, 7:21, 7:21] = 255
    images = resnet.enlarge(digits, 56)
    assert images.shape == (2, 3, 56, 56)
    assert images.dtype == torch.uint8
    assert images[0, 0, 28, 28] == 255
    assert images[0, 0, 0, 0] == 0
    assert torch.equal(images[:, 0], images[:, 2])


def test_each_source_is_fed_as_it_was_trained(tmp_path):
    def pixels(config):
        white = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
        return resnet.Network(config, torch.nn.Identity()).normal(white).flatten().tolist()

    config = replace(resnet.SMOKE, condition="pretrained", source=str(tmp_path))
    assert pixels(config) == pytest.approx([0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225])
    (tmp_path / "model.json").write_text("{}")
    assert pixels(config) == pytest.approx([1 - m for m in resnet_keras.MEAN])
    assert pixels(replace(config, condition="scratch")) != pytest.approx([1 - m for m in resnet_keras.MEAN])


def test_a_pretrained_folder_is_used(tmp_path):
    torch.manual_seed(3)
    source = ResNetForImageClassification(ResNetConfig(**TINY))
    source.save_pretrained(tmp_path)
    config = replace(resnet.SMOKE, made_up=0, condition="pretrained", source=str(tmp_path))
    for name in resnet.NETWORKS:
        made = resnet.make(replace(config, network=name), 7)
        kernel = made.resnet.embedder.embedder.convolution.weight
        assert torch.equal(kernel, source.resnet.embedder.embedder.convolution.weight)
    with pytest.raises(RunError, match="no pretrained ResNet at"):
        resnet.make(replace(config, source=str(tmp_path / "none")), 7)


def test_settings_of_0_are_the_data_sets_own():
    assert resnet.Config(data="mnist").filled().batch == 1024
    assert resnet.Config(data="mnist").filled().num_features == 20
    assert resnet.Config(data="nabirds", batch=8).filled().batch == 8
    assert resnet.Config(data="nabirds").filled().num_features == 224


@pytest.mark.parametrize("condition", resnet.CONDITIONS)
def test_a_head_learns_at_its_own_rate_and_every_parameter_is_in_one_group(condition):
    config = replace(resnet.SMOKE, condition=condition, lr=0.5, head_rate=0.1)
    model = resnet.make(config.filled(), 10)
    head = resnet.head_of(model)
    trained = head if condition == "frozen" else model
    groups = torch.optim.SGD(resnet.groups(config, trained, head), config.lr).param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    own = {id(p) for p in head.parameters()}
    assert rates.keys() == {id(p) for p in trained.parameters()}
    assert all(rate == (0.05 if p in own else 0.5) for p, rate in rates.items())


def result(accuracy, recipe="paper", row="", **settings):
    config = vars(replace(resnet.RECIPES[recipe], **settings))
    return {"recipe": recipe, "row": row, "config": config, "result": {"accuracy": accuracy}}


def test_each_recipe_has_a_table_of_its_own_runs():
    runs = [result(0.5), result(0.7, seed=1), result(0.9, "tuned"), result(0.1, row="lr=0.001", lr=0.001)]
    papers, tuned = resnet.tables(runs)
    assert cells(papers, 5)[:2] == ["60.0 ± 10.00 (-2.3)", "10.0 (-52.3)"]
    # Settings that the table has no column for make a line of their own, and are named.
    assert cells(papers, 1)[:2] == ["frozen", "frozen, lr 0.001"]
    assert cells(tuned, 5) == ["90.0 (+27.7)"]
    assert len(papers.rows) == 10
    assert len(resnet.tables(runs[:2])) == 1


def test_runs_of_another_length_or_backbone_are_a_row_of_their_own_and_a_seed_counts_once():
    runs = [result(0.4), result(0.5), result(0.7, row="epochs=3", epochs=3)]
    runs.append(result(0.9, row="source=other", source="other"))
    [table] = resnet.tables(runs)
    rows = list(zip(cells(table, 1), cells(table, 5), cells(table, 6), strict=True))[:3]
    assert rows == [
        ("frozen, microsoft/resnet-50", "70.0 (+7.7)", "3"),
        ("frozen, microsoft/resnet-50", "50.0 (-12.3)", "200"),
        ("frozen, other", "90.0 (+27.7)", "200"),
    ]


@pytest.mark.parametrize(
    ("linear", "tversky", "verdict"), [(0.5, 0.6, "holds"), (0.5, 0.4, "fails"), (None, None, "open")]
)
def test_a_claim_holds_where_the_tversky_head_is_ahead(linear, tversky, verdict):
    runs = [] if linear is None else [result(linear, row="network=baseline", network="baseline"), result(tversky)]
    claim = resnet.claims(runs)[0]
    assert (claim.verdict, claim.paper) == (verdict, "57.4 % → 62.3 %")
    if runs:
        tuned = [result(linear, "tuned", "network=baseline", network="baseline"), result(0.7, "tuned")]
        assert resnet.claims(runs + tuned)[0].verdict == ("holds" if tversky > linear else "holds, tuned")


def cells(table, column: int) -> list[str]:
    return list(table.columns[column].cells)
