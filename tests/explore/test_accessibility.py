"""axe-core finds nothing against WCAG 2.2 AA on any screen, in both colour schemes and at both sizes."""

import os
from pathlib import Path

import pytest
import torch

from similitude import TverskyProjection
from similitude.explore import explore
from similitude.reproduce.data.made_up import synthetic_digits

AXE = Path(os.environ.get("AXE", "node_modules/axe-core/axe.min.js"))
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SCREENS = [
    "",
    "features",
    "feature/3",
    "prototypes",
    "prototype/1",
    "why",
    "why/0",
    "why/0/1/2",
    "pair/p0/p1",
    "search",
    "search/e3/reverse",
]
SCREENS += ["sets", "sets/1%20%26%202", "sets/1%20%26", "compare", "edit", "nothing"]

pytestmark = [
    pytest.mark.skipif(
        not AXE.exists(), reason="there is no axe-core: npm install --no-save axe-core, or give axe.min.js as AXE"
    ),
    # The layer is not trained.
    pytest.mark.filterwarnings("ignore:the layer is right on"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    made = synthetic_digits(200)
    x, y = made.test_x[:60].float().div(255).flatten(1), made.test_y[:60].long()
    layers = [TverskyProjection(784, 10, 12, presence=0.3).eval() for _ in range(2)]
    path = tmp_path_factory.mktemp("axe") / "page.html"
    images = x.reshape(-1, 28, 28)
    attributes = torch.stack([y < 5, y % 2 == 0], dim=1), ["low", "even"]
    more = {"images": images, "classes": list("0123456789"), "attributes": attributes}
    explore(layers[0], x, y, beside=layers[1], **more, out=path)
    torch.manual_seed(0)
    return path.as_uri()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A page of rows with more columns than Why shows."""
    torch.manual_seed(0)
    path, x = tmp_path_factory.mktemp("axe") / "table.html", torch.randn(40, 15)
    explore(TverskyProjection(15, 3, 12).eval(), x, columns=[f"column {j}" for j in range(15)], out=path)
    return path.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), (390, 844)], ids=["desk", "phone"])
def test_no_screen_has_a_violation(address, table, visit, size, scheme):
    screens_of = {address: SCREENS, table: ["features", "feature/3", "why/0", "why/0/1/2"]}
    for place, screens in screens_of.items():
        check(visit, place, screens, size, scheme)


def check(visit, address, screens, size, scheme):
    with visit(address, *size, scheme, bypass_csp=True) as page:
        page.evaluate(AXE.read_text())
        for screen in screens:
            page.evaluate("screen => { location.hash = '#/' + screen; }", screen)
            page.wait_for_timeout(100)
            found = page.evaluate("rules => axe.run(document, { runOnly: rules })", RULES)
            told = [(v["id"], v["nodes"][0]["html"][:100]) for v in found["violations"]]
            assert not told, (screen, told)
