"""Attributes that people can name, for testing whether features mean something: of digits, clothing, and words.

``legibility`` takes them: ``has``, bool ``[N, J]``, says which of J attributes each of N objects has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# A pixel is ink from here on, and a cell of the grid if its mean is.
INK, CELL = 0.4, 0.35
# Cloth may be dark: a pixel belongs to the thing from here on.
CLOTH = 0.1
# Fewest pixels of a hole, and of a straight run of ink in a bar that lies or stands.
HOLE, LYING, STANDING = 3, 10, 9
# Bands of pixel rows and columns.
ROWS = {"top": (3, 10), "middle": (11, 17), "bottom": (18, 25)}
COLUMNS = {"left": (4, 11), "middle": (11, 17), "right": (17, 24)}
SIDE = 28
# Classes of Fashion-MNIST that people put together.
FAMILIES = {"a top": (0, 2, 4, 6), "trousers": (1,), "a dress": (3,), "a bag": (8,), "footwear": (5, 7, 9)}
# Where seven of ten digits have ink: having none there would be the attribute.
EVERYWHERE = (2, 2)


class Attributes(NamedTuple):
    """Which attributes each object has, bool ``[N, J]``, and the names of the J attributes."""

    has: Tensor
    names: list[str]


@torch.no_grad()
def digit_attributes(images: Tensor) -> Attributes:
    """29 attributes of handwritten digits: holes, amount of ink, lean, width, bars, and ink in 15 places.

    "much", "little", "leans", "wide" and "narrow" are relative to the given images: about the fifth at that end.

    Args:
        images: ``[N, 28, 28]`` or ``[N, 1, 28, 28]`` of bright ink on black, from 0 to 1, or uint8.
    """
    grey = _grey(images)
    ink = grey > INK
    holes, amount, lean, width = _holes(ink), grey.mean((1, 2)), _lean(grey), ink.any(1).sum(1).double()
    found = {
        "a hole": holes == 1,
        "two holes": holes >= 2,
        "much ink": amount > amount.quantile(0.8),
        "little ink": amount < amount.quantile(0.2),
        "leans right": lean > lean.quantile(0.8),
        "leans left": lean < lean.quantile(0.2),
        "wide": width >= width.quantile(0.85),
        "narrow": width <= width.quantile(0.15),
    }
    lying, standing = _longest_runs(ink), _longest_runs(ink.mT)
    for name, (first, last) in ROWS.items():
        found[f"level bar at the {name}"] = lying[:, first:last].amax(1) >= LYING
    for name, (first, last) in COLUMNS.items():
        found[f"upright bar at the {name}"] = standing[:, first:last].amax(1) >= STANDING
    cells = grey[:, 4:24, 4:24].unflatten(1, (4, 5)).unflatten(3, (4, 5)).mean((2, 4))  # [N, 4, 4]
    for row in range(4):
        for column in range(4):
            if (row, column) != EVERYWHERE:
                found[f"ink at row {row + 1}, column {column + 1}"] = cells[:, row, column] > CELL
    return Attributes(torch.stack(list(found.values()), 1), list(found))


@torch.no_grad()
def clothing_attributes(images: Tensor, classes: Tensor) -> Attributes:
    """28 attributes of Fashion-MNIST's pictures: five families of classes, and 23 that the picture alone tells.

    "much", "little", "bright", "narrow", … are relative to the given images: about the fifth at that end.

    Args:
        images: ``[N, 28, 28]`` or ``[N, 1, 28, 28]`` of bright things on black, from 0 to 1, or uint8.
        classes: Fashion-MNIST's labels, 0 to 9, ``[N]``.
    """
    grey, classes = _grey(images), torch.as_tensor(classes).cpu()
    if classes.shape != (len(grey),):
        raise ValueError(f"classes must be [{len(grey)}], one an image; got shape {list(classes.shape)}.")
    ink = grey > CLOTH
    pixels = ink.sum((1, 2)).clamp(min=1)
    brightness = (grey * ink).sum((1, 2)) / pixels
    # How much a pixel differs from the one above it, both within the thing: patterns, folds, laces.
    inner = ink[:, 1:] & ink[:, :-1]
    pattern = ((grey[:, 1:] - grey[:, :-1]).abs() * inner).sum((1, 2)) / inner.sum((1, 2)).clamp(min=1)
    width, height = ink.any(1).sum(1).double(), ink.any(2).sum(1).double()
    uneven = (grey - grey.flip(2)).abs().sum((1, 2)) / grey.sum((1, 2)).clamp(min=1e-9)
    found = {name: (classes[:, None] == torch.tensor(members)).any(1) for name, members in FAMILIES.items()}
    quantities = {
        ("covers much", "covers little"): pixels.double(),
        ("bright", "dark"): brightness,
        ("patterned", "plain"): pattern,
    }
    for (high, low), quantity in quantities.items():
        found[high] = quantity > quantity.quantile(0.8)
        found[low] = quantity < quantity.quantile(0.2)
    found |= {"as wide as the picture": width == SIDE, "narrow": width < width.quantile(0.2)}
    found |= {"as tall as the picture": height == SIDE, "low": height < height.quantile(0.2)}
    found["left and right differ"] = uneven > uneven.quantile(0.8)
    found["a hole"] = _holes(ink) >= 1
    # Legs, or a sole with a heel: ground between two parts of the thing, in three of four rows near the bottom.
    rows = ink[:, 20:24]
    left, middle, right = (rows[:, :, part].any(2) for part in (slice(0, 13), slice(13, 15), slice(15, 28)))
    found["a gap below the middle"] = (left & right & ~middle).sum(1) >= 3
    # Coarser than for digits, which do not reach the rim; nearly all things have cloth in the middle.
    sides = {"left": slice(0, 7), "middle": slice(9, 19), "right": slice(21, 28)}
    for row, name in enumerate(("top", "upper middle", "lower middle", "bottom")):
        for side, columns in sides.items():
            if side != "middle" or row in (0, 3):
                cell = grey[:, 7 * row : 7 * row + 7, columns]
                found[f"cloth at the {name}, {side}"] = cell.mean((1, 2)) > CELL
    return Attributes(torch.stack(list(found.values()), 1), list(found))


def _grey(images: Tensor) -> Tensor:
    """Images as ``[N, 28, 28]`` from 0 to 1."""
    if not isinstance(images, Tensor) or images.shape[-2:] != (SIDE, SIDE) or images.numel() != len(images) * SIDE**2:
        given = list(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(f"images must be a tensor [N, {SIDE}, {SIDE}], as MNIST's are; got {given}.")
    grey = images.reshape(-1, SIDE, SIDE).cpu()
    return grey.double() / (255 if grey.dtype == torch.uint8 else 1)


def _lean(grey: Tensor) -> Tensor:
    """How far the ink moves to the right from one row up to the next, ``[N]``; 0 without ink."""
    place = torch.arange(SIDE, dtype=torch.float64)
    total = grey.sum((1, 2)).clamp(min=1e-9)
    down = place - (grey.sum(2) @ place / total)[:, None]  # [N, 28]
    right = place - (grey.sum(1) @ place / total)[:, None]
    both = (grey * down[:, :, None] * right[:, None, :]).sum((1, 2))
    return -both / (grey.sum(2) * down.square()).sum(1).clamp(min=1e-9)


def _longest_runs(ink: Tensor) -> Tensor:
    """The longest run of ink along the last axis, ``[N, 28, 28]`` -> ``[N, 28]``."""
    run = longest = torch.zeros(ink.shape[:2], dtype=torch.int64)
    for i in range(ink.shape[2]):
        run = (run + 1) * ink[:, :, i]
        longest = torch.maximum(longest, run)
    return longest


def _holes(ink: Tensor) -> Tensor:
    """Number of areas of at least HOLE pixels that ink surrounds, ``[N]``; areas meet at edges, not at corners."""
    paper = torch.nn.functional.pad(~ink, (1, 1, 1, 1), value=True)
    corner = torch.zeros_like(paper)
    corner[:, 0, 0] = True
    inside = paper & ~_grown(corner, paper)
    holes = torch.zeros(len(ink), dtype=torch.int64)
    # One area of each image at a time: it grows from the first pixel that is left.
    while len(left := inside.flatten(1).any(1).nonzero()[:, 0]):
        of = inside[left]
        start = torch.zeros_like(of).flatten(1)
        start[torch.arange(len(left)), of.flatten(1).int().argmax(1)] = True
        area = _grown(start.view_as(of), of)
        holes[left] += area.sum((1, 2)) >= HOLE
        inside[left] = of & ~area
    return holes


def _grown(area: Tensor, within: Tensor) -> Tensor:
    """The areas with all pixels that can be reached from them by steps to the four sides."""
    while True:
        more = area.clone()
        more[:, 1:] |= area[:, :-1]
        more[:, :-1] |= area[:, 1:]
        more[:, :, 1:] |= area[:, :, :-1]
        more[:, :, :-1] |= area[:, :, 1:]
        more &= within
        if torch.equal(more, area):
            return area
        area = more


NUMBERS = """
one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen eighteen twenty
thirty forty fifty sixty ninety hundred dozen
"""
DATES = """
jan. feb. march april may june july aug. sept. oct. nov. dec. january february august september october november
december monday tuesday wednesday thursday friday saturday sunday
"""
PLACES = """
japan germany france britain canada china taiwan italy spain mexico brazil korea russia poland hungary england
australia israel india iran iraq panama nicaragua thailand philippines singapore europe asia africa america
california texas florida chicago boston london tokyo paris houston dallas philadelphia detroit denver atlanta miami
cleveland pittsburgh frankfurt toronto moscow washington ohio michigan illinois virginia georgia massachusetts
pennsylvania connecticut colorado arizona oregon minnesota wisconsin tennessee kentucky alabama louisiana
switzerland sweden netherlands czechoslovakia cuba venezuela argentina chile colombia peru vietnam malaysia
indonesia
"""
FIRST_NAMES = """
john david robert james william michael richard thomas paul peter george charles joseph mark donald kenneth edward
jack ronald frank steven stephen daniel larry harry henry jeffrey bruce alan roger mary susan patricia barbara linda
karen nancy carol ann jim bill bob tom joe dan fred gary jerry ralph raymond philip howard eric scott gerald dennis
douglas walter arthur albert samuel benjamin anthony andrew martin lawrence
"""
NATIONALITIES = """
japanese chinese british american german french canadian italian spanish mexican korean soviet russian swiss dutch
australian israeli european asian polish hungarian indian iranian iraqi taiwanese brazilian swedish vietnamese
"""
KINDS = {
    "number": NUMBERS,
    "month or day": DATES,
    "place": PLACES,
    "first name": FIRST_NAMES,
    "nationality": NATIONALITIES,
}
FORMS = ("superlative", "comparative", "adjective", "infinitive", "past tense", "past participle", "present participle")
FORMS += ("third person", "plural", "adverb")


def word_forms(words: Sequence[str], known: Iterable[str] | None = None) -> Attributes:
    """15 forms and kinds of English words, told by spelling and lists: superlative, past tense, plural, month, place …

    Args:
        words: the N words.
        known: the dictionary: ``fastest`` is a superlative because ``faster`` and ``fast`` are words; by default the
            words themselves, among which many forms have no relatives.
    """
    if isinstance(words, str):
        raise TypeError(f"words must be a list of words; got the text {words[:20]!r}: use its .split().")
    lower = [word.lower() for word in words]
    forms = Forms({word.lower() for word in (lower if known is None else known)})
    lists = [set(text.split()) for text in KINDS.values()]
    rows = [[*(forms.of(form, word) for form in FORMS), *(word in kind for kind in lists)] for word in lower]
    has = torch.tensor(rows, dtype=torch.bool).reshape(len(rows), len(FORMS) + len(KINDS))
    return Attributes(has, [*FORMS, *KINDS])


IRREGULAR = """
be was been;become became become;begin began begun;break broke broken;bring brought brought;build built built
buy bought bought;catch caught caught;choose chose chosen;come came come;do did done;draw drew drawn
drink drank drunk;drive drove driven;eat ate eaten;fall fell fallen;feel felt felt;fight fought fought
find found found;fly flew flown;forget forgot forgotten;get got gotten;give gave given;go went gone;grow grew grown
have had had;hear heard heard;hide hid hidden;hold held held;keep kept kept;know knew known;lead led led
leave left left;lose lost lost;make made made;mean meant meant;meet met met;pay paid paid;ride rode ridden
rise rose risen;run ran run;say said said;see saw seen;seek sought sought;sell sold sold;send sent sent
shake shook shaken;shoot shot shot;sing sang sung;sit sat sat;sleep slept slept;speak spoke spoken
spend spent spent;stand stood stood;steal stole stolen;swim swam swum;take took taken;teach taught taught
tell told told;think thought thought;throw threw thrown;understand understood understood;wear wore worn;win won won
write wrote written;sink sank sunk;strike struck struck;fling flung flung;creep crept crept;shrink shrank shrunk
spring sprang sprung;swing swung swung;wake woke woken;tear tore torn;lay laid laid;lie lay lain;hang hung hung
stick stuck stuck;put put put;set set set;let let let;cut cut cut;hit hit hit;shut shut shut;quit quit quit
dig dug dug;bear bore borne;beat beat beaten;bite bit bitten;blow blew blown;freeze froze frozen;flee fled fled
withdraw withdrew withdrawn;undergo underwent undergone;overcome overcame overcome;tread trod trodden
speed sped sped;slide slid slid;bind bound bound;wind wound wound;mistake mistook mistaken
undertake undertook undertaken"""
VERBS = [verb.split() for verb in IRREGULAR.strip().replace("\n", ";").split(";")]
INFINITIVES, PASTS, PARTICIPLES = ({verb[i] for verb in VERBS} for i in range(3))
PASTS |= {"were"}
NO_SUPERLATIVES = {"forest", "protest", "interest", "harvest", "contest", "invest", "digest", "arrest", "request"}
NO_PARTICIPLES = {"thing", "nothing", "something", "anything", "everything", "king", "spring", "string", "ring"}
NO_PARTICIPLES |= {"during", "evening", "morning"}


class Forms:
    """Tells whether a word has a form, such as superlative, by its spelling and a dictionary.

    Args:
        known: the words of the dictionary, in lower case.
    """

    def __init__(self, known: set[str]):
        self.known = known

    def of(self, form: str, word: str) -> bool:
        """Whether the word has the form, which is the name of a method of this class, with spaces."""
        return getattr(self, form.replace(" ", "_"))(word.lower())

    def stem(self, stem: str) -> bool:
        """Whether an ending can follow: tak(ing), walk(ed), runn(ing), happi(est)."""
        doubled = len(stem) > 2 and stem[-1] == stem[-2] and stem[:-1] in self.known
        return bool(stem) and (stem in self.known or stem + "e" in self.known or doubled or self.of_y(stem))

    def of_y(self, stem: str) -> bool:
        return stem.endswith("i") and stem[:-1] + "y" in self.known

    def superlative(self, word: str) -> bool:
        if word in ("best", "worst", "most", "least", "furthest", "farthest"):
            return True
        regular = word.endswith("est") and len(word) > 4 and word[:-2] + "r" in self.known and self.stem(word[:-3])
        return regular and word not in NO_SUPERLATIVES

    def comparative(self, word: str) -> bool:
        if word in ("better", "worse", "more", "less", "further", "farther", "lesser"):
            return True
        return word.endswith("er") and word[:-1] + "st" in self.known and self.superlative(word[:-1] + "st")

    def adjective(self, word: str) -> bool:
        stems = (word, word[:-1] if word.endswith("e") else word, word[:-1] + "i" if word.endswith("y") else word)
        return any(stem + "er" in self.known and stem + "est" in self.known for stem in stems)

    def present_participle(self, word: str) -> bool:
        return word.endswith("ing") and len(word) > 4 and self.stem(word[:-3]) and word not in NO_PARTICIPLES

    def past_tense(self, word: str) -> bool:
        regular = word.endswith("ed") and len(word) > 3 and self.stem(word[:-2])
        return word in PASTS or (regular and word not in ("hundred", "united"))

    def past_participle(self, word: str) -> bool:
        return word in PARTICIPLES or (word.endswith("ed") and self.past_tense(word))

    def infinitive(self, word: str) -> bool:
        if self.present_participle(word) or self.past_tense(word):
            return word in INFINITIVES
        stems = [word, word[:-1] if word.endswith("e") else word, word + word[-1:]]
        stems += [word[:-1] + "i"] if word.endswith("y") else []
        inflected = all(any(stem + end in self.known for stem in stems) for end in ("ing", "ed"))
        return word in INFINITIVES or (
            inflected and any(stem + end in self.known for stem in stems for end in ("s", "es"))
        )

    def third_person(self, word: str) -> bool:
        return word.endswith("s") and self.infinitive(word[:-1])

    def plural(self, word: str) -> bool:
        regular = word.endswith("s") and len(word) > 3 and word[-2] not in "su" and word[:-1] in self.known
        return regular and not self.infinitive(word[:-1])

    def adverb(self, word: str) -> bool:
        return word.endswith("ly") and (word[:-2] in self.known or word[:-3] + "y" in self.known)
