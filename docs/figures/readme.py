"""Draws docs/figures/readme.png, of a layer whose features learn slowly: ``python docs/figures/readme.py``.

One test digit beside its two nearest prototypes. Each row is the sum that makes the similarity.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHOWN = 2  # features of each kind
KINDS = [
    ("both have", "#0072B2"),
    ("only the digit has", "#D55E00"),
    ("only the prototype has", "#CC79A7"),
]


def trained():
    """The layer of docs/tutorials/digits.md, trained on the demo's digits, these, and a seven that it gets right."""
    import torch

    from similitude import TverskyProjection, init_from_data, parameter_groups
    from similitude.reproduce import demo

    digits = demo.load_digits(seed=0)
    torch.manual_seed(0)
    layer = TverskyProjection(784, 10, num_features=64, bias=True, presence=0.1)
    init_from_data(layer, digits.train_x)
    optimizer = torch.optim.AdamW(parameter_groups(layer, lr=3e-3, bank_rate=0.1))
    with demo.one_thread():
        for _ in range(8):
            for batch in torch.randperm(len(digits.train_x)).split(64):
                optimizer.zero_grad()
                layer.cross_entropy(digits.train_x[batch], digits.train_y[batch]).backward()
                optimizer.step()
    with torch.no_grad():
        right = (layer(digits.test_x).argmax(-1) == digits.test_y) & (digits.test_y == 7)
    return layer, digits, int(right.nonzero()[0, 0])


def show(axes, vector, outline=None) -> None:
    """A row of weights as an image, positive in purple and negative in orange, with the digit's outline."""
    image = vector.detach().view(28, 28)
    limit = image.abs().quantile(0.99).item()
    axes.imshow(image.numpy(), cmap="PuOr", vmin=-limit, vmax=limit)
    if outline is not None:
        axes.contour(outline, levels=[0.5], colors="black", linewidths=0.9)


def signed(value: float, digits: int = 1) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def draw(layer, digits, index: int, path: Path) -> None:
    import torch
    from matplotlib.lines import Line2D

    from similitude.interpret.figures.base import INK, blank, save
    from similitude.reproduce.demo import drawn

    x, label = digits.test_x[index], int(digits.test_y[index])
    outline = digits.restored(x).view(28, 28).numpy()
    with torch.no_grad():
        nearest = layer(x).argsort(descending=True)[:2].tolist()
    figure = blank(10, 3.7)

    def image(left: float, bottom: float, side: float):
        axes = figure.add_axes((left, bottom, side * 0.37, side))
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("0.75")
        return axes

    def text(left: float, bottom: float, words: str, **options) -> None:
        figure.text(left, bottom, words, **{"ha": "center", "va": "center", "fontsize": 11, **options})

    digit = image(0.008, 0.36, 0.32)
    digit.imshow(outline, cmap="gray_r", vmin=0, vmax=1)
    text(0.0675, 0.74, f"a digit, a {label}")
    lefts, width = (0.33, 0.55, 0.77), 0.092
    for (name, colour), left in zip(KINDS, lefts):
        text(left + width, 0.955, name, color=colour, weight="bold")
        line = Line2D((left, left + 2 * width), (0.915, 0.915), color=colour, linewidth=2)
        figure.add_artist(line)
    for p, bottom in zip(nearest, (0.565, 0.13)):
        why = layer.explain(x, prototype=p, top=SHOWN)
        middle = bottom + 0.16
        text(0.144, middle, "~", fontsize=20)
        show(image(0.162, bottom + 0.02, 0.28), drawn(layer)[p])
        text(0.214, bottom + 0.335, f"prototype {p}")
        told = f"similarity {signed(why.similarity)}, bias {signed(layer.bias[p].item())}"
        text(0.214, bottom - 0.03, told, weight="bold", fontsize=8)
        text(0.3, middle, "=", fontsize=18)
        for (_, part), (_, colour), left in zip(why.parts(), KINDS, lefts):
            for i, k in enumerate(why.strongest(part)):
                axes = image(left + i * width, bottom + 0.06, 0.25)
                show(axes, layer.features.weight[k], outline)
                axes.spines[:].set_color(colour)
                text(left + i * width + 0.044, bottom + 0.03, signed(part[k].item(), 2), fontsize=9.5, color=INK)
            count = int((part != 0).sum())
            words = f"all {count} features  {signed(part.sum().item())}"
            text(left + width, bottom - 0.03, words, color=colour, weight="bold")
    words = "the strongest two features of each kind, as images: purple, where more ink than usual counts for a feature"
    text(0.5, 0.03, f"{words}; orange, where less does; black: the digit", fontsize=9, color=INK)
    save(figure, path, dpi=140)


def main(path: Path = HERE / "readme.png") -> None:
    from similitude.interpret.figures.base import on_any_ground

    layer, digits, index = trained()
    with on_any_ground():
        draw(layer, digits, index, path)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
