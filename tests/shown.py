"""What the explorer's tests show: digits, words and a converted model; and how they look at a page."""

import time

import torch
from torch import nn

from similitude import FeatureBank, TverskyProjection, convert
from similitude.explore.content import content, content_of_words
from similitude.explore.session import Session
from similitude.interpret.sets import Universe
from similitude.models.data_domain import DataDomain
from similitude.reach import seen
from similitude.reproduce.data.made_up import synthetic_digits

TOKEN = "the-token"
WORDS = ["good", "bad", "better", "worse", "best", "ice-cream", "don't", "été", "<b>bold</b>", "</script>"]


def digits(count=60):
    made = synthetic_digits(200)
    return made.test_x[:count].float().div(255).unsqueeze(1), made.test_y[:count].long()


def network(x, y):
    """A network whose prototypes and features are digits."""
    torch.manual_seed(0)
    head = TverskyProjection(784, 10, 12, parametrization="plain", init="unit", bias=True)
    net = DataDomain(nn.Flatten(), head, (1, 28, 28)).eval()
    net.set_images(torch.stack([x[y == c].mean(0) for c in range(10)]), torch.randn(12, 1, 28, 28))
    with torch.no_grad():
        net.alpha, net.beta, net.theta = 0.5, 0.2, 0.01
        net.bias.normal_()
    return net


def words():
    torch.manual_seed(1)
    return Universe(FeatureBank(16, 6, presence=0.4), WORDS, torch.randn(len(WORDS), 6))


def converted(seed=2):
    """A frozen backbone with a new head, and inputs that are no images."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(9, 12), nn.ReLU(), nn.Linear(12, 3))
    convert(model, "2", num_features=8, start="weights", freeze=True, presence=0.3)
    return model.eval(), torch.randn(40, 9), torch.arange(40) % 3


# An expression for each of the three.
EXPRESSIONS = {"digits": "7%20%26%20%231", "words": "good%20%26%20bad", "converted": "b%20-%20c"}


def session_of(name, names_file=None):
    """A session as ``similitude explore`` makes it."""
    if name == "words":
        u = words()
        return Session(lambda: content_of_words(u, "Words"), universe=u, names_file=names_file)
    if name == "digits":
        x, y = digits()
        net = network(x, y)
        show = lambda: content(net, x, y, classes=list("0123456789"), title="Digits")  # noqa: E731
        return Session(show, net, edited=net, inputs=x, labels=y, names_file=names_file)
    model, x, y = converted()
    layer, vectors = seen(model, x)
    show = lambda: content(model, x, y, classes=["<i>a</i>", "b", "c"], title="A <converted> model")  # noqa: E731
    return Session(show, model, layer.features, edited=layer, inputs=vectors, labels=y, names_file=names_file)


SCREENS = [
    "",
    "features",
    "feature/3",
    "sets",
    "sets/NAMES",
    "pair",
    "pair/e0/e1",
    "search",
    "search/e1/reverse",
    "compare",
]
ANSWERING = ["prototypes", "prototype/1", "why", "why?wrong", "why/0", "why/0/1", "why/0/1/2", "edit", "nothing/there"]


def go(page, screen):
    page.evaluate("screen => { location.hash = '#/' + screen; }", screen)
    page.wait_for_timeout(60)


def until(page, expression):
    """Waits for it to be true; Playwright's own way of waiting is what the page's policy forbids."""
    end = time.monotonic() + 10
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"not so after 10 s: {expression}"
        time.sleep(0.02)


def looks(page):
    """What is wrong with what is shown: content that is cut to the right, or nothing to read."""
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"{wide} pixels to the right are cut"
    assert page.locator("h1").count() == 1
    assert len(page.locator("main").inner_text()) > 20
    assert page.evaluate("document.documentElement.dataset.ready") == "yes"


def number(text):
    return float(text.replace("−", "-").replace("+", "").replace(",", "").replace("%", ""))
