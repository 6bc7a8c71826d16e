"""Models on the Hugging Face hub: a round trip through a folder, and what the card says."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from similitude import FeatureBank, TverskyProjection, TverskySimilarity

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
from similitude.integrations.hub import TverskyHubMixin


class Head(TverskyHubMixin, TverskyProjection):
    pass


class Pairs(TverskyHubMixin, TverskySimilarity):
    pass


class Twice(TverskyHubMixin, nn.Module):
    """Two layers on one bank."""

    def __init__(self, dim: int, num_features: int, classes: int = 3):
        super().__init__()
        self.first = TverskyProjection(dim, dim, num_features, presence=0.3)
        self.head = TverskyProjection(dim, classes, features=self.first.features)

    def forward(self, x):
        return self.head(self.first(x))


def trained(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


MODELS = {
    "projection": lambda: Head(6, 4, num_features=10, bias=True),
    "thresholds": lambda: Head(6, 4, num_features=10, presence=0.2, intersection="min"),
    "held": lambda: Head(6, 4, num_features=10, presence=0.2, hold=True, parametrization="log"),
    "a bank that is given": lambda: Head(6, 4, features=FeatureBank(10, 6, presence=0.2)),
    "tied prototypes": lambda: Head(6, 4, 10, prototypes=nn.Parameter(torch.randn(4, 6))),
    "pairs": lambda: Pairs(6, num_features=10, alpha=0.9, model="ratio"),
    "a bank that is shared": lambda: Twice(6, 10, classes=5),
}


def answer(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model.eval().pairwise(x, x) if isinstance(model, Pairs) else model.eval()(x)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_model_comes_back_equal(make, tmp_path):
    model, x = trained(make()), torch.randn(5, 6)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(answer(again, x), answer(model, x))
    again.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == json.loads(
        (tmp_path / "config.json").read_text()
    )


def test_a_shared_bank_is_shared_when_it_comes_back(tmp_path):
    trained(Twice(6, 10)).save_pretrained(tmp_path)
    again = Twice.from_pretrained(tmp_path)
    assert again.first.features is again.head.features


def test_a_pruned_bank_comes_back_as_small_as_it_was(tmp_path):
    model, x = trained(Twice(6, 40)), torch.randn(5, 6)
    model.first.features.grow(3)
    answer(model, x)
    keep = FeatureBank(7, 6, presence=0.3)
    model.first.features.weight, model.first.features.threshold = keep.weight, keep.threshold
    model.save_pretrained(tmp_path)
    again = Twice.from_pretrained(tmp_path)
    assert again.head.features.num_features == 7
    assert torch.equal(answer(again, x), answer(model, x))


def test_names_of_features_come_back(tmp_path):
    model = trained(Head(6, 4, num_features=10, presence=0.2))
    model.features.name("has wheels", feature=3)
    model.save_pretrained(tmp_path)
    assert Head.from_pretrained(tmp_path).features.names == {3: "has wheels"}


def test_the_card_says_what_is_compared(tmp_path):
    model = Twice(6, 10)
    model.head.alpha, model.head.beta, model.head.theta = 0.75, 0.125, 2.0
    model.first.features.name("has | a <b>hole</b>\n# no heading", feature=2)
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    rows = [line for line in card.splitlines() if line.startswith("|")]
    assert "with 3 prototypes, intersection='product', difference='ignorematch'" in rows[3]
    assert rows[3].endswith("| 10, shared with `first` | 0.3 | 0.75 | 0.125 | 2 |")
    assert rows[-1] == r"| 2 | has \| a &lt;b&gt;hole&lt;/b&gt; \# no heading | no |"
    assert 'model = Twice.from_pretrained("FOLDER OR NAME")' in card
    assert "library_name: similitude" in card


def test_what_is_pushed_is_what_is_saved(tmp_path, monkeypatch):
    """The hub itself is not reached: this stands in for its client."""
    pushed = {}

    class Client:
        def __init__(self, token=None):
            pass

        def create_repo(self, repo_id, private, exist_ok):
            return SimpleNamespace(repo_id=repo_id)

        def upload_folder(self, repo_id, folder_path, **_):
            pushed.update({path.name: path.read_bytes() for path in folder_path.iterdir()})
            return repo_id

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Client)
    model = trained(Head(6, 4, num_features=10))
    model.push_to_hub("me/head")
    model.save_pretrained(tmp_path)
    assert b'model = Head.from_pretrained("me/head")' in pushed.pop("README.md")
    assert pushed == {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "README.md"}


def test_weights_of_another_model_are_refused(tmp_path):
    Head(6, 4, num_features=10).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has features of width 6 for features, and the model width 7\.$"):
        Head.from_pretrained(tmp_path, dim=7)
    with pytest.raises(RuntimeError, match=r"size mismatch for prototypes"):
        Head.from_pretrained(tmp_path, num_prototypes=5)
    with pytest.raises(RuntimeError, match=r"Missing key\(s\)[\s\S]*bias"):
        Head.from_pretrained(tmp_path, bias=True)
