"""TverskyCode: the last module of a SentenceTransformer, whose dot products are Tversky similarities."""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Module
from sentence_transformers.util import dot_score
from torch import Tensor
from torch.nn.functional import normalize

from ..contrast import CONSTANTS
from ..explain import TOP, Pair
from ..form import check_choice
from ..losses import checked
from ..nn import TverskySimilarity
from ..ops.modes import wide, without_autocast
from ..retrieval.codes import has_roots, weights
from .hub import bank_options

SIDES = ("query", "document")


class TverskyCode(Module):
    """Sentence embeddings ``[N, D]`` -> codes of queries or of documents, whose dot product is S(query, document).

    Make the model as ``SentenceTransformer(modules=[encoder, TverskyCode(384, 1024, presence=0.05)])``, with
    ``similarity_fn_name="dot"`` or none, and encode by ``encode_query`` and ``encode_document``.
    Train it with any loss that takes ``similarity_fct=dot_score``, and say which column is which side by
    ``router_mapping={"anchor": "query", "positive": "document"}`` among the training arguments. The documents' codes
    hold no constants, and any index of inner products takes them. A code has a last number more than those of
    ``retrieval``: the part of S that the query alone decides, and 1 for a document.

    Args:
        dim: Width D of the sentence embeddings.
        num_features: K.
        reverse: Whether the product is S(document, query) instead.
        similarity: A TverskySimilarity to use instead of one of ``dim`` and ``num_features``.
        options: As in TverskySimilarity. The form must be an inner product: the contrast model of product, mean or
            feature-level gmean with ignorematch.

    Example:
        >>> code = TverskyCode(8, 32)
        >>> code({"sentence_embedding": torch.randn(2, 8)}, task="query")["sentence_embedding"].shape
        torch.Size([2, 65])
    """

    forward_kwargs = {"task"}  # noqa: RUF012

    def __init__(
        self,
        dim: int | None = None,
        num_features: int | None = None,
        *,
        reverse: bool = False,
        similarity: TverskySimilarity | None = None,
        **options: Any,
    ):
        super().__init__()
        if similarity is None:
            similarity = TverskySimilarity(dim, num_features, **options)  # pyright: ignore[reportArgumentType]
        self.similarity, self.reverse = checked(similarity), reverse
        form = self.similarity.form
        if form.difference != "ignorematch" or weights(form, torch.ones(1, 1), 1.0, 1.0, 1.0) is None:
            raise ValueError(
                f"{form.described()} is no inner product of codes; product, mean and feature-level gmean with "
                "ignorematch are, in the contrast model. TverskyIndex and the losses of similitude take every form."
            )
        if form.leak:
            raise ValueError(f"leak={form.leak} is for pairs; a code has no pair: make the similarity with leak=0.")

    def forward(self, features: dict[str, Any], task: str | None = None, **kwargs: Any) -> dict[str, Any]:
        task = features.get("task") if task is None else task
        if task not in SIDES:
            raise ValueError(
                f"a Tversky code is of a query or of a document; got task={task!r}: use encode_query and "
                'encode_document, and in training router_mapping={"anchor": "query", "positive": "document"}.'
            )
        x = features["sentence_embedding"]
        with without_autocast(x.device.type):
            features["sentence_embedding"] = self.codes(x.to(wide(x.dtype)), task)
        return features

    def codes(self, x: Tensor, side: str) -> Tensor:
        """Codes of sentence embeddings ``[N, D]`` as ``[N, 2K + 1]``, with gradients; with gmean ``[N, 3K + 1]``."""
        check_choice("side", side, SIDES)
        sim = self.similarity
        x = normalize(x, dim=-1) if sim.normalize else x
        weight, threshold = sim._features(x, x)
        threshold = None if threshold is None else -threshold.to(x.dtype)
        a = torch.nn.functional.linear(x, weight.to(x.dtype), threshold).relu()
        has, one = (a > 0).to(a.dtype), a.new_ones(len(a), 1)
        # At 0 the root is infinitely steep, and a feature that is not there has no gradient.
        roots = torch.where(a > 0, a, 1).sqrt() * has if has_roots(sim.form) else None
        if side == "document":
            return torch.cat([a, has, *([] if roots is None else [roots]), one], -1)
        alpha, beta, theta = (value.reshape(()).to(a.dtype) for value in sim.contrast())
        w = weights(sim.form, a, alpha, beta, theta, self.reverse)  # pyright: ignore[reportArgumentType]
        assert w is not None
        return torch.cat([w.measured, w.had, *([] if roots is None else [theta * roots]), w.constant[:, None]], -1)

    @staticmethod
    def similarity_fn(queries: Any, documents: Any) -> Tensor:
        """S of all pairs of codes, ``[N, M]``, for losses that take a ``similarity_fct``."""
        return dot_score(queries, documents)

    def get_embedding_dimension(self) -> int:
        """Width of a code."""
        blocks = 3 if has_roots(self.similarity.form) else 2
        return blocks * self.similarity.features.num_features + 1

    def on_model_ready(self, model: Any) -> None:
        """Makes the dot product the similarity of the model that this is a module of."""
        if model._similarity_fn_name not in (None, "dot"):
            name = model._similarity_fn_name
            raise ValueError(f'codes are compared by similarity_fn_name="dot"; this model has {name!r}.')
        model.similarity_fn_name = "dot"

    def get_config_dict(self) -> dict[str, Any]:
        """Arguments that make a module into which the state of this one loads."""
        sim = self.similarity
        learnable = [name for name, raw in zip(CONSTANTS, sim.learned()) if isinstance(raw, torch.nn.Parameter)]
        constants = dict(zip(CONSTANTS, sim.starting_constants))
        options = dict(learnable=learnable, parametrization=sim.parametrization, reverse=self.reverse)
        return {**bank_options(sim.features), **sim.form._asdict(), **constants, **options}

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(cls, model_name_or_path: str, **kwargs: Any) -> TverskyCode:
        names = ("subfolder", "token", "cache_folder", "revision", "local_files_only")
        where = {name: kwargs[name] for name in names if name in kwargs}
        code = cls(**cls.load_config(model_name_or_path, **where))
        cls.load_torch_weights(model_name_or_path, model=code, **where)
        return code


