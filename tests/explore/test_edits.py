"""Edits of a layer: a preview comes true, undo leaves every bit as it was, what cannot be changes nothing."""

import pytest
import torch

from similitude import TverskyProjection
from similitude.explore.content import content
from similitude.explore.edits import Refused, preview, undo_of, values_of
from similitude.explore.session import Session

CHANGE = {"prototypes": {"1": [2.0] * 6}, "features": {"3": [-1.0] * 6}, "thresholds": {"0": 0.25, "7": -1.0}}


@pytest.fixture
def layer():
    return TverskyProjection(6, 3, 8, presence=0.4, bias=True).eval()


def test_a_preview_says_what_an_edit_does(layer):
    x, y = torch.randn(200, 6), torch.arange(200) % 3
    before = {name: t.clone() for name, t in layer.state_dict().items()}
    with torch.no_grad():
        answers = layer(x).argmax(-1)
    seen = preview(layer, x, y, CHANGE)
    assert all(torch.equal(before[name], t) for name, t in layer.state_dict().items())
    undo = undo_of(layer, CHANGE)
    with torch.no_grad():
        assert torch.equal(layer(x).argmax(-1), seen.after)
        assert torch.equal(answers, seen.before)
        assert not torch.equal(seen.before, seen.after)
    assert layer.features.threshold[0] == 0.25
    assert values_of(layer, "prototype", 1) == [2.0] * 6
    undo()
    assert all(torch.equal(before[name], t) for name, t in layer.state_dict().items())
    with torch.no_grad():
        assert torch.equal(layer(x).argmax(-1), answers)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prototypes": {"0": [1.0] * 6, "3": [1.0] * 6}}, "there is no prototype 3; they are 0 to 2"),
        ({"prototypes": {"0": [1.0] * 6}, "features": {"0": [1.0] * 5}}, "values must be 6 numbers"),
        ({"prototypes": {"0": [1.0] * 6}, "thresholds": {"0": "x"}}, "values must be numbers"),
        ({"prototypes": {"0": [1.0] * 6}, "thresholds": {"0": float("inf")}}, "finite"),
        ({"prototypes": {"0": [1.0] * 6}, "bias": {"0": 1.0}}, "a layer has no bias to change"),
        ({"prototypes": [[1.0] * 6]}, "new values by their index"),
        ({"features": {"-1": [1.0] * 6}}, "there is no feature -1"),
    ],
)
def test_an_edit_is_made_whole_or_not_at_all(layer, change, sentence):
    before = {name: t.clone() for name, t in layer.state_dict().items()}
    with pytest.raises(Refused, match=sentence):
        undo_of(layer, change)
    assert all(torch.equal(before[name], t) for name, t in layer.state_dict().items())


def test_thresholds_are_those_of_layers_that_have_some():
    with pytest.raises(Refused, match="no thresholds to change; it has prototypes, features"):
        undo_of(TverskyProjection(6, 3, 8), {"thresholds": {"0": 1.0}})


def test_an_edit_that_cannot_be_shown_is_taken_back(layer):
    x, y = torch.randn(20, 6), torch.arange(20) % 3
    session = Session(lambda: content(layer, x, y), layer, layer.features, edited=layer, inputs=x, labels=y)
    before = {name: t.clone() for name, t in layer.state_dict().items()}
    with pytest.raises(Refused, match="must be finite to be shown"):
        session.apply({"prototypes": {"1": [3e38] * 6}})
    assert all(torch.equal(before[name], t) for name, t in layer.state_dict().items())
    assert session.about()["edits"] == 0


def test_the_page_after_an_edit_is_of_the_edited_layer(layer):
    x, y = torch.randn(20, 6), torch.arange(20) % 3
    session = Session(lambda: content(layer, x, y), layer, layer.features, edited=layer, inputs=x, labels=y)
    old = session.content.arrays["presence"].copy()
    session.apply({"thresholds": {"2": 100.0}})
    assert session.content.arrays["presence"][2] == 0
    assert session.about()["edits"] == 1
    session.undo({})
    assert (session.content.arrays["presence"] == old).all()
