"""Which extra of this package brings a library, read from what pip installed."""

from __future__ import annotations

import re
from importlib import metadata

# Distributions whose modules have other names.
DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow"}
# Extras for those who work on the package.
OURS = ("dev", "docs")


def extra_of(library: str) -> str | None:
    """The extra that brings a library, given by the name of its module or its distribution; None if none does."""
    top = library.partition(".")[0]
    return _extras().get(_plain(DISTRIBUTIONS.get(top, top)))


def advice(library: str) -> str:
    """What to run for a missing library: ``pip install 'similitude[hf]'``, of the extra that brings it."""
    extra = extra_of(library)
    return f"pip install 'similitude[{extra}]'" if extra else f"pip install {library}"


def _extras() -> dict[str, str]:
    """The extra that brings each distribution, of several the smallest."""
    try:
        lines = metadata.requires(__package__ or "") or []
    except metadata.PackageNotFoundError:
        return {}
    holds: dict[str, list[str]] = {}
    for line in lines:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        name = re.match(r"[\w.-]+", line)
        if extra and name:
            holds.setdefault(extra[1], []).append(_plain(name[0]))
    smallest_last = sorted(holds, key=lambda extra: len(holds[extra]), reverse=True)
    return {name: extra for extra in smallest_last if extra not in OURS for name in holds[extra]}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
