"""What a server answers: the page's data, names of features, sets over all objects, and edits of a network."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..bank import FeatureBank
from ..files import read_json, write_json
from ..interpret.expression import ExpressionError
from ..interpret.sets import Universe
from ..models.data_domain import DataDomain
from ..retrieval.index import TverskyIndex
from . import indexed
from .beside import beside
from .content import Content
from .edits import Refused, is_index, preview, undo_of, values_of
from .page import described, sprites
from .pictures import of_images

# Letters of a name at most, objects that a set lists, and pictures that are sent at once.
LONGEST, LISTED, PICTURES = 80, 60, 200
Question = Mapping[str, Any]


@dataclass
class Session:
    """A model that is looked at, and what was changed in it.

    Attributes:
        make: makes the page's content, again after each edit.
        model: what is edited and saved; None where there is nothing to save, as for words.
        bank: the bank whose features are named; None where the model has none of its own.
        universe: all objects, if the page cannot hold them.
        index: the index whose documents the objects are.
        edited: the network or layer that edits change, see ``edits``; None where there is none.
        inputs, labels: what an edit is previewed on: a network's inputs, or the vectors that reach a layer.
        names_file: a JSON file that keeps the names of features, or None.
    """

    make: Callable[[], Content]
    model: nn.Module | None = None
    bank: FeatureBank | None = None
    universe: Universe | None = None
    index: TverskyIndex | None = None
    edited: Any = None
    inputs: Tensor | None = None
    labels: Tensor | None = None
    names_file: Path | None = None
    names: dict[int, str] = field(default_factory=dict)
    undos: list[Callable[[], object]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    content: Content = field(init=False)

    def __post_init__(self) -> None:
        self.content = self.make()
        self.names = {int(k): name for k, name in self.content.about["features"].items()}
        if self.names_file is not None and self.names_file.exists():
            for k, name in _names_in(self.names_file).items():
                self._name(k, name)

    def place(self, second: Content) -> None:
        """Shows another model beside this one, also after edits."""
        make = self.make
        self.make = lambda: beside(make(), second)
        self.content = self.make()

    @property
    def named(self) -> Content:
        """The page's content with the names that features have now."""
        return replace(self.content, about={**self.content.about, "features": self._plain_names()})

    def about(self) -> dict[str, Any]:
        """What the page reads first."""
        offers = {"sets": self.universe is not None, "edit": self.edited is not None, "save": self.model is not None}
        offers |= {"search": self.index is not None, "measures": offers["sets"] or self.index is not None}
        offers["add"] = isinstance(self.edited, DataDomain)
        offers["thresholds"] = not offers["add"] and self.content.about["layer"]["thresholds"]
        kept = "kept until the server stops" if self.names_file is None else f"kept in {self.names_file.name}"
        more: dict[str, Any] = {"offers": offers, "names_kept": kept, "edits": len(self.undos)}
        if self.universe is not None:
            # Of all objects, so that those which the page does not hold can be asked for.
            more["names"] = self.universe.names
        arrays = {"arrays": described(self.content), "sprites": sprites(self.content)}
        return {**self.named.about, **arrays, **more}

    def _plain_names(self) -> dict[str, str]:
        K = self.content.about["layer"]["num_features"]
        return {str(k): name for k, name in sorted(self.names.items()) if k < K}

    def name(self, question: Question) -> dict[str, Any]:
        """Names a feature, or takes its name away; returns all names."""
        K, feature, name = self.content.about["layer"]["num_features"], question.get("feature"), question.get("name")
        if not isinstance(feature, int) or isinstance(feature, bool) or not 0 <= feature < K:
            raise Refused(f"feature must be an index from 0 to {K - 1}; got {feature!r}.")
        if not isinstance(name, str) or len(name) > LONGEST:
            raise Refused(f"name must be a text of {LONGEST} characters at most.")
        if not name.isascii() and any(0xD800 <= ord(c) <= 0xDFFF for c in name):
            raise Refused("name must be whole characters; it has half of one.")
        self._name(feature, name.strip())
        if self.names_file is not None:
            write_json(self.names_file, self._plain_names())
        return {"features": self._plain_names()}

    def _name(self, feature: int, name: str) -> None:
        taken = next((k for k, other in self.names.items() if other == name and k != feature), None)
        if name and taken is not None:
            raise Refused(f"feature {taken} is {name!r} already; choose another name.")
        if self.bank is not None and name:
            self.bank.name(name, feature=feature)
        elif self.bank is not None and feature in self.bank.names:
            self.bank.unname(feature)
        self.names.pop(feature, None)
        if name:
            self.names[feature] = name

    def set(self, question: Question) -> dict[str, Any]:
        """The features that an expression means, the sizes of its names, and the objects that score highest."""
        if self.universe is None:
            raise Refused("this page computes sets itself.")
        text = question.get("expression")
        if not isinstance(text, str):
            raise Refused("expression must be a text.")
        u = self.universe
        try:
            found = u(text)
        except ExpressionError as error:
            return {"problem": str(error).split("\n")[0], "position": error.position}
        scores = found.rank(LISTED)
        sizes = [[u.names[i], len(u[i])] for i in found.named]
        return {"members": list(found), "sizes": sizes, "ranking": [[name, value] for name, value in scores]}

    def measures(self, question: Question) -> dict[str, Any]:
        """Measures of one object that the page does not hold."""
        index = question.get("index")
        if self.index is not None:
            indexed.check_row(self.index, index)
            found = self.index.measures_of(self.index.ids[index])  # pyright: ignore[reportArgumentType]
        elif self.universe is not None and is_index(index, len(self.universe)):
            found = self.universe.measures(index)  # pyright: ignore[reportArgumentType]
        else:
            raise Refused(f"there is no object {index!r}.")
        return {"measures": found.tolist()}

    def search(self, question: Question) -> dict[str, Any]:
        """The documents that are most similar to one of them."""
        return indexed.search(self._index(), question)

    def find(self, question: Question) -> dict[str, Any]:
        """The row of the document with an id, which the page may not hold."""
        return {"index": indexed.find(self._index(), question.get("name"))}

    def _index(self) -> TverskyIndex:
        if self.index is None:
            raise Refused("this page searches itself: it has no index.")
        return self.index

    def image(self, question: Question) -> dict[str, Any]:
        """The values of a prototype, a feature or an input, exactly, to draw on."""
        edited, (inputs, _) = self._editing()
        kind, index = question.get("kind"), question.get("index")
        if kind != "example":
            return {"pixels": values_of(edited, str(kind), index)}  # pyright: ignore[reportArgumentType]
        if not is_index(index, len(inputs)):
            raise Refused(f"there is no example {index!r}; they are 0 to {len(inputs) - 1}.")
        return {"pixels": inputs[index].flatten().tolist()}  # pyright: ignore[reportArgumentType]

    def pictures(self, question: Question) -> dict[str, Any]:
        """Small images of inputs that the page does not hold, as a sprite; null where inputs are no images."""
        _, (inputs, _) = self._editing()
        indices = question.get("indices")
        if (
            not isinstance(indices, list)
            or len(indices) > PICTURES
            or not all(is_index(i, len(inputs)) for i in indices)
        ):
            raise Refused(f"indices must be {PICTURES} examples at most, from 0 to {len(inputs) - 1}.")
        if inputs.dim() != 4 or not indices:
            return {"sprite": None}
        sprite = of_images(inputs[indices])
        return {"sprite": {**sprite.about(), "png": base64.b64encode(sprite.png).decode()}}

    def preview(self, question: Question) -> dict[str, Any]:
        """Answers before and after an edit that is not applied."""
        edited, data = self._editing()
        seen = preview(edited, *data, question)
        labels, counts = (found.tolist() for found in seen.labels.unique(return_counts=True))
        flips = [[i, int(seen.before[i]), int(seen.after[i]), int(seen.labels[i])] for i in seen.flips.tolist()]
        return {
            "all": seen.accuracy(),
            "classes": [[label, *seen.accuracy(label)] for label in labels],
            "counts": list(zip(labels, counts, strict=True)),
            "flips": flips,
            "repaired": len(seen.repaired),
            "broken": len(seen.broken),
        }

    def apply(self, question: Question) -> dict[str, Any]:
        edited, _ = self._editing()
        self.undos.append(undo_of(edited, question))
        try:
            self.content = self.make()
        except ValueError as error:
            self.undos.pop()()
            raise Refused(str(error)) from None
        return self.about()

    def undo(self, question: Question) -> dict[str, Any]:
        """Takes back the last edit."""
        if not self.undos:
            raise Refused("there is nothing to undo.")
        self.undos.pop()()
        self.content = self.make()
        return self.about()

    def _editing(self) -> tuple[Any, tuple[Tensor, Tensor]]:
        if self.edited is None or self.inputs is None or self.labels is None:
            raise Refused("nothing can be edited here: an edit needs a network or a layer, and examples with labels.")
        return self.edited, (self.inputs, self.labels)

    def saved(self) -> bytes:
        """The model's state as safetensors, which ``interpret.edit.load_state`` or ``load_state_dict`` loads."""
        if self.model is None:
            raise Refused("there is no model to save.")
        from safetensors.torch import save

        state = {name: t.detach().cpu().contiguous().clone() for name, t in self.model.state_dict().items()}
        return save(state, {"feature_names": json.dumps(self._plain_names())})


def _names_in(path: Path) -> dict[int, str]:
    try:
        found = read_json(path)
        return {int(k): str(name)[:LONGEST] for k, name in found.items()}
    except (ValueError, AttributeError, OSError):
        raise Refused(f"{path} holds no names of features; move it away, or repair it.") from None
