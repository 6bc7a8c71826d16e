"""Starting values of banks, prototypes and α, β, θ: random and calibrated, from data, or from a linear layer.

docs/initialisation/using.md derives them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from . import checks
from .clusters import class_directions, spherical_means, whitened_means
from .form import Form, check_choice
from .names import plain_weight
from .ops import pairwise, vectors
from .ops.modes import wide, widest
from .presence import scattered
from .reach import comparison, evaluating, seen

if TYPE_CHECKING:
    from .bank import FeatureBank
    from .nn import TverskyProjection

INITS = ("calibrated", "unit", "uniform", "normal", "orthogonal")
STARTS = ("k-means", "classes", "turned", "kept")
FROM_DATA = ("k-means", "classes")
# How far a start from classes shrinks their covariance, found by trial on a frozen ResNet's vectors.
SHRINK = 0.5
PAPER = (0.5, 0.5, 1.0)
# Standard deviation of outputs for inputs of unit variance: above nn.Linear's 0.58, so that it is 0.5 behind a ReLU,
# where nn.Linear has 0.41. Two prototypes need more, since their common part moves both outputs alike; with a single
# feature they need less: cross entropy then starts 9 % above ln 2 instead of 12 %.
SPREAD, OF_TWO, OF_TWO_OVER_ONE = 0.705, 0.82, 0.51
# Draws the inputs that constants are calibrated on; unlikely to be anybody's own seed.
SEED = 0x1977_0084
# Inputs of a start from data that constants are calibrated on.
SAMPLE = 1024
# Length of a prototype, as nn.Linear's rows have it.
LENGTH = 1 / math.sqrt(3)
# Share of f(A∩B) that f(A−B) balances at the start; f(B−A) balances the rest. With few features it is less.
SHARE = 0.5
# Sum of a single feature's elements (less in few dimensions), found by trial: inputs behind a ReLU then have it about
# as often and as much as standard normal ones.
LEAN = 0.6
# Mean of each coordinate of a leaning model's hidden states and prototypes, in standard deviations.
TILT = 0.25
# The common part of P prototypes is COMMON / P times their mean.
COMMON = 3


@torch.no_grad()
def fill_(weight: Tensor, init: str = "calibrated") -> Tensor:
    """``weight``, ``[rows, D]``, filled in place as a feature bank.

    ``calibrated``: orthonormal directions and their opposites, see ``frame_``. ``unit``: U(±√(3/D)), rows of about unit
    length and of every direction. The paper's three: ``uniform`` U[0, 1), ``normal`` N(0, 1), ``orthogonal``
    orthonormal rows or, where there are more rows than D, columns.
    """
    match init:
        case "calibrated":
            return frame_(weight)
        case "unit":
            bound = math.sqrt(3 / weight.shape[-1])
            return weight.uniform_(-bound, bound)
        case "uniform":
            return weight.uniform_(0, 1)
        case "normal":
            return weight.normal_(0, 1)
        case "orthogonal":
            return weight.copy_(_orthogonal(weight))
    raise ValueError(f"no starting values named {init!r}")


@torch.no_grad()
def fill_prototypes_(weight: Tensor, init: str, features: Tensor) -> Tensor:
    """``weight``, ``[P, D]``, filled in place as prototypes: as a bank, or, calibrated, with nearly orthogonal rows.

    They have and lack the first of ``features`` in turn, so that even a single feature tells them apart. Prototypes
    also share a common part, which is large if they are few: it moves all outputs together, which a softmax ignores.
    """
    if init != "calibrated" or weight.is_meta:
        return fill_(weight, init)
    rows, P = _bases_(weight).to(wide(weight.dtype)), len(weight)
    first = nn.functional.normalize(features[0].to(rows), dim=0)
    turn = torch.arange(P, device=rows.device) % 2 == 0
    rows = rows * torch.where((rows @ first > 0) == turn, 1, -1)[:, None]
    if P > 1:
        common = rows.mean(0)
        # Without the first feature, whose turns it would change.
        rows += COMMON / P * (common - common @ first * first)
    return weight.copy_(LENGTH * nn.functional.normalize(rows, dim=-1))


def frame_(weight: Tensor) -> Tensor:
    """``weight``, ``[K, D]``, of orthonormal bases one after the other, the second half being the first's opposites.

    An object has exactly one of two opposites, so every object has half of the features; and products of measures,
    summed over such a bank, return the scalar product of the vectors. A single feature has no opposite and is turned so
    that inputs behind a ReLU lie on both sides of it.
    """
    K, D = weight.shape
    half = -(-K // 2)
    _bases_(weight[:half])
    if K == 1 and D > 1:
        away = nn.functional.normalize(weight - weight.mean(), dim=-1)
        total = LEAN * (1 - 1 / D) ** 2
        weight.copy_(away * math.sqrt(1 - total**2 / D) + total / D)
    weight[half:] = -weight[: K - half]
    return weight


@torch.no_grad()
def lean_(bank: Tensor, presence: float) -> Tensor:
    """Features turned to the diagonal (1, …, 1) until objects have ``presence`` of them, each at the length it had.

    Objects whose coordinates have the mean TILT in deviations, as behind a layer norm with that bias.
    """
    D = bank.shape[1]
    far = NormalDist().inv_cdf(presence)
    rows = bank.to(wide(bank.dtype))
    length = rows.norm(dim=-1, keepdim=True)
    across = nn.functional.normalize(rows - rows.mean(-1, keepdim=True), dim=-1)
    return bank.copy_(nn.functional.normalize(across + far / (TILT * D), dim=-1) * length)


def _bases_(weight: Tensor) -> Tensor:
    for part in weight.split(weight.shape[1]):
        part.copy_(_orthogonal(part))
    return weight


def _orthogonal(like: Tensor) -> Tensor:
    # The QR decomposition behind it has no half precision.
    return nn.init.orthogonal_(torch.empty_like(like, dtype=wide(like.dtype))).to(like.dtype)


@torch.no_grad()
def linear_spread(weight: Tensor) -> float | None:
    """Standard deviation of a linear layer's outputs for inputs of unit variance; None where it would be 0."""
    return weight.norm(dim=-1).square().mean().sqrt().item() or None


