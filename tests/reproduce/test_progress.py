"""What a run tells while it works."""

import io
import re

import pytest
from rich.console import Console

from similitude.reproduce import run as runs
from similitude.reproduce.run import progress_of, run


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)


@pytest.mark.parametrize("console", [terminal(), Console(file=io.StringIO(), width=200)])
@pytest.mark.parametrize("name", ["mnist", "ptb"])
def test_progress_of_a_smoke_run_has_no_numbers_of_it(name, console, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "OFTEN", 0)
    run(name, out=tmp_path / "run", device="cpu", smoke=True, console=console)
    said = console.file.getvalue()
    assert "100%" in said
    assert "so none are shown" in said
    assert not re.search(r"(loss|valid|accuracy) ", said)


def lines(monkeypatch, steps, seconds):
    """Plain lines of as many steps, each as long as said."""
    now = [0.0]
    monkeypatch.setattr(runs.time, "monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), width=200)
    with progress_of(console, "mnist") as progress:
        for step in range(steps):
            now[0] += seconds
            progress(step + 1, steps, "training", loss=0.5)
    return console.file.getvalue().splitlines()


def test_without_a_terminal_each_tenth_gets_a_line(monkeypatch):
    found = lines(monkeypatch, 100, 2)
    assert len(found) == 10
    assert found[0] == "mnist training: 10%, loss 0.500, 20 s"
    assert found[-1] == "mnist training: 100%, loss 0.500, 200 s"


def test_without_a_terminal_half_a_minute_gets_a_line(monkeypatch):
    assert [line.split(", ")[-1] for line in lines(monkeypatch, 9, 70)] == [f"{70 * n} s" for n in range(1, 10)]
    assert len(lines(monkeypatch, 3000, 1)) == 3000 / 30
    assert lines(monkeypatch, 100, 0.001) == []


def test_a_bar_of_unequal_steps_shows_what_is_drawn_and_the_time_that_passed():
    console = terminal()
    with progress_of(console, "gallery", elapsed=True) as progress:
        progress(0, 16, "boundaries, set level: converged")
    assert re.search(r"gallery boundaries, set level: converged .* 0% .*0:00:0\d", console.file.getvalue())


def test_each_figure_of_boundaries_tells_its_name_before_it_is_drawn(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from similitude.reproduce.figures import gallery, xor

    monkeypatch.setattr(xor, "SIZES", (2, 4))
    monkeypatch.setattr(xor, "TRIES", 1)
    run("xor", out=tmp_path / "run", device="cpu", smoke=True)
    told = []
    gallery.make(tmp_path / "run", tmp_path / "out", progress=lambda step, steps, what: told.append(what))
    names = ["converged", "not-converged", "2 features", "4 features"]
    assert list(dict.fromkeys(told)) == ["xor", *(f"boundaries, set level: {name}" for name in names)]
