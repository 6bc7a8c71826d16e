"""Data whose objects have attributes that people can name: digits, words, and attributes planted by us."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, normalize

from ...interpret.attributes import FIRST_NAMES, PLACES, Attributes, clothing_attributes, digit_attributes, word_forms
from ...interpret.legibility import halves
from . import hub, made_up
from .digits import fashion_mnist, mnist
from .find import Labelled, contents, decoded, hashes_of, sha256

# Width of planted data and of word vectors.
WIDTH = 100
# Neighbours that are predicted on either side of a word, and that word vectors count; the rarest word that is read.
NEIGHBOURS, CONTEXTS, RAREST = 400, 2000, 10
# Words of a text that a small language model tells apart; all others are one.
VOCABULARY, UNKNOWN = 3000, "<unk>"


@dataclass(frozen=True)
class Attributed:
    """Vectors with what is to be predicted of them, and attributes that is not.

    Targets are classes, int64 ``[N]``, or counts of the words before and after, ``[N, 2, C]``; rows are then words,
    which a text has as often as ``weights`` says.

    Attributes:
        train_x, train_y: what layers are trained on.
        test_x, test_y: what they are tested on.
        objects, has, names, classes: what their features are read on.
        known, known_has: objects whose attributes named features may be made from.
        picture: height and width of objects that are pictures.
        apart: whether these are others than ``objects``, and not the half of them that features are chosen on.
        hashes: sha256 of each file that was read.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    objects: Tensor
    has: Tensor
    names: list[str]
    known: Tensor
    known_has: Tensor
    hashes: dict[str, str]
    classes: Tensor | None = None
    weights: Tensor | None = None
    picture: tuple[int, int] | None = None
    apart: bool = True

    @property
    def outputs(self) -> int:
        return self.train_y[0].numel() if self.train_y.dim() > 1 else int(self.train_y.max()) + 1


def digits(train: int = 10_000, test: int = 4000, fake: int = 0) -> Attributed:
    """MNIST at 14 × 14, centred and divided by one number, and 29 attributes of the digits at 28 × 28.

    Args:
        train: how many digits are trained on, the first of MNIST's training digits.
        test: how many of those that follow are tested on; 0 for MNIST's own test digits.
        fake: number of made-up digits instead; 0 for MNIST.
    """
    found = made_up.synthetic_digits(fake) if fake else mnist()
    images, labels, train = _chosen(found, train, 0 if fake else test)
    return _pictures(images, labels, digit_attributes(images), train, found.hashes)


def fashion(train: int = 10_000, test: int = 4000) -> Attributed:
    """Fashion-MNIST, made of it as ``digits`` is of MNIST, with 28 attributes of the pictures at 28 × 28."""
    found = fashion_mnist()
    images, labels, train = _chosen(found, train, test)
    return _pictures(images, labels, clothing_attributes(images, labels), train, found.hashes)


def _chosen(found: Labelled, train: int, test: int) -> tuple[Tensor, Tensor, int]:
    """Images and labels, those for training first, and how many these are."""
    if test:
        images, labels = found.train_x[: train + test], found.train_y[: train + test]
    else:
        images = torch.cat([found.train_x[:train], found.test_x])
        labels = torch.cat([found.train_y[:train], found.test_y])
    return images, labels, min(train, len(found.train_x))


