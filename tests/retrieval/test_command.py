"""``similitude index`` and ``similitude search``: what they read, print and refuse."""

import re

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from similitude import TverskySimilarity, cli
from similitude.retrieval import TverskyIndex, sources

NAMES = ["paris", "lisbon", "tea", "coffee", "one", "two", "dog", "cat"]


def run(*arguments):
    return CliRunner().invoke(cli.make_app(), [*map(str, arguments)])


@pytest.fixture
def vectors():
    """Pairs of alike vectors, one pair to each name and the next."""
    torch.manual_seed(1)
    pairs = torch.randn(4, 6).repeat_interleave(2, 0)
    return pairs + 0.1 * torch.randn(8, 6)


@pytest.fixture
def words(vectors, tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("".join(f"{n} {' '.join(f'{v:.5f}' for v in row)}\n" for n, row in zip(NAMES, vectors.tolist())))
    return path


@pytest.mark.parametrize("codes", ["full", "sparse"])
def test_word_vectors_are_indexed_and_searched(words, codes, tmp_path):
    options = ("--features", 6, "--presence", 0.4, "--codes", codes)
    done = run("index", words, "--out", tmp_path / "index", *options)
    assert done.exit_code == 0, done.output
    assert "index of 8 documents, 6 features" in done.output
    found = run("search", tmp_path / "index", "tea", "--top", 3, "--explain")
    assert found.exit_code == 0, found.output
    assert re.findall(r"^ +[0-9]  [+-][0-9.]+  (\w+)$", found.output, re.MULTILINE)[0] == "coffee"
    assert re.search(r"shares +\+[0-9.]+  feature [0-9] \(.*coffee.*\)", found.output)
    # The parts of a hit add up to its value, in both directions.
    for given in ((), ("--reverse", "--alpha", 2)):
        shown = run("search", tmp_path / "index", "tea", "--top", 7, "--explain", *given).output
        hits = re.split(r"^ +[0-9]  ", shown, flags=re.MULTILINE)[1:]
        assert len(hits) == 7
        assert all(any(label in hit for hit in hits) for label in ("shares", "lacks", "has besides"))
        for hit in hits:
            value = float(hit.split()[0])
            parts = [float(n) for n in re.findall(r"^ +(?:shares|lacks|has besides) +([+-][0-9.]+)", hit, re.MULTILINE)]
            assert sum(parts) == pytest.approx(value, abs=2e-4)


def test_vectors_in_a_safetensors_file_have_numbers_or_names(vectors, tmp_path):
    save_file({"embeddings": vectors, "step": torch.tensor(3)}, tmp_path / "v.safetensors")
    small = ("--features", 6, "--presence", 0.4)
    assert run("index", tmp_path / "v.safetensors", "--out", tmp_path / "numbers", *small).exit_code == 0
    assert run("search", tmp_path / "numbers", 2, "--top", 1).output.split()[-1] == "3"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "names.txt").write_text("\n".join(NAMES))
    save_file({"wte.weight": vectors}, tmp_path / "w.safetensors")
    named = ("--names", tmp_path / "elsewhere" / "names.txt", *small)
    assert run("index", tmp_path / "w.safetensors", "--out", tmp_path / "names", *named).exit_code == 0
    assert run("search", tmp_path / "names", "tea", "--top", 1).output.split()[-1] == "coffee"


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (NAMES[:5], "names.txt has 5 names for 8 vectors; one a line is expected"),
        (NAMES[:1], "names.txt has 1 name for 8 vectors"),
        ([*NAMES, "ten"], "names.txt has 9 names for 8 vectors"),
        ([*NAMES[:7], "tea"], "names.txt has 'tea' on line 3 and on line 8; each vector needs its own name"),
    ],
)
@pytest.mark.parametrize("beside", [True, False])
def test_each_vector_has_one_name_of_its_own(vectors, names, sentence, beside, tmp_path):
    path = tmp_path / ("" if beside else "elsewhere") / "names.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(names))
    save_file({"wte.weight": vectors}, tmp_path / "w.safetensors")
    done = run("index", tmp_path / "w.safetensors", "--out", tmp_path / "i", *([] if beside else ["--names", path]))
    assert done.exit_code == 1
    assert sentence in done.output
    assert not (tmp_path / "i").exists()


def test_an_index_takes_no_place_of_another_program(words, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "read", lambda *_: pytest.fail("it was read"))
    run_of = tmp_path / "run"
    run_of.mkdir()
    (run_of / "model.safetensors").write_text("a run's")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "index.json").write_text("[]")
    for out, sentence in [
        (run_of, f"cannot write to {run_of}: another program wrote its model.safetensors; give another --out."),
        (tmp_path / "odd", "another program wrote its index.json"),
        (words, f"cannot write to {words}: it is a file."),
        (words / "in", f"cannot write to {words / 'in'}: {words} is a file."),
    ]:
        done = run("index", words, "--out", out)
        assert done.exit_code == 1
        assert sentence in done.output
    assert [path.name for path in run_of.iterdir()] == ["model.safetensors"]


