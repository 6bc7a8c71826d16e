"""What we claim of the CPU paths, as ratios of times in one run."""

import torch
from torch import Tensor, nn

import similitude.functional as F
from similitude import TverskyProjection

from .measure import forward_backward, inputs, milliseconds

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


def one_input_to_linear():
    layer, linear, x = TverskyProjection(768, 5000, 1024).eval(), nn.Linear(768, 5000), torch.randn(1, 768)
    return torch.no_grad()(lambda: layer(x)), torch.no_grad()(lambda: linear(x))


CLAIMS = [
    # what, its two runs, threads, repeats, the most that ours may be of the other
    ("product + ignorematch (512, 768, 1000, 1024) to the bare products", product_to_bare, 1, 15, 1.25),
    ("min + subtractmatch (256, 2048, 555, 224) to the reference", minsum_to_reference, 1, 3, 1 / 15),
    ("min + subtractmatch (128, 768, 5000, 4096) to product + ignorematch", minsum_to_product, 2, 5, 4.0),
    ("one input in eval (1, 768, 5000, 1024) to nn.Linear(768, 5000)", one_input_to_linear, 2, 200, 4.0),
]


def check() -> bool:
    """Prints each ratio beside its bound; True if all hold."""
    threads, held = torch.get_num_threads(), True
    print(f"{'CPU, forward + backward':<68}{'threads':>8}{'ours ms':>9}{'other ms':>9}{'ratio':>8}{'bound':>8}")
    for what, runs, count, repeats, bound in CLAIMS:
        torch.set_num_threads(count)
        ours, other = runs()
        times = milliseconds({"ours": ours, "other": other}, repeats)
        ratio = times["ours"].median / times["other"].median
        held &= ratio <= bound
        mark = "" if ratio <= bound else "  too slow"
        figures = f"{count:>8}{times['ours'].median:>9.2f}{times['other'].median:>9.2f}{ratio:>8.3f}{bound:>8.3f}"
        print(f"{what:<68}{figures}{mark}", flush=True)
    torch.set_num_threads(threads)
    return held
