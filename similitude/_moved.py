"""Says where modules of version 0.1 are now. To be deleted after version 0.2."""

import sys

MOVED = {
    "constants": "contrast",
    "experiments": "reproduce",
    "hygiene": "bank",
    "precision": "ops.modes",
    "recipes": "initialize and similitude.optim",
    "interpret.canvas": "interpret.figures.base",
    "interpret.compare": "explain",
    "interpret.drawing": "interpret.figures.graph",
    "interpret.explain": "explain",
    "interpret.fit": "interpret.words",
    "interpret.layout": "interpret.graph",
    "interpret.page": "interpret.graph",
    "interpret.plots": "interpret.figures",
    "interpret.prototypes": "models.data_domain",
    "interpret.sheets": "interpret.figures",
    "models.pretrained": "models.hf",
    "ops.cross_entropy_triton": "ops.triton.cross_entropy",
    "ops.launch": "ops.triton.launch",
    "ops.minsum_triton": "ops.triton.minsum",
    "ops.pooled_triton": "ops.triton.pooled",
    "ops.separable_triton": "ops.triton.separable",
}


class OldNames:
    """A finder that is asked for what no other has found."""

    @staticmethod
    def find_spec(name: str, path=None, target=None) -> None:
        for old, new in MOVED.items():
            if f"{name}.".startswith(f"similitude.{old}."):
                raise ImportError(f"similitude.{old} of version 0.1 is now similitude.{new}.")


sys.meta_path.append(OldNames)  # pyright: ignore[reportArgumentType]
