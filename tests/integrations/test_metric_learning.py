"""pytorch-metric-learning on a TverskyDistance: which of its losses and miners work, and its own training."""

import inspect
import re
from pathlib import Path

import pytest
import torch

from similitude import TverskySimilarity, parameter_groups

pml = pytest.importorskip("pytorch_metric_learning", reason="pytorch-metric-learning is not installed")
from pytorch_metric_learning import losses, miners, trainers  # noqa: E402

from similitude.integrations.metric_learning import TverskyDistance  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "metric-learning.md"
NEEDS = dict(num_classes=5, embedding_size=16, n_bins=10, margin=0.5, Tn=1, l=16, K=5)
# Bases of classes, wrappers around a loss, and a loss for data that is packed as triplets.
NOT_ALONE = {
    *("BaseLossWrapper", "BaseMetricLossFunction", "EmbeddingRegularizerMixin", "WeightRegularizerMixin"),
    *("CrossBatchMemory", "GenericPairLoss", "MultipleLosses", "SelfSupervisedLoss"),
    *("BaseMiner", "EmbeddingsAlreadyPackagedAsTriplets"),
}
KINDS = {
    name: getattr(module, name)
    for module in (losses, miners)
    for name, found in sorted(vars(module).items())
    if inspect.isclass(found) and name not in NOT_ALONE
}


def listed(heading: str) -> set[str]:
    """The classes that the page lists in the row of its table with this heading."""
    return set(re.findall(r"`(\w+)`", re.search(rf"^\| {heading}[^|]*\|(.*)\|$", PAGE.read_text(), re.MULTILINE)[1]))


def made(kind: type, distance: TverskyDistance):
    wanted = inspect.signature(kind.__init__).parameters
    return kind(distance=distance, **{name: value for name, value in NEEDS.items() if name in wanted})


def runs(kind: type, **options) -> bool:
    """Whether the loss trains the similarity and the objects, or the miner returns what it mines."""
    similarity = TverskySimilarity(16, 24, **options)
    x, y = torch.randn(20, 16, requires_grad=True), torch.arange(20) % 5
    try:
        found = made(kind, TverskyDistance(similarity))(x, *([] if kind is losses.ManifoldLoss else [y]))
    except Exception:
        return False
    if isinstance(found, tuple):
        return sum(len(indices) for indices in found) > 0
    found.backward()
    gradients = [similarity.features.weight.grad, x.grad]
    return all(g is not None and g.isfinite().all() and g.abs().sum() > 0 for g in gradients)


def test_the_page_lists_what_works_and_what_refuses():
    works = {name for name, kind in KINDS.items() if runs(kind)}
    of_ratios = {name for name, kind in KINDS.items() if runs(kind, model="ratio")}
    assert works >= {"TripletMarginLoss", "NTXentLoss", "MultiSimilarityLoss", "BatchHardMiner"}
    assert listed("losses that work") | listed("miners that work") == works
    assert listed("losses of the ratio model alone") == of_ratios - works
    assert listed("losses that refuse") | listed("miners that refuse") == KINDS.keys() - works - of_ratios


@pytest.mark.parametrize("reverse", [False, True])
def test_a_distance_is_the_similarity_in_its_direction(reverse):
    similarity = TverskySimilarity(16, 24, alpha=0.9, beta=0.1)
    distance = TverskyDistance(similarity, reverse=reverse)
    a, b = torch.randn(5, 16), torch.randn(7, 16)
    there, back = similarity.pairwise(a, b), similarity.pairwise(b, a).mT
    torch.testing.assert_close(distance(a, b), back if reverse else there)
    torch.testing.assert_close(distance.pairwise_distance(a, b[:5]), distance(a, b[:5]).diagonal())
    assert (there - back).abs().max() > 0.1


def test_its_own_trainer_trains_and_reloads_equal(tmp_path):
    """50 steps of MetricLossOnly with a miner; the trunk, the bank and α, β, θ all learn."""
    y = torch.arange(200) % 5
    x = torch.randn(5, 8)[y] + 0.7 * torch.randn(200, 8)
    trunk = torch.nn.Linear(8, 16)
    distance = TverskyDistance(TverskySimilarity(16, 24, presence=0.3))
    loss = losses.TripletMarginLoss(margin=0.5, distance=distance)
    modules = torch.nn.ModuleDict({"trunk": trunk, "loss": loss})
    before = {name: p.detach().clone() for name, p in modules.named_parameters()}

    def right() -> float:
        """Share of the objects whose nearest other is of their class."""
        with torch.no_grad():
            S = distance(trunk(x), trunk(x)).fill_diagonal_(-torch.inf)
        return (y[S.argmax(-1)] == y).float().mean().item()

    steps, start = [], right()
    trainer = trainers.MetricLossOnly(
        models={"trunk": trunk},
        optimizers={"trunk_optimizer": torch.optim.AdamW(parameter_groups(modules, 0.01))},
        batch_size=20,
        loss_funcs={"metric_loss": loss},
        dataset=list(zip(x, y.tolist())),
        mining_funcs={"tuple_miner": miners.TripletMarginMiner(margin=0.5, distance=distance)},
        iterations_per_epoch=50,
        data_device="cpu",
        dtype=torch.float32,
        dataloader_num_workers=0,
        end_of_iteration_hook=lambda trainer: steps.append(trainer.losses["total_loss"].isfinite().item()),
    )
    trainer.train(num_epochs=1)
    assert steps == [True] * 50
    assert right() > start + 0.1
    assert all((p - before[name]).abs().max() > 1e-3 for name, p in modules.named_parameters())
    torch.save(distance.state_dict(), tmp_path / "distance.pt")
    again = TverskyDistance(TverskySimilarity(16, 24, presence=0.3))
    again.load_state_dict(torch.load(tmp_path / "distance.pt"))
    assert torch.equal(again(trunk(x), trunk(x)), distance(trunk(x), trunk(x)))


def test_bad_options_are_one_sentence():
    with pytest.raises(ValueError, match=r"^is_inverted must be True for a TverskyDistance: a similarity is large"):
        TverskyDistance(TverskySimilarity(6, 10), is_inverted=False)
    with pytest.raises(ValueError, match=r"normalize_embeddings must be False .*: make the similarity with"):
        TverskyDistance(TverskySimilarity(6, 10), normalize_embeddings=True)
    with pytest.raises(TypeError, match=r"^similarity must be a TverskySimilarity\(dim, num_features\); got Linear\.$"):
        TverskyDistance(torch.nn.Linear(2, 2))
