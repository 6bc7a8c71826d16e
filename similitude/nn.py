"""FeatureBank, TverskySimilarity, TverskyProjection: thin modules over functional.

N objects, P prototypes, K features, D dim. State: ``prototypes [P, D]``, ``features.weight [K, D]``, ``alpha``,
``beta``, ``theta`` and, if asked for, ``bias [P]``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.types import Device

from . import checks
from . import functional as F
from .bank import FeatureBank, Pruned, Through, bank_of, cut, prune
from .contrast import Contrast
from .form import Form, check_choice
from .initialize import INITS, SHARE, fill_prototypes_
from .kept import KeptSide, asked_for, numbered, place, project_in_graph, side_of
from .making import check_prototypes, like, made_bank, reset_constants, shown, start_constants
from .ops import vectors
from .ops.modes import rounded, wide, without_autocast
from .ops.plan import Plan
from .presence import warn_of_no_bias

if TYPE_CHECKING:
    from .explain import Explanation, Pair


class TverskySimilarity(Contrast):
    """Similarity of pairs of objects over a learned feature bank, Eq. 6, used like nn.CosineSimilarity.

    ``sim(a, b)``: ``[..., D]``, ``[..., D]`` -> ``[...]``, broadcasting. ``sim.pairwise(a, b)``: all pairs.

    Args:
        dim: Width D of the objects.
        num_features: K, for a feature bank of its own.
        features: A FeatureBank to share instead.
        alpha: Starting weight of what ``a`` has and ``b`` lacks, f(A−B); by default that of ``init``.
        beta: Starting weight of what ``b`` has and ``a`` lacks, f(B−A).
        theta: Starting weight of what both have, f(A∩B).
        learnable, parametrization, init, presence, hold: As in ``TverskyProjection``.
        intersection, difference, level, model, normalize, backend, leak: As in ``TverskyProjection``.
        device, dtype: Those of the parameters; by default the shared bank's.

    Example:
        >>> sim = TverskySimilarity(dim=8, num_features=32)
        >>> sim(torch.randn(5, 8), torch.randn(5, 8)).shape
        torch.Size([5])
    """

    starting_constants: tuple[float | None, ...]
    init: str
    form: Form
    features: FeatureBank
    owns_features: bool

    def __init__(
        self,
        dim: int,
        num_features: int | None = None,
        *,
        features: FeatureBank | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        theta: float | None = None,
        learnable: bool | Collection[str] = True,
        parametrization: str = "gain",
        intersection: str = "product",
        difference: str = "ignorematch",
        level: str = "feature",
        model: str = "contrast",
        normalize: bool = False,
        init: str = "calibrated",
        backend: str = "auto",
        leak: float = 0.0,
        presence: float | None = None,
        hold: bool | int = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        checks.check_sizes(dim=dim)
        self.form = Form.of(intersection, difference, level, model, normalize, backend, leak)
        self.init = check_choice("init", init, INITS)
        if features is not None:
            device, dtype = like(features.weight, device, dtype)
        self.dim = int(dim)
        self.owns_features = features is None
        self.features = made_bank(dim, num_features, features, init, presence, hold, device, dtype)
        start_constants(self, (alpha, beta, theta), learnable, parametrization, device, dtype)

    def reset_parameters(self) -> None:
        """Starting values again; a bank that was given is left alone."""
        if self.owns_features:
            self.features.reset_parameters()
        self.reset_constants()

    def reset_constants(self, x: Tensor | None = None, spread: float | None = None) -> None:
        """Starting values of α, β, θ again; see TverskyProjection.reset_constants."""
        reset_constants(self, None, x, spread, SHARE)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        weight, threshold = self._features(a, b)
        return F.tversky_similarity(a, b, weight, *self.contrast(), *self.form, threshold)

    def pairwise(self, a: Tensor, b: Tensor) -> Tensor:
        """All pairs: ``[..., N, D]``, ``[P, D]`` or ``[..., P, D]`` -> ``[..., N, P]``, never N×P×K in memory."""
        weight, threshold = self._features(a, b)
        if threshold is None:
            return F.tversky_projection(a, b, weight, *self.contrast(), *self.form)
        checks.check_all_pairs(a, b, weight)
        # Both sides carry the constant, and normalising must not see it.
        a, b = (vectors.longer(vectors.compared(x, self.form)) for x in (a, b))
        bank = torch.cat([weight, -threshold[:, None]], 1)
        return F.tversky_projection(a, b, bank, *self.contrast(), *self.form._replace(normalize=False))

    def _features(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor | None]:
        """The bank and its thresholds, which may follow the objects of both sides."""
        bank = self.features
        if not (bank_of(bank).hold and self.training):
            return cut(bank)
        for name, x in (("a", a), ("b", b)):
            checks.check_vectors(name, x)
            checks.check_width(name, x, bank_of(bank).weight)
        return cut(bank, torch.cat([vectors.compared(x, self.form).reshape(-1, x.shape[-1]) for x in (a, b)]))

    def explain(
        self,
        a: Tensor,
        b: Tensor,
        top: int = 6,
        names: tuple[str, str] = ("A", "B"),
        feature_names: Sequence[str] | None = None,
    ) -> Pair:
        """Why two objects are as similar as they are, feature by feature and both ways round. Print it.

        Args:
            a: The first object, ``[D]``.
            b: The second object, ``[D]``.
            top: How many features of each kind are shown.
            names: What to call the two objects.
            feature_names: What to call the features, in order.
        """
        from .explain import pair

        return pair(self, a, b, top, names, feature_names)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, {self.form.described()}{shown(self)}"


class TverskyProjection(Contrast):
    """Similarity of the input to each of P learned prototypes, Eq. 7: ``[..., D]`` -> ``[..., P]``, like nn.Linear.

    Args:
        dim: Width D of the input.
        num_prototypes: P, the width of the output.
        num_features: K, for a feature bank of its own.
        features: A FeatureBank to share instead.
        prototypes: A parameter ``[P, D]`` to tie to, such as an embedding's weight; by default the layer makes its own.
        bias: Whether to add a learned number to each output; the paper does not.
        scale: Starting value, such as 4, of a learned factor of the ratio model's similarities, which lie in [0, 1].
        alpha: Starting weight of what the input has and the prototype lacks, f(A−B); by default that of ``init``.
        beta: Starting weight of what the prototype has and the input lacks, f(B−A).
        theta: Starting weight of what both have, f(A∩B).
        learnable: Which of the three train: True, False, or their names.
        parametrization: How they are parametrised: a ``gain`` on their starting value, the ``log`` of that gain, or
            ``plain`` values as in the paper.
        intersection: Ψ, what a shared feature counts: "product", "min", "max", "mean", "gmean" or "softmin".
        difference: Features that the other lacks, "ignorematch", or also the excess in shared ones, "subtractmatch".
        level: Whether Ψ and the excess are taken of each "feature", or of sums over shared features, "set".
        model: Tversky's "contrast" model, Eq. 1, or his "ratio" model, whose similarities lie in [0, 1].
        normalize: Whether inputs and prototypes are scaled to length 1 first.
        backend: Which code may run: "auto", "reference" (the equations), "torch" or "triton".
        leak: Share of the gradient that reaches features an object lacks, 0 in the paper; outputs do not change.
        init: "calibrated" (outputs as large as nn.Linear's), "unit", or the paper's "uniform", "normal", "orthogonal".
        spread: Standard deviation of the outputs at a calibrated start; by default a fifth above nn.Linear's.
        alpha_share: Share of the common part that α's difference balances at a calibrated start, above 0 and up to 1;
            β's balances the rest.
        presence: Fraction of inputs that have a feature; it gives each feature a threshold. By default there is none.
        hold: Whether thresholds follow the training data, as in ``FeatureBank``.
        device, dtype: Those of the parameters; by default those of what is shared or tied.

    Example:
        >>> layer = TverskyProjection(dim=8, num_prototypes=3, num_features=32)
        >>> layer(torch.randn(5, 8)).shape
        torch.Size([5, 3])
    """

    starting_constants: tuple[float | None, ...]
    init: str
    form: Form
    features: FeatureBank
    owns_features: bool
    prototypes: nn.Parameter
    owns_prototypes: bool
    spread: float | None
    alpha_share: float = SHARE
    bias: nn.Parameter | None
    starting_scale: float | None = None

    def __init__(
        self,
        dim: int,
        num_prototypes: int,
        num_features: int | None = None,
        *,
        features: FeatureBank | None = None,
        prototypes: nn.Parameter | None = None,
        bias: bool = False,
        scale: float | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        theta: float | None = None,
        learnable: bool | Collection[str] = True,
        parametrization: str = "gain",
        intersection: str = "product",
        difference: str = "ignorematch",
        level: str = "feature",
        model: str = "contrast",
        normalize: bool = False,
        init: str = "calibrated",
        spread: float | None = None,
        alpha_share: float = SHARE,
        backend: str = "auto",
        leak: float = 0.0,
        presence: float | None = None,
        hold: bool | int = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        checks.check_sizes(dim=dim, num_prototypes=num_prototypes)
        self.form = Form.of(intersection, difference, level, model, normalize, backend, leak)
        self.init = check_choice("init", init, INITS)
        check_prototypes(prototypes, num_prototypes, dim)
        given = prototypes if prototypes is not None else getattr(features, "weight", None)
        if given is not None:
            device, dtype = like(given, device, dtype)
        self._kept: KeptSide | None = None
        self._number, self._seen = numbered(self), {}
        self.spread, self.alpha_share = spread, checks.check_share("alpha_share", alpha_share)
        self.owns_features, self.owns_prototypes = features is None, prototypes is None
        self.features = made_bank(dim, num_features, features, init, presence, hold, device, dtype)
        if prototypes is None:
            prototypes = nn.Parameter(torch.empty(num_prototypes, dim, device=device, dtype=dtype))
            fill_prototypes_(prototypes, init, self.features.weight)
        self.prototypes = prototypes
        start_constants(self, (alpha, beta, theta), learnable, parametrization, device, dtype)
        self.register_parameter(
            "bias", nn.Parameter(torch.zeros(num_prototypes, device=device, dtype=dtype)) if bias else None
        )
        self.starting_scale = checks.check_scale(scale, self.form.model)
        if self.starting_scale is not None:
            self.scale_log: nn.Parameter = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
            self.reset_scale()

    def reset_parameters(self) -> None:
        """Starting values again; a bank or prototypes that were given are left alone."""
        if self.owns_features:
            self.features.reset_parameters()
        if self.owns_prototypes:
            fill_prototypes_(self.prototypes, self.init, self.features.weight)
        self.reset_constants()
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self.reset_scale()

    @torch.no_grad()
    def reset_scale(self) -> None:
        """The scale's starting value again."""
        if self.starting_scale is not None:
            self.scale_log.fill_(math.log(self.starting_scale))

    @property
    def scale(self) -> Tensor | None:
        """The learned factor of the similarities, or None."""
        return None if self.starting_scale is None else self.scale_log.to(wide(self.scale_log.dtype)).exp()

    def reset_constants(self, x: Tensor | None = None, spread: float | None = None) -> None:
        """Starting values of α, β, θ again, for the bank and the prototypes as they are now.

        If they are calibrated, outputs then have mean 0 and standard deviation ``spread``.

        Args:
            x: Inputs ``[N, D]`` to calibrate for; by default inputs of unit variance.
            spread: By default the layer's own.
        """
        reset_constants(self, self.prototypes, x, self.spread if spread is None else spread, self.alpha_share)

    @property
    def in_features(self) -> int:
        """Width of the input, D; named as in nn.Linear, and not about the bank's features."""
        return self.prototypes.shape[1]

    @property
    def out_features(self) -> int:
        """Width of the output, P; named as in nn.Linear, and not about the bank's features."""
        return self.prototypes.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        kept = None if torch.compiler.is_compiling() else self._kept  # looked at, it would compile each answer anew
        served = kept is not None and kept.serves(self, x)
        out = vectors.project_on(kept.value, x) if served else self._similarities(x)  # pyright: ignore
        scale, bias = None if self.starting_scale is None else self.scale, self.bias
        if scale is not None:
            out = (out * scale).to(out.dtype)
        return out if bias is None else out + bias.to(out.dtype)

    def _similarities(self, x: Tensor) -> Tensor:
        """Similarities, ``[..., P]``. ``eval()`` under ``no_grad`` keeps the prototypes' side for the next batch.

        It is made anew when parameters or options change. Changes through ``.data`` do not bump the version counter;
        they are detected if they touch what is sampled, about eight columns or, of large tensors, an element of every
        row; ``eval()`` called again drops what is kept.
        """
        prototypes, form = self.prototypes, self.form
        weight, threshold = self._features(x)
        plain = type(self.features) is FeatureBank
        if torch.compiler.is_compiling() and plain and asked_for(self, x, weight, threshold):
            return project_in_graph(self, x, weight, threshold)
        where = None if self.training or torch.is_grad_enabled() else place(x, prototypes)
        sources = [s for s in (prototypes, weight, *self.learned(), threshold) if s is not None] if where else []
        if where is None or any(s.is_inference() for s in sources):
            if not torch.compiler.is_compiling():
                self.__dict__["_kept"] = None
            return F.tversky_projection(x, prototypes, weight, *self.contrast(), *form, threshold)
        # Other threads may put another in its place meanwhile.
        kept = self._kept
        if kept is None or not kept.holds(sources, (form, where)):
            bank = self.features if plain else None
            side = side_of(x, prototypes, weight, threshold, self.contrast(), form)
            kept = self._kept = KeptSide(side, self, bank, sources, (form, where))
        checks.check_width("x", x, weight)
        with without_autocast(x.device.type):
            return vectors.project_on(kept.value, x)

    def plan(self, x: Tensor) -> Plan:
        """Which code compares ``x`` with the prototypes; print it."""
        weight, threshold = cut(self.features)
        checks.check_all_pairs(x, self.prototypes, weight)
        return vectors.plan_of(x, self.prototypes, weight, self.form, rounded(x), threshold)

    def _features(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The bank and its thresholds, which may follow the inputs, if those are in order."""
        bank = self.features
        if not (bank_of(bank).hold and self.training):
            return cut(bank)
        checks.check_alike(x=x, prototypes=self.prototypes, features=bank_of(bank).weight)
        checks.check_all_pairs(x, self.prototypes, bank_of(bank).weight)
        if x.requires_grad and self.bias is None:
            warn_of_no_bias(self)
        return cut(bank, vectors.compared(x, self.form))

    def train(self, mode: bool = True) -> TverskyProjection:
        self._kept = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return {name: v for name, v in self.__dict__.items() if name not in ("_number", "_seen")} | {"_kept": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._number, self._seen = numbered(self), {}

    def cross_entropy(
        self,
        x: Tensor,
        target: Tensor,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
    ) -> Tensor:
        """Loss of the layer's output without making it, for many prototypes: ``[..., D]``, ``[...]`` -> ``[]``.

        Args:
            x: Inputs, ``[..., D]``.
            target: Index of the right prototype of each input, ``[...]``, or ``ignore_index``.
            ignore_index, reduction, label_smoothing, z_loss: As in ``functional.tversky_cross_entropy``.

        Equivalent to: ``nn.functional.cross_entropy(self(x).flatten(0, -2), target.flatten(), ...)``.
        """
        weight, threshold = self._features(x)
        return F.tversky_cross_entropy(
            x,
            target,
            self.prototypes,
            weight,
            *self.contrast(),
            **self.form._asdict(),
            threshold=threshold,
            bias=self.bias,
            scale=self.scale,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
        )

    def explain(
        self,
        x: Tensor,
        prototype: int | None = None,
        top: int = 6,
        feature_names: Sequence[str] | None = None,
        prototype_names: Sequence[str] | None = None,
    ) -> Explanation:
        """Why this input is as similar as it is to a prototype, feature by feature. Print it, or show it in a notebook.

        The signed contributions of all features add up to the layer's output.

        Args:
            x: The input, ``[D]``.
            prototype: Which prototype; by default the most similar one.
            top: How many features of each kind are shown.
            feature_names, prototype_names: What to call them, in order.
        """
        from .explain import explain

        return explain(self, x, prototype, top, feature_names, prototype_names)

    def reconstruction(self, x: Tensor) -> Tensor:
        """Share of the inputs' variance that their features leave unexplained, from 0 to 1: a loss beside the task's.

        An input is rebuilt from the directions of the features it has, each as long as its measure. Features of images
        then become parts of images.
        """
        checks.check_vectors("x", x)
        checks.check_width("x", x, self.features.weight)
        if x.dim() < 2 or x.numel() < 2 * x.shape[-1]:
            raise ValueError(f"x must be two inputs or more, [..., D]; got shape {list(x.shape)}.")
        with without_autocast(x.device.type):
            return vectors.unexplained(vectors.compared(x, self.form), *self.features.cut())

    def prune(self, data: Tensor | Iterable[Any], through: Through | None = None, fold: bool = False) -> Pruned:
        """Removes features that no object in the data has, without changing outputs there; see ``bank.prune``."""
        return prune(self, data, through, fold)[0]

    def extra_repr(self) -> str:
        shape = f"dim={self.in_features}, num_prototypes={self.out_features}"
        tied = "" if self.owns_prototypes else ", prototypes=tied"
        bias = "" if self.bias is None else ", bias=True"
        bias += "" if self.starting_scale is None else f", scale={self.starting_scale:g}"
        return f"{shape}{tied}{bias}, {self.form.described()}{shown(self)}"
