"""Which word is a kind of which: where words are from, how they are split, and how answers are ranked."""

from dataclasses import replace

import pytest
import torch

from similitude.reproduce import direction
from similitude.reproduce.data import made_up, wordnet
from similitude.reproduce.data.find import DataError
from similitude.reproduce.direction_models import MODELS, WITHOUT_SIDES, Scorer, make
from similitude.reproduce.record import Record, RunError

LICENCE = "  1 This software and database is being provided to you\n"
# dog 1 (or a villain, 9) < mammal 2 < animal 3, with its synonym beast; paw 4 is a part of dog; Paris is an instance.
INDEX = """animal n 1 1 ~ 1 1 00000003
beast n 1 2 @ ~ 1 0 00000003
dog n 2 2 @ %p 2 1 00000001 00000009
hot_dog n 1 1 @ 1 0 00000005
mammal n 1 2 @ ~ 1 1 00000002
paris n 1 1 @i 1 1 00000006
paw n 1 1 #p 1 1 00000004
"""
DATA = """00000001 05 n 01 dog 0 002 @ 00000002 n 0000 %p 00000004 n 0000 | barks
00000002 05 n 01 mammal 0 001 @ 00000003 n 0000 | has hair
00000003 05 n 02 animal 0 beast 0 000 | moves
00000004 05 n 01 paw 0 001 #p 00000001 n 0000 | a foot
00000005 05 n 01 hot_dog 0 001 @ 00000003 n 0000 | two words
00000006 05 n 01 Paris 0 001 @i 00000003 n 0000 | a city
00000009 05 n 01 dog 1 001 @ 00000003 n 0000 | a villain
"""


def quiet(*_, **__):
    pass


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("SIMILITUDE_DATA", raising=False)
    (tmp_path / "index.noun").write_text(LICENCE + INDEX)
    (tmp_path / "data.noun").write_text(LICENCE + DATA)
    names = ["dog", "animal", "paw", "beast", "mammal", "paris"]
    (tmp_path / "vectors.txt").write_text("".join(f"{name} {i} 1 0\n" for i, name in enumerate(names)))
    return tmp_path


def spelled(found):
    return sorted((found.words[a], found.words[b]) for a, b in found.pairs.tolist())


def test_a_word_has_its_first_meaning_and_a_meaning_its_most_frequent_word(folder):
    source = str(folder / "vectors.txt")
    found = wordnet.related("kind", str(folder), source)
    assert spelled(found) == [("dog", "animal"), ("dog", "mammal"), ("mammal", "animal")]
    assert found.words == ["dog", "animal", "mammal"]
    assert found.x[:, 0].tolist() == [0, 1, 4]
    assert spelled(wordnet.related("kind", str(folder), source, levels=1)) == [("dog", "mammal"), ("mammal", "animal")]
    assert spelled(wordnet.related("part", str(folder), source)) == [("paw", "dog")]
    assert spelled(wordnet.related("kind", str(folder), source, most=2)) == [("dog", "animal")]


def test_data_that_is_missing_or_damaged_is_one_sentence(folder):
    source = str(folder / "vectors.txt")
    with pytest.raises(DataError, match=r"wordnet was not found: get index\.noun, data\.noun from .*wordnet-base"):
        wordnet.related("kind", vectors=source)
    with pytest.raises(DataError, match=r"nowhere\.txt"):
        wordnet.related("kind", str(folder), str(folder / "nowhere.txt"))
    (folder / "other.txt").write_text("chien 1 0\nanimaux 0 1\n")
    with pytest.raises(DataError, match=r"no two words of .* are related"):
        wordnet.related("kind", str(folder), str(folder / "other.txt"))
    (folder / "data.noun").write_text(LICENCE + DATA + "00000007 05 n x\n")
    with pytest.raises(DataError, match=r"data\.noun is not a file of WordNet 3: line 9 cannot be read"):
        wordnet.related("kind", str(folder), source)


def test_no_word_of_a_test_pair_was_trained_on_or_selected_by():
    data = made_up.synthetic_taxonomy(300)
    train, held, both, test = direction.parts(data, split=0)
    rows = [set(part.rows.tolist()) for part in (train, held, test)]
    assert not rows[0] & rows[1]
    assert not (rows[0] | rows[1]) & rows[2]
    assert rows[0] | rows[1] == set(both.rows.tolist())
    assert sum(map(len, rows)) == 300
    known = {tuple(pair) for pair in data.pairs.tolist()}
    for part in (train, held, both, test):
        pairs = {tuple(part.rows[pair].tolist()) for pair in part.pairs}
        own = set(part.rows.tolist())
        assert pairs == {(a, b) for a, b in known if a in own and b in own}
    assert not torch.equal(train.rows, direction.parts(data, split=1)[0].rows)
    with pytest.raises(RunError, match="too few"):
        direction.parts(replace(data, pairs=data.pairs[:1]), split=0)


class Table(torch.nn.Module):
    """Scores that are given: rows of x are places in the table."""

    def __init__(self, S):
        super().__init__()
        self.S = S

    def forward(self, a, b=None):
        return self.S[a[:, 0].long()][:, (a if b is None else b)[:, 0].long()]


def part_of(pairs, N):
    return direction.Part(torch.arange(N)[:, None].float(), torch.tensor(pairs), torch.arange(N))


