"""What we claim of the CPU, as ratios of times in one run: here of larger layers, elsewhere of the rest."""

from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

import similitude.functional as F

from .measure import forward_backward, inputs, milliseconds
from .tables import where

Found = dict[str, tuple[float, float]]
MIN_SUM = dict(intersection="min", difference="subtractmatch")


def bare_products(x: Tensor, prototypes: Tensor, features: Tensor) -> Tensor:
    """The two products that no Tversky layer can do without."""
    return (x @ features.mT).relu() @ (prototypes @ features.mT).relu().mT


def projection(tensors, grad, **options):
    return forward_backward(lambda *t: F.tversky_projection(*t, **options), tensors, grad)


def product_to_bare():
    tensors, grad = inputs(512, 768, 1000, 1024), torch.randn(512, 1000)
    return projection(tensors, grad), forward_backward(bare_products, tensors[:3], grad)


def minsum_to_reference():
    tensors, grad = inputs(256, 2048, 555, 224), torch.randn(256, 555)
    return projection(tensors, grad, **MIN_SUM), projection(tensors, grad, backend="reference", **MIN_SUM)


def minsum_to_product():
    tensors, grad = inputs(128, 768, 5000, 4096), torch.randn(128, 5000)
    return projection(tensors, grad, **MIN_SUM), projection(tensors, grad)


CLAIMS = [
    # what, its two runs, threads, repeats, the most that ours may be of the other
    ("product + ignorematch (512, 768, 1000, 1024) to the bare products", product_to_bare, 1, 15, 1.25),
    ("min + subtractmatch (256, 2048, 555, 224) to the reference", minsum_to_reference, 1, 3, 1 / 15),
    ("min + subtractmatch (128, 768, 5000, 4096) to product + ignorematch", minsum_to_product, 2, 5, 4.0),
]


# Files beside this one that measure a part each: ``ratios()`` returns what was found and the most it may be, by name.
PARTS = ("cpu_linear", "cpu_small", "cpu_minsum", "cpu_large", "classifier")
# What one run may differ from another.
SLACK = 1.2


def ratios() -> Found:
    threads, found = torch.get_num_threads(), {}
    for what, runs, count, repeats, bound in CLAIMS:
        torch.set_num_threads(count)
        ours, other = runs()
        times = milliseconds({"ours": ours, "other": other}, repeats)
        found[what] = times["ours"].median / times["other"].median, bound
    torch.set_num_threads(threads)
    return found


def check() -> list[dict]:
    """Prints every ratio beside its bound and returns them as rows; ``held`` is "no" where a bound is passed by more
    than SLACK."""
    rows = []
    print(f"{'on the CPU':<76}{'measured':>10}{'at most':>10}")
    for part in (None, *PARTS):
        name = f"{__package__}.{part}"
        if part and find_spec(name) is None:
            continue
        for what, (measured, bound) in (import_module(name).ratios() if part else ratios()).items():
            mark = "" if measured <= bound else "  too slow" if measured > SLACK * bound else "  above"
            print(f"{what:<76}{measured:>10.3g}{bound:>10.3g}{mark}", flush=True)
            held = "no" if measured > SLACK * bound else "yes"
            rows.append({"what": what, "measured": f"{measured:.3g}", "at_most": f"{bound:.3g}", "held": held})
    return [row | where("cpu") for row in rows]
