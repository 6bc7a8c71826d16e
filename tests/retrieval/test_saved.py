"""An index in a folder: the same after it is loaded, and one sentence for whatever else is there."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from similitude import TverskyProjection, TverskySimilarity
from similitude.retrieval import NoIndex, TverskyIndex
from similitude.retrieval.index import CODES


def made(codes="full", ids=None, **options) -> TverskyIndex:
    torch.manual_seed(0)
    layer = TverskySimilarity(5, 20, **(dict(alpha=0.6, beta=0.3, theta=1.7, presence=0.3) | options))
    index = TverskyIndex(layer, codes)
    index.add(torch.randn(60, 5), range(60) if ids is None else ids)
    return index


def files(folder) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != ".lock"}


@pytest.mark.parametrize("ids", [None, [f"wörd {n}" for n in range(60)]], ids=["numbers", "texts"])
@pytest.mark.parametrize("codes", CODES)
@torch.no_grad()
def test_a_loaded_index_finds_the_same(codes, ids, tmp_path):
    index, q = made(codes, ids), torch.randn(4, 5)
    index.layer.features.name("a name", None, None, feature=3)
    index.save(tmp_path / "new" / "folder")
    for layer in (None, index.layer):
        loaded = TverskyIndex.load(tmp_path / "new" / "folder", layer)
        for reverse in (False, True):
            hits, again = (i.search(q, 7, reverse=reverse, beta=0.9) for i in (index, loaded))
            assert torch.equal(hits.values, again.values)
            assert hits.ids == again.ids
        assert str(loaded.explain(q[0], hits.ids[0][0])) == str(index.explain(q[0], hits.ids[0][0]))
        assert loaded.layer.features.names == {3: "a name"}
        loaded.add(torch.randn(2, 5), [100, 101] if ids is None else ["a", "b"])
        loaded.remove(hits.ids[0][:3])
        assert len(loaded) == 59
        assert not set(hits.ids[0][:3]) & set(loaded.search(q[0], 59).ids)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@torch.no_grad()
def test_banks_of_any_dtype_are_saved(dtype, tmp_path):
    layer = TverskySimilarity(5, 20, alpha=0.6, beta=0.3, theta=1.7, dtype=dtype, normalize=True)
    index, q = TverskyIndex(layer), torch.randn(5).to(dtype)
    index.add(torch.randn(30, 5).to(dtype), range(30))
    index.save(tmp_path)
    loaded = TverskyIndex.load(tmp_path)
    assert TverskyIndex.load(tmp_path, layer).layer is layer
    assert torch.equal(loaded.search(q, 5).values, index.search(q, 5).values)


def test_the_file_is_a_safetensors_file(tmp_path):
    index = made()
    index.save(tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    assert torch.equal(load_file(path)["measures"], torch.stack([index.measures_of(i) for i in range(60)]).float())


def test_an_empty_index_is_saved_and_searched_with_one_sentence(tmp_path):
    index = TverskyIndex(TverskySimilarity(5, 20))
    index.save(tmp_path)
    loaded = TverskyIndex.load(tmp_path)
    assert len(loaded) == 0
    with pytest.raises(ValueError, match="the index is empty: add documents first"):
        loaded.search(torch.randn(5), 1)
    loaded.add(torch.randn(2, 5), ["a", "b"])
    assert len(loaded.search(torch.randn(5), 2).ids) == 2


@pytest.mark.parametrize("codes", ["full", "sparse"])
def test_a_flipped_byte_is_one_sentence(codes, tmp_path):
    made(codes).save(tmp_path)
    damages = 0
    for path in (tmp_path / "index.json", next(tmp_path.glob("*.safetensors"))):
        content = path.read_bytes()
        for place in range(0, len(content), max(1, len(content) // 40)):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            if path.name == "index.json" and content[place : place + 1].isspace():
                continue  # it may be another space, which is no damage
            with pytest.raises(NoIndex, match=r"damaged|cannot be read|no index of similitude|has format|without its"):
                TverskyIndex.load(tmp_path)
            damages += 1
        path.write_bytes(content)
    assert damages > 60
    TverskyIndex.load(tmp_path)


def test_foreign_files_are_one_sentence(tmp_path):
    with pytest.raises(NoIndex, match=r"no index in .*: index.json is not there"):
        TverskyIndex.load(tmp_path)
    (tmp_path / "index.json").write_text('{"a": 1}')
    with pytest.raises(NoIndex, match="is no index of similitude's"):
        TverskyIndex.load(tmp_path)
    made().save(tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    path.unlink()
    with pytest.raises(NoIndex, match=r"has an index without its index-........\.safetensors"):
        TverskyIndex.load(tmp_path)
    about = json.loads((tmp_path / "index.json").read_text()) | {"format": 99}
    (tmp_path / "index.json").write_text(json.dumps(about))
    with pytest.raises(NoIndex, match="has format 99; this version reads 1"):
        TverskyIndex.load(tmp_path)


def test_the_index_of_another_layer_is_one_sentence(tmp_path):
    index = made()
    index.save(tmp_path)
    index.layer.alpha = 1.5  # constants are no part of it
    assert TverskyIndex.load(tmp_path, index.layer).layer is index.layer
    sentence = "is the index of another layer: .* another bank, of 20 features of width 5; .* has 7 of width 4"
    with pytest.raises(NoIndex, match=sentence):
        TverskyIndex.load(tmp_path, TverskyProjection(4, 3, 7))
    with torch.no_grad():
        index.layer.features.threshold[2] += 1
    with pytest.raises(NoIndex, match="is the index of another layer"):
        TverskyIndex.load(tmp_path, index.layer)


def test_a_save_replaces_the_index_and_leaves_nothing_else(tmp_path):
    made().save(tmp_path)
    loaded = TverskyIndex.load(tmp_path)
    loaded.remove([3])
    loaded.save(tmp_path)  # over the files that it reads
    assert len(files(tmp_path)) == 2
    assert len(TverskyIndex.load(tmp_path)) == 59
    assert loaded.search(torch.zeros(5), 59).certified


KILLED = """
import os, signal, sys, torch
from similitude.retrieval import TverskyIndex
index = TverskyIndex.load(sys.argv[1])
index.remove([0])
at = float(sys.argv[2])
def progress(done, all):
    if done >= at * all:
        os.kill(os.getpid(), signal.SIGKILL)
index.save(sys.argv[1], progress)
"""


@pytest.mark.parametrize("at", [0.0, 1.0])
def test_a_save_that_is_killed_leaves_the_index_that_was_there(at, tmp_path):
    made().save(tmp_path)
    before = (tmp_path / "index.json").read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(at)], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "index.json").read_bytes() == before
    assert len(files(tmp_path)) > 2
    again = TverskyIndex.load(tmp_path)
    assert len(again) == 60
    again.save(tmp_path)
    assert len(files(tmp_path)) == 2  # what was left is gone


def test_a_killed_replacement_of_the_description_leaves_the_old_index(tmp_path, monkeypatch):
    """Between the new tensors and the new index.json both sets of tensors are there."""
    index = made()
    index.save(tmp_path)
    index.remove([0])

    def stopped(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("similitude.retrieval.saved.write_json", stopped)
    with pytest.raises(KeyboardInterrupt):
        index.save(tmp_path)
    monkeypatch.undo()
    assert len(TverskyIndex.load(tmp_path)) == 60
    assert len(files(tmp_path)) == 3
    index.save(tmp_path)
    assert len(files(tmp_path)) == 2
    assert len(TverskyIndex.load(tmp_path)) == 59
