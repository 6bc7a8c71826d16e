"""CSV files: each kind is read as what it means, and a broken file is one sentence that says where it is broken."""

import numpy as np
import pytest

from similitude.human import confusions, morse, read_csv
from similitude.human.sheets import SheetError, read_features

SQUARE = "said,x,y,z\nx,0.9,0.2,0.1\ny,0.3,0.8,\nz,0.1,0.4,0.7\n"


def written(tmp_path, text, name="said.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_square_table_keeps_names_shares_and_empty_cells(tmp_path):
    said = read_csv(written(tmp_path, SQUARE), "confusions", 20)
    table = np.array([[0.9, 0.2, 0.1], [0.3, 0.8, np.nan], [0.1, 0.4, 0.7]])
    np.testing.assert_array_equal(said.table(), table)
    assert said.objects == ("x", "y", "z")
    assert set(said.answers) == {20}


@pytest.mark.parametrize("change", [("\n", "\r\n"), (",", "\t"), ("0.2", " 0.2 ")])
def test_a_table_is_the_same_however_it_was_exported(tmp_path, change):
    plain = read_csv(written(tmp_path, SQUARE), "similarities")
    other = read_csv(written(tmp_path, SQUARE.replace(*change)), "similarities")
    np.testing.assert_array_equal(other.table(), plain.table())
    assert other.objects == plain.objects


def test_semicolons_go_with_decimal_commas(tmp_path):
    text = SQUARE.replace(",", ";").replace(".", ",")
    np.testing.assert_array_equal(
        read_csv(written(tmp_path, text), "confusions").table(),
        read_csv(written(tmp_path, SQUARE, "b.csv"), "confusions").table(),
    )


def test_identification_is_answered_row_by_row(tmp_path):
    said = read_csv(written(tmp_path, "s,x,y,z\nx,8,1,1\ny,2,7,1\nz,0,3,7\n"), "identification")
    assert said.kind == "choice"
    np.testing.assert_array_equal(said.answers, np.repeat([10.0], 9))


def test_lists_are_read_by_the_names_of_their_columns(tmp_path):
    said = read_csv(written(tmp_path, "\ufeffvalue,second,first,rater\n3,b,a,ann\n4,c,a,bob\n,c,b,bob\n"), "ratings")
    assert [said.objects[i] for i in said.first] == ["a", "a"]
    assert [said.objects[i] for i in said.second] == ["b", "c"]
    assert list(said.value) == [3, 4]
    assert list(said.rater) == [0, 1]
    said = read_csv(written(tmp_path, "cue,target,count\ncat,dog,5\ndog,cat,2\nfox,dog,1\n"), "directed")
    assert said.table()[said.objects.index("cat"), said.objects.index("dog")] == 5
    said = read_csv(written(tmp_path, "first,second,odd\ncat,dog,car\ncar,bus,cat\n"), "triplets")
    chosen = said.value == 1
    assert [(said.objects[a], said.objects[b]) for a, b in zip(said.first[chosen], said.second[chosen])] == [
        ("cat", "dog"),
        ("car", "bus"),
    ]


@pytest.mark.parametrize(
    ("kind", "text", "sentence"),
    [
        ("confusions", SQUARE.replace("0.4", "often"), "row 'z', column 'y': 'often' is no number"),
        ("confusions", SQUARE.replace("\nz,", "\nw,"), "row 3 is 'w' and column 3 is 'z'"),
        ("confusions", SQUARE.replace("z,0.1,0.4,0.7\n", ""), "2 rows and 3 columns"),
        ("confusions", SQUARE.replace("0.4,0.7", "0.4"), r"row 3 \('z'\) has 3 cells, and the first line 4"),
        ("confusions", SQUARE.replace("y", "x"), "the row 'x' stands there twice"),
        ("confusions", SQUARE.replace("0.2", "1.2"), "said.csv: .* numbers of answers need n="),
        ("confusions", SQUARE.replace("0.2", "-1"), "must be 0 or more; -1 is given"),
        ("confusions", "", "has 0 lines"),
        ("similarities", "said,x,y\nx,1,2\ny,2,1\n", "2 objects are too few"),
        ("confusion", SQUARE, "none of confusions, .*; 'confusions' is near"),
        (
            "ratings",
            "first,second,score\na,b,1\n",
            "has the columns first, second, score; ratings need first, second, val",
        ),
        ("ratings", "first,second,value,age\na,b,1,2\n", "ratings have no column 'age'"),
        ("ratings", "first,second,value\na,b,1\na,,1\n", "line 3: second is empty"),
        ("ratings", "first,second,value\na,b,high\n", "line 2, column 'value': 'high' is no number"),
        ("triplets", "first,second,odd\na,b,a\nc,d,e\n", "has 'a' twice"),
        ("directed", "cue,target,count\na,b,-2\nb,c,1\n", "counts must be 0 or more"),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path, kind, text, sentence):
    with pytest.raises(SheetError, match=sentence) as raised:
        read_csv(written(tmp_path, text), kind)
    assert "\n" not in str(raised.value)


def test_n_is_for_counted_tables_and_bytes_are_no_text(tmp_path):
    with pytest.raises(SheetError, match="ratings have none"):
        read_csv(written(tmp_path, "first,second,value\na,b,1\n"), "ratings", 3)
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SheetError, match="not UTF-8"):
        read_csv(path, "ratings")


def test_features_follow_the_order_of_the_objects(tmp_path):
    path = written(tmp_path, "object,flies,barks\nowl,3,0\ndog,,4\ncat,0,0\n")
    table, names = read_features(path, ("dog", "owl"))
    np.testing.assert_array_equal(table, [[0, 4], [3, 0]])
    assert names == ["flies", "barks"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("object,flies\nowl,1\n", "no row for 'dog', which was judged"),
        ("object,flies\nowl,1\nDog,1\n", "no row for 'dog', which was judged; 'Dog' is near"),
        ("object,flies\nowl,1\ndog,-1\n", "numbers of 0 or more for each feature; -1 is given"),
        ("object\nowl\ndog\n", "none is given"),
        ("object,flies,flies\nowl,1,1\ndog,1,1\n", "the feature 'flies' stands there twice"),
        ("object,flies\nowl,1\nowl,1\ndog,1\n", "the object 'owl' stands there twice"),
    ],
)
def test_broken_features_are_one_sentence(tmp_path, text, sentence):
    with pytest.raises(SheetError, match=sentence):
        read_features(written(tmp_path, text), ("owl", "dog"))


def test_morse_is_the_published_table():
    said = morse()
    assert len(said.objects) == 36
    assert said.table()[0, 0] == 0.92
    assert said.table()[0, 1] == 0.04
    assert said.table()[1, 0] == 0.05
    assert repr(said) == repr(confusions(said.table(), n=150, objects=said.objects))
