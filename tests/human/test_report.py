"""``similitude fit``: what it writes, how it goes on, and how it fails; and the figures of a fitted model."""

import csv
import io
import re
import sys
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

from similitude import cli
from similitude.files import check_place
from similitude.human import TverskySimilarityModel, directed, morse, plots, ratings, report, similarities
from similitude.human.found import Summary, _interval
from similitude.human.sheets import read_csv

QUICK = ["--restarts", 2, "--steps", 15, "--bootstrap", 2]
COMPARED = ["--compare", "--folds", 3, "--repeats", 1]
WHOLE = {"report.html", "predicted.csv", "features.csv", "model.json", "model.safetensors", ".lock"}
random = np.random.default_rng(0)
NAMES = [f"o{i}" for i in range(9)]


def invoke(*arguments):
    return CliRunner().invoke(cli.make_app(), ["fit", *map(str, arguments)])


def table(values):
    rows = [[name, *(f"{v:.3f}" for v in row)] for name, row in zip(NAMES, values)]
    return "\n".join(",".join(row) for row in [["", *NAMES], *rows]) + "\n"


SHARES = random.random((9, 9)).round(2)
PAIRS = [(a, b) for a in range(9) for b in range(9) if a != b]
CSVS = {
    "confusions": table(SHARES),
    "identification": table((SHARES * 20).round()),
    "similarities": table(SHARES + SHARES.T),
    "ratings": "first,second,value\n" + "".join(f"o{a},o{b},{(a * b) % 7}\n" for a, b in PAIRS),
    "directed": "cue,target,count\n" + "".join(f"o{a},o{b},{(a * b) % 5}\n" for a, b in PAIRS),
    "rankings": "query,candidate,rank,rater\n" + "".join(f"o{a},o{b},{(b - a) % 9},x\n" for a, b in PAIRS),
    "triplets": "first,second,odd\n" + "".join(f"o{a},o{b},o{(a + b) % 9}\n" for a, b in PAIRS if a * b),
}


@pytest.fixture
def said(tmp_path):
    path = tmp_path / "said.csv"
    path.write_text(CSVS["confusions"])
    return path


@pytest.mark.parametrize("kind", CSVS)
def test_each_kind_gets_a_report(kind, tmp_path):
    path, out = tmp_path / "said.csv", tmp_path / "new" / "out"
    path.write_text(CSVS[kind])
    result = invoke(path, "--kind", kind, "--out", out, *QUICK)
    assert result.exit_code == 0, result.output
    assert f"report written to {out / 'report.html'}" in result.output
    ordered = kind not in ("similarities", "triplets")
    figures = {f"{name}.png" for name in report.FIGURES if ordered or name != "directions"}
    assert {file.name for file in out.iterdir()} == WHOLE | figures
    judgements, model = read_csv(path, kind), TverskySimilarityModel.load(out)
    lines = list(csv.DictReader(io.StringIO((out / "predicted.csv").read_text())))
    assert len(lines) == len(judgements)
    assert [line["first"] for line in lines] == [judgements.objects[i] for i in judgements.first]
    if judgements.kind == "choice":
        totals = np.bincount(judgements.question, [float(line["predicted"]) for line in lines])
        np.testing.assert_allclose(totals[np.unique(judgements.question)], 1, atol=1e-4)
        assert all(0 <= float(line["said"]) <= 1 for line in lines)
    else:
        guess = model.predict(np.stack([judgements.first, judgements.second], 1))
        np.testing.assert_allclose([float(line["predicted"]) for line in lines], guess, rtol=1e-4)
    lines = list(csv.DictReader(io.StringIO((out / "features.csv").read_text())))
    assert {line["object"]: float(line["salience"]) for line in lines} == pytest.approx(model.salience(), rel=1e-4)


def test_the_page_needs_no_other_file_and_says_what_is_not_told(said, tmp_path):
    assert invoke(said, "--kind", "confusions", "--n", 30, "--out", tmp_path / "out", *QUICK).exit_code == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert page.count("data:image/png;base64,") == 4
    assert len(re.findall(r'<img alt="[^"]{40,}"', page)) == 4
    assert "are fewer than the" in page
    assert f"similitude fit {said} --kind confusions --out {tmp_path / 'out'} --n 30 --restarts 2" in page


def test_names_are_text_and_not_html(tmp_path):
    path = tmp_path / "said.csv"
    path.write_text(CSVS["confusions"].replace("o3", "<b>&"))
    assert invoke(path, "--kind", "confusions", "--out", tmp_path / "out", *QUICK).exit_code == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;" in page


