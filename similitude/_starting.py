"""The start of the ``similitude`` program: Ctrl-C while it imports ends it by one line, and torch is imported late.

Who imports the package keeps their own way with Ctrl-C, and has all its names at once.
"""

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def is_program() -> bool:
    """Whether this process is the program: its script, or ``python -m similitude``."""
    return sys.orig_argv[1:3] == ["-m", "similitude"] or Path(sys.argv[0]).stem == "similitude"


def _stop(*_: object) -> None:
    # Not KeyboardInterrupt, which libraries that are being imported may take for an error of their own.
    os.write(2, b"stopped.\n")
    os._exit(130)


if is_program() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop)


def started() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt as usual."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def on_demand(package: str, **modules: tuple[str, ...]) -> Callable[[str], Any]:
    """A package's ``__getattr__`` that imports the module which has a name when the name is first asked for."""
    found = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{found[name]}")
        value = module if name == found[name] and not hasattr(module, name) else getattr(module, name)
        # To import a module puts it in the place of a function of its name.
        setattr(sys.modules[package], name, value)
        return value

    return get
