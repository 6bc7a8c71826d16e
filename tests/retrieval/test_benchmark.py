"""The benchmark of search: every run of it works on a few documents, and its table reaches the page."""

import sys

import pytest
import torch

from benchmarks import search
from similitude.interpret import words


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.parametrize("run", search.RUNS, ids=lambda run: ", ".join(map(str, run.values())))
def test_a_run_finds_what_the_law_finds(run, monkeypatch, tmp_path):
    monkeypatch.setattr(search, "documents", lambda N: words.prepared(torch.randn(N, 8)))
    threads = torch.get_num_threads()
    try:
        few = run | {"N": 300, "K": 16}
        found = search.build(few, str(tmp_path)) | search.search(few, str(tmp_path))
    finally:
        torch.set_num_threads(threads)
    assert found["certified"]
    assert found["off"] < 1e-5
    assert found["ms"] > 0


def test_the_table_reaches_the_page(tmp_path):
    row = {"documents": 100000, "K": 128, "codes": "full", "form": "product + ignorematch", "ms": "4.20"}
    row |= {"ms_in_a_batch": "0.90", "memory_mb": "51", "build_s": "0.5"}
    row |= {"machine": "a machine", "torch": "2.13", "commit": "abc"}
    page = tmp_path / "page.md"
    page.write_text(search.PAGE.read_text())
    search.write([row], page)
    search.write([row | {"ms": "4.30"}], page)
    text = page.read_text()
    assert "| 100,000 | 128 | full | product + ignorematch | 4.30 | 0.90 | 51 | 0.5 |" in text
    assert "4.20" not in text
    assert "a machine, torch 2.13, commit abc" in text
