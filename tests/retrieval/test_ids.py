"""Ids of documents: whole numbers or texts, each there once."""

import numpy as np
import pytest
import torch

from similitude.retrieval.ids import Ids


@pytest.mark.parametrize(
    "given",
    [
        [5, -3, 0, 2**63 - 1],
        ["b", "", "ä\n", "a\x00", "\ud800"],
        np.array([4, 2]),
        torch.tensor([4, 2]),
        np.array(["x", "yy"]),
    ],
    ids=["numbers", "texts", "array", "tensor", "array of texts"],
)
def test_ids_are_found_where_they_are(given):
    ids = Ids.of(given, len(given))
    wanted = given.tolist() if not isinstance(given, list) else given
    assert [ids[i] for i in range(len(ids))] == wanted
    assert [ids.row_of(i) for i in wanted] == list(range(len(wanted)))
    other = [999, 2**64, -(2**70)] if isinstance(wanted[0], int) else ["z", "B"]
    assert [ids.row_of(i) for i in [*other, None, 1.0, True, b"b"]] == [None] * (len(other) + 4)
    keep = np.arange(len(ids)) != 1
    left = ids.kept(keep)
    assert [left[i] for i in range(len(left))] == [i for i, k in zip(wanted, keep) if k]
    assert left.row_of(wanted[1]) is None
    both = left.and_of(Ids.of(wanted[1:2], 1))
    assert both[len(both) - 1] == wanted[1]


def test_keys_that_are_alike_are_told_apart(monkeypatch):
    monkeypatch.setattr("similitude.retrieval.ids._key", lambda text: 7)
    ids = Ids.of(["a", "b", "c"], 3)
    assert [ids.row_of(i) for i in ("c", "a", "b", "d")] == [2, 0, 1, None]
    with pytest.raises(ValueError, match="ids must be unique; 'a' is there twice"):
        Ids.of(["a", "b", "a"], 3)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([1, "a"], "whole numbers or texts, and all of one kind; got both"),
        ([1.5, 2], "got 1.5"),
        ([True, False], "got True"),
        ([1, 2, 3], "ids must be 2, one for each vector; got 3"),
        ([2**63, 1], "must fit in 64 bits"),
        (["a", "a"], "'a' is there twice"),
    ],
)
def test_wrong_ids_are_one_sentence(given, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        Ids.of(given, 2)


def test_ids_of_two_kinds_do_not_mix():
    with pytest.raises(TypeError, match="ids must be texts, as those in the index are; got 3"):
        Ids.of(["a"], 1).and_of(Ids.of([3], 1))