@torch.no_grad()
def calibrate(
    prototypes: Tensor | None,
    features: Tensor,
    form: Form,
    spread: float | None = None,
    alpha_share: float = SHARE,
    x: Tensor | None = None,
    threshold: Tensor | None = None,
) -> tuple[Sequence[float], Sequence[float]]:
    """α, β, θ that give S mean 0 and standard deviation ``spread``, and their units.

    A constant's unit is the value that would balance f(A∩B) alone: α starts at ``alpha_share`` of its unit, β at the
    rest of its own. S is linear in the three, so its three parts, computed for some inputs and prototypes, determine
    them. If nothing is shared or nothing is distinctive, only the size is set. The ratio model starts as in the paper.

    Args:
        prototypes: ``[P, D]``; without them, standard normal objects.
        features: The bank, ``[K, D]``.
        form: The options.
        spread: Standard deviation of S.
        alpha_share: Share of f(A∩B) that α balances.
        x: Inputs ``[N, D]``; by default standard normal ones.
        threshold: Thresholds of the features, ``[K]``, for the inputs and for prototypes that are drawn.
    """
    if form.model == "ratio" or features.is_meta or (prototypes is not None and prototypes.is_meta):
        return PAPER, PAPER
    generator = torch.Generator().manual_seed(SEED)
    K, D = features.shape
    # In 64 bits, so that the constants do not depend on the number of threads.
    bank = features.to(widest(features))
    drawn = prototypes is None
    if prototypes is None:
        prototypes = _objects(D, x if threshold is not None else None, generator)
    P = len(prototypes)
    most = max(64, min(256, 2**28 // (D * K)))
    chosen = torch.randperm(P, generator=generator, device="cpu")[:most]
    few = prototypes[chosen.to(prototypes.device)].to(bank)
    if x is None:
        # On the CPU whatever the default device, and from a generator of its own, so that no other draw changes.
        n = max(64, min(4096, 2**25 // (len(few) * K), 2**31 // (D * K)))
        x = torch.randn(n, D, generator=generator, device="cpu")
    x = x.to(bank)
    cut = None if threshold is None else threshold.to(bank)
    a = vectors.measures(x, bank, form.normalize, cut)
    b = vectors.measures(few, bank, form.normalize, cut if drawn else None)
    pairs = pairwise.Pairs(a, b, kernels=False)
    common = pairwise.common(pairs, form.intersection, form.level)
    a_only, b_only = pairwise.distinctive(pairs, form.difference, form.level)
    means = [t.mean().item() for t in (common, a_only, b_only)]
    # For a single feature almost 0, but not 0: its logarithm may be learned.
    share = alpha_share * (1 - 0.99 / K)
    shares = (share, 1 - share, 1.0)
    units = [means[0] / mean for mean in (*means[1:], means[0])] if min(means) > 0 else PAPER
    size = (common - shares[0] * units[0] * a_only - shares[1] * units[1] * b_only).std().item()
    if not size > 0 or not math.isfinite(size):
        return PAPER, PAPER
    if spread is None:
        spread = SPREAD if P != 2 else OF_TWO if K > 1 else OF_TWO_OVER_ONE
    units = [unit * spread / size for unit in units]
    return [unit * part for unit, part in zip(units, shares, strict=True)], units


def _objects(D: int, x: Tensor | None, generator: torch.Generator) -> Tensor:
    """Objects in place of prototypes: some of ``x``, or standard normal ones."""
    if x is None:
        return torch.randn(256, D, generator=generator, device="cpu")
    # Thresholds may lie far from the origin, where normal objects are not.
    return x[torch.randperm(len(x), generator=generator, device="cpu")[:256].to(x.device)]


@torch.no_grad()
def init_from_data(
    model: Any,
    x: Any,
    share: float = 0.5,
    spread: float | None = None,
    start: str | None = None,
    mixed: float = 0.0,
    progress: Callable[..., object] | None = None,
    *,
    whiten: float | None = None,
    classes: Tensor | None = None,
    layer: str | None = None,
) -> None:
    """Starts a layer from its inputs: the bank, its thresholds, α, β, θ and, with thresholds, the bias.

    α, β, θ are set so that outputs have mean 0 and standard deviation ``spread``. How the bank starts:

    - ``"k-means"``: directions that the inputs cluster around, of length 1, each with a threshold that ``presence`` of
      the inputs exceed. Features then mean something from the start, and training lets them go on. With ``whiten`` they
      are found where no direction varies more than another, which costs a head on frozen vectors less accuracy.
    - ``"classes"``: directions that tell the classes, and groups of alike classes, from all others, with thresholds as
      for k-means; if there are not as many, whitened k-means gives the rest. It needs ``classes``.
    - ``"turned"``: each feature is turned along the inputs' mean until ``share`` of them has it; its length stays.
      Inputs behind a ReLU need this most: they lie on one side, so some features would be present always and others
      never.
    - ``"kept"``: directions stay as they are, and thresholds are set as for k-means.

    In a DataDomain network k-means finds images, each as bright as the mean of its cluster.

    Args:
        model: A TverskyProjection or TverskySimilarity, or a model that has a projection, such as a converted one.
        x: The layer's inputs, ``[..., D]``: a batch, or for k-means several times as many as features. For a model its
            own inputs, a tensor, keyword arguments or a loader.
        share: Fraction of the inputs that has each turned feature.
        spread: Standard deviation of the outputs; by default the layer's own.
        start: By default "k-means" for a bank with thresholds (``presence=``), "turned" for one without.
        mixed: Fraction of the bank that keeps the usual start instead of k-means: opposite directions, cut at 0, which
            bring a head on frozen vectors nearer to a linear one. ``explain`` counts them apart.
        progress: Called after each round of k-means; see ``clusters.spherical_means``.
        whiten: Whitens the inputs for k-means: how far their covariance goes to a multiple of the identity, above 0 and
            up to 1, such as 0.5.
        classes: Class of each input, whole numbers ``[N]``; covariances are then those within classes.
        layer: Name of the layer, where the model has several.
    """
    if hasattr(model, "start_from_data"):  # a DataDomain network, whose layer is made of encoded images
        model.start_from_data(x, spread, start, mixed, progress)
        return
    chosen = comparison(model, layer)
    bank = chosen.features
    if chosen is not model:
        x = seen(model, x, layer)[1]
    checks.check_vectors("x", x)
    checks.check_width("x", x, bank.weight)
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1; got {share}.")
    if start is None:
        start = "turned" if bank.threshold is None else "k-means"
    _check_start(start, mixed, bank)
    labels = _check_classes(start, whiten, classes, x)
    objects = x.detach().reshape(-1, x.shape[-1]).to(bank.weight.device, wide(bank.weight.dtype))
    if len(objects) < 2:
        raise ValueError(f"x must have 2 inputs or more to start from; got {len(objects)}.")
    if spread is not None:
        checks.check_positive("spread", spread)
    if start == "turned":
        _check_finite(objects, bank)
        _turn_(bank.weight, objects, share)
        chosen.reset_constants(objects, spread)
        return
    compared = nn.functional.normalize(objects, dim=-1) if chosen.normalize else objects
    _check_inputs(compared, bank)
    framed = round(mixed * bank.num_features)
    if start in FROM_DATA:
        own = bank.num_features - framed
        if len(objects) < own:
            few = f"{len(objects)} inputs are too few for {own} features, some of which repeat"
            warnings.warn(f"{few}: give several times as many, or make fewer features.", stacklevel=3)
        if whiten is None and labels is None:
            found = _directions(compared, own, progress)
        else:
            shrink = SHRINK if whiten is None else whiten
            found = _told_apart(compared, own, progress, shrink, labels, start == "classes")
        bank.weight[:own].copy_(found)
        frame_(bank.weight[own:])
    if bank.threshold is not None:
        bank.start_thresholds(compared, framed)
    some = scattered(objects, SAMPLE)
    chosen.reset_constants(some, spread)
    bias = getattr(chosen, "bias", None)
    if bias is not None and bank.threshold is not None:
        # What prototypes alone have lowers each output by a constant of its own.
        bias.zero_()
        with evaluating(chosen):  # these inputs are no batch of training
            means = chosen(some.to(bank.weight.dtype)).mean(0)
        bias.copy_(means.mean() - means)


def _check_inputs(x: Tensor, bank: FeatureBank) -> None:
    """What thresholds can be set from; raises before anything is changed."""
    plain_weight(bank)
    _check_finite(x, bank)
    if (x - x.mean(0)).norm() <= 1e-6 * x.norm():
        raise ValueError("the inputs are all equal, so that no feature could tell them apart; give others.")


def _check_finite(x: Tensor, bank: FeatureBank) -> None:
    if not x.isfinite().all():
        raise ValueError("x must be finite; some inputs have NaN or infinite elements.")
    if not x.to(bank.weight.dtype).isfinite().all():
        raise ValueError(f"x is too large for the layer's dtype, {checks.short(bank.weight.dtype)}: scale it.")


def _check_start(start: str, mixed: float, bank: FeatureBank) -> None:
    check_choice("start", start, STARTS)
    if not isinstance(mixed, int | float) or not 0 <= mixed < 1:
        raise ValueError(f"mixed must be a number from 0 to below 1; got {mixed!r}.")
    if start in FROM_DATA and bank.threshold is None:
        raise ValueError(f"start={start!r} needs thresholds: make the layer with presence=0.1, or use start='turned'.")
    if start == "turned" and bank.threshold is not None:
        raise ValueError("start='turned' is for features without thresholds; use 'k-means' or 'kept' with presence=.")
    if start in FROM_DATA and (bank.notes.names or bank.notes.fixed):
        raise ValueError(f"start={start!r} would replace the features that have names; start first, and then name.")
    if mixed and start not in FROM_DATA:
        raise ValueError(f"mixed={mixed} is a part of start='k-means'; got start={start!r}.")


def _check_classes(start: str, whiten: float | None, classes: Any, x: Tensor) -> Tensor | None:
    """The class of each row as 0 to C − 1, or None, if whiten and classes suit the start."""
    if whiten is not None:
        checks.check_share("whiten", whiten)
    if (whiten is not None or classes is not None) and start not in FROM_DATA:
        raise ValueError(f"whiten and classes are for start='k-means' and 'classes'; got start={start!r}.")
    if classes is None:
        if start == "classes":
            raise ValueError("start='classes' needs the class of each input: give classes=y.")
        return None
    if start == "k-means" and whiten is None:
        raise ValueError("with start='k-means' classes say how to whiten: give whiten=0.5 too, or start='classes'.")
    given = torch.as_tensor(classes, device=x.device)
    if given.shape != x.shape[:-1] or given.is_floating_point() or given.is_complex():
        got = f"{str(given.dtype).removeprefix('torch.')} {list(given.shape)}"
        raise ValueError(f"classes must be a whole number for each input, {list(x.shape[:-1])}; got {got}.")
    labels = given.reshape(-1).unique(return_inverse=True)[1]
    if not labels.numel() or labels.max() < 1:
        raise ValueError("classes must be two or more, to tell apart; all inputs are of one class.")
    return labels


def _directions(x: Tensor, count: int, progress: Callable[..., object] | None) -> Tensor:
    """Directions of length 1 that the rows cluster around; beyond the number of rows, random ones."""
    rows = x[x.any(-1)]
    clustered = min(count, len(rows))
    random = _random_directions(x, count - clustered)
    if not clustered:
        return random
    return torch.cat([spherical_means(rows, clustered, seed=_drawn_seed(), progress=progress), random])


def _told_apart(
    x: Tensor, count: int, progress: Callable[..., object] | None, shrink: float, classes: Tensor | None, groups: bool
) -> Tensor:
    """Directions of length 1 by whitened k-means, after those of classes if ``groups``; then random ones."""
    seed, found = _drawn_seed(), x[:0]
    if groups and classes is not None:
        found = class_directions(x, classes, count, shrink, seed)
    more = min(count - len(found), len(x))
    if more:
        found = torch.cat([found, whitened_means(x, more, shrink, classes, seed, progress)])
    return torch.cat([found, _random_directions(x, count - len(found))])


def _random_directions(like: Tensor, count: int) -> Tensor:
    drawn = torch.randn(count, like.shape[1], device="cpu", dtype=like.dtype)
    return nn.functional.normalize(drawn, dim=-1).to(like)


def _drawn_seed() -> int:
    return int(torch.randint(2**31, (), device="cpu"))


def _turn_(bank: Tensor, x: Tensor, share: float) -> None:
    """Features turned along the mean of ``x`` until ``share`` of the rows has them."""
    mean = x.mean(0)
    along = x @ nn.functional.normalize(mean, dim=0)  # [N]
    ahead = along > along.std() * 1e-3
    if mean.norm() <= 1e-3 * x.norm(dim=-1).mean() or ahead.sum() < 2:
        return
    mean = nn.functional.normalize(mean, dim=0)
    rows = bank.to(x.dtype)
    length = rows.norm(dim=-1, keepdim=True)
    across = nn.functional.normalize(rows - (rows @ mean)[:, None] * mean, dim=-1)
    # x·(f + t·mean) > 0 where t > −x·f / x·mean.
    needed = -(x[ahead] @ across.mT) / along[ahead, None]
    t = torch.quantile(needed[:4096], share, dim=0)
    bank.copy_(nn.functional.normalize(across + t[:, None] * mean, dim=-1) * length)


@torch.no_grad()
def init_from_linear(layer: TverskyProjection, linear: nn.Linear, x: Tensor | None = None) -> None:
    """Starts a projection near a trained linear layer: its rows as prototypes, its bias, and outputs of its size.

    How near depends on the bank: with K = 2D calibrated features the outputs correlate to about 0.9.

    Args:
        layer: The projection.
        linear: The trained layer, of the same sizes.
        x: Some of its inputs, ``[..., D]``, for which sizes are made equal; by default inputs of unit variance.
    """
    if not isinstance(linear, nn.Linear):
        raise TypeError(f"linear must be an nn.Linear; got {type(linear).__name__}.")
    if linear.weight.shape != layer.prototypes.shape:
        raise ValueError(
            f"linear must map {layer.in_features} to {layer.out_features} as the layer does; "
            f"it maps {linear.in_features} to {linear.out_features}."
        )
    if linear.bias is not None and layer.bias is None:
        raise ValueError("linear has a bias and the layer has none; make it with bias=True.")
    layer.prototypes.copy_(linear.weight)
    if layer.bias is not None:
        layer.bias.zero_() if linear.bias is None else layer.bias.copy_(linear.bias)
    objects = None if x is None else x.detach().reshape(-1, x.shape[-1]).to(linear.weight)
    if objects is None:
        spread = linear_spread(linear.weight)
    else:
        spread = nn.functional.linear(objects, linear.weight).std().item() or None
    layer.reset_constants(objects, spread)
