"""Exact explanation of one similarity: at feature level S is a sum over features, so each has its signed share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import torch
from torch import Tensor, nn

from .checks import check_vectors
from .nn import TverskyProjection
from .ops import reference


@dataclass(frozen=True)
class Explanation:
    """Why an input is as similar as it is to a prototype.

    similarity: the layer's output: the sum of ``common``, ``input_only`` and ``prototype_only`` over all features, and
    the bias. Each is ``[K]``: θ·Ψ of shared features, −α times what only the input has, −β times what only the
    prototype has. input_measures, prototype_measures: x · f_k and p · f_k, ``[K]``.
    """

    prototype: int
    similarity: float
    bias: float
    common: Tensor
    input_only: Tensor
    prototype_only: Tensor
    input_measures: Tensor
    prototype_measures: Tensor
    top: int
    feature_names: Sequence[str] | None = None
    prototype_name: str | None = None

    def parts(self) -> list[tuple[str, Tensor]]:
        """The three kinds of features with their contributions, ``[K]`` each."""
        return [("common", self.common), ("input only", self.input_only), ("prototype only", self.prototype_only)]

    def strongest(self, contributions: Tensor) -> list[int]:
        """Up to ``top`` features with the largest contributions, of either sign; none that contributes nothing."""
        order = contributions.abs().argsort(descending=True, stable=True)[: self.top].tolist()
        return [k for k in order if contributions[k] != 0]

    def __str__(self) -> str:
        lines = [f"{self._title()}  similarity {self.similarity:+.4f}"]
        width = max([7, *(len(self._name(k)) for _, part in self.parts() for k in self.strongest(part))])
        for label, part in self.parts():
            count = int((part != 0).sum())
            lines.append(f"{label:<{width + 24}}{part.sum().item():>+12.4f}   ({count} feature{'s' * (count != 1)})")
            strongest = self.strongest(part)
            if strongest:
                lines.append(f"  {'feature':<{width}}{'input':>11}{'prototype':>11}{'share':>12}")
            for k in strongest:
                measures = f"{self.input_measures[k].item():>11.4f}{self.prototype_measures[k].item():>11.4f}"
                lines.append(f"  {self._name(k):<{width}}{measures}{part[k].item():>+12.4f}")
            if count > len(strongest):
                rest = part.sum() - part[strongest].sum()
                lines.append(f"  {f'{count - len(strongest)} more':<{width + 22}}{rest.item():>+12.4f}")
        if self.bias:
            lines.append(f"{'bias':<{width + 24}}{self.bias:>+12.4f}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """A table with bars, for notebooks."""
        largest = max([part.abs().max().item() for _, part in self.parts()] + [1e-12])
        rows = []
        for (label, part), colour in zip(self.parts(), ("#0072b2", "#d55e00", "#cc79a7"), strict=True):
            rows.append(
                f"<tr><th colspan=3 style='text-align:left'>{label}</th><th>{part.sum().item():+.4f}</th><td></td></tr>"
            )
            for k in self.strongest(part):
                share = part[k].item()
                bar = (
                    f"<div style='background:{colour};height:0.8em;width:{round(120 * abs(share) / largest)}px'></div>"
                )
                cells = (escape(self._name(k)), f"{self.input_measures[k].item():.4f}")
                cells += (f"{self.prototype_measures[k].item():.4f}", f"{share:+.4f}", bar)
                rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        if self.bias:
            rows.append(f"<tr><th colspan=3 style='text-align:left'>bias</th><th>{self.bias:+.4f}</th><td></td></tr>")
        head = "<tr><th>feature</th><th>input</th><th>prototype</th><th>share</th><th></th></tr>"
        caption = f"<caption>{escape(self._title())}, similarity {self.similarity:+.4f}</caption>"
        return f"<table>{caption}{head}{''.join(rows)}</table>"

    def _title(self) -> str:
        return f"input against prototype {self.prototype_name or self.prototype}"

    def _name(self, feature: int) -> str:
        return str(feature) if self.feature_names is None else str(self.feature_names[feature])


def number_of(prototype: int | str, names: Sequence[str] | None) -> int:
    """The number of a prototype that is given by it, or by its name."""
    if isinstance(prototype, str) and names is not None and prototype in names:
        return list(names).index(prototype)
    if not isinstance(prototype, int):
        known = f" or one of {', '.join(map(str, names[:10]))}" if names is not None else ""
        raise TypeError(f"prototype must be the index of one, a whole number{known}; got {prototype!r}.")
    return prototype


@torch.no_grad()
def explain(
    layer: TverskyProjection,
    x: Tensor,
    prototype: int | str | None = None,
    top: int = 10,
    feature_names: Sequence[str] | None = None,
    prototype_names: Sequence[str] | None = None,
) -> Explanation:
    """The layer's answer for one input ``[D]`` and one prototype, feature by feature.

    prototype: the number of one, or its name among ``prototype_names``; by default the most similar one.
    """
    if (layer.level, layer.model) != ("feature", "contrast"):
        raise ValueError(
            "only level='feature' with model='contrast' is a sum over features that can be explained exactly; "
            f"this layer has level={layer.level!r}, model={layer.model!r}."
        )
    check_vectors("x", x)
    if list(x.shape) != [layer.in_features]:
        hint = ": explain one input at a time, x[0]" if x.dim() > 1 else ""
        raise ValueError(f"x must be one input of shape {[layer.in_features]}; got shape {list(x.shape)}{hint}.")
    P, K = layer.out_features, layer.features.num_features
    for name, names, size in (("feature_names", feature_names, K), ("prototype_names", prototype_names, P)):
        if names is not None and len(names) != size:
            raise ValueError(f"{name} must have {size} names; got {len(names)}.")
    if not isinstance(top, int) or top < 1:
        raise ValueError(f"top must be a whole number of 1 or more; got {top!r}.")
    output = layer(x)
    chosen = int(output.argmax()) if prototype is None else number_of(prototype, prototype_names)
    if not 0 <= chosen < P:
        raise ValueError(f"prototype must be from 0 to {P - 1}; got {prototype}.")

    wide = torch.promote_types(x.dtype, torch.float32)
    vectors = torch.stack([x.to(wide), layer.prototypes[chosen].to(wide)])
    if layer.normalize:
        vectors = nn.functional.normalize(vectors, dim=-1)
    a, b = vectors @ layer.features.weight.to(wide).mT
    return Explanation(
        prototype=chosen,
        similarity=output[chosen].item(),
        bias=0.0 if layer.bias is None else layer.bias[chosen].item(),
        common=layer.theta.to(wide) * reference.common_terms(a, b, layer.intersection),
        input_only=-layer.alpha.to(wide) * reference.distinctive_terms(a, b, layer.difference),
        prototype_only=-layer.beta.to(wide) * reference.distinctive_terms(b, a, layer.difference),
        input_measures=a,
        prototype_measures=b,
        top=top,
        feature_names=feature_names,
        prototype_name=None if prototype_names is None else str(prototype_names[chosen]),
    )
