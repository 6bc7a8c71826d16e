"""Data in batches, however users have it, and tables of text."""

import pytest
import torch

from similitude._text import columns
from similitude.batches import batches, inputs_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("rows", [1, 3, 7, 100, None])
def test_parts_of_a_tensor_are_the_tensor(rows):
    x = torch.randn(7, 2)
    parts = list(batches(x, rows))
    assert torch.equal(torch.cat(parts), x)
    assert max(map(len, parts)) <= (rows or 7)


def test_a_loader_yields_its_batches_and_a_mapping_is_one():
    x, y = torch.randn(4, 2), torch.arange(4)
    loader = [(x[:2], y[:2]), (x[2:], y[2:])]
    assert torch.equal(torch.cat([inputs_of(batch, CPU) for batch in batches(iter(loader))]), x)
    (one,) = batches({"x": x, "scale": 2.0})
    assert inputs_of(one, torch.device("meta"))["x"].is_meta
    assert inputs_of(one, CPU)["scale"] == 2.0
    assert list(batches([])) == []


@pytest.mark.parametrize("wrong", [3, None, torch.randn(3).numpy()])
def test_what_is_no_data_is_told_by_its_name(wrong):
    with pytest.raises(TypeError, match=r"^objects must be a tensor, a mapping or a loader of batches; got"):
        list(batches(wrong, name="objects"))


def test_columns_are_aligned_and_lines_end_at_their_last_cell():
    rows = [["name", "n", "share"], ["a", 1, "+0.5"], ["longer name", 1000], ["b", "", "-1"]]
    assert columns(rows).splitlines() == [
        "name            n  share",
        "a               1   +0.5",
        "longer name  1000",
        "b                     -1",
    ]
    assert columns([["a", "b"], ["cc", "dd"]], left=2, gap=1) == "a  b\ncc dd"
    assert columns([]) == ""
