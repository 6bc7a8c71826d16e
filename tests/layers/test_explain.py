"""Explanations add up to the layer's output, and print."""

import pytest
import torch

import similitude.functional as F
from similitude import TverskyProjection


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("difference", F.DIFFERENCES)
@pytest.mark.parametrize("intersection", F.INTERSECTIONS)
def test_contributions_add_up_to_the_output(intersection, difference, normalize):
    options = dict(intersection=intersection, difference=difference, normalize=normalize)
    layer = TverskyProjection(8, 5, 32, bias=True, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.bias.normal_()
    x = torch.randn(8, dtype=torch.float64)
    output = layer(x)
    for p in range(5):
        found = layer.explain(x, prototype=p)
        total = sum(part.sum().item() for _, part in found.parts()) + found.bias
        assert found.similarity == pytest.approx(output[p].item(), abs=1e-12)
        assert total == pytest.approx(output[p].item(), abs=1e-12)


def test_each_feature_stands_where_it_belongs():
    layer = TverskyProjection(3, 1, 3, alpha=0.5, beta=0.25, theta=2.0)
    with torch.no_grad():
        layer.features.weight.copy_(torch.eye(3))
        layer.prototypes.copy_(torch.tensor([[2.0, 4.0, -1.0]]))
    found = layer.explain(torch.tensor([3.0, -1.0, 5.0]))
    assert found.common.tolist() == [12.0, 0.0, 0.0]
    assert found.input_only.tolist() == [0.0, 0.0, -2.5]
    assert found.prototype_only.tolist() == [0.0, -1.0, 0.0]
    assert found.similarity == 8.5


def test_the_nearest_prototype_is_explained_when_none_is_named():
    layer, x = TverskyProjection(8, 5, 32), torch.randn(8)
    assert layer.explain(x).prototype == layer(x).argmax().item()


def test_half_precision_adds_up_to_rounding():
    layer = TverskyProjection(8, 5, 32, dtype=torch.bfloat16)
    found = layer.explain(torch.randn(8, dtype=torch.bfloat16))
    total = sum(part.sum().item() for _, part in found.parts())
    assert total == pytest.approx(found.similarity, rel=1e-2, abs=1e-2)


def test_prints_as_a_table_and_as_html():
    layer = TverskyProjection(8, 2, 12, bias=True)
    with torch.no_grad():
        layer.bias.fill_(0.25)
    names = [f"<stroke {k}>" for k in range(12)]
    found = layer.explain(torch.randn(8), prototype=1, top=2, feature_names=names, prototype_names=["zero", "one"])
    text = str(found)
    assert text.splitlines()[0] == f"input against prototype one  similarity {found.similarity:+.4f}"
    for label, part in found.parts():
        assert label in text
        assert f"{part.sum().item():+.4f}" in text
        for k in found.strongest(part):
            assert names[k] in text
        assert len(found.strongest(part)) <= 2
    assert " more" in text
    assert "+0.2500" in text
    assert max(map(len, text.splitlines())) <= 80
    html = found._repr_html_()
    assert html.startswith("<table>")
    assert html.endswith("</table>")
    assert "&lt;stroke" in html
    assert "<stroke" not in html


MESSAGES = {
    "set level": (
        dict(level="set"),
        dict(),
        "only level='feature' with model='contrast' is a sum over features that can be explained exactly; "
        "this layer has level='set', model='contrast'.",
    ),
    "a batch": (
        dict(),
        dict(x=torch.randn(2, 4)),
        "x must be one object, a tensor of shape [4]; got shape [2, 4]: explain one at a time, x[0].",
    ),
    "no such prototype": (dict(), dict(prototype=3), "prototype must be from 0 to 2; got 3."),
    "too few names": (dict(), dict(feature_names=["a"]), "feature_names must have 5 names; got 1."),
    "no rows": (dict(), dict(top=0), "top must be a whole number of 1 or more; got 0."),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_bad_input_gets_one_clear_sentence(case):
    options, arguments, message = MESSAGES[case]
    layer = TverskyProjection(4, 3, 5, **options)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        layer.explain(**{"x": torch.randn(4), **arguments})
    assert str(error.value) == message
