"""What we claim of the CPU paths, as ratios of times in one run on one thread, forward and backward."""

import torch
from torch import Tensor

import similitude.functional as F

from .measure import forward_backward, inputs, median, milliseconds


def bare_products(x: Tensor, prototypes: Tensor, features: Tensor) -> Tensor:
    """The two products that no Tversky layer can do without."""
    return (x @ features.mT).relu() @ (prototypes @ features.mT).relu().mT


def product_to_bare(repeats: int) -> tuple[float, float]:
    tensors = inputs(512, 768, 1000, 1024)
    grad = torch.randn(512, 1000)
    times = milliseconds(
        {
            "bare": forward_backward(bare_products, tensors[:3], grad),
            "ours": forward_backward(F.tversky_projection, tensors, grad),
        },
        repeats,
    )
    return median(times["ours"]), median(times["bare"])


def minsum_to_reference(repeats: int) -> tuple[float, float]:
    tensors = inputs(256, 2048, 555, 224)
    grad = torch.randn(256, 555)

    def run(backend):
        options = dict(intersection="min", difference="subtractmatch", backend=backend)
        return forward_backward(lambda *t: F.tversky_projection(*t, **options), tensors, grad)

    times = milliseconds({"reference": run("reference"), "ours": run("torch")}, repeats)
    return median(times["ours"]), median(times["reference"])


CLAIMS = [
    # what, how it is measured, repeats, the most that ours may be of the other
    ("product + ignorematch (512, 768, 1000, 1024) to the bare products", product_to_bare, 15, 1.25),
    ("min + subtractmatch (256, 2048, 555, 224) to the reference", minsum_to_reference, 3, 1 / 15),
]


def check() -> bool:
    """Prints each ratio beside its bound; True if all hold."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    held = True
    print(f"{'CPU, one thread, forward + backward':<66}{'ours ms':>9}{'other ms':>9}{'ratio':>8}{'bound':>8}")
    for what, measure, repeats, bound in CLAIMS:
        ours, other = measure(repeats)
        ratio = ours / other
        held &= ratio <= bound
        mark = "" if ratio <= bound else "  too slow"
        print(f"{what:<66}{ours:>9.1f}{other:>9.1f}{ratio:>8.3f}{bound:>8.3f}{mark}")
    torch.set_num_threads(threads)
    return held
