"""Every figure on small data: what it has in it, that nothing overlaps, and that files are whole."""

import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgb
from overlaps import overlapping, texts_of

from similitude import TverskyProjection
from similitude.interpret import figures
from similitude.interpret.figures import base
from similitude.models.mnist import VisualMNISTNet, VisualTverskyMNISTNet

NAME = r'<script>alert("$x_1$")</script> & Ġgood'


def digits(n: int) -> torch.Tensor:
    return torch.rand(n, 28, 28, generator=torch.Generator().manual_seed(n))


def figure_of(name: str):
    """One figure of each kind, with names that are hard to draw."""
    layer, linear = TverskyProjection(2, 2, 5), nn.Linear(2, 2)
    match name:
        case "boundaries":
            return figures.decision_boundaries({"Tversky": layer, "linear": linear, NAME: layer})
        case "prototypes":
            return figures.prototypes({"rows": digits(10), NAME: digits(13)[:, None], "signed": digits(3) - 0.5})
        case "evolution":
            return figures.evolution({n: {e: digits(10) for e in (200, 0, 400)} for n in ("linear", NAME)})
        case "salience":
            return figures.salience_strip(digits(40), {"Tversky": torch.rand(40) * 1000, NAME: torch.rand(40)})
        case "venn":
            parts = [digits(n) for n in (9, 4, 12)]
            return figures.venn(digits(1)[0], digits(2)[1], *parts, names=("two", "one"))
        case "sheet":
            return figures.sheet({"feature 7\n9%": digits(3), NAME[:14]: torch.rand(2, 3, 9, 9)}, title=NAME)
    raise ValueError(name)


AXES = {
    "boundaries": 3,
    "prototypes": 3,
    "evolution": 2,
    "salience": 2,
    "venn": 1,
    "sheet": 6,
}


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
        torch.manual_seed(0)
        figures.save(figure_of(name), tmp_path / f"a.{suffix}", dpi=60)
        torch.manual_seed(0)
        figures.save(figure_of(name), tmp_path / f"b.{suffix}", dpi=60)
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    with image.open(tmp_path / "a.png") as picture:
        picture.load()
        assert min(picture.size) > 50
        assert len(np.unique(np.asarray(picture.convert("L")))) > 10
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert root.tag.endswith("svg")
    assert not [e for e in root.iter() if e.tag.endswith("script")]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "a.svg", "b.png", "b.svg"]


