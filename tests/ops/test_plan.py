"""Which code runs, as a table: forms by rows, and what dtype, device and backend leave to choose from by columns."""

from fnmatch import fnmatch
from itertools import product

import pytest
import torch

from similitude.form import BACKENDS, DIFFERENCES, INTERSECTIONS, LEVELS, MODELS, Form
from similitude.ops.plan import CODES, Plan, plan

# The first row that fits a form has its codes: no kernels, a GPU's, a GPU's that take halves, a CPU's.
FORMS = """
    product ignorematch   *       contrast | two products | two products    | triton whole    | two products
    product ignorematch   *       ratio    | products     | products        | triton pooled   | products
    mean    ignorematch   *       *        | products     | products        | triton pooled   | products
    gmean   ignorematch   feature *        | products     | products        | products        | products
    *       *             set     *        | products     | products        | triton pooled   | products
    *       *             feature *        | min-sums     | triton min-sums | triton min-sums | c++ min-sums
"""
FORMS = [[cell.strip() for cell in line.split("|")] for line in FORMS.strip().splitlines()]

# Which of the columns, 0 to 3, or "law", for the reference.
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
COLUMNS = """
    auto      cpu   3 3 3 3
    auto      mps   0 0 0 0
    auto      cuda  0 1 2 2
    torch     cpu   0 0 0 0
    torch     mps   0 0 0 0
    torch     cuda  0 0 0 0
    triton    cpu   3 3 3 3
    triton    mps   0 0 0 0
    triton    cuda  0 1 2 2
    reference cpu   law law law law
    reference mps   law law law law
    reference cuda  law law law law
"""
COLUMNS = {tuple(line.split()[:2]): line.split()[2:] for line in COLUMNS.strip().splitlines()}

SMALL, MIDDLE, LARGE = (3, 5, 7), (201, 101, 151), (2048, 5001, 1001)
SOME = Form("product"), Form("mean"), Form("gmean"), Form("min", "subtractmatch")


def code(form: Form, column: str) -> str:
    if column == "law":
        return "reference"
    return next(codes for name, *codes in FORMS if fnmatch(" ".join(form[:4]), " ".join(name.split())))[int(column)]


def chosen(form: Form, dtype: torch.dtype = torch.bfloat16, device: str = "cuda", **options) -> str:
    return plan(form, *MIDDLE, dtype, device, **{"has_triton": True, "has_compiler": True, **options}).code


def test_the_table_is_complete():
    assert list(COLUMNS) == [(b, d) for b in ("auto", "torch", "triton", "reference") for d in ("cpu", "mps", "cuda")]
    assert {backend for backend, _ in COLUMNS} == set(BACKENDS)


@pytest.mark.parametrize(("backend", "device"), COLUMNS)
def test_every_form_dtype_device_and_backend_has_the_code_of_the_table(backend, device):
    for options in product(INTERSECTIONS, DIFFERENCES, LEVELS, MODELS):
        form = Form(*options, backend=backend)
        for dtype, column in zip(DTYPES, COLUMNS[backend, device], strict=True):
            assert chosen(form, dtype, device) == code(form, column), (form, dtype)


@pytest.mark.parametrize("form", SOME, ids=Form.described)
def test_without_triton_the_plan_is_that_of_the_backend_torch(form):
    for dtype in DTYPES:
        assert chosen(form, dtype, has_triton=False) == chosen(form._replace(backend="torch"), dtype)


@pytest.mark.parametrize("form", SOME, ids=Form.described)
def test_without_a_compiler_the_plan_on_a_cpu_is_that_of_the_backend_torch(form):
    for dtype in DTYPES:
        plain = chosen(form._replace(backend="torch"), dtype, "cpu")
        assert chosen(form, dtype, "cpu", has_compiler=False) == plain


@pytest.mark.parametrize("form", SOME, ids=Form.described)
def test_batched_halves_are_widened(form):
    assert chosen(form, batched=True) == chosen(form, torch.float32)


@pytest.mark.parametrize("options", [dict(eager=False), dict(vectors=False), dict(form=Form(normalize=True))], ids=str)
def test_one_function_for_all_needs_vectors_that_can_be_looked_at_and_keep_their_lengths(options):
    assert chosen(**{"form": Form(), **options}) == "triton two products"


@pytest.mark.parametrize("form", SOME, ids=Form.described)
@pytest.mark.parametrize("P", [4096, 4097, 5001, 50257])
def test_halves_are_padded_to_whole_tiles_and_large_numbers_of_prototypes_to_64(form, P):
    found = plan(form, 2048, P, 1001, torch.bfloat16, "cuda", has_triton=True)
    assert found.num_prototypes % 64 == 0
    assert P <= found.num_prototypes < P + 64
    assert found.num_features == 1008


def test_fewer_prototypes_are_padded_to_8():
    assert plan(Form(), 2**18, 4001, 13, torch.float16, "cuda", has_triton=True)[1:] == (4008, 16)


@pytest.mark.parametrize(
    ("sizes", "dtype", "options"),
    [
        (MIDDLE, torch.bfloat16, {}),
        (LARGE, torch.float32, {}),
        (LARGE, torch.bfloat16, dict(batched=True)),
        (LARGE, torch.bfloat16, dict(vectors=False)),
    ],
    ids=["middle", "float32", "batched", "measures"],
)
def test_sizes_stay_where_padding_does_not_pay(sizes, dtype, options):
    assert plan(Form(), *sizes, dtype, "cuda", has_triton=True, **options)[1:] == sizes[1:]


@pytest.mark.parametrize("form", SOME, ids=Form.described)
def test_a_cpu_has_one_function_for_small_sizes_of_two_products(form):
    def code(device="cpu", sizes=SMALL, **options):
        return plan(form, *sizes, torch.float32, device, has_triton=True, **options).code

    assert (code() == "small") == form.two_products
    assert code(sizes=(128, 128, 128)) == code()
    for options in (dict(device="cuda"), dict(batched=True), dict(eager=False), dict(vectors=False)):
        assert code(**options) == code(**{"sizes": MIDDLE, **options})
    assert code(sizes=(128, 128, 129)) == code(sizes=MIDDLE) != "small"


def test_every_code_is_described_and_some_form_has_it():
    reached = {cell for _, *codes in FORMS for cell in codes} | {"reference", "triton two products", "small"}
    assert reached == set(CODES)
    for name in CODES:
        assert str(Plan(name, 1, 1)).startswith(f"{name}: ")
        assert Plan(name, 1, 1).kernels == name.startswith("triton")
