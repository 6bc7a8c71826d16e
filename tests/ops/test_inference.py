"""Inference on a side that was made before: every form, sums by products and by lookups, and what may be kept."""

import copy
import math

import pytest
import torch
from cases import COMBINATIONS, name
from torch import nn
from torch.nn.utils import parametrize

from similitude import TverskyProjection
from similitude.form import Form
from similitude.ops import inference, plan

D, P, K = 8, 6, 40
FORMS = [c for c in COMBINATIONS if not c["normalize"]] + [dict(normalize=True), dict(normalize=True, level="set")]


def made(presence: float | None = None, **options) -> TverskyProjection:
    torch.manual_seed(0)
    return TverskyProjection(D, P, K, presence=presence, **options).eval()


@pytest.fixture(params=["products", "lookups"])
def how(request, monkeypatch) -> str:
    monkeypatch.setattr(plan, "WORTH_A_SEARCH", 1 if request.param == "lookups" else math.inf)
    return request.param


@pytest.mark.parametrize("options", FORMS, ids=name)
def test_every_form_answers_as_the_law_does(options, how):
    for presence in (None, 0.1):
        layer = made(presence, **options).double()
        law = copy.deepcopy(layer)
        law.backend = "reference"
        for N in (0, 1, 3, 9, 70):
            x = torch.randn(N, D, dtype=torch.float64)
            with torch.no_grad():
                expected = law.train()(x)
                torch.testing.assert_close(layer(x), expected, rtol=1e-9, atol=1e-9)
                torch.testing.assert_close(layer(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [dict(), dict(model="ratio"), dict(level="set", intersection="min")], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_errors_of_float32_are_those_of_products(options, threads, monkeypatch):
    layer, x = made(0.2, **options), torch.randn(4, D)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    monkeypatch.setattr(inference, "TILE", 2)
    try:
        with torch.no_grad():
            truth = copy.deepcopy(layer).double().train()(x.double())
            for worth in (1, math.inf):
                monkeypatch.setattr(plan, "WORTH_A_SEARCH", worth)
                for rows in (x, x[:1]):
                    error = (layer(rows).double() - truth[: len(rows)]).abs().max()
                    assert error <= 32 * torch.finfo(torch.float32).eps * truth.abs().max()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("options", [dict(), dict(model="ratio"), dict(intersection="min")], ids=str)
def test_what_is_no_number_is_seen_in_the_answer(options, how):
    layer, x = made(**options), torch.randn(2, D)
    x[1, 3] = torch.nan
    with torch.no_grad():
        answer = layer(x)
    assert answer[0].isfinite().all()
    assert answer[1].isnan().all()


def test_objects_without_features_are_compared(how):
    layer = made(0.1)
    with torch.no_grad():
        layer.features.threshold.fill_(1e6)
        x = torch.randn(3, D)
        torch.testing.assert_close(layer(x), copy.deepcopy(layer).train()(x))
        torch.testing.assert_close(layer(x[:1]), layer(x)[:1])


def test_few_objects_with_few_features_are_looked_up():
    def looks(N, present, sizes=(1024, 5000), device="cpu"):
        return plan.looks_up(N, *sizes, device, round(present * N * sizes[0]))

    assert looks(1, 0.1)
    assert looks(1, 0.5)
    assert looks(64, 0.25)
    assert not looks(64, 0.5)
    assert not looks(65, 0.1)
    assert not looks(0, 0)
    assert not looks(1, 0.1, sizes=(20, 10))
    assert not looks(1, 0.1, device="cuda")


@pytest.mark.parametrize("present", [0.1, 0.9])
def test_lookups_read_what_is_present_and_no_more(present, monkeypatch):
    """Rows of features that the object lacks may hold anything, such as what is no number."""
    monkeypatch.setattr(plan, "WORTH_A_SEARCH", 1)
    side = inference.prepare(torch.rand(P, K), torch.randn(K, D), None, (0.5, 0.5, 1.0), Form(), torch.float32, P)
    a = torch.where(torch.arange(K) < present * K, 1.0, -1.0)[None]
    expected = inference.project(side, a.clone())
    side.tables["shared"][a[0] < 0] = torch.nan
    if present < 0.25:
        side.tables["missing"][a[0] < 0] = torch.nan
    else:
        side.tables["missing"][a[0] > 0] = torch.nan
    torch.testing.assert_close(inference.project(side, a.clone()), expected)


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def doubling(bank, _) -> None:
    bank.weight.mul_(2)


BETWEEN = {
    "a hook on the bank": lambda layer: layer.features.register_forward_hook(lambda *_: layer.features.weight * 2),
    "a hook before the bank": lambda layer: layer.features.register_forward_pre_hook(doubling),
    "another forward of the bank": lambda layer: setattr(
        layer.features, "forward", lambda *_: layer.features.weight * 2
    ),
    "a parametrisation": lambda layer: parametrize.register_parametrization(layer, "prototypes", Doubled()),
    "a parametrisation of the bank": lambda layer: parametrize.register_parametrization(
        layer.features, "weight", Doubled()
    ),
    "another bank": lambda layer: setattr(layer, "features", TverskyProjection(D, P, K).features),
    "a learned number by its data": lambda layer: layer.beta_gain.data.mul_(3),
    "a row of data": lambda layer: layer.prototypes.data[2].neg_(),
    "other memory": lambda layer: setattr(layer.prototypes, "data", layer.prototypes.data * 2),
}


@pytest.mark.parametrize("change", BETWEEN)
@pytest.mark.parametrize("large", [False, True])
def test_what_stands_between_a_layer_and_its_tensors_is_seen(change, large, monkeypatch):
    monkeypatch.setattr("similitude.kept.LARGE", 2 if large else math.inf)
    layer, x = made(), torch.randn(3, D)
    with torch.no_grad():
        before = layer(x)
        assert layer._kept.serves(layer, x)
        BETWEEN[change](layer)
        after = layer(x)
        assert not torch.allclose(after, before)
        layer._kept = None
        if change != "a hook before the bank":
            torch.testing.assert_close(layer(x), after)


def test_a_change_of_data_of_large_tensors_is_seen_in_any_row_and_any_eighth_of_the_columns(monkeypatch):
    monkeypatch.setattr("similitude.kept.LARGE", 2)
    layer, x = TverskyProjection(64, 16, 24).eval(), torch.randn(3, 64)
    with torch.no_grad():
        layer(x)
        for vectors in (layer.prototypes, layer.features.weight):
            parts = [vectors.data[:, i : i + 8] for i in range(0, 64, 8)] + [*vectors.data]
            for part in parts:
                assert layer._kept.serves(layer, x)
                part.neg_()
                assert not layer._kept.serves(layer, x)
                layer(x)


def test_what_is_kept_serves_no_other_kind_of_input():
    layer, x = made(), torch.randn(3, D)
    with torch.no_grad():
        layer(x)
        kept = layer._kept
        assert kept.serves(layer, x)
        assert kept.serves(layer, x[0])
        with torch.inference_mode():
            assert kept.serves(layer, x)
        for other in (x.double(), x[:, 1:], x[0, 0], x.to("meta"), nn.Parameter(x), None, x.long()):
            assert not kept.serves(layer, other)
        with torch.autocast("cpu", torch.bfloat16):
            assert not kept.serves(layer, x)
        with torch.enable_grad():
            assert not kept.serves(layer, x)
        torch.vmap(lambda row: torch.ones(()) * (1 / (not kept.serves(layer, row))))(x)
    assert kept.serves(copy.copy(layer), x) is False


def test_a_cpu_measures_large_banks_in_bfloat16(monkeypatch):
    monkeypatch.setattr("similitude.ops.modes.HAS_BFLOAT16", True)

    def halves(form=None, D=2048, K=224, dtype=torch.bfloat16, device="cpu", thresholds=False, eager=True):
        return plan.in_bfloat16(form or Form(), D, K, dtype, device, thresholds, eager)

    assert halves()
    assert halves(Form("min", "subtractmatch"))
    for other in (
        dict(D=36, K=20),
        dict(dtype=torch.float16),
        dict(dtype=torch.float32),
        dict(device="cuda"),
        dict(thresholds=True),
        dict(eager=False),
        dict(form=Form(normalize=True)),
        dict(form=Form(backend="reference")),
    ):
        assert not halves(**other)
    monkeypatch.setattr("similitude.ops.modes.HAS_BFLOAT16", False)
    assert not halves()


def test_measures_in_bfloat16_have_the_sign_and_the_answers_of_wide_ones(monkeypatch):
    layer = made().bfloat16()
    x = torch.randn(30, D, dtype=torch.bfloat16)
    with torch.no_grad():
        wide = layer(x)
        monkeypatch.setattr(plan, "LARGE_BANK", 0)
        monkeypatch.setattr("similitude.ops.modes.HAS_BFLOAT16", True)
        narrow, trained = layer.eval()(x), copy.deepcopy(layer).train()(x)
    assert narrow.dtype == torch.bfloat16
    assert not torch.equal(narrow, wide)
    torch.testing.assert_close(narrow, wide, rtol=0.02, atol=0.02 * wide.abs().max().item())
    torch.testing.assert_close(narrow, trained, rtol=0.01, atol=0.01 * wide.abs().max().item())