def test_a_stop_before_the_fit_ends_says_that_nothing_was_kept(said, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(report.TverskySimilarityModel, "fit", stop)
    result = invoke(said, "--kind", "confusions", "--out", tmp_path / "out", *QUICK)
    assert result.exit_code == 130
    assert result.stderr == "stopped before the fit ended; nothing of it was kept.\n"


def test_rivals_are_in_the_page_and_a_stop_costs_one_row(said, tmp_path, monkeypatch):
    out, done = tmp_path / "out", []
    fit = report.TverskySimilarityModel.fit
    monkeypatch.setattr(report.TverskySimilarityModel, "fit", lambda *a: done.append("fit") or fit(*a))
    bar = report.bar

    def stopping(what):
        def progress(rows, total):
            if what == "rivals" and rows == 4:
                raise KeyboardInterrupt

        return progress if what == "rivals" else bar(what)

    monkeypatch.setattr(report, "bar", stopping)
    ask = [said, "--kind", "confusions", "--out", out, *QUICK, *COMPARED]
    result = invoke(*ask)
    assert result.exit_code == 130
    assert "stopped; go on with: similitude" in result.output
    assert not (out / "report.html").exists()
    kept = {path.name: path.read_bytes() for path in (out / "rivals").iterdir()}
    assert kept
    monkeypatch.setattr(report, "bar", bar)
    assert invoke(*ask).exit_code == 0
    assert done == ["fit"]
    assert {name: (out / "rivals" / name).read_bytes() for name in kept} == kept
    unbroken = invoke(*ask[:4], tmp_path / "other", *ask[5:])
    assert unbroken.exit_code == 0

    def rows(folder):
        lines = list(csv.DictReader(io.StringIO((folder / "comparison.csv").read_text())))
        return [{name: cell for name, cell in line.items() if name != "seconds"} for line in lines]

    assert rows(out) == rows(tmp_path / "other")
    for name in ("predicted.csv", "features.csv", "model.safetensors", "fit.png"):
        assert (out / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    page = (out / "report.html").read_text()
    assert "against the best rival" in page
    assert "slide vector" in page


def test_another_table_in_the_same_folder_is_fitted_anew(said, tmp_path):
    out = tmp_path / "out"
    ask = [said, "--kind", "confusions", "--out", out, *QUICK]
    assert "already" not in invoke(*ask).output
    first = (out / "predicted.csv").read_bytes()
    assert "already" in invoke(*ask).output
    assert (out / "predicted.csv").read_bytes() == first
    said.write_text(CSVS["confusions"].replace(f"{SHARES[0, 0]:.3f}", "0.999", 1))
    assert "already" not in invoke(*ask).output
    assert (out / "predicted.csv").read_bytes() != first
    # Figures of judgements with a direction do not stay beside those without one.
    said.write_text(CSVS["similarities"])
    assert (out / "directions.png").exists()
    assert invoke(said, "--kind", "similarities", "--out", out, *QUICK).exit_code == 0
    assert not (out / "directions.png").exists()


def test_given_features_keep_their_names(said, tmp_path):
    sheet = tmp_path / "listed.csv"
    sheet.write_text("object,flies,barks\n" + "".join(f"{name},{i % 3},{i % 2}\n" for i, name in enumerate(NAMES)))
    out = tmp_path / "out"
    assert invoke(said, "--kind", "confusions", "--features", sheet, "--out", out, *QUICK).exit_code == 0
    assert "flies" in (out / "report.html").read_text()
    assert TverskySimilarityModel.load(out).own == "common+distinctive"


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--kind", "confusion"], 2, "--kind must be one of confusions, identification"),
        (["--kind", "ratings", "--n", "5"], 2, "ratings have none"),
        (["--kind", "confusions", "--scale", "0,1"], 2, "confusions have none"),
        (["--kind", "similarities", "--scale", "7"], 2, "such as 1,7; got '7'"),
        (["--kind", "similarities", "--scale", "0.5,0.6"], 1, "is outside the scale from 0.5 to 0.6"),
        (["--kind", "confusions", "--compare", "--held-out", "objects"], 1, "where their features are given"),
        (["--kind", "confusions", "--bias", "row"], 2, "--bias must be one of none, object, row+column"),
        (["--kind", "confusions", "--held-out", "rows"], 2, "--held-out must be one of"),
        (["--kind", "ratings"], 1, "ratings need first, second, value[, rater]"),
        (["--kind", "confusions", "--features", "none.csv"], 1, "No such file"),
        (["--kind", "confusions", "--compare", "--held-out", "raters"], 1, "need at least 3 of them"),
    ],
)
def test_what_cannot_be_fitted_is_one_sentence_and_writes_nothing(said, tmp_path, options, code, sentence):
    result = invoke(said, *options, "--out", tmp_path / "out", *QUICK)
    assert result.exit_code == code, result.output
    assert sentence in result.output
    assert result.output.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_fit_takes_no_place_of_another_program(said, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.json", "model.safetensors", "result.json", ".lock"):
        (run / name).write_text("{}")
    for out, sentence in [
        (run, f"cannot write to {run}: another program wrote its config.json; give another --out.\n"),
        (said, f"cannot write to {said}: it is a file.\n"),
    ]:
        result = invoke(said, "--kind", "confusions", "--out", out, *QUICK)
        assert (result.exit_code, result.output) == (1, sentence)
    assert (run / "model.safetensors").read_text() == "{}"
    # Of a fit that was stopped while it saved.
    (run / "config.json").unlink()
    (run / "result.json").unlink()
    (run / ".model.json.77.half").touch()
    check_place(run, "model.json", "judgements", report.OWN)


def test_a_fit_needs_what_draws_its_figures_before_it_begins(said, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(report, "study", lambda *_: pytest.fail("it began"))
    result = invoke(said, "--kind", "confusions", "--out", tmp_path / "out", *QUICK)
    assert (result.exit_code, result.output) == (1, "fit needs matplotlib: pip install 'similitude[viz]'\n")


def test_what_is_held_out_needs_rivals(said, tmp_path):
    result = invoke(said, "--kind", "confusions", "--out", tmp_path / "out", "--held-out", "raters")
    assert result.exit_code == 2
    assert result.output == "--held-out raters says what --compare holds out; add --compare.\n"


@pytest.mark.parametrize(("lines", "count"), [("", "0 lines"), ("a,b\n", "1 line")])
def test_a_file_without_judgements_is_told(lines, count, tmp_path):
    (tmp_path / "head.csv").write_text(lines)
    result = invoke(tmp_path / "head.csv", "--kind", "ratings", "--out", tmp_path / "out")
    assert f"head.csv has {count}; a line of names" in result.output


@pytest.mark.parametrize(("fits", "told"), [(2, "range of 2 resampled fits"), (20, "95 % of resampled fits")])
def test_few_resampled_fits_are_told_by_their_range(fits, told):
    constants = {"alpha": (0.5, *_interval(np.arange(float(fits))))}
    summary = Summary(constants, 1.0, "judgements", 3, [], fits=fits)
    assert summary.interval == told
    low, high = ("0.000", "1.000") if fits == 2 else ("0.475", "18.525")
    assert f"{told}: {low} to {high}" in str(summary)


def test_a_missing_file_is_one_sentence(tmp_path):
    result = invoke(tmp_path / "none.csv", "--kind", "confusions", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "none.csv" in result.output
    assert result.output.count("\n") == 1


def fitted(said, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TverskySimilarityModel(restarts=2, steps=15, random_state=0, **settings).fit(said)


@pytest.fixture(scope="module")
def model():
    return fitted(morse())


def dots(figure):
    return figure.axes[0].collections[0].get_offsets().data


def test_the_fit_shows_each_judged_pair(model):
    said = model.judgements_
    guess = model.predict(np.stack([said.first, said.second], 1))
    np.testing.assert_allclose(dots(plots.fit(model)), np.stack([said.value, guess], 1))


def test_directions_are_differences_of_both_ways(model):
    found, guess = dots(plots.directions(model)), model.predict()
    assert len(found) == 36 * 35 / 2
    table = model.judgements_.table()
    np.testing.assert_allclose(found[0], [table[0, 1] - table[1, 0], guess[0, 1] - guess[1, 0]], atol=1e-7)
    longest = np.abs(found[:, 0]).max()
    named = [text.xy[0] for text in plots.directions(model).axes[0].texts]
    assert longest in np.abs(named)
    with pytest.raises(ValueError, match="order of the objects was not asked"):
        plots.directions(fitted(similarities(table + table.T)))
    with pytest.raises(ValueError, match="no pair was judged in both directions"):
        plots.directions(fitted(ratings([0, 0, 1], [1, 2, 2], [1, 2, 4])))


def test_features_show_measures_of_the_most_salient(model):
    ax = plots.features(model, top=5, objects=7).axes[0]
    shown = ax.images[0].get_array()
    assert shown.shape == (7, 5)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == list(model.salience())[:7]
    k = int(ax.get_xticklabels()[0].get_text().split()[1])
    np.testing.assert_allclose(shown[:, 0], model.measures().clip(0)[[model.names_.index(n) for n in names], k])


def test_salience_is_drawn_alone_or_against_what_is_known(model):
    bars = plots.salience(model, top=4).axes[0].patches
    assert [bar.get_width() for bar in bars] == pytest.approx(list(model.salience().values())[:4])
    known = {"E": 1.0, "T": 2.0, "Q": 5.0, "?": 9.0}
    figure = plots.salience(model, known, "number of marks")
    salience = model.salience()
    np.testing.assert_allclose(sorted(map(tuple, dots(figure))), [(known[n], salience[n]) for n in "ETQ"])
    assert figure.axes[0].get_xlabel() == "number of marks"
    with pytest.raises(ValueError, match="typicality is known of 1 of the 36 objects"):
        plots.salience(model, {"E": 1})


def test_shares_of_choices_are_drawn_as_shares():
    model = fitted(directed(["a", "b", "c"], ["b", "c", "a"], [3, 2, 1]))
    assert (dots(plots.fit(model)) <= 1).all()