def test_a_png_in_few_colours_looks_as_it_was_drawn(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("boundaries", "evolution"):
        torch.manual_seed(0)
        figures.save(figure_of(name), tmp_path / "few.png")
        torch.manual_seed(0)
        whole = figure_of(name)
        whole.draw_without_rendering()
        whole.savefig(tmp_path / "all.png", dpi=130)
        with image.open(tmp_path / "few.png") as picture, image.open(tmp_path / "all.png") as drawn:
            assert picture.mode == "P"
            apart = np.abs(np.subtract(picture.convert("RGB"), drawn.convert("RGB"), dtype=int))
        assert np.quantile(apart, 0.99) <= 2
        assert apart.max() < 64


def test_lines_of_a_title_stay_lines():
    name = "orthogonal, orthogonal, s 0\n4 of 4 points right"
    assert figures.decision_boundaries({name: nn.Linear(2, 2)}).axes[0].get_title() == name


def test_figures_leave_pyplot_alone():
    code = """
import sys
from similitude.interpret import figures
from similitude.interpret.figures import base
figures.decision_boundaries({"a": lambda at: at}).savefig("/dev/null", format="png")
print("matplotlib.figure" in sys.modules, "matplotlib.pyplot" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No such folder: '.*nowhere'"):
        figures.save(figures.prototypes({"a": digits(2)}), tmp_path / "nowhere" / "a.png")


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    old = tmp_path / "a.png"
    old.write_bytes(b"old")

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space"):
        figures.save(figure_of("salience"), old)
    assert old.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [old]


def test_boundaries_show_the_class_that_the_layer_returns():
    """Right of x = ½ the second is larger."""
    figure = figures.decision_boundaries({"one": lambda at: torch.stack([0 * at[:, 0], at[:, 0] - 0.5], dim=1)})
    shown = np.asarray(figure.axes[0].images[0].get_array())
    assert (shown == (np.linspace(-2, 2, 201) > 0.505)).mean() > 0.99
    layer = TverskyProjection(2, 2, 6)
    shown = np.asarray(figures.decision_boundaries({"one": layer}).axes[0].images[0].get_array())
    line = torch.linspace(-2, 2, 201)
    for row, column in ((20, 150), (150, 20), (20, 20), (190, 90)):
        assert shown[row, column] == layer(torch.stack([line[column], line[row]])).argmax().item()


def test_layers_without_names_are_asked_for_them():
    with pytest.raises(TypeError, match=r"layers must be a mapping, {name: layer}; got Linear"):
        figures.decision_boundaries(nn.Linear(2, 2))  # type: ignore[arg-type]


def test_a_layer_whose_outputs_are_equal_is_undecided():
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight[1], layer.bias[1] = layer.weight[0] + 1e-8, layer.bias[0]
    assert (figures.decision_boundaries({"one": layer}).axes[0].images[0].get_array() == 0.5).all()


def test_linear_rows_and_tversky_parameters_have_the_same_view():
    linear, tversky = nn.Linear(784, 10), TverskyProjection(784, 10, 20)
    figure = figures.prototypes({"linear": linear, "Tversky": tversky}, shape=(28, 28))
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["linear rows", "Tversky prototypes", "Tversky features"]
    figure = figures.prototypes({"linear": VisualMNISTNet(), "Tversky": VisualTverskyMNISTNet(num_features=12)})
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["linear rows", "Tversky prototypes", "Tversky features"]


def test_weights_are_drawn_with_their_sign_and_images_as_inputs_are():
    maps = [ax.images[0].get_cmap().name for ax in figures.prototypes({"a": nn.Linear(784, 3)}, shape=(28, 28)).axes]
    assert maps == ["PuOr"]
    maps = [ax.images[0].get_cmap().name for ax in figures.prototypes({"a": digits(3) - 0.5, "b": digits(3)}).axes]
    assert maps == ["gray_r", "gray_r"]


def test_images_stand_in_their_order():
    images = np.zeros((5, 4, 4), np.float32)
    images[3, 1, 2] = 1
    sheet = np.asarray(figures.prototypes({"a": images}, columns=3).axes[0].images[0].get_array())
    assert sheet.shape == (10, 16)
    # The fourth image is the first of the second row; images are two pixels apart.
    assert np.argwhere(np.nan_to_num(sheet) == np.nanmax(sheet)).tolist() == [[7, 2]]


def test_a_strip_goes_from_low_to_high():
    images = torch.arange(1.0, 51).view(50, 1, 1).expand(50, 3, 3) * torch.eye(3)
    figure = figures.salience_strip(images, torch.arange(50).flip(0), count=5)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0", "12", "24", "37", "49"]


def test_a_venn_of_nothing_in_common_says_none():
    figure = figures.venn(digits(1)[0], digits(1)[0], digits(9), torch.zeros(0, 28, 28), digits(9))
    assert "none" in [text.get_text() for text in figure.axes[0].texts]
    assert overlapping(figure) == []


def test_a_sheet_has_a_row_of_images_for_each_name():
    bytes_ = torch.randint(0, 256, (2, 3, 9, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    figure = figures.sheet({"grey": digits(3), "colour": bytes_})
    grey, colour = figure.axes[:3], figure.axes[3:]
    assert [ax.get_ylabel() for ax in (grey[0], colour[0])] == ["grey", "colour"]
    for ax, image in zip(grey, digits(3), strict=True):
        np.testing.assert_allclose(ax.images[0].get_array(), image, rtol=1e-6)
    for ax, image in zip(colour, bytes_):
        np.testing.assert_allclose(ax.images[0].get_array(), image.permute(1, 2, 0) / 255, rtol=1e-6)
    assert not colour[2].images


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: figures.prototypes({"a": torch.rand(5, 784)}), r"a must be images \[n, H, W\].*; give shape=\(H, W\)"),
        (
            lambda: figures.prototypes({"a": torch.rand(5, 100)}, shape=(28, 28)),
            r"28×28 values each; got shape \[5, 10",
        ),
        (
            lambda: figures.prototypes({"a": nn.ReLU()}),
            "must be a TverskyProjection, DataDomain or nn.Linear; got ReLU",
        ),
        (lambda: figures.prototypes({}), "one group of images or more; got none"),
        (lambda: figures.decision_boundaries({}), "one layer or more; got none"),
        (
            lambda: figures.decision_boundaries({"a": nn.Linear(2, 3)}),
            r"'a' must return \[N, 2\] for \[N, 2\]; got shape",
        ),
        (
            lambda: figures.salience_strip(digits(4), torch.rand(5)),
            r"salience must be \[4\], one an image; got shape \[5\]",
        ),
        (lambda: figures.evolution({"a": {}}), "images of one epoch or more"),
        (lambda: figures.sheet({}), "rows must have one name with images or more; got none"),
        (
            lambda: figures.sheet({"a": torch.rand(2, 4, 9, 9)}),
            r"a must be images \[n, H, W\] or, in colour, \[n, 3, H, W\]; got shape \[2, 4, 9, 9\]",
        ),
        (lambda: figures.save(figure_of("salience"), "a.pdf"), "written as .png or .svg; got 'a.pdf'"),
    ],
)
def test_wrong_input_gets_one_sentence(make, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence) as error:
        make()
    assert "\n" not in str(error.value)


def test_labels_beside_images_are_whole_in_the_file(tmp_path):
    """At its first drawing the layout cuts off some."""
    image = pytest.importorskip("PIL.Image")
    images = {epoch: np.zeros((10, 28, 28)) for epoch in (0, 5, 10, 15, 20)}
    figure = figures.evolution({"a": images, "b": images})
    figures.save(figure, tmp_path / "evolution.png")
    with image.open(tmp_path / "evolution.png") as picture:
        assert np.asarray(picture.convert("L"))[:, :2].min() == 255


def test_labels_stand_above_the_columns_of_the_blocks_that_they_are_given_for():
    images = np.random.default_rng(0).random((10, 6, 6))
    figure = figures.prototypes({"prototypes": images, "features": images}, labels={"prototypes": list("0123456789")})
    first, second = figure.axes[:2]
    ((above,), none) = (ax.child_axes for ax in (first, second))
    assert [label.get_text() for label in above.get_xticklabels()] == list("0123456789")
    assert not none
    step = 6 + 2
    assert above.get_xticks() == pytest.approx([step * i + (6 - 1) / 2 for i in range(10)])  # middles of the images
    figure = figures.evolution({"a": {0: images, 5: images}}, labels=list("0123456789"))
    assert len(figure.axes[0].child_axes) == 1


def test_a_figure_for_any_ground_is_clear_and_its_ink_can_be_read_on_both(tmp_path):
    image = pytest.importorskip("PIL.Image")

    def luminance(colour: str) -> float:
        part = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour))
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), part, strict=True))

    with figures.on_any_ground():
        figure = figures.decision_boundaries({"linear": nn.Linear(2, 2)})
        figures.save(figure, tmp_path / "any.png")
    figures.save(figures.decision_boundaries({"linear": nn.Linear(2, 2)}), tmp_path / "white.png")
    with image.open(tmp_path / "any.png") as clear, image.open(tmp_path / "white.png") as white:
        assert clear.convert("RGBA").getpixel((0, 0))[3] == 0
        assert white.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)
    assert to_rgb(figure.axes[0].title.get_color()) == to_rgb(base.INK)
    ink = luminance(base.INK) + 0.05
    assert (luminance("white") + 0.05) / ink > 4
    assert ink / (luminance("#131416") + 0.05) > 4
