"""Form: how two objects are compared. The options of Eq. 1–7 as one value, checked once and passed down."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

INTERSECTIONS = ("product", "min", "max", "mean", "gmean", "softmin")
DIFFERENCES = ("ignorematch", "subtractmatch")
LEVELS = ("feature", "set")
MODELS = ("contrast", "ratio")
BACKENDS = ("auto", "reference", "torch", "triton")

# The paper's spelling.
SPELLINGS = {"substractmatch": "subtractmatch"}


class Form(NamedTuple):
    """The options of a Tversky similarity; make one with ``Form.of``, which checks them.

    Attributes:
        intersection: Ψ, which measures a shared feature in Eq. 3.
        difference: what is distinctive, Eq. 4 (``ignorematch``) or Eq. 5 (``subtractmatch``).
        level: whether Ψ acts on each feature, or on the sums over a set of features.
        model: Tversky's contrast model, Eq. 1 and 6, or his ratio model.
        normalize: whether objects are scaled to length 1 first.
        backend: which code may run; see ``ops/plan.py``.
        leak: share of the gradient that reaches features an object lacks; outputs do not change.
    """

    intersection: str = "product"
    difference: str = "ignorematch"
    level: str = "feature"
    model: str = "contrast"
    normalize: bool = False
    backend: str = "auto"
    leak: float = 0.0

    @staticmethod
    def of(
        intersection: str = "product",
        difference: str = "ignorematch",
        level: str = "feature",
        model: str = "contrast",
        normalize: bool = False,
        backend: str = "auto",
        leak: float = 0.0,
    ) -> Form:
        """The form with these options, or a ``ValueError`` that names the choices and the nearest one."""
        options = (intersection, difference, level, model, normalize, backend, leak)
        if torch.compiler.is_compiling():
            return _checked(*options)  # torch.compile traces no cache
        try:
            return _known(*options)
        except TypeError:  # an option that has no hash, such as a list
            return _checked(*options)

    def but(self, **options: Any) -> Form:
        """This form with some options changed, checked again."""
        return Form.of(**{**self._asdict(), **options})

    @property
    def two_products(self) -> bool:
        """Whether S takes two matrix products: the contrast model of product + ignorematch, at either level."""
        return (self.intersection, self.difference, self.model) == ("product", "ignorematch", "contrast")

    @property
    def splits(self) -> bool:
        """Whether f(A∩B) and f(A−B) follow from the sums of shared features, so that no pair is walked by feature."""
        return self.level == "set" or (self.intersection in ("product", "mean") and self.difference == "ignorematch")

    def described(self) -> str:
        """The first two options, and those of the others that differ from their defaults."""
        usual = Form._field_defaults
        shown = [name for i, name in enumerate(self._fields) if i < 2 or getattr(self, name) != usual[name]]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)


def _checked(intersection, difference, level, model, normalize, backend, leak) -> Form:
    form = Form(
        check_choice("intersection", intersection, INTERSECTIONS),
        check_choice("difference", SPELLINGS.get(str(difference), difference), DIFFERENCES),
        check_choice("level", level, LEVELS),
        check_choice("model", model, MODELS),
        check_flag("normalize", normalize),
        check_choice("backend", backend, BACKENDS),
    )
    return form._replace(leak=_check_leak(leak, form))


_known = lru_cache(1024, typed=True)(_checked)


def check_choice(name: str, value: object, choices: Sequence[str]) -> str:
    if isinstance(value, str) and value in choices:
        return value
    near = difflib.get_close_matches(str(value).lower(), choices, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    shown = ", ".join(choice or "'' (none)" for choice in choices)
    raise ValueError(f"{name} must be one of {shown}; got {value!r}.{hint}")


def check_flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"{name} must be True or False; got {value!r}.")


def _check_leak(leak: object, form: Form) -> float:
    """The leak, or one error: some options leave a feature that an object lacks no gradient to take a share of."""
    if not isinstance(leak, int | float) or isinstance(leak, bool) or not 0 <= leak <= 1:
        raise ValueError(f"leak must be a number from 0, none, to 1; got {leak!r}.")
    if not leak:
        return 0.0
    if form.level == "set" and not form._replace(level="feature").splits:
        raise ValueError(f"leak={leak} needs level='feature'; at set level features have no share of their own in S.")
    if form.model != "contrast":
        raise ValueError(f"leak={leak} is for model='contrast'; got model={form.model!r}.")
    if form.intersection == "gmean":
        raise ValueError(
            f"leak={leak} does not go with intersection='gmean', which is infinitely steep at 0; try 'product'."
        )
    return float(leak)
