"""XOR by a single Tversky projection of 11 parameters (Fig. 1 of the paper): no linear layer can do it."""

import torch

from similitude import TverskyProjection


def build() -> TverskyProjection:
    """Two features and two prototypes: p0 has neither feature, p1 has both."""
    layer = TverskyProjection(dim=2, num_prototypes=2, num_features=2, alpha=0.5, beta=0.5, theta=1.0)
    with torch.no_grad():
        layer.features.weight.copy_(torch.tensor([[0.5, -1.0], [-1.0, 0.5]]))
        layer.prototypes.copy_(torch.tensor([[0.5, 0.5], [-0.5, -0.5]]))
    return layer


INPUTS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])

if __name__ == "__main__":
    layer = build()
    print(f"{sum(p.numel() for p in layer.parameters())} parameters")
    for x, similarities in zip(INPUTS, layer(INPUTS)):
        a, b = x.int().tolist()
        to_p0, to_p1 = similarities.tolist()
        print(f"{a} xor {b} = {int(to_p1 > to_p0)}   similarity to p0 {to_p0:+.3f}, to p1 {to_p1:+.3f}")
