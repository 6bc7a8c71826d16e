"""The paper's constructions, and training from a fixed seed."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import similitude.functional as F
from examples import addition, xor
from similitude import TverskyProjection


def has(vectors, layer):
    return [set(row.nonzero().flatten().tolist()) for row in (vectors @ layer.features.weight.T) > 0]


def test_xor_by_a_projection_of_eleven_parameters():
    layer = xor.build()
    assert sum(p.numel() for p in layer.parameters()) == 11
    assert has(xor.INPUTS, layer) == [set(), {1}, {0}, set()]
    assert has(layer.prototypes, layer) == [set(), {0, 1}]
    assert layer(xor.INPUTS).argmax(-1).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("difference", F.DIFFERENCES)
@pytest.mark.parametrize("intersection", [i for i in F.INTERSECTIONS if i != "softmin"])
def test_the_construction_of_xor_holds_for_every_reduction_that_is_never_negative(intersection, difference):
    layer = xor.build()
    layer.intersection, layer.difference = intersection, difference
    assert layer(xor.INPUTS).argmax(-1).tolist() == [0, 1, 1, 0]


def test_addition_of_two_binary_digits():
    layer = addition.build()
    assert has(addition.INPUTS, layer) == [set(), {1}, {0}, {2}]
    assert has(layer.prototypes, layer) == [set(), {0, 1}, {2}]
    assert layer(addition.INPUTS).argmax(-1).tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("options", [dict(), dict(difference="subtractmatch")], ids=str)
def test_xor_is_learned_and_by_the_same_curve_on_every_path(options):
    curves = {}
    for backend in ("reference", "torch"):
        torch.manual_seed(2)
        layer = TverskyProjection(2, 2, 8, init="uniform", dtype=torch.float64, backend=backend, **options)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        target, losses = torch.tensor([0, 1, 1, 0]), []
        for _ in range(300):
            loss = cross_entropy(layer(xor.INPUTS.double()), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert layer(xor.INPUTS.double()).argmax(-1).tolist() == [0, 1, 1, 0]
        curves[backend] = losses
    assert curves["torch"] == pytest.approx(curves["reference"], rel=1e-6)
