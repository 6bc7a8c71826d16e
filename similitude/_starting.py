"""Ctrl-C while the ``similitude`` program imports ends it by one line; who imports the package keeps their own."""

import os
import signal
import sys
from pathlib import Path


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