def embeddings(model: SentenceTransformer, texts: Any, side: str = "document", **kwargs: Any) -> Tensor:
    """The vectors ``[N, D]`` that reach the model's TverskyCode: what a TverskyIndex, a start from data, names take.

    Args:
        model: A SentenceTransformer whose last module is a TverskyCode.
        texts: Texts, or one.
        side: "query" or "document": whose prompt and route.
        kwargs: As in ``encode``.
    """
    check_choice("side", side, SIDES)
    *before, code = model.children()
    if not isinstance(code, TverskyCode):
        raise TypeError(f"the model's last module must be a TverskyCode; got {type(code).__name__}.")
    prompts = {"prompts": model.prompts, "default_prompt_name": model.default_prompt_name}
    encoder = SentenceTransformer(modules=before, device=str(model.device), **prompts)
    encode: Any = encoder.encode_query if side == "query" else encoder.encode_document
    return encode(texts, convert_to_tensor=True, **kwargs).clone()


def explain(
    model: SentenceTransformer, query: str, document: str, top: int = TOP, feature_names: list[str] | None = None
) -> Pair:
    """Why a document is as similar to a query as it is, feature by feature and both ways round. Print it.

    Args:
        model: A SentenceTransformer whose last module is a TverskyCode.
        query, document: Their texts.
        top: How many features of each kind are printed.
        feature_names: Names of the features; by default those of the bank.
    """
    a, b = embeddings(model, query, "query"), embeddings(model, document, "document")
    code: Any = [*model.children()][-1]
    return code.similarity.explain(a, b, top, (query, document), feature_names)
