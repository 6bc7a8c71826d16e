"""TverskyCode in sentence-transformers: its codes, its own save and load, its own Trainer and losses."""

import pytest
import torch

from similitude import TverskySimilarity, init_from_data
from similitude.retrieval import TverskyIndex

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
pytest.importorskip("datasets", reason="datasets, which sentence-transformers trains with, is not installed")
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import CoSENTLoss, MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.util import dot_score, pairwise_dot_score
from tokenizers import Tokenizer, models, pre_tokenizers

from similitude.integrations.sentence_transformers import TverskyCode, embeddings, explain

QUERIES = ["the cat sat", "car drove fast", "a red rose", "the dog ran"]
DOCUMENTS = ["the cat sat on the mat", "the red car drove fast on the road", "a rose is red", "the dog ran to the sofa"]
FORMS = [
    dict(),
    dict(presence=0.2),
    dict(presence=0.2, hold=True, parametrization="log", learnable=("beta", "theta")),
    dict(intersection="mean", normalize=True),
    dict(intersection="gmean"),
]


def model_of(code: TverskyCode, **options) -> SentenceTransformer:
    words = sorted({word for text in QUERIES + DOCUMENTS for word in text.split()})
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*words, "[UNK]"])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16), code], device="cpu", **options)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_dot_product_of_codes_is_the_similarity(form, reverse):
    code = TverskyCode(16, 24, reverse=reverse, **form).eval()
    code.similarity.beta = 0.1
    x, y = torch.randn(5, 16), torch.randn(7, 16)
    q, d = code.codes(x, "query"), code.codes(y, "document")
    pairs = code.similarity.pairwise
    torch.testing.assert_close(code.similarity_fn(q, d), pairs(y, x).mT if reverse else pairs(x, y))
    assert q.shape[1] == d.shape[1] == code.get_embedding_dimension()


@pytest.mark.parametrize("form", [form for form in FORMS if "hold" not in form], ids=str)
def test_codes_have_the_gradients_of_the_similarity(form):
    x, y, r = torch.randn(5, 16), torch.randn(7, 16), torch.randn(5, 7)
    code = TverskyCode(16, 24, **form)

    def gradients(S) -> list[torch.Tensor]:
        code.zero_grad()
        (S() * r).sum().backward()
        return [p.grad.clone() for p in code.parameters()]

    by_codes = gradients(lambda: code.codes(x, "query") @ code.codes(y, "document").mT)
    torch.testing.assert_close(by_codes, gradients(lambda: code.similarity.pairwise(x, y)))


def test_its_trainer_trains_and_its_save_reloads_equal(tmp_path):
    """50 steps of the Trainer with MultipleNegativesRankingLoss: each query finds its document, and α, β, θ learn."""
    model = model_of(TverskyCode(16, 24, presence=0.3, alpha=0.5, beta=0.5))
    code = model[1]
    init_from_data(code.similarity, embeddings(model, QUERIES + DOCUMENTS))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    data = Dataset.from_dict({"anchor": QUERIES, "positive": DOCUMENTS})
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=50,
        per_device_train_batch_size=4,
        learning_rate=0.03,
        router_mapping={"anchor": "query", "positive": "document"},
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    loss = MultipleNegativesRankingLoss(model, scale=1.0, similarity_fct=code.similarity_fn)
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss)
    assert trainer.train().global_step == 50
    assert all((p - before[name]).abs().max() > 1e-3 for name, p in model.named_parameters())
    q, d = (encode(texts, convert_to_tensor=True) for encode, texts in both(model))
    assert model.similarity(q, d).argmax(-1).tolist() == [0, 1, 2, 3]
    code.similarity.features.name("is red", feature=2)
    model.save(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu", trust_remote_code=True)
    for encode, texts, codes in zip(*zip(*both(again)), (q, d)):
        assert torch.equal(encode(texts, convert_to_tensor=True), codes)
    assert again.similarity_fn_name == "dot"
    assert again[1].similarity.features.names == {2: "is red"}
    assert again[1].get_config_dict() == code.get_config_dict()


def both(model):
    return (model.encode_query, QUERIES), (model.encode_document, DOCUMENTS)


def test_hits_of_an_index_are_those_of_the_codes_and_explain_themselves():
    model = model_of(TverskyCode(16, 24, reverse=True))
    found = model.similarity(*(encode(texts) for encode, texts in both(model))).sort(descending=True)
    index = TverskyIndex(model[1].similarity)
    index.add(embeddings(model, DOCUMENTS), DOCUMENTS)
    hits = index.search(embeddings(model, QUERIES, "query"), k=4, reverse=True)
    torch.testing.assert_close(hits.values.float(), found.values)
    assert hits.ids == [[DOCUMENTS[i] for i in row] for row in found.indices.tolist()]
    why = explain(model, QUERIES[0], hits.ids[0][0])
    assert why.reverse == pytest.approx(hits.values[0, 0].item(), rel=1e-5)
    assert f"S({QUERIES[0]}, {hits.ids[0][0]})" in str(why)


def test_losses_of_single_pairs_take_codes_too():
    model = model_of(TverskyCode(16, 24))
    columns = [
        {**model.preprocess(texts), "task": side} for texts, side in ((QUERIES, "query"), (DOCUMENTS, "document"))
    ]
    loss = CoSENTLoss(model, scale=1.0, similarity_fct=pairwise_dot_score)
    loss(columns, torch.tensor([0.9, 0.1, 0.5, 0.3])).backward()
    assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in model[1].parameters())


def test_a_bank_that_ended_to_hold_or_grew_reloads(tmp_path):
    code = TverskyCode(16, 24, presence=0.2, hold=True)
    code.codes(torch.randn(50, 16), "document")
    code.similarity.features.fix()
    code.similarity.features.grow(3)
    code.save(str(tmp_path))
    again, x = TverskyCode.load(str(tmp_path)), torch.randn(5, 16)
    assert torch.equal(again.train().codes(x, "query"), code.train().codes(x, "query"))


def test_what_would_be_compared_wrongly_is_refused():
    with pytest.raises(ValueError, match=r"^intersection='min', difference='ignorematch' is no inner product of codes"):
        TverskyCode(16, 24, intersection="min")
    with pytest.raises(ValueError, match=r"is no inner product of codes"):
        TverskyCode(16, 24, intersection="max", difference="subtractmatch")
    with pytest.raises(ValueError, match=r"^leak=0\.1 is for pairs"):
        TverskyCode(16, 24, leak=0.1)
    with pytest.raises(ValueError, match=r'^codes are compared by similarity_fn_name="dot"; this model has .*cosine'):
        model_of(TverskyCode(16, 24), similarity_fn_name="cosine")
    model = model_of(TverskyCode(16, 24))
    with pytest.raises(
        ValueError, match=r"got task=None: use encode_query and encode_document, and in training router_m"
    ):
        model.encode(QUERIES)
    with pytest.raises(TypeError, match=r"^similarity must be a TverskySimilarity"):
        TverskyCode(similarity=torch.nn.Linear(2, 2))
    shared = TverskySimilarity(16, 24)
    assert TverskyCode(similarity=shared).similarity is shared
    assert TverskyCode.similarity_fn(torch.eye(2), torch.eye(2)).equal(dot_score(torch.eye(2), torch.eye(2)))
