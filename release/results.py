"""Hatch asks this for what else a wheel has: our results as numbers, for `similitude table` after pip install.

All JSON files of results/ are one small file there. The runs' arrays, of which figures are drawn, stay in the
repository.
"""

import gzip
import json
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Results(BuildHookInterface):
    def initialize(self, version: str, build_data: dict) -> None:
        if version != "standard":
            return  # an editable install has the repository
        found = {path.stem: json.loads(path.read_text()) for path in sorted(Path(self.root, "results").glob("*.json"))}
        packed = Path(self.directory, "results.json.gz")
        packed.parent.mkdir(parents=True, exist_ok=True)
        # Without a time and a name, so that the same results give the same file.
        packed.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), mtime=0))
        build_data["force_include"][str(packed)] = "similitude/results.json.gz"

    def finalize(self, version: str, build_data: dict, artifact_path: str) -> None:
        Path(self.directory, "results.json.gz").unlink(missing_ok=True)
