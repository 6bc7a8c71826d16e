"""Tables of perplexity: which runs a cell is made of, and what is said of them."""

from dataclasses import asdict, replace

from similitude.reproduce import ptb, tables_ptb


def test_a_table_has_baselines_whatever_the_rate_of_the_bank_that_they_lack():
    def result(**settings):
        config = asdict(replace(ptb.RECIPES["tuned"], **settings))
        return {"config": config, "result": {"valid": 1.0, "test": 1.0, "parameters": 1}}

    found = [result(model="baseline", bank_rate=0.3), result(model="baseline", epochs=9), result(bank_rate=0.3)]
    groups = tables_ptb._by_settings(found, ptb.RECIPES["tuned"])
    assert groups == [found[:1]]
    # A seed counts once, however often a run was saved.
    found = [result(), result(checkpoint_every=9), result(seed=1, checkpoint_every=9)]
    assert tables_ptb._by_settings(found, ptb.RECIPES["tuned"]) == [found[1:]]
    # Nor has presence a meaning but for a head from scratch.
    found = [result(presence=0.5), result(model="tversky-head"), result(model="tversky-head", presence=0.5)]
    assert tables_ptb._by_settings(found, ptb.RECIPES["tuned"]) == [found[:1], found[1:2]]


def test_the_validation_table_pairs_settings_of_the_paper():
    def result(**settings):
        config = asdict(replace(ptb.RECIPES["paper"], **settings))
        return [{"config": config, "result": {"valid": 50.0, "test": 1.0, "parameters": 1}}]

    bank = dict(num_features=8192, difference="ignorematch")
    [table] = tables_ptb._validation(
        [
            result(intersection="min", **bank),
            result(intersection="min", level="feature", **bank),
            result(intersection="min", num_features=7),
            result(model="baseline", num_features=7),
        ]
    )
    assert list(zip(*(column.cells for column in table.columns), strict=True)) == [
        ("baseline", "yes", "–", "–", "136.04", "50.00 (-86.04)"),
        ("all-1layer", "yes", "8192", "min + ignorematch", "125.86", "50.00 (-75.86)"),
    ]
    assert tables_ptb._validation([]) == []


def test_a_star_marks_what_stands_until_it_is_run_again():
    def result(**more):
        config = asdict(replace(ptb.RECIPES["paper"], model="baseline"))
        return {"config": config, "result": {"valid": 2.0, "test": 3.0, "parameters": 1}, **more}

    tested = [tables_ptb.compare([run])[0].columns[5]._cells[2] for run in (result(), result(caveat="half of it"))]
    assert tested == ["3.00 (-109.81)", "3.00 (-109.81)*"]
