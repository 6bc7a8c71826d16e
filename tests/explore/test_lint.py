"""The modules of all pages pass eslint."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ESLINT = os.environ.get("ESLINT") or shutil.which("eslint", path=ROOT / "node_modules" / ".bin")
CONFIG = Path(__file__).with_name("eslint.config.mjs")

pytestmark = pytest.mark.skipif(
    ESLINT is None, reason="there is no eslint: npm install --no-save eslint, or give its path as ESLINT"
)


def linted(*paths, cwd=ROOT):
    return subprocess.run([ESLINT, "--config", CONFIG, *paths], cwd=cwd, capture_output=True, text=True)


def test_the_modules_of_all_pages_have_no_fault():
    found = linted("similitude")
    assert found.returncode == 0, found.stdout + found.stderr


def test_names_that_are_nowhere_and_text_as_markup_are_faults(tmp_path):
    (tmp_path / "page.js").write_text("document.body.innerHTML = nowhere;\n")
    found = linted("page.js", cwd=tmp_path)
    assert found.returncode == 1
    assert "no-undef" in found.stdout
    assert "text enters as text" in found.stdout
