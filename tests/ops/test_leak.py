"""A leak: values as without it, and gradients for features that an object lacks."""

import pickle

import pytest
import torch

import similitude.functional as F
from similitude import TverskyProjection, TverskySimilarity
from similitude.form import DIFFERENCES, INTERSECTIONS

SMOOTH = [i for i in INTERSECTIONS if i != "gmean"]
CONSTANTS = (0.3, 0.7, 1.4)
LEAK = 0.2


class LeakyReLU(torch.autograd.Function):
    """relu, whose gradient below 0 is the leak."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a.relu()

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.where(ctx.saved_tensors[0] > 0, 1.0, LEAK)


def plainly(x, prototypes, features, alpha, beta, theta, intersection, difference, normalize=False):
    """S of all pairs, term by term, with indicators as constants; the gradients alone are to be looked at."""
    if normalize:
        x, prototypes = torch.nn.functional.normalize(x, dim=-1), torch.nn.functional.normalize(prototypes, dim=-1)
    a, b = (x @ features.mT).unsqueeze(-2), (prototypes @ features.mT).unsqueeze(-3)
    A, B, has_a, has_b = LeakyReLU.apply(a), LeakyReLU.apply(b), (a > 0).double(), (b > 0).double()
    least = torch.minimum(A, B)

    def softmin(A, B):
        return -torch.logaddexp(-A, -B)

    common = {
        "product": lambda: A * B,
        "mean": lambda: (A * has_b + has_a * B) / 2,
        "min": lambda: least,
        "max": lambda: has_a * has_b * torch.maximum(A, B),
        "softmin": lambda: has_b * softmin(A, B.detach()) + has_a * softmin(A.detach(), B),
    }[intersection]()
    if difference == "ignorematch":
        a_only, b_only = A * (1 - has_b), B * (1 - has_a)
    else:
        a_only, b_only = A - least, B - least
    return (theta * common - alpha * a_only - beta * b_only).sum(-1)


def drawn(*shapes):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(*s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


def scalars():
    return [torch.tensor(c, dtype=torch.float64, requires_grad=True) for c in CONSTANTS]


def check_gradients(of, expected, inputs):
    """Of vectors; those of the constants are as without a leak, which is another law."""
    weights = torch.randn(of.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    got = torch.autograd.grad((of * weights).sum(), inputs, retain_graph=True)
    wanted = torch.autograd.grad((expected * weights).sum(), inputs, retain_graph=True)
    for name, g, w in zip(("x", "prototypes", "features"), got, wanted, strict=True):
        torch.testing.assert_close(g, w, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize("intersection", SMOOTH)
@pytest.mark.parametrize("normalize", [False, True])
def test_gradients_are_those_of_a_relu_that_leaks_backward(intersection, difference, normalize):
    inputs, constants = drawn((5, 3), (4, 3), (7, 3)), scalars()
    options = dict(intersection=intersection, difference=difference, normalize=normalize)
    of = F.tversky_projection(*inputs, *constants, **options, leak=LEAK)
    check_gradients(of, plainly(*inputs, *constants, **options), inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize("intersection", SMOOTH)
def test_a_gpu_leaks_as_a_cpu_does(intersection, difference):
    inputs = drawn((33, 16), (71, 16), (100, 16))
    there = [i.detach().float().cuda().requires_grad_() for i in inputs]
    options = dict(intersection=intersection, difference=difference, leak=LEAK)
    sides = [
        torch.autograd.grad(F.tversky_projection(*i, *CONSTANTS, **options).square().sum(), i) for i in (inputs, there)
    ]
    for ours, wanted in zip(sides[1], sides[0], strict=True):
        assert (ours.cpu() - wanted).norm() <= 1e-4 * wanted.norm()


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_pairs_batches_and_broadcasts_leak_as_all_pairs_do(difference):
    constants = scalars()
    a, b, features = drawn((6, 3), (6, 3), (7, 3))
    table = plainly(a, b, features, *constants, "product", difference)
    for backend in ("auto", "reference"):
        options = dict(difference=difference, leak=LEAK, backend=backend)
        paired = F.tversky_similarity(a, b, features, *constants, **options)
        check_gradients(paired, table.diagonal(), (a, b, features))
        wide = F.tversky_similarity(a[:, None], b, features, *constants, **options)
        check_gradients(wide, table, (a, b, features))
    x, prototypes, features = drawn((2, 5, 3), (2, 4, 3), (7, 3))
    of = F.tversky_projection(x, prototypes, features, *constants, difference=difference, leak=LEAK)
    expected = plainly(x, prototypes, features, *constants, "product", difference)
    check_gradients(of, expected, (x, prototypes, features))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize("intersection", SMOOTH)
def test_a_leak_changes_neither_values_nor_the_constants_gradients(intersection, difference, dtype):
    inputs = [t.detach().to(dtype).requires_grad_() for t in drawn((5, 8), (4, 8), (16, 8))]
    outcomes = []
    for leak in (0.0, LEAK):
        constants = [c.detach().to(dtype).requires_grad_() for c in scalars()]
        options = dict(intersection=intersection, difference=difference, leak=leak)
        S = F.tversky_projection(*inputs, *constants, **options)
        pairs = F.tversky_similarity(inputs[0][:4], inputs[1], inputs[2], *constants, **options)
        outcomes.append([S, pairs, *torch.autograd.grad(S.float().square().sum() + pairs.float().sum(), constants)])
    assert all(torch.equal(*both) for both in zip(*outcomes, strict=True))


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_prototypes_inputs_and_features_that_were_dead_have_a_gradient(difference):
    for leak, alive in ((0.0, False), (LEAK, True)):
        layer = TverskyProjection(3, 2, 3, difference=difference, alpha=0.3, beta=0.7, theta=1.4, leak=leak)
        with torch.no_grad():
            layer.features.weight.copy_(torch.eye(3))
            # A prototype and an input without features, and a feature that nobody has.
            layer.prototypes.copy_(torch.tensor([[-0.1, -0.2, -0.3], [1.0, 0.5, -0.2]]))
        x = torch.tensor([[1.0, 2.0, -1.0], [2.0, -0.1, -1.0], [-1.0, -1.5, -1.0]], requires_grad=True)
        layer(x).square().sum().backward()
        assert bool(layer.prototypes.grad[0].any()) is alive
        assert bool(layer.features.weight.grad[2].any()) is alive
        assert bool(x.grad[2].any()) is alive


def test_layers_take_a_leak_and_keep_it():
    layer = TverskyProjection(5, 3, 7, leak=0.1)
    assert list(layer.state_dict()) == list(TverskyProjection(5, 3, 7).state_dict())
    assert "leak=0.1" in repr(layer)
    assert "leak" not in repr(TverskyProjection(5, 3, 7))
    again = pickle.loads(pickle.dumps(layer))
    assert again.leak == 0.1
    x = torch.randn(4, 5)
    with torch.no_grad():
        trained, kept = layer(x), layer.eval()(x)
    torch.testing.assert_close(trained, kept)
    layer.train()(x).sum().backward()
    other = TverskyProjection(5, 3, 7)
    other.load_state_dict(layer.state_dict())
    other(x).sum().backward()
    assert not torch.equal(layer.prototypes.grad, other.prototypes.grad)
    similarity = TverskySimilarity(5, 7, leak=0.1)
    plain = TverskySimilarity(5, 7)
    plain.load_state_dict(similarity.state_dict())
    for call in (lambda s: s(x, x.flip(0)), lambda s: s.pairwise(x, x.flip(0))):
        gradients = [torch.autograd.grad(call(s).sum(), s.features.weight)[0] for s in (similarity, plain)]
        assert not torch.equal(*gradients)


def test_layers_under_vmap_have_each_its_own_gradient():
    x, prototypes, features = drawn((4, 3), (6, 2, 3), (6, 5, 3))

    def loss(p, f):
        return F.tversky_projection(x.detach(), p, f, *CONSTANTS, difference="subtractmatch", leak=LEAK).square().sum()

    got = torch.func.vmap(torch.func.grad(loss))(prototypes.detach(), features.detach())
    for i in range(6):
        wanted = torch.func.grad(loss)(prototypes[i].detach(), features[i].detach())
        torch.testing.assert_close(got[i], wanted)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(leak=-0.1), "from 0, none, to 1; got -0.1"),
        (dict(leak=True), "got True"),
        (dict(leak=0.1, level="set", intersection="min"), "level='feature'"),
        (dict(leak=0.1, level="set", difference="subtractmatch"), "level='feature'"),
        (dict(leak=0.1, model="ratio"), "model='contrast'"),
        (dict(leak=0.1, intersection="gmean"), "gmean"),
    ],
)
def test_where_a_leak_makes_no_sense_one_sentence_says_so(options, words):
    for make in (lambda: TverskyProjection(5, 3, 7, **options), lambda: TverskySimilarity(5, 7, **options)):
        with pytest.raises(ValueError, match=words):
            make()
    with pytest.raises(ValueError, match=words):
        F.tversky_projection(torch.randn(2, 5), torch.randn(3, 5), torch.randn(7, 5), **options)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_the_loss_leaks_as_the_cross_entropy_of_outputs_does(backend):
    layer, x, target = TverskyProjection(5, 3, 7, leak=0.1, backend=backend), torch.randn(6, 5), torch.arange(6) % 3
    losses = layer.cross_entropy(x, target), torch.nn.functional.cross_entropy(layer(x), target)
    torch.testing.assert_close(*losses)
    for ours, theirs in zip(*(torch.autograd.grad(loss, list(layer.parameters())) for loss in losses), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_set_level_leaks_where_it_equals_feature_level():
    inputs = drawn((5, 3), (4, 3), (7, 3))
    for intersection in ("product", "mean"):
        at = [
            F.tversky_projection(*inputs, intersection=intersection, level=level, leak=LEAK)
            for level in ("set", "feature")
        ]
        gradients = [torch.autograd.grad(S.square().sum(), inputs) for S in at]
        torch.testing.assert_close(*gradients)
