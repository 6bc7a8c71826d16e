"""DataDomain: a network whose last layer's prototypes and features have the shape of an input, so they can be seen.

This is the paper's "data-domain visualization": these parameters go through the network like inputs, up to their layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .. import functional as F
from ..checks import check_positive, check_vectors, short
from ..clusters import spherical_means
from ..contrast import CONSTANTS, Contrast
from ..explain import Explanation, explain
from ..form import Form, check_choice
from ..initialize import calibrate
from ..kept import Kept, place
from ..nn import TverskyProjection
from ..ops.modes import autocasts
from ..presence import FIXED, held, scattered, upper_of, warn_of_holding, warn_of_no_bias

# Images that a start from data looks at.
LOOKED_AT = 4096


class DataDomain(Contrast):
    """A backbone and a head whose prototypes and features, or a linear head's rows, are images.

    ``[N, *shape]`` -> ``[N, P]``. "Images" are tensors of any input shape: ``prototypes [P, *shape]`` and, with a
    Tversky head, ``features [K, *shape]``. They are parameters that start as U[0, 1) noise; read them, edit them in
    place, or replace them with ``set_images``.

    In ``train()`` inputs and images go through the backbone as one batch ("along with every data batch", says the
    paper): batch norms treat both alike and update their statistics once, and dropout applies to both.

    In ``eval()`` under ``no_grad`` the encoded images are cached until a parameter, a buffer or a mode changes. Changes
    of the backbone through ``.data`` are not detected; another call of ``eval()`` drops the cache. With a plain
    callable as backbone no change can be detected, so nothing is cached.

    If the head has thresholds (``presence=``, ``hold=``), the network has them: an input has a feature if the scalar
    product of the two, encoded, exceeds the feature's threshold; a prototype has those where it exceeds 0.
    ``init_from_data(net, images)`` sets them, and starts features as mean images of clusters.

    Args:
        backbone: everything before the head, ``[N, *shape]`` -> ``[N, D]``. A module becomes part of this one. Another
            callable, such as a method of the network that has this one as a part, is only called; its parameters are
            counted and saved where they are. Prefer a method to a lambda, which Python can neither copy nor pickle.
        head: a TverskyProjection or nn.Linear, which gives sizes, options, α, β, θ and bias, but no vectors.
        shape: shape of one input, without the batch.
    """

    backbone: Callable[[Tensor], Tensor]
    dim: int
    shape: tuple[int, ...]
    prototypes: nn.Parameter
    features: nn.Parameter | None
    form: Form | None  # pyright: ignore[reportIncompatibleVariableOverride]
    bias: nn.Parameter | None
    presence: float | None
    hold: bool | int
    threshold: Tensor | None
    passes: Tensor | None
    # As FeatureBank has them.
    featureless: Tensor | None = None
    unheld: Tensor | None = None
    warned: bool = False

    def __init__(self, backbone: Callable[[Tensor], Tensor], head: TverskyProjection | nn.Linear, shape: Sequence[int]):
        super().__init__()
        if not callable(backbone):
            raise TypeError(f"backbone must be a module or another callable; got {type(backbone).__name__}.")
        if not isinstance(head, TverskyProjection | nn.Linear):
            raise TypeError(f"head must be a TverskyProjection or an nn.Linear; got {type(head).__name__}.")
        if isinstance(head, TverskyProjection) and head.starting_scale is not None:
            raise ValueError("a DataDomain network takes no head with a scale: multiply its output instead.")
        self._kept: Kept | None = None
        self.backbone, self.dim, self.shape = backbone, head.in_features, _checked_shape(shape)
        vectors = head.weight if isinstance(head, nn.Linear) else head.prototypes
        self.prototypes = nn.Parameter(torch.rand_like(vectors.new_empty(len(vectors), *self.shape)))
        self.register_parameter("features", None)
        self.register_parameter("bias", head.bias)
        self.form = None  # pyright: ignore[reportIncompatibleVariableOverride]  # a linear head has none
        if isinstance(head, TverskyProjection):
            K = head.features.num_features
            self.features = nn.Parameter(torch.rand_like(vectors.new_empty(K, *self.shape)))
            self.take_constants(head)
        self._take_thresholds(head)

    def forward(self, x: Tensor) -> Tensor:
        self._check_images("x", x)
        layer = self._kept_layer(x)
        if layer is not None:
            return layer(self._vectors(x))
        N, P = x.shape[0], len(self.prototypes)
        vectors = self._vectors(torch.cat([x, self._images()]))
        x, prototypes, features = vectors[:N], vectors[N : N + P], vectors[N + P :]
        if self.form is None:
            return nn.functional.linear(x, prototypes, self.bias)
        threshold = self._threshold(x, features)
        out = F.tversky_projection(x, prototypes, features, *self.contrast(), *self.form, threshold)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def encode(self, x: Tensor) -> Tensor:
        """The vectors that reach the head in ``eval()``, without gradients: ``[N, *shape]`` -> ``[N, D]``."""
        self._check_images("x", x)
        with self._evaluating():
            return self._vectors(x)

    def materialize(self) -> TverskyProjection | nn.Linear:
        """The head as a plain layer whose vectors are the images, encoded in ``eval()``.

        ``nn.Sequential(net.backbone, net.materialize())`` is the same network for inference, without images.
        """
        P = len(self.prototypes)
        vectors = self.encode(self._images())
        # Autocast changes the dtype of vectors and not that of parameters. On meta the layer draws no random numbers.
        like = {"device": "meta", "dtype": self.prototypes.dtype}
        if self.form is None:
            layer = nn.Linear(self.dim, P, bias=self.bias is not None, **like)
            values = {"weight": vectors}
        else:
            learnable = [n for n, t in zip(CONSTANTS, self.learned(), strict=True) if isinstance(t, nn.Parameter)]
            options = {**self.form._asdict(), "learnable": learnable, "bias": self.bias is not None}
            options |= {"parametrization": self.parametrization, "presence": self.presence}
            layer = TverskyProjection(self.dim, P, len(vectors) - P, **options, **like)
            values = {"prototypes": vectors[:P], "features.weight": vectors[P:]}
            values |= self.constants()
            if self.threshold is not None:
                values["features.threshold"] = self.threshold
        layer.to_empty(device=vectors.device)
        layer.load_state_dict(values if self.bias is None else {**values, "bias": self.bias})
        return layer.train(self.training)

    def as_projection(self) -> TverskyProjection:
        """The head as a TverskyProjection in ``eval()``, for views of features; a linear head raises TypeError."""
        layer = self.materialize()
        if not isinstance(layer, TverskyProjection):
            raise TypeError("a linear head has no features to look at; use a TverskyProjection.")
        return layer.eval()

    def explain(
        self,
        x: Tensor,
        prototype: int | str | None = None,
        top: int = 10,
        feature_names: Sequence[str] | None = None,
        prototype_names: Sequence[str] | None = None,
    ) -> Explanation:
        """Shares of all features in the similarity of one image to one prototype.

        Args:
            x: one image, ``[*shape]``.
            prototype: index of the prototype, or its name; by default the most similar one.
            top: how many features of each kind are printed.
            feature_names: names of all K features.
            prototype_names: names of all P prototypes.
        """
        layer = self.as_projection()
        if isinstance(x, Tensor) and x.shape != self.shape:
            raise ValueError(f"x must be one input of shape {list(self.shape)}; got shape {list(x.shape)}.")
        return explain(layer, self.encode(x[None])[0], prototype, top, feature_names, prototype_names)

    @torch.no_grad()
    def set_images(
        self, prototypes: Tensor | None = None, features: Tensor | None = None, threshold: Tensor | None = None
    ) -> DataDomain:
        """Replaces the images of the prototypes, of the features or of both, and returns the network.

        If their number changes, the parameter is a new one, which an optimizer must be given. Edit a single image by
        ``with torch.no_grad(): net.prototypes[i] = image``.

        Args:
            prototypes: images, ``[P, *shape]``.
            features: images, ``[K, *shape]``.
            threshold: thresholds of these features, ``[K]``; by default those that there are, and for further features
                their mean.
        """
        if features is not None and self.features is None:
            raise ValueError("a linear head has no features; its rows are the prototypes.")
        given = {n: images for n, images in (("prototypes", prototypes), ("features", features)) if images is not None}
        for name, images in given.items():
            self._check_images(name, images)
            if len(images) == 0:
                raise ValueError(f"{name} must be one image or more; got shape {list(images.shape)}.")
        if prototypes is not None and self.bias is not None and len(prototypes) != len(self.bias):
            raise ValueError(f"the head has a bias for {len(self.bias)} prototypes; got {len(prototypes)} images.")
        if threshold is not None:
            there = self.features if features is None else features
            self._check_threshold(threshold, 0 if there is None else len(there))
        for name, images in given.items():
            parameter = getattr(self, name)
            if parameter.shape == images.shape:
                parameter.copy_(images)
            else:
                setattr(self, name, nn.Parameter(images.detach().clone(), parameter.requires_grad))
        if self.threshold is not None and self.features is not None:
            own = self.threshold.detach()
            more = own.mean().expand(max(0, len(self.features) - len(own)))
            self._set_threshold(torch.cat([own[: len(self.features)], more]) if threshold is None else threshold)
        return self

    @torch.no_grad()
    def start_from_data(
        self,
        x: Tensor,
        spread: float | None = None,
        start: str | None = None,
        mixed: float = 0.0,
        progress: Callable[..., object] | None = None,
    ) -> None:
        """Starts features, thresholds and α, β, θ from images; see ``init_from_data``, which calls it.

        Thresholds and constants are for encoded images: in ``train()`` those of one batch, whose statistics are not
        kept. Thresholds then follow no encoder that learns: call it again after a warm-up with ``start="kept"``.

        Args:
            x: images, ``[N, *shape]``, for k-means more than there are features.
            spread: standard deviation of the outputs; by default a projection's.
            start: "k-means", the default with thresholds: features are the directions that images cluster around, each
                as long as its images are on average; or "kept": images stay as they are.
            mixed: not for images.
            progress: as ``init_from_data`` has it.
        """
        self._check_images("x", x)
        if self.features is None or self.form is None:
            raise ValueError("a linear head has no features to start from data; use a TverskyProjection.")
        start = ("kept" if self.threshold is None else "k-means") if start is None else start
        check_choice("start", start, ("k-means", "kept"))
        if mixed:
            raise ValueError(f"features that are images all start alike; got mixed={mixed}: leave it out.")
        if len(x) < 2:
            raise ValueError(f"x must have 2 images or more to start from; got {len(x)}.")
        if spread is not None:
            check_positive("spread", spread)
        if start == "k-means":
            self.features.copy_(self._mean_images(x, progress))
        vectors = self._without_statistics(torch.cat([self._images(), scattered(x, LOOKED_AT)]))
        sizes = (len(self.prototypes), len(self.features))
        prototypes, features, objects = vectors.split([*sizes, len(vectors) - sum(sizes)])
        if self.threshold is not None and self.presence is not None:
            self.threshold.copy_(upper_of(_compared(objects, self.form), features, self.presence))
            if self.passes is not None:
                self.passes.fill_(1)
        values, units = calibrate(prototypes, features, self.form, spread, x=objects, threshold=self.threshold)
        self.set_constants(values, units)
        if self.bias is not None and self.threshold is not None:
            out = F.tversky_projection(objects, prototypes, features, *self.contrast(), *self.form, self.threshold)
            self.bias.copy_(out.mean() - out.mean(0))

    def _mean_images(self, x: Tensor, progress: Callable[..., object] | None) -> Tensor:
        """The directions that images cluster around, each as long as the images of its cluster are on average."""
        assert self.features is not None
        rows = x.flatten(1)[x.flatten(1).any(1)]
        if len(rows) < len(self.features):
            raise ValueError(f"k-means needs {len(self.features)} images that are not empty; got {len(rows)}.")
        seed = int(torch.randint(2**31, (), device="cpu"))
        means = spherical_means(rows, len(self.features), seed=seed, progress=progress)
        lengths = rows.norm(dim=-1)
        own = nn.functional.one_hot((rows / lengths[:, None] @ means.mT).argmax(1), len(means)).to(rows)
        sizes = own.sum(0)
        mean = torch.where(sizes > 0, own.mT @ lengths / sizes.clamp(min=1), lengths.mean())
        return (means * mean[:, None]).view_as(self.features)

    def fix(self) -> None:
        """Ends the holding of a presence, as FeatureBank's does."""
        self.hold = False
        if self.passes is not None:
            self.passes.fill_(FIXED)

    def train(self, mode: bool = True) -> DataDomain:
        self._kept = None
        if not mode and self.training and self.hold:
            warn_of_holding(self)
        return super().train(mode)

    def _apply(self, fn, recurse: bool = True) -> DataDomain:
        # Moved or cast parameters may lie at addresses where others lay before.
        self._kept = None
        return super()._apply(fn, recurse)

    def _take_thresholds(self, head: TverskyProjection | nn.Linear) -> None:
        """Thresholds that start as the head's, learned or held as they are."""
        bank = head.features if isinstance(head, TverskyProjection) else None
        self.presence, self.hold = (None, False) if bank is None else (bank.presence, bank.hold)
        self.register_parameter("threshold", None)
        self.register_buffer("passes", None)
        if bank is not None and bank.threshold is not None:
            threshold = bank.threshold.detach().clone()
            if isinstance(bank.threshold, nn.Parameter):
                self.threshold = nn.Parameter(threshold)
            else:
                del self.threshold
                self.register_buffer("threshold", threshold)
            self.passes = None if bank.passes is None else bank.passes.clone()

    def _threshold(self, x: Tensor, features: Tensor) -> Tensor | None:
        """The thresholds, which may follow encoded inputs in training."""
        if not (self.hold and self.training) or self.form is None:
            return self.threshold
        if x.requires_grad and self.bias is None:
            warn_of_no_bias(self)
        return held(self, _compared(x, self.form), features)

    def _check_threshold(self, threshold: Tensor, K: int) -> None:
        if self.threshold is None:
            raise ValueError("the network has no thresholds; make its head with presence=0.1.")
        if threshold.shape != (K,):
            raise ValueError(f"threshold must be [{K}], one a feature; got shape {list(threshold.shape)}.")

    def _set_threshold(self, threshold: Tensor) -> None:
        own = self.threshold
        assert own is not None
        if own.shape == threshold.shape:
            own.copy_(threshold)
        elif isinstance(own, nn.Parameter):
            self.threshold = nn.Parameter(threshold.to(own).clone(), own.requires_grad)
        else:
            self.threshold = threshold.to(own).clone()

    def _without_statistics(self, x: Tensor) -> Tensor:
        """Encoded images, as the network is now, in ``train()`` or ``eval()``; no buffer changes."""
        buffers = [b for m in self._watched() or () for b in m._buffers.values() if b is not None]
        before = [b.clone() for b in buffers]
        vectors = self._vectors(x)
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
        return vectors

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Networks pickled before there were thresholds have none of these.
        super().__setstate__({"presence": None, "hold": False, **state})
        for name in ("threshold", "passes"):
            if name not in self._buffers:
                self._parameters.setdefault(name, None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def extra_repr(self) -> str:
        sizes = f"shape={self.shape}, dim={self.dim}, num_prototypes={len(self.prototypes)}"
        if self.features is None or self.form is None:
            return f"{sizes}, head='linear'"
        named = (f"{name}={getattr(self.form, name)!r}" for name in ("intersection", "difference"))
        presence = "" if self.presence is None else f", presence={self.presence}"
        return f"{sizes}, num_features={len(self.features)}{presence}, {', '.join(named)}"

    def _images(self) -> Tensor:
        return self.prototypes if self.features is None else torch.cat([self.prototypes, self.features])

    def _vectors(self, x: Tensor) -> Tensor:
        vectors = self.backbone(x)
        if not isinstance(vectors, Tensor):
            raise TypeError(f"the backbone must return a tensor [N, D]; got {type(vectors).__name__}.")
        if vectors.shape != (x.shape[0], self.dim):
            raise ValueError(
                f"the backbone must return {[x.shape[0], self.dim]}, a vector of the head's width for each input; "
                f"got shape {list(vectors.shape)}."
            )
        return vectors

    def _check_images(self, name: str, x: Tensor) -> None:
        check_vectors(name, x)
        if x.shape[1:] != self.shape:
            hint = f": for one input use {name}[None]" if x.shape == self.shape else ""
            raise ValueError(f"{name} must be [N, {', '.join(map(str, self.shape))}]; got shape {list(x.shape)}{hint}.")
        own = self.prototypes
        if x.device != own.device or (x.dtype != own.dtype and not autocasts(x)):
            raise ValueError(
                f"{name} must have the dtype and device of the network, {short(own.dtype)} on {own.device}; "
                f"got {short(x.dtype)} on {x.device}."
            )

    def _watched(self) -> list[nn.Module] | None:
        """All modules that the answer depends on, this one included; None if they cannot be known."""
        if isinstance(self.backbone, nn.Module):
            return list(self.modules())
        owner = getattr(self.backbone, "__self__", None)
        return list(dict.fromkeys([*self.modules(), *owner.modules()])) if isinstance(owner, nn.Module) else None

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Puts all known modules of the network in ``eval()``, without gradients, for the block."""
        modes = [(module, module.training) for module in self._watched() or ()]
        try:
            for module, _ in modes:
                module.training = False
            with torch.no_grad():
                yield
        finally:
            for module, mode in modes:
                module.training = mode

    def _looked_at(self, _) -> list[Tensor]:
        """Images, which people edit by ``.data``."""
        return [self.prototypes] if self.features is None else [self.prototypes, self.features]

    def _kept_layer(self, x: Tensor) -> nn.Module | None:
        """The head as a plain layer, cached until something changes; None if it must not be cached."""
        modules = None if self.training or torch.is_grad_enabled() else self._watched()
        if (
            modules is None
            or any(module.training for module in modules)
            or (where := place(x, self.prototypes)) is None
        ):
            self._kept = None
            return None
        tensors = [t for m in modules for t in (*m._parameters.values(), *m._buffers.values()) if t is not None]
        if any(t.is_inference() for t in tensors):
            return None
        # Other threads may put another in its place meanwhile.
        kept = self._kept
        if kept is None or not kept.holds(tensors, (self.form, where)):
            kept = self._kept = Kept(self.materialize(), tensors, (self.form, where), self._looked_at)
        return kept.value


def _compared(x: Tensor, form: Form) -> Tensor:
    """Encoded images as they are compared: of length 1, if the form says so."""
    return nn.functional.normalize(x, dim=-1) if form.normalize else x


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, Sequence) else ()
    if not sizes or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ValueError(f"shape must be that of one input, such as (1, 28, 28); got {shape!r}.")
    return sizes
