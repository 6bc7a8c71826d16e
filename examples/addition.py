"""The sum of two binary digits by a single Tversky projection (Appendix A of the paper).

XOR's construction with a third dimension, in which a feature is shared by the input 1 + 1 and the prototype of 2 alone.
"""

import torch

from similitude import TverskyProjection


def build() -> TverskyProjection:
    layer = TverskyProjection(dim=3, num_prototypes=3, num_features=3, alpha=0.5, beta=0.5, theta=1.0)
    with torch.no_grad():
        layer.features.weight.copy_(torch.tensor([[0.5, -1.0, 0.0], [-1.0, 0.5, 0.0], [0.0, 0.0, 1.0]]))
        layer.prototypes.copy_(torch.tensor([[0.5, 0.5, 0.0], [-0.5, -0.5, 0.0], [1.0, 1.0, 0.5]]))
    return layer


# The third coordinate says that both digits are 1, as in the paper.
INPUTS = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])

if __name__ == "__main__":
    for x, similarities in zip(INPUTS, build()(INPUTS)):
        a, b, _ = x.int().tolist()
        row = ", ".join(f"{s:+.3f}" for s in similarities.tolist())
        print(f"{a} + {b} = {similarities.argmax().item()}   similarities to 0, 1, 2: {row}")