def test_an_index_takes_the_place_of_one_and_of_one_that_was_stopped(words, tmp_path):
    small = ("--features", 6, "--presence", 0.4)
    (tmp_path / "i").mkdir()
    for left in ((".lock", ".index-12345678.safetensors.77.half"), ("notes.txt",)):
        for name in left:
            (tmp_path / "i" / name).touch()
        done = run("index", words, "--out", tmp_path / "i", *small)
        assert done.exit_code == 0, done.output


def test_a_checkpoint_brings_its_bank(vectors, tmp_path):
    bank = torch.randn(5, 6)
    save_file({"wte.weight": vectors, "features.weight": bank}, tmp_path / "model.safetensors")
    (tmp_path / "vocab.txt").write_text("\n".join(NAMES))
    assert run("index", tmp_path, "--out", tmp_path / "index").exit_code == 0
    loaded = TverskyIndex.load(tmp_path / "index").layer
    assert torch.equal(loaded.features.weight, bank)
    assert not loaded.normalize


def test_texts_are_encoded_and_so_is_a_query(vectors, monkeypatch, tmp_path):
    known = dict(zip(NAMES, vectors, strict=True)) | {"a cup": vectors[2] + 0.01}
    asked = []

    def encoder(model):
        asked.append(model)
        return lambda texts, progress=None: torch.stack([known[text] for text in texts])

    monkeypatch.setattr(sources, "encoder", encoder)
    (tmp_path / "texts.txt").write_text("\n".join([*NAMES, "", "tea"]))  # a line that is there twice counts once
    given = ("--model", "some-model", "--out", tmp_path / "index", "--features", 6, "--presence", 0.4)
    done = run("index", tmp_path / "texts.txt", *given)
    assert done.exit_code == 0, done.output
    found = run("search", tmp_path / "index", "a cup", "--top", 2, "--explain")
    assert set(re.findall(r"^ +[0-9]  [+-][0-9.]+  (\w+)$", found.output, re.MULTILINE)) == {"tea", "coffee"}
    assert asked == ["some-model", "some-model"]


def test_names_of_features_are_shown(tmp_path):
    layer = TverskySimilarity(3, 3, alpha=0.5, beta=0.5, theta=1.0)
    with torch.no_grad():
        layer.features.weight.copy_(torch.eye(3))
    layer.features.name("a \x1b[1m hole", None, None, feature=1)
    index = TverskyIndex(layer)
    index.add(torch.tensor([[1.0, 2, 0], [0, 3, 1]]), ["b", "d"])
    index.save(tmp_path)
    shown = run("search", tmp_path, "b", "--explain").output
    assert r"a \x1b[1m hole +6.000" in shown
    assert "feature 0 (b) -0.500" in shown


def test_what_cannot_be_read_is_one_sentence(words, tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "flat.safetensors").parent.mkdir(exist_ok=True)
    save_file({"embeddings": torch.zeros(3)}, tmp_path / "flat.safetensors")
    out = ("--out", tmp_path / "index")
    for given, sentence in [
        (("nowhere", *out), "no words at nowhere"),
        ((tmp_path / "flat.safetensors", *out), r"must be floating vectors \[N, D\], .* it is float32 \[3\]"),
        ((tmp_path / "empty.txt", "--model", "m", *out), "is empty; expected a document on each line"),
        ((words, *out, "--features", 9), "--features must be up to 8, the number of documents; got 9"),
        ((words, *out, "--codes", "int9"), "--codes must be one of .* Did you mean 'int8'"),
        ((words, *out, "--presence", 1.5), "--presence must be between 0 and 1, such as 0.1; got 1.5"),
    ]:
        done = run("index", *given)
        assert done.exit_code in (1, 2), given
        assert re.search(sentence, done.output), done.output
        assert "Traceback" not in done.output
        assert not (tmp_path / "index").exists()
    told = run("search", tmp_path / "index", "tea").output
    assert f"no index in {tmp_path / 'index'}" in told
    assert told.endswith(f"or: similitude index SOURCE --out {tmp_path / 'index'}\n")
    told = run("search", words, "tea").output
    command = f"similitude index {words} --out FOLDER"
    assert told == f"{words} is a file, and an index is a folder; make one with: {command}\n"
    run("index", words, *out, "--features", 6, "--presence", 0.4)
    assert (
        "no document is named 'milk'; those in the index are paris" in run("search", tmp_path / "index", "milk").output
    )
    assert run("search", tmp_path / "index", "Cofee").output == "no document is named 'Cofee'; nearest names: coffee\n"
    # An index by a form that no sum over features explains still has hits.
    layer = TverskySimilarity(6, 5, level="set", intersection="min")
    index = TverskyIndex(layer)
    index.add(torch.randn(4, 6), range(4))
    index.save(tmp_path / "set")
    assert run("search", tmp_path / "set", 2).exit_code == 0
    assert "only level='feature'" in run("search", tmp_path / "set", 2, "--explain").output
