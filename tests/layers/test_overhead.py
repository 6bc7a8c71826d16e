"""A small layer's time is that of Python: the package may make so many calls of its own, and no more."""

import sys
from pathlib import Path

import pytest
import torch

import similitude
from similitude import TverskyProjection

PACKAGE = str(Path(similitude.__file__).parent)


def calls(function) -> int:
    """Calls of functions of the package, and of the named tuples' constructors, which Python makes from a string."""
    found = 0

    def count(frame, event, arg):
        nonlocal found
        file = frame.f_code.co_filename
        found += event == "call" and (file.startswith(PACKAGE) or file.startswith("<string>"))

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


@pytest.fixture
def layer() -> TverskyProjection:
    # The first layer of a process checks its form, and the others find it checked.
    TverskyProjection(8, 3, 6)(torch.randn(4, 8))
    return TverskyProjection(8, 3, 6)


def test_a_layer_is_made_in_a_hundred_calls(layer):
    assert 20 < calls(lambda: TverskyProjection(8, 3, 6)) <= 100


def test_a_training_forward_takes_36_calls(layer):
    x = torch.randn(4, 8)
    layer.train()(x)
    assert 10 < calls(lambda: layer(x)) <= 36


def test_an_eval_forward_takes_14_calls_from_the_second_on(layer):
    x = torch.randn(4, 8)
    layer.eval()
    with torch.no_grad():
        first = calls(lambda: layer(x))
        assert 5 < calls(lambda: layer(x)) <= 14 < first
