"""Attributes of digits, of clothing and of words."""

import pytest
import torch

from similitude.interpret.attributes import clothing_attributes, digit_attributes, word_forms


def drawn(*parts: tuple[slice, slice, float]) -> torch.Tensor:
    """An image with rectangles of ink or, at 0, of paper, in the order given."""
    image = torch.zeros(28, 28)
    for rows, columns, value in parts:
        image[rows, columns] = value
    return image


def box(rows: slice, columns: slice) -> list:
    """The outline of a rectangle, two pixels wide."""
    inner = slice(rows.start + 2, rows.stop - 2), slice(columns.start + 2, columns.stop - 2)
    return [(rows, columns, 1.0), (*inner, 0.0)]


ZERO = drawn(*box(slice(4, 24), slice(8, 20)))
EIGHT = drawn(*box(slice(4, 14), slice(8, 20)), *box(slice(12, 24), slice(8, 20)))
ONE = drawn((slice(4, 24), slice(13, 15), 1.0))
# Ones that lean to the right and to the left.
RIGHT = torch.stack([ONE[row].roll(round((14 - row) / 3)) for row in range(28)])
LEFT = RIGHT.flip(1)
DIGITS = torch.stack([ZERO, EIGHT, ONE, RIGHT, LEFT])


def having(name: str, images: torch.Tensor = DIGITS) -> list[int]:
    has, names = digit_attributes(images)
    return has[:, names.index(name)].nonzero()[:, 0].tolist()


def test_there_are_29_attributes_of_digits():
    has, names = digit_attributes(DIGITS)
    assert has.shape == (5, 29)
    assert has.dtype == torch.bool
    assert len(set(names)) == 29


def test_holes_are_counted():
    assert having("a hole") == [0]
    assert having("two holes") == [1]


def test_a_hole_is_closed_at_edges_and_has_three_pixels():
    gap, corner = ZERO.clone(), ZERO.clone()
    gap[12, 8:10] = 0
    corner[12, 8], corner[13, 9] = 0, 0  # they meet at a corner only
    small = drawn((slice(8, 16), slice(8, 16), 1.0), (slice(11, 12), slice(11, 13), 0.0))
    three = drawn((slice(8, 16), slice(8, 16), 1.0), (slice(11, 12), slice(11, 14), 0.0))
    border = drawn(*box(slice(0, 12), slice(0, 12)))
    assert having("a hole", torch.stack([gap, corner, small, three, border])) == [1, 3, 4]


def test_lean_ink_and_width_are_at_the_ends_of_the_images_given():
    assert having("leans right") == [3]
    assert having("leans left") == [4]
    assert having("much ink") == [1]
    assert having("wide") == [0, 1]
    assert having("narrow") == [2]


def test_bars_have_a_place():
    bars = torch.stack([
        drawn((slice(at, at + 2), slice(8, 18), 1.0)) for at in (5, 13, 21)
    ] + [drawn((slice(8, 17), slice(at, at + 2), 1.0)) for at in (6, 13, 20)])  # fmt: skip
    for i, place in enumerate(("top", "middle", "bottom")):
        assert having(f"level bar at the {place}", bars) == [i]
    for i, place in enumerate(("left", "middle", "right")):
        assert having(f"upright bar at the {place}", bars) == [3 + i]
    short = drawn((slice(5, 7), slice(8, 17), 1.0), (slice(8, 16), slice(20, 22), 1.0))[None]
    assert not having("level bar at the top", short)
    assert not having("upright bar at the right", short)


def test_ink_has_a_place():
    image = drawn((slice(9, 14), slice(19, 24), 1.0))
    has, names = digit_attributes(torch.stack([image, torch.zeros(28, 28)]))
    inked = [names[i] for i in has[0].nonzero()[:, 0].tolist() if names[i].startswith("ink")]
    assert inked == ["ink at row 2, column 4"]


def test_bytes_and_a_channel_axis_are_the_same_digits():
    expected = digit_attributes(DIGITS).has
    assert torch.equal(digit_attributes((DIGITS * 255).byte()[:, None]).has, expected)


def test_an_empty_image_has_no_lean():
    has, names = digit_attributes(torch.cat([torch.zeros(1, 28, 28), RIGHT.repeat(9, 1, 1)]))
    assert not has[0, names.index("leans right")]