def test_an_answer_is_ranked_among_wrong_ones_alone():
    # Word 0 is a kind of 1 and 2: its scores put itself first, then 1, then the wrong 3, then 2 level with the wrong 4.
    S = torch.tensor([[9.0, 5, 1, 4, 1], [6, 0, 0, 0, 0], [1, 0, 0, 0, 0], [7, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    found = direction.score(Table(S), part_of([(0, 1), (0, 2)], 5), groups=True)
    assert found["up"] == pytest.approx((1 + 1 / 2.5) / 2)
    # Downwards 1 and 2 are asked for 0, whose scores of 5 and 1 no other word has.
    assert found["down"] == 1
    # 5 < 6 is the wrong way round, and 1 = 1 counts half.
    assert found["direction"] == 0.25
    assert found["groups"]["up"] == [found["up"]]
    assert found["groups"]["down"] == [1, 1]


def test_the_loss_is_cross_entropy_against_all_wrong_words_of_the_batch():
    torch.manual_seed(0)
    S, part = torch.randn(6, 6), part_of([(0, 1), (1, 2), (0, 2), (4, 5)], 6)
    batch = torch.tensor([(0, 1), (1, 2)])
    wrong = {0: [], 1: [0]}, {1: [2], 2: []}  # up and down, without the word itself and the true pair (0, 2)
    expected = 0.0
    for a, b in batch.tolist():
        for scores in (S[a, wrong[0][a]], S[wrong[1][b], b]):
            expected -= torch.cat([S[a, b][None], scores]).log_softmax(0)[0] / 2
    assert direction.contrast(Table(S), part, batch) == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_scores_parts_as_the_whole_and_the_symmetric_ones_know_no_direction(name):
    torch.manual_seed(0)
    x = torch.randn(30, 6)
    for sides in (False, True)[: 1 if name in WITHOUT_SIDES else 2]:
        model = make(name, sides, 6, 16, x, unit=True).eval()
        for p in model.parameters():
            p.data += 0.1 * torch.randn_like(p)
        S = model(x)
        torch.testing.assert_close(model(x[:9], x[9:]), S[:9, 9:])
        level = torch.allclose(S, S.mT, atol=1e-4)
        assert level == (not sides and name in ("cosine", "cosine-map", "symmetric"))


def test_dropout_is_the_same_for_a_word_on_both_sides_and_none_after_training():
    model = Scorer(make("bilinear", False, 6, 16, torch.randn(9, 6)).base, None, dropout=0.5)
    x = torch.randn(9, 6)
    S = model.train()(x)
    torch.testing.assert_close(S, S.mT)
    assert not torch.allclose(S, model.eval()(x))
    torch.testing.assert_close(model(x), model(x, x))


def config(**settings):
    return replace(direction.SMOKE, steps=80, **settings)


def test_a_taxonomy_is_learned_with_its_direction_and_nothing_is_learned_at_no_rate():
    _, _, both, test = direction.parts(made_up.synthetic_taxonomy(240), split=0)
    for model in ("ratio", "subtractmatch"):
        found = []
        for rate in (0.0, 1e-2):
            choice = direction.Choice(rate, slow=False, unit=False, regular=False)
            found.append(direction.score(direction.trained(config(model=model), choice, both, 0)[0], test))
        torch.manual_seed(0)
        assert found[0] == direction.score(direction.blank(config(model=model), both.x, choice).eval(), test)
        assert found[1]["up"] > found[0]["up"] + 0.08
        assert found[1]["direction"] > max(0.75, found[0]["direction"])


def test_a_run_selects_on_validation_words_and_tests_the_selected_settings(tmp_path, monkeypatch):
    settings = replace(config(model="ignorematch", sides=False), steps=5, rates=(1e-9, 1e-2), num_features=8)
    calls, trained = [], direction.trained

    def watched(config, choice, part, seed):
        calls.append((choice, len(part.x), seed))
        return trained(config, choice, part, seed)

    monkeypatch.setattr(direction, "trained", watched)
    record = Record(tmp_path / "run", "direction", settings, "cpu")
    result = record.finish(direction.run(settings, record, quiet))["result"]
    grid = direction.choices(settings)
    words = result["words"]
    assert [choice for choice, _, _ in calls[:8]] == grid
    assert {n for _, n, _ in calls[:8]} == {words["train"]}
    best = max(result["tuning"], key=lambda t: t[4] + t[6])
    assert calls[8:] == [(direction.Choice(*best[:4]), words["train"] + words["validation"], seed) for seed in (0, 1)]
    assert result["validation"] == pytest.approx((best[4] + best[6]) / 2, abs=1e-4)
    answer = result["answers"][0]
    assert answer["score"] == pytest.approx(sum(answer["sums"].values()), abs=1e-4)


def test_any_two_settings_meet_in_the_half_that_is_tried():
    grid = direction.choices(direction.Config())
    assert len(grid) == 8
    for i in range(4):
        for j in range(i):
            assert len({(choice[i], choice[j]) for choice in grid}) == 4


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": "cosin"}, "model must be one of cosine, cosine-map, .*; got 'cosin'"),
        ({"model": "mlp"}, "model=mlp takes no sides; give sides=false"),
        ({"rates": ()}, "rates must be a list of numbers more than 0"),
    ],
)
def test_wrong_settings_are_one_sentence(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        direction.Config(**settings)
