"""Heads on a frozen backbone: what is chosen by, what is trained on, and how the two heads are compared."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from similitude import TverskyProjection
from similitude.reproduce import heads, resnet
from similitude.reproduce.data import find
from similitude.reproduce.record import Record, RunError
from similitude.reproduce.settings import changed


def quiet(*_, **__):
    pass


def clouds(n: int, seed: int, classes: int = 4, dim: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Points about a centre of each class."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(0))
    y = torch.arange(n) % classes
    return centres[y] + 0.2 * torch.randn(n, dim, generator=generator), y


@pytest.fixture
def file(tmp_path):
    arrays = {}
    for split, n, seed in (("train", 40, 1), ("test", 20, 2)):
        x, y = clouds(n, seed)
        arrays |= {f"{split}_x": x.half().numpy(), f"{split}_y": y.numpy()}
    np.savez(tmp_path / "clouds.npz", **arrays)
    return tmp_path / "clouds.npz"


def of(file, **settings) -> heads.Config:
    small = replace(heads.SMOKE, encoded=str(file), batch=10, num_features=16, scale="centre")
    return replace(small, **settings)


def test_images_to_choose_by_are_the_same_share_of_every_class_and_not_trained_on():
    y = torch.arange(30) % 3
    kept, held = heads.parted(y, 0.2, seed=0)
    assert y[held].bincount().tolist() == [2, 2, 2]
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(30))
    assert not torch.equal(held, heads.parted(y, 0.2, seed=1)[1])
    with pytest.raises(RunError, match="none to select by"):
        heads.parted(y, 0.01, seed=0)


def test_both_parts_are_scaled_by_the_training_part_alone():
    train, test = (3 + 2 * torch.randn(200, 5), torch.zeros(200)), (torch.randn(7, 5), torch.zeros(7))
    for scale, mean in (("none", 0.0), ("norm", 0.0), ("centre", train[0].mean(0))):
        (x, _), (other, _) = heads.scaled(scale, train, test)
        if scale != "none":
            assert x.square().mean() == pytest.approx(1, rel=1e-5)
        size = ((train[0] - mean) / x).mean()
        torch.testing.assert_close(other, (test[0] - mean) / size)
    assert x.mean(0).abs().max() < 1e-5


def test_a_run_tunes_both_heads_alike_and_trains_each_with_its_own_best(file, tmp_path, monkeypatch):
    config = of(file, epochs=20, lrs=(1e-7, 3e-2), decays=(0.0, 0.1))
    calls, fit = [], heads.fit

    def watched(config, head, part, lr, decay):
        calls.append((type(head), len(part[1]), lr, decay))
        return fit(config, head, part, lr, decay)

    monkeypatch.setattr(heads, "fit", watched)
    record = Record(tmp_path / "run", "heads", config, "cpu")
    whole = record.finish(heads.run(config, record, quiet))
    result = whole["result"]
    grid = [(lr, decay) for lr in config.lrs for decay in config.decays]
    assert result["pictures"] == {"train": 40, "validation": 8, "test": 20}
    for head, kind in (("linear", nn.Linear), ("tversky", TverskyProjection)):
        own = [call[1:] for call in calls if call[0] is kind]
        assert own[:4] == [(32, *pair) for pair in grid]
        best = result["best"][head]
        assert own[4:] == [(40, best["lr"], best["weight_decay"])] * config.seeds
        assert best["lr"] == 3e-2
        assert best["validation"] == max(t[3] for t in result["tuning"] if t[0] == head)
        assert len(result["accuracy"][head]) == config.seeds
        assert min(result["accuracy"][head]) > 0.9
    assert result["parameters"] == {"linear": 4 * 7, "tversky": 20 * 6 + 3}
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_stopped_run_goes_on_and_comes_out_the_same(file, tmp_path, monkeypatch):
    config = of(file)
    whole = heads.run(config, Record(tmp_path / "whole", "heads", config, "cpu"), quiet)
    count, measure = [], heads.measure

    def stopping(*arguments):
        if len(count) == 5:
            raise KeyboardInterrupt
        count.append(1)
        return measure(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(heads, "measure", stopping)
        with pytest.raises(KeyboardInterrupt):
            heads.run(config, Record(tmp_path / "halves", "heads", config, "cpu"), quiet)
    assert heads.run(config, Record(tmp_path / "halves", "heads", config, "cpu"), quiet) == whole


def test_the_bank_has_a_rate_of_its_own():
    config = replace(heads.SMOKE, bank_rate=0.0, bias=True)
    for name in heads.HEADS:
        torch.manual_seed(0)
        head = heads.make(config, name, 6, 4)
        start = {n: p.clone() for n, p in head.named_parameters()}
        heads.fit(config, head, clouds(40, 1), 0.1, 0.3)
        still = {n for n, p in head.named_parameters() if torch.equal(p, start[n])}
        assert still == ({"features.weight"} if name == "tversky" else set())


def test_length_makes_the_head_start_smaller_and_not_otherwise():
    """Up to what f(A−B) is for all prototypes alike, S is homogeneous in prototypes and α."""
    x = torch.randn(5, 6)
    outs = []
    for length in (1.0, 0.1):
        torch.manual_seed(0)
        outs.append(heads.make(replace(heads.SMOKE, length=length), "tversky", 6, 4)(x))
    torch.testing.assert_close(outs[1], 0.1 * outs[0])


def test_a_run_that_blew_up_is_never_chosen():
    tries = [("linear", 1.0, 0.0, 0.9, 1.0, float("nan")), ("linear", 0.1, 0.0, 0.0, 5.0, 1.0)]
    assert max(tries, key=heads.quality) is tries[1]
    assert heads.quality(("linear", 1, 0, 0.5, 1.0, 0)) > heads.quality(("linear", 1, 0, 0.5, 2.0, 0))


def test_the_backbone_is_asked_once_and_then_the_cache(tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for split, label, n in (("train", "a", 3), ("train", "b", 3), ("test", "a", 2)):
        folder = tmp_path / "data" / split / label
        folder.mkdir(parents=True)
        for i in range(n):
            Image.new("RGB", (40, 40), (40 * i, 200 if label == "a" else 0, 90)).save(folder / f"{i}.png")
    made, make = [], resnet.make
    tiny = replace(resnet.SMOKE, network="baseline")
    monkeypatch.setattr(resnet, "make", lambda config, classes: made.append(config) or make(tiny, classes))
    config = replace(heads.SMOKE, data=str(tmp_path / "data"), made_up=0, size=32)
    first, again = (heads.load(config, "cpu", quiet) for _ in range(2))
    assert [c.condition for c in made] == ["frozen"]
    assert first.train_x.shape == (6, 16)
    assert first.test_y.tolist() == [0, 0]
    assert torch.equal(first.train_x, again.train_x)
    heads.load(replace(config, size=40), "cpu", quiet)
    assert len(made) == 2
    Image.new("RGB", (50, 50)).save(tmp_path / "data" / "train" / "a" / "more.png")
    assert len(heads.load(config, "cpu", quiet).train_x) == 7


def test_features_are_as_the_frozen_network_gives_them():
    found = heads.made_up.synthetic_images(8, size=32)
    arrays = heads.encode(heads.SMOKE, found, "cpu", quiet)
    config = replace(resnet.SMOKE, network="baseline")
    network = resnet.Network(config, resnet.make(config, 10)).eval()
    expected = network.model.get_submodule("resnet")(network.normal(found.train_x)).pooler_output.flatten(1)
    torch.testing.assert_close(torch.from_numpy(arrays["train_x"]).float(), expected, rtol=1e-3, atol=1e-3)


def test_another_backbone_is_another_fingerprint(tmp_path):
    (tmp_path / "weights").write_bytes(b"1")
    first = find.fingerprint(str(tmp_path))
    (tmp_path / "weights").write_bytes(b"2")
    assert first != find.fingerprint(str(tmp_path))
    assert find.fingerprint("microsoft/resnet-50") != find.fingerprint("microsoft/resnet-18")


def test_the_table_pairs_seeds_and_says_what_lies_at_the_edge_of_the_grid():
    best = {"linear": dict(lr=0.1, weight_decay=0.1, validation=0.5)}
    best["tversky"] = dict(lr=0.3, weight_decay=0.1, validation=0.6)
    result = {"accuracy": {"linear": [0.5, 0.6], "tversky": [0.52, 0.62]}, "best": best}
    config = dict(source="a/b", data="cub", encoded="", made_up=0, num_features=7)
    config |= dict(lrs=[0.03, 0.1, 0.3], decays=[0.0, 0.1, 1.0])
    table, note = heads.summary({"config": config, "result": result})
    assert list(zip(*(column.cells for column in table.columns), strict=True)) == [
        ("a/b, cub", "linear", "–", "0.1", "0.1", "55.00 ± 5.00"),
        ("a/b, cub", "tversky", "7", "0.3", "0.1", "57.00 ± 5.00"),
        ("", "difference", "", "", "", "+2.00 ± 0.00"),
    ]
    assert note == "note: tversky's lr of 0.3 is at the end of lrs"
    table, _ = heads.summary({"config": config | {"made_up": 5}, "result": result})
    assert next(iter(table.columns[0].cells)) == "made-up images"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("scale=max", "one of none, norm, centre, root; got 'max'"),
        ("seeds=0", "1 or more"),
        ("validation=1", "between 0 and 1"),
        ("init=unt", "init must be one of"),
        ("length=0", "more than 0"),
        ("lrs=", "lrs must be a list of numbers"),
        ("decays=-1", "decays one of 0 or more"),
    ],
)
def test_wrong_settings_get_one_sentence(setting, words):
    with pytest.raises(RunError, match=words):
        changed(heads.SMOKE, [setting])


def test_a_file_of_features_that_is_none_gets_one_sentence(file, tmp_path):
    with pytest.raises(RunError, match=r"nothing.npz is no .npz with train_x"):
        heads.read(str(tmp_path / "nothing.npz"))
    with np.load(file) as kept:
        arrays = dict(kept)
    np.savez(tmp_path / "short.npz", **arrays | {"test_y": arrays["test_y"][:3]})
    with pytest.raises(RunError, match=r"test_x and test_y must be \[N, D\] and \[N\]; got \(20, 6\) and \(3,\)"):
        heads.read(str(tmp_path / "short.npz"))


@pytest.fixture
def birds(tmp_path):
    """Twelve classes in four families, and each image's class in its vector."""
    arrays = {}
    for split, n, seed in (("train", 240, 1), ("test", 240, 2)):
        x, y = clouds(n, seed, classes=12, dim=10)
        arrays |= {f"{split}_x": x.half().numpy(), f"{split}_y": y.numpy()}
    names = [f"0{i}.{kind}_{family}" for i, family in enumerate(("Tern", "Gull", "Wren", "Jay")) for kind in "abc"]
    np.savez(tmp_path / "birds.npz", **arrays, classes=names)
    return tmp_path / "birds.npz"