def test_other_images_are_refused():
    with pytest.raises(ValueError, match=r"images must be a tensor \[N, 28, 28\], as MNIST's are; got \[2, 14, 14\]"):
        digit_attributes(torch.zeros(2, 14, 14))
    with pytest.raises(ValueError, match=r"got \[2, 3, 28, 28\]"):
        digit_attributes(torch.zeros(2, 3, 28, 28))


# Trousers, a shoe, a bag with a handle, and a pale shirt with stripes.
TROUSERS = drawn((slice(0, 28), slice(8, 20), 0.9), (slice(10, 28), slice(12, 16), 0.0))
SHOE = drawn((slice(12, 20), slice(0, 28), 0.6), (slice(8, 12), slice(0, 8), 0.6))
BAG = drawn((slice(8, 24), slice(4, 24), 0.8), *box(slice(0, 10), slice(8, 20)))
SHIRT = drawn((slice(2, 28), slice(3, 25), 0.3), *((slice(row, row + 1), slice(3, 25), 0.5) for row in range(2, 28, 2)))
CLOTHES, CLASSES = torch.stack([TROUSERS, SHOE, BAG, SHIRT]), torch.tensor([1, 7, 8, 6])


def clothes_with(name: str) -> list[int]:
    has, names = clothing_attributes(CLOTHES, CLASSES)
    return has[:, names.index(name)].nonzero()[:, 0].tolist()


def test_there_are_28_attributes_of_clothing():
    has, names = clothing_attributes(CLOTHES, CLASSES)
    assert has.shape == (4, 28)
    assert len(set(names)) == 28
    assert torch.equal(clothing_attributes((CLOTHES * 255).byte()[:, None], CLASSES).has, has)
    assert has[:, :5].sum(1).tolist() == [1] * 4  # the families


def test_clothing_has_what_its_picture_shows():
    assert clothes_with("trousers") == [0]
    assert clothes_with("footwear") == [1]
    assert clothes_with("a bag") == [2]
    assert clothes_with("a top") == [3]
    assert clothes_with("a dress") == []
    assert clothes_with("a hole") == [2]
    assert clothes_with("a gap below the middle") == [0]
    assert clothes_with("as tall as the picture") == [0]
    assert clothes_with("as wide as the picture") == [1]
    assert clothes_with("low") == [1]
    assert clothes_with("narrow") == [0]
    assert clothes_with("patterned") == [3]
    assert clothes_with("bright") == [0]
    assert clothes_with("dark") == [3]
    assert clothes_with("covers much") == [3]
    assert clothes_with("covers little") == [1]
    assert clothes_with("left and right differ") == [1]
    assert clothes_with("cloth at the bottom, middle") == [0, 3]
    assert clothes_with("cloth at the lower middle, right") == [1]


def test_clothing_needs_a_class_for_each_picture():
    with pytest.raises(ValueError, match=r"classes must be \[4\], one an image; got shape \[3\]"):
        clothing_attributes(CLOTHES, CLASSES[:3])


def test_words_have_forms():
    text = "fast faster fastest fastly happy happily dogs dog walk walks walked walking London june John twelve"
    words = [*text.split(), "Japanese", "bus"]
    has, names = word_forms(words)
    found = {name: [word for word, own in zip(words, has[:, i], strict=True) if own] for i, name in enumerate(names)}
    assert len(names) == 15
    assert found == {
        "superlative": ["fastest"],
        "comparative": ["faster"],
        "adjective": ["fast"],
        "infinitive": ["walk"],
        "past tense": ["walked"],
        "past participle": ["walked"],
        "present participle": ["walking"],
        "third person": ["walks"],
        "plural": ["dogs"],
        "adverb": ["fastly", "happily"],
        "number": ["twelve"],
        "month or day": ["june"],
        "place": ["London"],
        "first name": ["John"],
        "nationality": ["Japanese"],
    }


def test_forms_are_told_by_a_dictionary():
    assert not word_forms(["fastest"]).has.any()
    has, names = word_forms(["fastest"], known=["fast", "faster", "fastest"])
    assert [names[i] for i in has[0].nonzero()[:, 0]] == ["superlative"]


def test_no_words_have_no_forms_and_a_text_is_refused():
    assert word_forms([]).has.shape == (0, 15)
    with pytest.raises(TypeError, match=r"words must be a list of words; got the text 'a text': use its .split\(\)"):
        word_forms("a text")
