"""Labels as indices of prototypes or as names of classes, and a warning where their order seems another."""

import warnings

import numpy as np
import pytest
import torch

from similitude import TverskyProjection
from similitude.explore import explore
from similitude.explore.content import content

CLASSES = ["fox", "cat", "dog"]
X = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))
NAMED = [CLASSES[i % 3] for i in range(9)]


def layer():
    torch.manual_seed(1)
    return TverskyProjection(6, 3, 8, presence=0.4, bias=True).eval()


def series(values, **more):
    return pytest.importorskip("pandas").Series(values, **more)


@pytest.mark.parametrize(
    "make",
    [list, tuple, np.array, lambda y: np.array(y, dtype=object), series, lambda y: series(y, dtype="category")],
    ids=["list", "tuple", "array", "objects", "series", "categories"],
)
def test_names_of_classes_are_indices_of_their_prototypes(make):
    assert content(layer(), X, make(NAMED), classes=CLASSES).arrays["labels"].tolist() == [i % 3 for i in range(9)]


@pytest.mark.parametrize(
    "labels",
    [
        [i % 3 for i in range(9)],
        torch.arange(9) % 3,
        (torch.arange(9) % 3).float(),
        np.arange(9, dtype=np.uint8) % 3,
        lambda: series(np.arange(9) % 3, index=range(20, 29)),
    ],
    ids=["list", "tensor", "floats", "bytes", "series"],
)
def test_indices_stay_what_they_are(labels):
    labels = labels() if callable(labels) else labels
    assert content(layer(), X, labels, classes=CLASSES).arrays["labels"].tolist() == [i % 3 for i in range(9)]


def test_a_classifier_has_names_for_its_labels_and_indices_of_its_sorted_classes():
    pytest.importorskip("sklearn")
    from similitude.estimator import TverskyClassifier

    model = TverskyClassifier(8, max_iter=5, random_state=0).fit(X.numpy(), np.array(NAMED))
    by_name = content(model, X.numpy(), NAMED)
    assert by_name.about["classes"] == ["cat", "dog", "fox"]
    assert by_name.arrays["labels"].tolist() == [sorted(CLASSES).index(name) for name in NAMED]
    assert by_name.about["accuracy"] == (model.predict(X.numpy()) == np.array(NAMED)).mean()
    assert content(model, X.numpy(), [0] * 9).arrays["labels"].tolist() == [0] * 9


@pytest.mark.parametrize(
    ("labels", "classes", "sentence"),
    [
        (["cats", *NAMED[1:]], CLASSES, r"names of classes; got 'cats', and the nearest one is 'cat'\."),
        (["zebra", *NAMED[1:]], CLASSES, r"got 'zebra', and they are 'fox', 'cat', 'dog'\."),
        ([None, *NAMED[1:]], CLASSES, "names of classes; got None"),
        (NAMED, None, r"such as 'fox', and the prototypes have none: give classes="),
        (NAMED, ["fox", "cat", "cat"], "classes must differ; 'cat' is there twice"),
        (NAMED[:4], CLASSES, r"labels must be \[9\], one for each input; got shape \[4\]"),
        ([3] * 9, CLASSES, "from 0 to 2; got 3 to 3, or give names of classes as text, such as 'dog'"),
        ([0.5] * 9, CLASSES, "indices of prototypes, or names of classes; got .*0.5"),
        ([float("nan")] * 9, CLASSES, "indices of prototypes, or names of classes; got .*nan"),
    ],
)
def test_labels_that_do_not_fit_are_one_sentence(labels, classes, sentence):
    with pytest.raises(ValueError, match=sentence):
        explore(layer(), X, labels, classes=classes)


def test_labels_that_one_answer_for_all_would_fit_better_are_warned_of():
    net, right = layer(), layer()(X).argmax(-1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explore(net, X, right, classes=CLASSES)
        explore(net, X, [CLASSES[p] for p in right], classes=CLASSES)
        # Objects of one class say nothing of an order.
        explore(net, X, [2] * 9)
    other = (right + 1) % 3
    share = other.bincount().max().item() / 9
    with pytest.warns(
        UserWarning, match=rf"right on 0\.0% .* would be on {share:.1%}: .* classes= in the order"
    ) as told:
        explore(net, X, other, classes=CLASSES)
    assert [one.filename for one in told] == [__file__]