def test_families_are_three_classes_or_more_whose_names_end_in_the_same_word():
    of, names = heads.families(("001.Arctic_Tern", "Black Tern", "least.Tern", "Blue_Jay", "Green_Jay", "Ani"))
    assert names == ["Tern"]
    assert of[:, 0].tolist() == [True] * 3 + [False] * 3
    assert heads.families(("0", "1", "2"))[0].shape == (3, 0)


def test_the_root_is_taken_of_each_element_and_keeps_its_sign():
    train, test = (
        (torch.tensor([[4.0, -9.0], [0.0, 1.0]]), torch.zeros(2)),
        (torch.tensor([[1.0, -1.0]]), torch.zeros(1)),
    )
    (x, _), (other, _) = heads.scaled("root", train, test)
    rooted = torch.tensor([[2.0, -3.0], [0.0, 1.0]])
    centred = rooted - rooted.mean(0)
    torch.testing.assert_close(x, centred / centred.square().mean().sqrt())
    torch.testing.assert_close(other, (torch.tensor([[1.0, -1.0]]) - rooted.mean(0)) / centred.square().mean().sqrt())


@pytest.mark.parametrize("layer", ["linear", *heads.LAYERS])
def test_a_layer_that_is_named_is_trained_alone_and_read(birds, tmp_path, layer):
    config = of(
        birds, made_up=0, layer=layer, num_features=24, lrs=(3e-2,), decays=(0.01,), epochs=10, seeds=2, scale="root"
    )
    record = Record(tmp_path / "run", "heads", config, "cpu")
    content = record.finish(heads.run(config, record, quiet))
    result = content["result"]
    assert result["tuning"] == []  # one rate and one decay are taken as they are
    assert list(result["accuracy"]) == [layer]
    assert result["best"] == {layer: dict(lr=3e-2, weight_decay=0.01, validation=None)}
    assert min(result["accuracy"][layer]) > 0.9
    assert len(result["legibility"]) == 2
    for read in result["legibility"]:
        assert 0 <= read["start"] <= 1
        assert {"mcc", "recovered", "probe", "purity"} <= set(read["layer"])
        assert {"mcc", "recovered"} <= set(read["k-means"])
    starts = [read["start"] for read in result["legibility"]]
    first, second = heads.summary(content)
    row = [next(iter(column.cells)) for column in first.columns]
    assert row[:5] == [layer, "root", "–" if layer == "linear" else "24", "0.03", "0.01"]
    assert row[7] == f"{np.mean(starts):.2f}"
    assert [column.header for column in second.columns] == ["layer", "scale", *heads.SECOND]


