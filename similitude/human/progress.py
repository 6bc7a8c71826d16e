"""A bar for fits that take more than a moment."""

from __future__ import annotations

from collections.abc import Callable


def bar(what: str) -> Callable[[int, int], None]:
    """A function that is told of progress and shows it on one line of the terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    shown = Progress(transient=True, console=console, disable=not console.is_terminal)
    task = shown.add_task(what, total=None)

    def progress(done: int, total: int) -> None:
        if done == 1:
            shown.start()
        shown.update(task, completed=done, total=total)
        if done == total:
            shown.stop()

    return progress
