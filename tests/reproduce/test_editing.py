"""The edit of the paper's example: which sevens have a stroke, how strokes are drawn, and how an edit is chosen."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from similitude.interpret.edit import Edit
from similitude.models.mnist import VisualTverskyMNISTNet
from similitude.reproduce import editing
from similitude.reproduce.editing import line, paint
from similitude.reproduce.record import Record
from similitude.reproduce.settings import changed


def seven(*strokes: torch.Tensor, slant: float = 6) -> torch.Tensor:
    """A bar, a stem that leans to the left, and more strokes: ``[28, 28]``."""
    image = torch.maximum(line(5, 8, 5, 19, 3), line(5, 19, 24, 19 - slant, 3))
    for stroke in strokes:
        image = torch.maximum(image, stroke)
    return image[0]


CROSSED = {
    "level": seven(line(14, 10, 14, 22, 2)),
    "slanting": seven(line(16, 10, 13, 23, 3)),
    "on an upright stem": seven(line(14, 12, 14, 26, 2), slant=0),
    "with a serif": seven(line(5, 8, 10, 8, 2), line(14, 11, 14, 22, 2)),
}
PLAIN = {
    "plain": seven(),
    "upright": seven(slant=0),
    "leaning": seven(slant=12),
    "with a serif": seven(line(5, 8, 12, 7, 2)),
    "half a stroke to the left": seven(line(14, 8, 14, 16, 2)),
    "half a stroke to the right": seven(line(14, 16, 14, 26, 2)),
    "with a foot": seven(line(24, 8, 24, 20, 2)),
    "with a speck": seven(line(14, 25, 14, 26, 2)),
    "empty": torch.zeros(28, 28),
}


def test_a_stroke_across_the_stem_is_found_and_other_ink_is_not():
    far = editing.protrusion(torch.stack([*CROSSED.values(), *PLAIN.values()]))
    found = dict(zip([*CROSSED, *(f"plain: {name}" for name in PLAIN)], far.tolist(), strict=True))
    assert all(found[name] >= editing.SURE for name in CROSSED), found
    assert all(found[f"plain: {name}"] < editing.DOUBTFUL for name in PLAIN), found


def test_only_sevens_are_asked_for_their_stroke():
    x = torch.stack([CROSSED["level"], CROSSED["level"], PLAIN["plain"]])[:, None]
    groups = editing.group_of(x, torch.tensor([7, 4, 7]))
    assert [editing.GROUPS[g] for g in groups] == ["stroke", "other", "other"]


def test_a_stroke_has_its_length_and_width_and_leaves_the_rest_alone():
    stroke = line(14, 6, 14, 21, 3)
    assert stroke.shape == (1, 28, 28)
    assert stroke[0, :, 14].tolist() == [0] * 13 + [1] * 3 + [0] * 12
    assert stroke[0, 14].nonzero()[[0, -1], 0].tolist() == [5, 22]
    image = torch.randn(1, 28, 28)
    painted = paint(image, stroke, 0.5)
    assert torch.equal(painted[stroke == 0], image[stroke == 0])
    assert torch.equal(painted[stroke == 1], image[stroke == 1].clamp(min=0.5))


def test_no_stroke_is_trained_on_and_none_is_both_chosen_and_tested_by():
    parts, _ = editing.load(editing.SMOKE)
    assert set(parts["train"][2].tolist()) == {2}
    assert set(parts["unused"][2].tolist()) == {0}
    assert all((parts[name][2] == 0).any() for name in ("validation", "test"))
    pictures = [tuple(x.flatten().tolist()) for name in parts for x in parts[name][0]]
    assert len(set(pictures)) == len(pictures)


def test_a_drawing_is_the_best_that_costs_no_more_than_allowed():
    config = replace(editing.SMOKE, made_up=300, validation=100, cost=2.0)
    parts, _ = editing.load(config)
    torch.manual_seed(0)
    network = VisualTverskyMNISTNet(4).eval()
    before = editing.shares(Edit(network), *parts["validation"])
    found = editing.choose(config, network, parts["validation"], lambda *_: None)
    assert list(found) == [*editing.EDITS, editing.CONTROL]
    first, second, third, control = found.values()
    assert torch.equal(control.prototype, network.prototypes[7])
    assert (first.features, len(second.features)) == ((), 1)
    assert third.scores >= first.scores
    for drawing in found.values():
        after = editing.shares(drawing.edit(network), *parts["validation"])
        assert drawing.scores == pytest.approx((after["stroke"], after["other"]))
        assert after["other"] >= before["other"] - 0.02
        assert after["stroke"] >= before["stroke"] or drawing is second


def test_nothing_is_drawn_where_everything_costs_too_much():
    parts, _ = editing.load(replace(editing.SMOKE, made_up=300, validation=100))
    # No setting may be so low, as all drawings cost less than nothing.
    config = SimpleNamespace(cost=-99.0, steps=1)
    found = editing.choose(config, VisualTverskyMNISTNet(4).eval(), parts["validation"], lambda *_: None)
    assert all((drawing.stroke, drawing.features) == ((), ()) for drawing in found.values())


def test_repair_is_the_share_of_errors_that_are_gone():
    found = editing.outcome({"stroke": 0.2, "other": 0.98}, {"stroke": 0.6, "other": 0.977})
    assert found == pytest.approx({"repaired": 0.5, "cost": 0.3})
    assert editing.outcome({"stroke": 1.0, "other": 1.0}, {"stroke": 1.0, "other": 1.0})["repaired"] is None


def test_a_run_says_what_came_of_each_edit(tmp_path):
    config = replace(editing.SMOKE, epochs=1, made_up=300, validation=100)
    record = Record(tmp_path, "editing", config, "cpu")
    whole = record.finish(editing.run(config, record, lambda *_, **__: None))
    table, form = editing.summary(whole)
    assert list(form.columns[0].cells) == ["ink", "stroke width", "typicality"]
    assert list(table.columns[0].cells) == ["none", *editing.EDITS, editing.CONTROL]
    result = whole["result"]
    assert sum(result["read_as"]["before"]) == result["digits"]["test"]["stroke"]
    right = result["read_as"]["after"][7] / result["digits"]["test"]["stroke"]
    assert right == pytest.approx(result["edits"]["prototype and crossed sevens"]["after"]["test"]["stroke"])
    assert (tmp_path / "images.npz").exists()


@pytest.mark.parametrize(
    ("setting", "words"), [("start=mean", "one of digits, noise; got 'mean'"), ("steps=0", "1 or more")]
)
def test_wrong_settings_get_one_sentence(setting, words):
    from similitude.reproduce.record import RunError

    with pytest.raises(RunError, match=words):
        changed(editing.SMOKE, [setting])
