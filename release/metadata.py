"""Hatch asks this for the long description and the addresses of a build.

The repository's address stands in one place, the environment variable SIMILITUDE_REPOSITORY, which the workflow that
publishes fills in. With it README's links and pictures are absolute and the package has project URLs. Without it, as in
a clone, README is as it is.
"""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"(!\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")
LINK = re.compile(r"(?<!!)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


class Release(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        root, address = Path(self.root), os.environ.get("SIMILITUDE_REPOSITORY", "").rstrip("/")
        version = re.search(r'__version__ = "(.+)"', (root / "similitude" / "__init__.py").read_text())
        assert version, "similitude/__init__.py has no __version__"
        text = described((root / "README.md").read_text(encoding="utf-8"), address, f"v{version[1]}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if address:
            metadata["urls"] = {
                "Repository": address,
                "Documentation": f"{address}/blob/v{version[1]}/docs/index.md",
                "Changelog": f"{address}/blob/v{version[1]}/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }


def described(text: str, address: str, tag: str) -> str:
    """README for the package's page: absolute links to the tag, and an installation that needs no clone."""
    if not address:
        return text
    text = PICTURE.sub(rf"\1({address}/raw/{tag}/\2)", text)
    text = LINK.sub(rf"\1({address}/blob/{tag}/\2)", text)
    return re.sub(
        r"pip install '\.\[demo\]'   # in a clone; '\.' alone brings",
        "pip install 'similitude[demo]'   # similitude alone brings",
        text,
    )
