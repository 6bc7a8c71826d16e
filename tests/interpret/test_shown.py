"""What calls return fits on a screen when printed, says the same in a notebook, and echoes as it prints."""

import pytest
import torch
from torch import nn

from similitude import FeatureBank, TverskyProjection, TverskySimilarity, convert
from similitude.explain import decision, pair, venn
from similitude.interpret.edit import Preview
from similitude.interpret.graph import field_graph
from similitude.interpret.salience import rank
from similitude.interpret.sets import Universe

K, D, P = 2000, 64, 300


NAMES = """explanation, pair, pair of a similarity, decision, venn, region, usage, pruned, ranking, conversion, graph,
preview""".replace("\n", " ").split(", ")


def conversion():
    return convert(nn.Sequential(*(nn.Linear(8, 8) for _ in range(60))), nn.Linear, num_features=12)


def graph():
    universe = Universe(torch.randn(K, D), [f"word{i}" for i in range(P)], torch.randn(P, D))
    return field_graph([f"word{i}" for i in range(6)], universe, iterations=2)


def preview():
    before = torch.arange(3 * P) % P
    return Preview(before, before.roll(1), before)


def returned():
    layer, x = TverskyProjection(D, P, K, bias=True), torch.randn(2 * P, D)
    nn.init.normal_(layer.bias)
    bank = FeatureBank(K, D)
    with torch.no_grad():
        bank.weight[1::2] = bank.weight[::2]
    similarity = TverskySimilarity(D, K)
    return {
        "explanation": layer.explain(x[0]),
        "pair": pair(layer, x[0], x[1]),
        "pair of a similarity": similarity.explain(x[0], x[1]),
        "decision": decision(layer, x[0]),
        "venn": venn(layer, x[0], x[1], x),
        "region": venn(layer, x[0], x[1], x).common,
        "usage": bank.usage(x),
        "pruned": layer.prune(x),
        "ranking": rank(layer, x, torch.arange(2 * P) % P),
        "conversion": conversion(),
        "graph": graph(),
        "preview": preview(),
    }


@pytest.fixture(scope="module")
def everything():
    return returned()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_returned_fits_a_screen_and_a_notebook(everything, name):
    found = everything[name]
    assert 0 < len(str(found).splitlines()) < 30
    assert max(map(len, str(found).splitlines())) < 250
    assert repr(found) == str(found)
    html = found._repr_html_()
    assert html.startswith(("<pre>", "<table>"))
    assert len(html) < 20_000


def test_text_in_a_notebook_is_no_markup():
    layer, x = TverskyProjection(4, 2, 6), torch.randn(2, 4)
    html = pair(layer, x[0], x[1], names=("<b>", "&"))._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;" in html


@pytest.mark.parametrize("layer", [TverskyProjection, TverskySimilarity])
@pytest.mark.parametrize("parametrization", ["gain", "log", "plain"])
def test_a_layer_shows_its_constants(layer, parametrization):
    sizes = (4, 2, 6) if layer is TverskyProjection else (4, 6)
    made = layer(*sizes, alpha=0.125, beta=0.75, theta=12.3456, parametrization=parametrization)
    assert "alpha=0.125, beta=0.75, theta=12.3" in repr(made)
    made.alpha = 0.5
    assert "alpha=0.5" in repr(made)
    assert "theta" not in repr(layer(*sizes, model="ratio"))
    assert "alpha" not in repr(layer(*sizes, device="meta"))
