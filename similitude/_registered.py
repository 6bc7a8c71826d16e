"""Registers our transformers models when transformers' Auto classes are imported, and imports nothing before that."""

import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

AUTO = "transformers.models.auto.modeling_auto"


def register() -> None:
    """Imports our models, which register themselves; a transformers that is too old for them stays usable."""
    with suppress(ImportError):
        import_module("similitude.models.gpt2")
        import_module("similitude.models.resnet")


class OnImport:
    """A finder that lets others find the Auto classes, and calls ``register`` once they are executed."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        if name != AUTO:
            return None
        sys.meta_path.remove(cls)  # pyright: ignore[reportArgumentType]
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                register()

            spec.loader.exec_module = exec_module
        return spec


if AUTO in sys.modules:
    register()
else:
    sys.meta_path.insert(0, OnImport)  # pyright: ignore[reportArgumentType]