def _pictures(images: Tensor, labels: Tensor, found: Attributes, train: int, hashes: dict[str, str]) -> Attributed:
    x = avg_pool2d(images.float() / 255, 2).flatten(1)
    x = x - x[:train].mean(0)
    half = (images.shape[1] // 2, images.shape[2] // 2)
    return replace(_labelled(x / x[:train].std(), labels, found, train, hashes), picture=half)


def planted(train: int = 8000, test: int = 4000, attributes: int = 40) -> Attributed:
    """Objects with sparse, independent attributes, each a direction of its own, and 10 classes that follow from them.

    Between 3 and 9 % of the objects have an attribute. The class is the one for which the object's attributes count
    most, with weights that were drawn once.
    """
    generator = torch.Generator().manual_seed(1977)
    share = torch.linspace(0.03, 0.09, attributes)
    has = torch.rand(train + test, attributes, generator=generator) < share
    strength = has * (0.8 + 0.4 * torch.rand(has.shape, generator=generator))
    directions = normalize(torch.randn(attributes, WIDTH, generator=generator), dim=-1)
    x = strength @ directions + 0.15 * torch.randn(len(has), WIDTH, generator=generator)
    x = x - x[:train].mean(0)
    y = (has.float() @ torch.randn(attributes, 10, generator=generator)).argmax(-1)
    names = [f"attribute {j}" for j in range(attributes)]
    return _labelled(x / x[:train].std(), y, Attributes(has, names), train, {"planted": sha256(x.numpy().tobytes())})


def _labelled(x: Tensor, y: Tensor, found: Attributes, train: int, hashes: dict[str, str]) -> Attributed:
    own, other = slice(None, train), slice(train, None)
    has, names = found
    return Attributed(
        x[own], y[own], x[other], y[other], x[other], has[other], names, x[own], has[own], hashes, classes=y[other]
    )


def words() -> Attributed:
    """Words of the Penn Treebank as frozen vectors, to predict the words before and after; 15 forms and kinds of words.

    Vectors are the positive pointwise mutual information with the words around, its first 100 singular vectors,
    centred and at one length. They are not trained, so what a layer can read of a form is there from the start.
    """
    train, valid, hashes = _treebank()
    counts = Counter(train)
    names = [word for word, _ in counts.most_common()]
    index = {word: i for i, word in enumerate(names)}
    ids, held = (torch.tensor([index[word] for word in text if word in index]) for text in (train, valid))
    x = normalize(word_vectors(ids, len(names)), dim=-1) * WIDTH**0.5
    often = torch.tensor([counts[word] for word in names])
    read = _readable(names, counts)
    has, forms = word_forms([names[i] for i in read], known=names)
    objects = x[torch.tensor(read)]
    known = halves(len(read))[0]
    return Attributed(
        x, neighbours(ids, len(names)), x, neighbours(held, len(names)), objects, has, forms, objects[known],
        has[known], hashes, weights=often**0.6, apart=False,
    )  # fmt: skip


@dataclass(frozen=True)
class Text:
    """A text for a small language model, and attributes of some of its words.

    Attributes:
        train, valid: words by their number, ``[n]``.
        counts: how often each word stands in ``train``, ``[V]``.
        read: numbers of the words whose features are read; ``has`` and ``names`` are their attributes.
    """

    train: Tensor
    valid: Tensor
    counts: Tensor
    read: Tensor
    has: Tensor
    names: list[str]
    hashes: dict[str, str]


def text(fake: int = 0) -> Text:
    """The Penn Treebank with its 3,000 commonest words.

    Args:
        fake: sentences of a made-up text instead; 0 for the Penn Treebank.
    """
    train, valid, hashes = made_up_text(fake) if fake else _treebank()
    counts = Counter(train)
    common = [word for word, _ in counts.most_common() if word != UNKNOWN][: VOCABULARY - 1]
    names = [*common, UNKNOWN]
    index = {word: i for i, word in enumerate(names)}
    ids, held = (torch.tensor([index.get(word, len(common)) for word in words]) for words in (train, valid))
    read = _readable(names, counts)
    has, forms = word_forms([names[i] for i in read], known=names)
    return Text(ids, held, torch.bincount(ids, minlength=len(names)), torch.tensor(read), has, forms, hashes)


def made_up_text(sentences: int) -> tuple[list[str], list[str], dict[str, str]]:
    """Sentences such as "john walked in paris", a tenth of them for validation."""
    generator = torch.Generator().manual_seed(0)
    verbs = ["walked", "talked", "worked", "looked", "turned", "called", "played", "stayed", "walk", "talk", "work"]
    parts = [FIRST_NAMES.split()[:20], [*verbs, "look", "turn", "call", "play", "stay"], ["in"], PLACES.split()[:20]]
    drawn = [torch.randint(len(part), (sentences,), generator=generator).tolist() for part in parts]
    lines = [[part[i] for part, i in zip(parts, line)] + ["<eos>"] for line in zip(*drawn)]
    words = [word for line in lines for word in line]
    held = len(words) // 10
    return words[held:], words[:held], {"made up": sha256(" ".join(words).encode())}


def _treebank() -> tuple[list[str], list[str], dict[str, str]]:
    """Words for training and for validation, and the sha256 of each file."""
    files = [f"ptb.{split}.txt" for split in ("train", "valid")]
    found = contents("ptb", [*files, "ptb.test.txt"], None, hub.ptb)
    train, valid = (decoded(*found[file]).replace("\n", " <eos> ").split() for file in files)
    return train, valid, hashes_of("ptb", found, check=True)


def _readable(names: list[str], counts: Counter[str]) -> list[int]:
    """Words that are letters, and not too rare for their vectors to hold a form."""
    return [i for i, word in enumerate(names) if counts[word] >= RAREST and word.strip(".-").isalpha()]


def neighbours(ids: Tensor, V: int) -> Tensor:
    """How often the commonest words come just before and just after each word, ``[V, 2, C]``."""
    C = min(NEIGHBOURS, V)
    found = torch.zeros(V, 2, C)
    for side, (of, other) in enumerate(((ids[1:], ids[:-1]), (ids[:-1], ids[1:]))):
        common = other < C
        at = of[common] * C + other[common]
        found[:, side] = torch.bincount(at, minlength=V * C).view(V, C)
    return found


def word_vectors(ids: Tensor, V: int) -> Tensor:
    """Centred vectors of words, ``[V, 100]``, from the words at the two places before and the two after."""
    C = min(CONTEXTS, V)
    parts = []
    for distance in (1, 2):
        for of, other in ((ids[distance:], ids[:-distance]), (ids[:-distance], ids[distance:])):
            common = other < C
            joint = torch.bincount(of[common] * C + other[common], minlength=V * C).view(V, C).float()
            # Rare words and rare neighbours count less.
            expected = (joint.sum(1, keepdim=True) + 5) * (joint.sum(0) ** 0.75 / (joint.sum(0) ** 0.75).sum())
            parts.append((joint / expected.clamp(min=1e-9)).clamp(min=1.0).log())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        U, S, _ = torch.svd_lowrank(torch.cat(parts, 1), q=WIDTH + 20, niter=4)
    x = U[:, :WIDTH] * S[:WIDTH].sqrt()
    return x - x.mean(0)
