"""Hand-worked examples, the identities of the reductions, and Tversky's axioms."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import similitude.functional as F
from similitude.ops import reference

# Quarters are exact in binary, so that ties and empty sets come up often and sums are exact.
MEASURE = st.integers(-8, 8).map(lambda n: n / 4)
OBJECT = st.lists(MEASURE, min_size=6, max_size=6)
OBJECTS = st.lists(OBJECT, min_size=1, max_size=4)
CONSTANT = st.integers(0, 8).map(lambda n: n / 4)
INTERSECTION, DIFFERENCE = st.sampled_from(F.INTERSECTIONS), st.sampled_from(F.DIFFERENCES)
LEVEL, MODEL = st.sampled_from(F.LEVELS), st.sampled_from(F.MODELS)

# With the identity as the bank, an object's vector is its measures.
BANK = torch.eye(6, dtype=torch.float64)


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(a, b) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


A, B = [2.0, 1.0, 3.0, -1.0, 0.0], [1.0, 4.0, -2.0, 2.0, 0.0]
HAND_WORKED = {
    # Shared are the first two features: (2, 1) and (1, 4).
    ("product", "feature"): 2 + 4,
    ("min", "feature"): 1 + 1,
    ("max", "feature"): 2 + 4,
    ("mean", "feature"): 1.5 + 2.5,
    ("gmean", "feature"): math.sqrt(2) + 2,
    ("softmin", "feature"): -math.log(math.exp(-2) + math.exp(-1)) - math.log(math.exp(-1) + math.exp(-4)),
    # u = 2 + 1, v = 1 + 4.
    ("product", "set"): 2 + 4,
    ("min", "set"): 3,
    ("max", "set"): 5,
    ("mean", "set"): 4,
    ("gmean", "set"): math.sqrt(15),
    ("softmin", "set"): -math.log(math.exp(-3) + math.exp(-5)),
}


@pytest.mark.parametrize(("intersection", "level"), HAND_WORKED, ids="-".join)
def test_common_of_a_hand_worked_pair(intersection, level):
    bank = torch.eye(5, dtype=torch.float64)
    value = F.common(tensor(A), tensor(B), bank, intersection=intersection, level=level)
    assert value.item() == pytest.approx(HAND_WORKED[intersection, level])


@pytest.mark.parametrize(
    ("difference", "level", "a_only", "b_only"),
    [
        ("ignorematch", "feature", 3, 2),
        ("ignorematch", "set", 3, 2),
        ("subtractmatch", "feature", 3 + (2 - 1), 2 + (4 - 1)),
        ("subtractmatch", "set", 3 + 0, 2 + (5 - 3)),
    ],
)
def test_distinctive_of_a_hand_worked_pair(difference, level, a_only, b_only):
    bank = torch.eye(5, dtype=torch.float64)
    options = dict(difference=difference, level=level)
    assert F.distinctive(tensor(A), tensor(B), bank, **options).item() == a_only
    assert F.distinctive(tensor(B), tensor(A), bank, **options).item() == b_only


def test_salience_of_a_hand_worked_object():
    assert F.salience(tensor(A), torch.eye(5, dtype=torch.float64)).item() == 6


def test_contrast_and_ratio_of_a_hand_worked_pair():
    bank = torch.eye(5, dtype=torch.float64)
    constants = dict(alpha=0.5, beta=0.25, theta=2.0)
    assert F.tversky_similarity(tensor(A), tensor(B), bank, **constants).item() == 2 * 6 - 0.5 * 3 - 0.25 * 2
    ratio = F.tversky_similarity(tensor(A), tensor(B), bank, model="ratio", **constants)
    assert ratio.item() == pytest.approx(6 / (6 + 0.5 * 3 + 0.25 * 2))


def test_a_measure_of_zero_is_no_feature():
    bank = torch.eye(2, dtype=torch.float64)
    assert F.salience(tensor([0.0, -0.0]), bank).item() == 0
    assert F.distinctive(tensor([1.0, 1.0]), tensor([0.0, 1.0]), bank).item() == 1


@pytest.mark.parametrize("reduction", ["min", "max"])
def test_a_tie_gives_each_side_half_of_the_gradient(reduction):
    for level in F.LEVELS:
        for backend in ("reference", "torch"):
            x, p = tensor([[1.0]]).requires_grad_(), tensor([[1.0]]).requires_grad_()
            options = dict(intersection=reduction, level=level, alpha=0, beta=0, backend=backend)
            F.tversky_projection(x, p, tensor([[1.0]]), **options).backward()
            assert (x.grad, p.grad) == (tensor([[0.5]]), tensor([[0.5]]))


def test_ratio_of_two_empty_sets_is_zero():
    nothing = -torch.ones(2, 6, dtype=torch.float64)
    assert F.tversky_projection(nothing, nothing, BANK, model="ratio").abs().max() == 0


@given(OBJECTS, OBJECTS)
def test_identities_of_the_reductions_at_feature_level(objects, prototypes):
    """docs/equations.md, by indicators and products."""
    a, b = tensor(objects), tensor(prototypes)
    pa, pb, I, J = a.relu(), b.relu(), (a > 0).double(), (b > 0).double()
    M = torch.minimum(pa[:, None], pb[None]).sum(-1)
    u, v = pa @ J.T, I @ pb.T
    sal_a, sal_b = pa.sum(-1)[:, None], pb.sum(-1)[None]
    x, y = a[:, None], b[None]
    close(reference.common(x, y, "product", "feature"), pa @ pb.T)
    close(reference.common(x, y, "mean", "feature"), (u + v) / 2)
    close(reference.common(x, y, "gmean", "feature"), pa.sqrt() @ pb.sqrt().T)
    close(reference.common(x, y, "min", "feature"), M)
    close(reference.common(x, y, "max", "feature"), u + v - M)
    close(reference.distinctive(x, y, "ignorematch", "feature"), sal_a - u)
    close(reference.distinctive(y, x, "ignorematch", "feature"), sal_b - v)
    close(reference.distinctive(x, y, "subtractmatch", "feature"), sal_a - M)
    close(reference.distinctive(y, x, "subtractmatch", "feature"), sal_b - M)
    close(M, (sal_a + sal_b - (pa[:, None] - pb[None]).abs().sum(-1)) / 2)


@given(OBJECTS, OBJECTS)
def test_identities_of_the_reductions_at_set_level(objects, prototypes):
    a, b = tensor(objects), tensor(prototypes)
    u, v = a.relu() @ (b > 0).double().T, (a > 0).double() @ b.relu().T
    x, y = a[:, None], b[None]
    sal_a = reference.salience(a)[:, None]
    close(reference.common(x, y, "product", "set"), a.relu() @ b.relu().T)
    close(reference.common(x, y, "mean", "set"), (u + v) / 2)
    close(reference.common(x, y, "gmean", "set"), (u * v).sqrt())
    close(reference.common(x, y, "min", "set"), torch.minimum(u, v))
    close(reference.common(x, y, "max", "set"), torch.maximum(u, v))
    close(reference.common(x, y, "softmin", "set"), -torch.log(torch.exp(-u) + torch.exp(-v)))
    close(reference.distinctive(x, y, "ignorematch", "set"), sal_a - u)
    close(reference.distinctive(x, y, "subtractmatch", "set"), sal_a - u + (u - v).relu())


@given(OBJECTS, OBJECTS, LEVEL, CONSTANT)
def test_reductions_that_coincide_when_alpha_and_beta_are_half_of_theta(objects, prototypes, level, half):
    def similarity(intersection, difference):
        options = dict(intersection=intersection, difference=difference, level=level)
        return F.tversky_projection(tensor(objects), tensor(prototypes), BANK, half, half, 2 * half, **options)

    close(similarity("max", "subtractmatch"), similarity("mean", "ignorematch"))
    close(similarity("mean", "subtractmatch"), similarity("min", "ignorematch"))


@given(OBJECTS, OBJECTS, INTERSECTION, DIFFERENCE, LEVEL, MODEL, CONSTANT, CONSTANT)
def test_swapping_objects_swaps_alpha_and_beta(objects, prototypes, intersection, difference, level, model, α, β):
    options = dict(intersection=intersection, difference=difference, level=level, model=model)
    forth = F.tversky_projection(tensor(objects), tensor(prototypes), BANK, α, β, 1.0, **options)
    back = F.tversky_projection(tensor(prototypes), tensor(objects), BANK, β, α, 1.0, **options)
    close(forth, back.T)


@given(OBJECTS, OBJECTS, INTERSECTION, DIFFERENCE, LEVEL, CONSTANT, CONSTANT, CONSTANT)
def test_matching_similarity_is_a_function_of_three_measures(
    objects, prototypes, intersection, difference, level, α, β, θ
):
    """Tversky's matching axiom: S depends on f(A∩B), f(A−B), f(B−A) alone."""
    a, b = tensor(objects)[:, None], tensor(prototypes)[None]
    common = F.common(a, b, BANK, intersection=intersection, level=level)
    a_only = F.distinctive(a, b, BANK, difference=difference, level=level)
    b_only = F.distinctive(b, a, BANK, difference=difference, level=level)
    options = dict(intersection=intersection, difference=difference, level=level)
    whole = F.tversky_projection(tensor(objects), tensor(prototypes), BANK, α, β, θ, **options)
    close(whole, θ * common - α * a_only - β * b_only)
    if intersection != "softmin":
        assert (common >= -1e-12).all()
    assert (a_only >= -1e-12).all()
    assert (b_only >= -1e-12).all()