def test_a_run_of_a_named_layer_that_stopped_goes_on_and_comes_out_the_same(birds, tmp_path, monkeypatch):
    config = of(birds, made_up=0, layer="classes", num_features=24, lrs=(3e-2,), epochs=3, seeds=2)
    whole = heads.run(config, Record(tmp_path / "whole", "heads", config, "cpu"), quiet)
    read = heads.read_features

    def stopping(*arguments):
        if arguments[-1] == 1:
            raise KeyboardInterrupt
        return read(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(heads, "read_features", stopping)
        with pytest.raises(KeyboardInterrupt):
            heads.run(config, Record(tmp_path / "halves", "heads", config, "cpu"), quiet)
    assert heads.run(config, Record(tmp_path / "halves", "heads", config, "cpu"), quiet) == whole


def test_classes_without_families_are_not_read(file, tmp_path):
    config = of(file, layer="whitened", lrs=(3e-2,), epochs=1)
    assert "legibility" not in heads.run(config, Record(tmp_path / "run", "heads", config, "cpu"), quiet)


def test_a_layer_that_starts_from_data_has_the_length_asked_for():
    x, y = clouds(60, 1)
    outs = []
    for length in (1.0, 0.1):
        torch.manual_seed(0)
        config = replace(heads.SMOKE, length=length, layer="whitened")
        layer = heads.make(config, "whitened", 6, 4)
        heads.start(config, "whitened", layer, x, y)
        outs.append(layer(x))
    torch.testing.assert_close(outs[1], 0.1 * outs[0])


def test_let_go_trains_its_bank_at_the_full_rate():
    x, y = clouds(60, 1)
    moved = {}
    for name in ("let-go", "whitened"):
        torch.manual_seed(0)
        config = replace(heads.SMOKE, layer=name, epochs=1, batch=60)
        layer = heads.make(config, name, 6, 4)
        heads.start(config, name, layer, x, y)
        before = layer.features.weight.clone()
        heads.fit(config, layer, (x, y), 1e-3, 0.0)
        moved[name] = (layer.features.weight - before).abs().max().item()
    assert moved["let-go"] == pytest.approx(10 * moved["whitened"], rel=0.1)


def test_more_labels_than_names_get_one_sentence(birds, tmp_path):
    with np.load(birds) as kept:
        np.savez(tmp_path / "few.npz", **dict(kept) | {"classes": ["a", "b"]})
    with pytest.raises(RunError, match=r"few.npz has 2 names in classes, and a label 11"):
        heads.read(str(tmp_path / "few.npz"))
