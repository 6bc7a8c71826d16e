"""The experiments' own figures on small data: panels, no overlapping text, whole files, one sentence per error."""

from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("matplotlib")

from overlaps import overlapping, texts_of

from similitude.interpret import figures
from similitude.reproduce import xor
from similitude.reproduce.figures.curves import alpha_beta_theta, constants_at_the_end, training
from similitude.reproduce.figures.ptb import perplexity
from similitude.reproduce.figures.xor import convergence_bars

NAME = r'<script>alert("$x_1$")</script> & Ġgood'


def figure_of(name: str):
    """One figure of each kind, with names that are hard to draw."""
    series = {"paper": {"a, b": (0.4, 0.02), NAME: (0.3, 0.01)}, "ours": {"a, b": (0.5, 0.02), "c": (0.1, 0.01)}}
    trace = {"step": [1, 2, 3], "alpha": [0.5, 0.6, 0.7], "beta": [0.5, 0.4, 0.3], "theta": [1.0, 1.2, 1.1]}
    match name:
        case "alpha_beta_theta":
            return alpha_beta_theta({"frozen": trace, NAME: trace, "scratch": trace, "more": trace, "last": trace})
        case "bars":
            return convergence_bars({"init": series, "size": series, NAME: series})
        case "perplexity":
            line = ([8192, 1024, 2048, 12288, 16384], [125.0, 180.2, 150.1, 130.0, 140.0])
            return perplexity({"paper": line, NAME: ([4096], [128.0])}, {"linear": 136.0}, title=NAME)
        case "training":
            curve = [[1, 2.3, 0.1], [2, 1.2, 0.7], [3, 0.9, 0.8]]
            return training({"linear": curve, NAME: curve})
    raise ValueError(name)


AXES = {"alpha_beta_theta": 6, "bars": 3, "perplexity": 1, "training": 2}


@pytest.mark.parametrize("name", AXES)
def test_a_figure_has_its_panels_and_no_text_overlaps(name):
    figure = figure_of(name)
    assert len(figure.axes) == AXES[name]
    assert overlapping(figure) == []
    assert len(texts_of(figure)) >= 3


@pytest.mark.parametrize("name", AXES)
def test_a_figure_is_written_whole_and_the_same_each_time(name, tmp_path):
    image = pytest.importorskip("PIL.Image")
    for suffix in ("png", "svg"):
        figures.save(figure_of(name), tmp_path / f"a.{suffix}", dpi=60)
        figures.save(figure_of(name), tmp_path / f"b.{suffix}", dpi=60)
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    with image.open(tmp_path / "a.png") as drawn:
        drawn.load()
        assert min(drawn.size) > 50
        assert len(np.unique(np.asarray(drawn.convert("L")))) > 10
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert root.tag.endswith("svg")
    assert not [e for e in root.iter() if e.tag.endswith("script")]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "a.svg", "b.png", "b.svg"]


def test_a_png_of_bars_in_few_colours_looks_as_it_was_drawn(tmp_path):
    image = pytest.importorskip("PIL.Image")
    figures.save(figure_of("bars"), tmp_path / "few.png")
    whole = figure_of("bars")
    whole.draw_without_rendering()
    whole.savefig(tmp_path / "all.png", dpi=130)
    with image.open(tmp_path / "few.png") as few, image.open(tmp_path / "all.png") as drawn:
        assert few.mode == "P"
        apart = np.abs(np.subtract(few.convert("RGB"), drawn.convert("RGB"), dtype=int))
    assert np.quantile(apart, 0.99) <= 2
    assert apart.max() < 64


def test_one_epoch_is_the_only_number_below_its_axis():
    figure = training({"a": [[10, 1.4, 0.4]], "b": [[10, 0.2, 0.9]]})
    assert [ax.get_xticks().tolist() for ax in figure.axes] == [[10], [10]]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: alpha_beta_theta({}), "one run or more; got none"),
        (lambda: convergence_bars({"a": {}}), "one series with a value or more"),
        (lambda: perplexity({}), "one line or more; got none"),
        (lambda: training({}), "one network or more; got none"),
    ],
)
def test_nothing_to_draw_is_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_model_trained_alone_is_the_one_in_the_grid():
    config = xor.SMOKE
    losses, right = xor.train(config, 4, "cpu", lambda *_: None)
    places = np.arange(len(right)).reshape(
        [n for n, axis in zip(xor.shape(config), xor.AXES) if axis != "num_features"]
    )
    for place in ((0, 1, 0, 0, 1, 0), (2, 0, 1, 2, 0, 0)):
        at = dict(zip([axis for axis in xor.AXES if axis != "num_features"], place, strict=True))
        layer, count = xor.alone(config, 4, at)
        x, y = torch.tensor(xor.POINTS), torch.tensor(xor.LABELS)
        assert nn.functional.cross_entropy(layer(x), y).item() == pytest.approx(losses[places[place]], rel=1e-4)
        assert count == right[places[place]]


def test_the_last_constants_of_runs_stand_in_lines():
    runs = {"a": dict(step=[1, 2], alpha=[1.0, 0.1], beta=[2.0, 3.0], theta=[1.0, 20.0])}
    runs["b"] = dict(step=[1], alpha=[0.5], beta=[-0.4], theta=[1.0])
    (ax,) = constants_at_the_end(runs).axes
    last = {line.get_label(): line.get_xdata().tolist() for line in ax.lines if line.get_label() in "αβθ"}
    assert last == {"α": [0.1, 0.5], "β": [3.0, -0.4], "θ": [20.0, 1.0]}
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    with pytest.raises(ValueError, match="one run or more"):
        constants_at_the_end({})
