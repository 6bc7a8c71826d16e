"""The reference: every public name is in docs/reference, with arguments and an example that runs.

The public modules are those of the table in docs/reference/index.md. A module's public names are its ``__all__``, or
else what it defines without an underscore.
"""

import doctest
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
MODULES = re.findall(r"^\| `(similitude[\w.]*)` \|", (REFERENCE / "index.md").read_text(), flags=re.MULTILINE)
# Libraries of the extras that tests may run without.
NEEDED = {"similitude.integrations.metric_learning": "pytorch_metric_learning"}
NEEDED |= {"similitude.integrations.sentence_transformers": "sentence_transformers"}


def names(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    own = (
        (name, value) for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
    )
    return [name for name, value in own if callable(value) and not name.startswith("_")]


def loaded(module: str) -> ModuleType:
    if module in NEEDED:
        pytest.importorskip(NEEDED[module])
    return importlib.import_module(module)


def described(doc: str) -> set[str]:
    """Names in the sections of arguments and attributes of a docstring."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", doc, flags=re.MULTILINE)
    heads = re.findall(r"^    (\S[^:]*):", "".join(sections), flags=re.MULTILINE)
    return {name.strip("`* ") for head in heads for name in head.split(",")}


def arguments(value: object) -> set[str]:
    """Names of the arguments, without those that a base class of another library has described."""
    if not callable(value) or (inspect.isclass(value) and issubclass(value, Exception)):
        return set()
    found = inspect.signature(value).parameters.values()
    own = {p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and not p.name.startswith("_")}
    if inspect.isclass(value):
        for base in value.__mro__[1:]:
            own -= set(inspect.get_annotations(base)) if base.__dict__.get("__doc__") else set()
    return own


def examples(page: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE))


PAGES = {page: page.read_text() for page in sorted(REFERENCE.glob("*.md"))}
ENTRY = r"^\.\. auto(?:class|function|exception):: "


def entries(page: str) -> set[str]:
    return set(re.findall(ENTRY + r"([\w.]+)$", page, flags=re.MULTILINE))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_an_entry_and_an_example(module):
    found = loaded(module)
    for name in names(found):
        value = getattr(found, name)
        # A name that several modules have needs one entry.
        said = {f"{other}.{name}" for other in MODULES if getattr(sys.modules.get(other), name, None) is value}
        pages = [text for text in PAGES.values() if said & entries(text)]
        assert pages, f"docs/reference has no entry for {module}.{name}"
        shown = ">>> " in (value.__doc__ or "") or any(re.search(rf"\b{name}\b", examples(page)) for page in pages)
        assert shown, f"{module}.{name} has no example, in its docstring or on its page of docs/reference"


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_says_what_it_returns_and_takes(module):
    found = loaded(module)
    for name in names(found):
        value = getattr(found, name)
        doc = inspect.getdoc(value) or ""
        assert doc, f"{module}.{name} has no docstring"
        assert not (lost := arguments(value) - described(doc)), f"the docstring of {module}.{name} leaves out {lost}"
        if inspect.isclass(value) and value.__module__.startswith("similitude"):
            for method, function in vars(value).items():
                if method.startswith("_") or not (inspect.isroutine(function) or isinstance(function, property)):
                    continue
                told = inspect.getdoc(function) or inspect.getdoc(getattr(value, method)) or f"``{method}" in doc
                assert told or method in described(doc) | {"forward"}, f"{module}.{name}.{method} has no docstring"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_entries_are_of_names_that_are_there(page):
    for entry in entries(PAGES[page]):
        module, _, name = entry.rpartition(".")
        assert hasattr(loaded(module), name), entry


class Said(doctest.OutputChecker):
    """What an example does not say is not compared."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module, tmp_path, monkeypatch):
    import torch

    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    found = loaded(module)
    runner = doctest.DocTestRunner(Said())
    for name in names(found):
        value = getattr(found, name)
        if ">>> " in (value.__doc__ or ""):
            values = {**vars(importlib.import_module("similitude")), **vars(found), "torch": torch}
            for test in doctest.DocTestFinder(recurse=False).find(value, name, globs=values):
                runner.run(test)
    assert not runner.failures, f"{runner.failures} examples of {module} fail; their report is in the output"


def test_what_is_missing_is_seen():
    """The tests above would hold of anything if these were overlooked."""

    def undescribed(x, top=1):
        """Nothing is said of x.

        Args:
            top: How many.
        """

    assert arguments(undescribed) - described(inspect.getdoc(undescribed) or "") == {"x"}
    assert len(MODULES) > 20
