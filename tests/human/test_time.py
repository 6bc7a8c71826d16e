"""How long a fit and a whole comparison take, in processor time of one core; ``pytest tests/human/test_time.py -s``."""

import time

import pytest

from similitude.human import TverskySimilarityModel, morse, rivals

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]


def test_a_fit_of_36_objects_with_8_restarts_takes_10_seconds_at_most():
    times = []
    for seed in range(3):
        started = time.process_time()
        TverskySimilarityModel(bias="object", restarts=8, random_state=seed).fit(morse())
        times.append(time.process_time() - started)
    print(f"fit: {min(times):.1f} s of processor time, best of 3")
    assert min(times) < 10


def test_all_rivals_in_twice_10_folds_take_5_minutes_at_most():
    model = TverskySimilarityModel(bias="object", restarts=2, steps=10, random_state=0).fit(morse())
    model.steps, told = 300, []
    started = time.process_time()
    table = model.compare("all", k=10, repeats=2, progress=lambda done, total: told.append((done, total)))
    took = time.process_time() - started
    print(f"compare: {took:.0f} s of processor time\n{table}")
    assert {row.name for row in table.rows} >= set(rivals.RIVALS)
    assert told[-1][0] == told[-1][1] == len(told)
    assert took < 300
