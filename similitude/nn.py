"""FeatureBank, TverskySimilarity, TverskyProjection: thin modules over functional.

N objects, P prototypes, K features, D dim. State: ``prototypes [P, D]``, ``features.weight [K, D]``, ``alpha``,
``beta``, ``theta`` and, if asked for, ``bias [P]``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from . import checks, precision
from . import functional as F
from .contrast import CONSTANTS, Contrast
from .initialize import INITS, PAPER, SHARE, constants, fill_, fill_prototypes_

if TYPE_CHECKING:
    from .bank import Pruned, Usage
    from .explain import Explanation

OPTIONS = ("intersection", "difference", "level", "model", "normalize", "backend", "leak")


class FeatureBank(nn.Module):
    """Ω: K feature vectors of width D, learned; shared by all the layers that are given it.

    Called on objects ``[..., D]`` it returns their measures x · f_k, ``[..., K]``; an object has the features whose
    measure is positive.
    """

    def __init__(self, num_features: int, dim: int, *, init: str = "calibrated", device=None, dtype=None):
        super().__init__()
        _check_sizes(num_features=num_features, dim=dim)
        self.init = checks.check_choice("init", init, INITS)
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"dtype must be a floating dtype; got {str(dtype).removeprefix('torch.')}.")
        self.weight = nn.Parameter(torch.empty(num_features, dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        fill_(self.weight, self.init)

    @property
    def num_features(self) -> int:
        return self.weight.shape[0]

    @property
    def dim(self) -> int:
        return self.weight.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        checks.check_vectors("x", x)
        checks.check_width("x", x, self.weight)
        return nn.functional.linear(x, self.weight)

    def usage(self, objects, through=None, threshold: float = 0.99) -> Usage:
        """How often objects have each feature, and which are dead or duplicates; see bank.usage."""
        from .bank import usage

        return usage(self, objects, through, threshold)

    def grow(self, new: int | Tensor, scale: float = 1.0) -> None:
        """Adds features, for all layers that share the bank; see bank.grow."""
        from .bank import grow

        grow(self, new, scale)

    def extra_repr(self) -> str:
        return f"num_features={self.num_features}, dim={self.dim}"


class TverskySimilarity(Contrast):
    """Similarity of pairs of objects over a learned feature bank, Eq. 6, used like nn.CosineSimilarity.

    ``sim(a, b)``: ``[..., D]``, ``[..., D]`` -> ``[...]``, broadcasting. ``sim.pairwise(a, b)``: all pairs.

    features: a FeatureBank to share; without it one of ``num_features`` is made.
    alpha, beta, theta: starting values, by default those of ``init``; ``learnable`` says which of them train: True,
    False, or their names; ``parametrization``, how: "gain", "log" or, as in the paper, "plain", see constants.py.
    init: "calibrated", docs/initialisation.md, or the paper's "uniform", "normal", "orthogonal".
    The options are those of functional.tversky_similarity.
    """

    starting_constants: tuple[float | None, ...]
    intersection: str
    difference: str
    level: str
    normalize: bool
    init: str
    backend: str
    leak: float = 0.0

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
        device=None,
        dtype=None,
    ):
        super().__init__()
        _check_sizes(dim=dim)
        _set_options(self, intersection, difference, level, model, normalize, init, backend, leak)
        if features is not None:
            device, dtype = _like(features.weight, device, dtype)
        self.dim = dim
        self.owns_features = features is None
        self.features = _bank(dim, num_features, features, init, device, dtype)
        _start_constants(self, (alpha, beta, theta), learnable, parametrization, device, dtype)

    def reset_parameters(self) -> None:
        """Starting values again; a bank that was given is left alone."""
        if self.owns_features:
            self.features.reset_parameters()
        self.reset_constants()

    def reset_constants(self, x: Tensor | None = None, spread: float | None = None) -> None:
        """Starting values of α, β, θ again; see TverskyProjection.reset_constants."""
        _reset_constants(self, None, x, spread, SHARE)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return F.tversky_similarity(a, b, self.features.weight, **_arguments(self))

    def pairwise(self, a: Tensor, b: Tensor) -> Tensor:
        """All pairs: ``[..., N, D]``, ``[P, D]`` or ``[..., P, D]`` -> ``[..., N, P]``, never N×P×K in memory."""
        return F.tversky_projection(a, b, self.features.weight, **_arguments(self))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, {_described(self)}"


class TverskyProjection(Contrast):
    """Similarity of the input to each of P learned prototypes, Eq. 7, in the place of an nn.Linear(D, P).

    ``[..., D]`` -> ``[..., P]``.

    features: a FeatureBank to share; without it one of ``num_features`` is made.
    prototypes: an nn.Parameter ``[P, D]`` to tie to, such as an embedding's weight; without it they are made.
    alpha, beta, theta: starting values, by default those of ``init``; ``learnable`` says which of them train: True,
    False, or their names; ``parametrization``, how: "gain", "log" or, as in the paper, "plain", see constants.py.
    init: "calibrated", docs/initialisation.md, or the paper's "uniform", "normal", "orthogonal".
    spread: standard deviation of the outputs at a calibrated start, by default a fifth above an nn.Linear's.
    alpha_share: the part, above 0 and up to 1, of what is common that α's difference takes away at that start;
    β's takes the rest.
    bias: adds a learned number for each prototype, which the paper does not have.
    The options are those of functional.tversky_projection.
    """

    starting_constants: tuple[float | None, ...]
    intersection: str
    difference: str
    level: str
    normalize: bool
    init: str
    backend: str
    leak: float = 0.0
    alpha_share: float = SHARE
    bias: nn.Parameter | None

    def __init__(
        self,
        dim: int,
        num_prototypes: int,
        num_features: int | None = None,
        *,
        features: FeatureBank | None = None,
        prototypes: nn.Parameter | None = None,
        bias: bool = False,
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
        device=None,
        dtype=None,
    ):
        super().__init__()
        _check_sizes(dim=dim, num_prototypes=num_prototypes)
        _set_options(self, intersection, difference, level, model, normalize, init, backend, leak)
        _check_prototypes(prototypes, num_prototypes, dim)
        given = prototypes if prototypes is not None else getattr(features, "weight", None)
        if given is not None:
            device, dtype = _like(given, device, dtype)
        self._kept: _Kept | None = None
        self.spread, self.alpha_share = spread, checks.check_share("alpha_share", alpha_share)
        self.owns_features, self.owns_prototypes = features is None, prototypes is None
        self.features = _bank(dim, num_features, features, init, device, dtype)
        if prototypes is None:
            prototypes = nn.Parameter(torch.empty(num_prototypes, dim, device=device, dtype=dtype))
            fill_prototypes_(prototypes, init, self.features.weight)
        self.prototypes = prototypes
        _start_constants(self, (alpha, beta, theta), learnable, parametrization, device, dtype)
        self.register_parameter(
            "bias", nn.Parameter(torch.zeros(num_prototypes, device=device, dtype=dtype)) if bias else None
        )

    def reset_parameters(self) -> None:
        """Starting values again; a bank or prototypes that were given are left alone."""
        if self.owns_features:
            self.features.reset_parameters()
        if self.owns_prototypes:
            fill_prototypes_(self.prototypes, self.init, self.features.weight)
        self.reset_constants()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def reset_constants(self, x: Tensor | None = None, spread: float | None = None) -> None:
        """Starting values of α, β, θ again, for the bank and the prototypes as they are now.

        Where they are calibrated, outputs then have the mean 0 and the standard deviation ``spread``, by default the
        layer's own, for inputs like ``x [N, D]`` or, without them, of unit variance.
        """
        _reset_constants(self, self.prototypes, x, self.spread if spread is None else spread, self.alpha_share)

    @property
    def in_features(self) -> int:
        """Width of the input, D; named as in nn.Linear, and not about the bank's features."""
        return self.prototypes.shape[1]

    @property
    def out_features(self) -> int:
        """Width of the output, P; named as in nn.Linear, and not about the bank's features."""
        return self.prototypes.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        out = self._similarities(x)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def _similarities(self, x: Tensor) -> Tensor:
        """The prototypes' side is kept in ``eval()`` under ``no_grad``, so that a small batch need not pay for it.

        It is made anew when parameters or options change. Of changes through ``.data``, which leave no mark, it sees
        those that touch one of some columns; ``eval()`` called again drops it.
        """
        arguments = _arguments(self)
        sources = (self.prototypes, self.features.weight, *self.learned())
        keeps = not self.training and not torch.is_grad_enabled() and precision.agrees(x, self.prototypes)
        if not keeps or any(s.is_inference() for s in sources):
            self._kept = None
            return F.tversky_projection(x, *sources[:2], **arguments)
        settings = (*(v for v in arguments.values() if not isinstance(v, Tensor)), *precision.settings(x))
        # Other threads may put another in its place meanwhile.
        kept = self._kept
        if kept is None or not kept.holds(sources, settings):
            kept = self._kept = _Kept(sources, settings, F.prepare(*sources[:2], **arguments))
        return F.project_prepared(x, kept.side, **arguments)

    def train(self, mode: bool = True) -> TverskyProjection:
        self._kept = None
        return super().train(mode)

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_kept": None}

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

        The arguments are those of functional.tversky_cross_entropy.

        Equivalent to: ``nn.functional.cross_entropy(self(x).flatten(0, -2), target.flatten(), ...)``.
        """
        return F.tversky_cross_entropy(
            x,
            target,
            self.prototypes,
            self.features.weight,
            **_arguments(self),
            bias=self.bias,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
        )

    def explain(
        self,
        x: Tensor,
        prototype: int | None = None,
        top: int = 10,
        feature_names: Sequence[str] | None = None,
        prototype_names: Sequence[str] | None = None,
    ) -> Explanation:
        """Why this input ``[D]`` is as similar as it is to a prototype (by default the most similar one).

        The signed contributions of all features add up to the layer's output. Print it, or show it in a notebook.
        """
        from .explain import explain

        return explain(self, x, prototype, top, feature_names, prototype_names)

    def prune(self, data, through=None, fold: bool = False) -> Pruned:
        """Removes features that nobody has on the data, where outputs stay as they are; see bank.prune."""
        from .bank import prune

        return prune(self, data, through, fold)[0]

    def extra_repr(self) -> str:
        shape = f"dim={self.in_features}, num_prototypes={self.out_features}"
        tied = "" if self.owns_prototypes else ", prototypes=tied"
        bias = "" if self.bias is None else ", bias=True"
        return f"{shape}{tied}{bias}, {_described(self)}"


class _Kept:
    """The prototypes' side of a layer, and what it was made of."""

    def __init__(self, sources: Sequence[Tensor], settings: tuple, side: F.Prepared):
        self.sources, self.settings, self.side = sources, settings, side
        self.versions = [(s.data_ptr(), s._version) for s in sources]
        self.samples = [self.sample(s).clone() for s in sources]

    def holds(self, sources: Sequence[Tensor], settings: tuple) -> bool:
        """Whether the side is still that of these tensors; changes through ``.data`` leave no mark but their values."""
        return (
            settings == self.settings
            and all(s is kept for s, kept in zip(sources, self.sources, strict=True))
            and [(s.data_ptr(), s._version) for s in sources] == self.versions
            and all(torch.equal(self.sample(s), kept) for s, kept in zip(sources, self.samples, strict=True))
        )

    @staticmethod
    def sample(x: Tensor) -> Tensor:
        """Some columns of every row."""
        return x.detach()[..., :: max(1, x.shape[-1] // 8)]


def _like(given: Tensor, device, dtype) -> tuple:
    """The device and dtype asked for, or those of what was given."""
    return given.device if device is None else device, given.dtype if dtype is None else dtype


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must be a whole number of 1 or more; got {size!r}.")


def _check_prototypes(prototypes: object, P: int, D: int) -> None:
    if prototypes is None:
        return
    if not isinstance(prototypes, nn.Parameter):
        hint = ": pass its .weight" if isinstance(prototypes, nn.Module) else ""
        raise TypeError(f"prototypes must be an nn.Parameter to tie to; got {type(prototypes).__name__}{hint}.")
    checks.check_vectors("prototypes", prototypes)
    if list(prototypes.shape) != [P, D]:
        raise ValueError(
            f"tied prototypes must be [num_prototypes, dim] = {[P, D]}; got shape {list(prototypes.shape)}."
        )


def _bank(dim, num_features, features, init, device, dtype) -> FeatureBank:
    """The bank that was given, checked, or a new one."""
    if features is None:
        if num_features is None:
            raise ValueError(
                "give num_features for a feature bank of its own, or features=FeatureBank(...) to share one."
            )
        return FeatureBank(num_features, dim, init=init, device=device, dtype=dtype)
    if not isinstance(features, FeatureBank):
        raise TypeError(
            f"features must be a FeatureBank; got {type(features).__name__}: FeatureBank(num_features, dim)."
        )
    if features.dim != dim:
        raise ValueError(f"the feature bank has dim {features.dim} and the layer dim {dim}; they must be equal.")
    if num_features not in (None, features.num_features):
        raise ValueError(
            f"num_features={num_features} contradicts the given bank of {features.num_features} features; leave it out."
        )
    return features


def _set_options(module, intersection, difference, level, model, normalize, init, backend, leak) -> None:
    options = checks.check_options(intersection, difference, level, model)
    module.intersection, module.difference, module.level, module.model = options
    module.normalize = checks.check_flag("normalize", normalize)
    module.init = checks.check_choice("init", init, INITS)
    module.backend = checks.check_choice("backend", backend, checks.BACKENDS)
    module.leak = checks.check_leak(leak, *options)


def _start_constants(module, values: tuple, learnable, parametrization, device, dtype) -> None:
    for name, value in zip(CONSTANTS, values, strict=True):
        if value is not None:
            checks.check_scalar(name, value)
    module.starting_constants = tuple(None if value is None else float(value) for value in values)
    module.register_constants(PAPER, learnable, parametrization, device, dtype)
    module.reset_constants()


def _reset_constants(module, prototypes: Tensor | None, x: Tensor | None, spread: float | None, share: float) -> None:
    """What was asked for, and for the rest what the starting values of the vectors call for."""
    given, usual, units = module.starting_constants, PAPER, None
    if module.init == "calibrated" and None in given:
        options = (module.intersection, module.difference, module.level, module.model, module.normalize)
        usual, units = constants(prototypes, module.features.weight, *options, spread=spread, alpha_share=share, x=x)
    values = [value if value is not None else other for value, other in zip(given, usual, strict=True)]
    if units is not None:
        units = [unit if value is None else abs(value) or unit for value, unit in zip(given, units, strict=True)]
    module.set_constants(values, units)


def _arguments(module) -> dict:
    """The module's constants and options, as functional takes them."""
    return {name: getattr(module, name) for name in (*CONSTANTS, *OPTIONS)}


def _described(module) -> str:
    extra = "".join(
        f", {name}={getattr(module, name)!r}"
        for name, usual in zip(OPTIONS[2:], ("feature", "contrast", False, "auto", 0.0), strict=True)
        if getattr(module, name) != usual
    )
    return f"intersection={module.intersection!r}, difference={module.difference!r}{extra}"
