"""What people said: each kind of judgement becomes cells that mean what was given, or one sentence says why not."""

import numpy as np
import pytest

from similitude.human import confusions, directed, rankings, ratings, similarities, triplets

pd = pytest.importorskip("pandas")

TABLE = np.array([[0.9, 0.2, 0.1], [0.3, 0.8, np.nan], [0.1, 0.4, 0.7]])


def test_confusions_keep_shares_and_leave_out_what_was_not_asked():
    said = confusions(TABLE, n=20, objects=list("abc"))
    assert len(said) == 8
    assert said.counted
    assert not said.symmetric
    np.testing.assert_array_equal(said.table(), TABLE)
    assert set(said.answers) == {20}


def test_numbers_of_answers_become_shares():
    counts = np.array([[18, 4, 2], [6, 16, 5], [2, 8, 14]])
    np.testing.assert_allclose(confusions(counts, n=20).table(), counts / 20)
    n = np.array([[20, 10, 10], [10, 20, 0], [10, 10, 20]])
    said = confusions(np.minimum(counts, n), n=n)
    assert len(said) == 8
    assert said.value[1] == 0.4


def test_identification_is_a_choice_in_each_row():
    counts = np.array([[18, 4, 2], [6, 16, 5], [0, 0, 0]])
    said = confusions(counts, task="identification")
    assert said.kind == "choice"
    assert sorted(set(said.question)) == [0, 1]
    assert said.answers[0] == 24
    assert said.value[0] == 18


def test_frames_bring_their_names():
    frame = pd.DataFrame(TABLE, index=list("xyz"), columns=list("xyz"))
    assert confusions(frame).objects == ("x", "y", "z")
    with pytest.raises(ValueError, match="rows and columns differ"):
        confusions(frame.rename(columns={"x": "w"}))


def test_a_symmetric_table_counts_each_pair_once():
    table = (TABLE[:3, :3] + np.nan_to_num(TABLE).T) / 2
    table = np.nan_to_num(table)
    table = (table + table.T) / 2
    said = similarities(table)
    assert said.symmetric
    assert len(said) == 3
    assert (said.first < said.second).all()
    uneven = np.arange(9.0).reshape(3, 3)
    assert len(similarities(uneven)) == 6
    assert not similarities(uneven).symmetric


def test_ratings_know_pairs_and_raters():
    said = ratings(["cat", "cat", "dog"], ["dog", "cow", "cow"], [5, 3, float("nan")], rater=["p", "q", "p"])
    assert said.objects == ("cat", "cow", "dog")
    assert len(said) == 2
    assert said.rater is not None
    assert said.rater.tolist() == [0, 1]


def test_associations_are_choices_among_all_others():
    said = directed(["a", "a", "b"], ["b", "c", "c"], [3, 1, 2])
    assert len(said) == 4
    assert sorted(said.value.tolist()) == [0, 1, 2, 3]
    assert said.answers[said.question == 0].tolist() == [4, 4]


def test_triplets_are_choices_among_three_pairs():
    said = triplets([0, 1], [1, 2], [2, 3])
    assert said.symmetric
    assert len(said) == 6
    first = said.only(said.question == 0)
    assert list(zip(first.first, first.second, first.value, strict=True)) == [(0, 1, 1), (0, 2, 0), (1, 2, 0)]


def test_rankings_are_choices_of_the_rest():
    said = rankings(["a"], [["b", "c", "d"]])
    chosen = said.only(said.value == 1)
    assert [said.objects[i] for i in chosen.second] == ["b", "c"]
    assert len(said) == 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: confusions(np.ones((3, 2))), r"shape \(3, 2\) is not square"),
        (lambda: confusions(np.ones((2, 2))), "2 objects are too few"),
        (lambda: confusions(TABLE * 5), "numbers of answers need n="),
        (lambda: confusions(TABLE * 50, n=20), "more answers than were asked"),
        (lambda: confusions(-TABLE), "0 or more"),
        (lambda: confusions(np.full((3, 3), np.nan)), "nobody said anything"),
        (lambda: confusions(TABLE, n=-1), "n must be 0 or more"),
        (lambda: confusions(TABLE, n=1e12), "more than people give"),
        (lambda: confusions(TABLE, n=[1, 2]), "neither one number"),
        (lambda: confusions(TABLE, task="naming"), "neither same-different nor identification"),
        (lambda: confusions([["a"]]), "must be numbers"),
        (lambda: confusions(TABLE, objects=["a", "a", "b"]), "given to several objects"),
        (lambda: confusions(TABLE, objects=["a", "b"]), "2 names are given for 3"),
        (lambda: similarities(np.where(np.eye(3), 1, np.inf)), "infinite"),
        (lambda: ratings([1, 2], [2], [3, 4]), "columns of one length"),
        (lambda: ratings(["a"], ["b"], ["much"]), "ratings must be numbers"),
        (lambda: ratings(["a", "c"], ["b", "a"], [1, 2], objects=["a", "b"]), "'c' is not among the 2 objects"),
        (lambda: triplets(["a"], ["a"], ["b"]), "'a' twice"),
        (lambda: rankings(["a", "b"], [["b"]]), "2 queries have 1 rankings"),
    ],
)
def test_what_cannot_be_understood_is_one_sentence(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