@given(OBJECT, OBJECT, st.sampled_from(["product", "min", "max", "mean", "gmean"]), DIFFERENCE, LEVEL, MODEL, CONSTANT)
def test_monotonicity_more_shared_and_less_distinctive_is_more_similar(a, b, intersection, difference, level, model, c):
    """Tversky's monotonicity axiom: a shared feature added, or a distinctive one taken away, never lowers S."""
    options = dict(intersection=intersection, difference=difference, level=level, model=model, beta=c)

    def similarity(a, b):
        return F.tversky_similarity(tensor(a), tensor(b), BANK, **options).item()

    before = similarity(a, b)
    free = next((k for k in range(6) if a[k] <= 0 and b[k] <= 0), None)
    if free is not None:
        shared_a, shared_b = list(a), list(b)
        shared_a[free] = shared_b[free] = 1.0
        assert similarity(shared_a, shared_b) >= before - 1e-9
    distinctive = next((k for k in range(6) if a[k] > 0 and b[k] <= 0), None)
    if distinctive is not None:
        without = list(a)
        without[distinctive] = 0.0
        assert similarity(without, b) >= before - 1e-9


@given(OBJECTS, OBJECTS, INTERSECTION, DIFFERENCE, LEVEL, MODEL, st.permutations(range(6)), st.randoms())
def test_order_of_features_and_prototypes_does_not_matter(
    objects, prototypes, intersection, difference, level, model, features, random
):
    options = dict(intersection=intersection, difference=difference, level=level, model=model)
    order = list(range(len(prototypes)))
    random.shuffle(order)
    plain = F.tversky_projection(tensor(objects), tensor(prototypes), BANK, **options)
    mixed = F.tversky_projection(tensor(objects), tensor(prototypes)[order], BANK[features], **options)
    close(mixed, plain[:, order])


@given(OBJECTS, INTERSECTION, DIFFERENCE, LEVEL, MODEL)
def test_a_feature_that_nobody_has_changes_nothing(objects, intersection, difference, level, model):
    options = dict(intersection=intersection, difference=difference, level=level, model=model)
    x = tensor(objects).abs()
    more = torch.cat([BANK, -torch.ones(1, 6, dtype=torch.float64)])
    close(F.tversky_projection(x, x, more, **options), F.tversky_projection(x, x, BANK, **options))


def test_the_papers_spelling_is_taken():
    x = torch.randn(3, 4)
    paper = F.tversky_projection(x, x, x, difference="substractmatch")
    torch.testing.assert_close(paper, F.tversky_projection(x, x, x, difference="subtractmatch"))
