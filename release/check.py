"""``make release-check``: builds both distributions and tries the wheel as a user would, on every Python that is here.

It checks size, files, licences and metadata. Then, for each Python in new environments: the package alone, README's
blocks, each extra alone with what it is for, and a smoke test of every command.
"""

import argparse
import email
import email.policy
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 1_000_000  # bytes of the wheel
PYTHONS = ("3.11", "3.12", "3.13")
ADDRESS = "https://example.org/similitude"
# Licences under which nothing may come in that users get.
COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public)", re.IGNORECASE)

# What each extra is for. Each runs in an environment that has the package and this extra only.
PURPOSES = {
    "": """
import similitude, torch
layer = similitude.TverskyProjection(8, 3, num_features=6)
layer(torch.randn(2, 8)).sum().backward()
print(layer.explain(torch.randn(8)))
from similitude import distributed, explain, interpret, retrieval
from similitude.explore import explore
explore(layer, torch.randn(20, 8), out="page.html")
""",
    "hf": """
import torch
from similitude.models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel
from transformers import Trainer, TrainingArguments
model = TverskyGPT2LMHeadModel(TverskyGPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=2, num_features=8))
rows = [{"input_ids": torch.arange(9), "labels": torch.arange(9)} for _ in range(4)]
Trainer(model, TrainingArguments("trained", max_steps=1, report_to="none", use_cpu=True), train_dataset=rows).train()
""",
    "onnx": """
import torch
from similitude import TverskyProjection
from similitude.export import to_onnx
to_onnx(TverskyProjection(8, 3, num_features=6), torch.randn(2, 8), "layer.onnx")
""",
    "viz": """
import torch
from similitude import TverskyProjection
from similitude.interpret import figures
figures.save(figures.prototypes({"layer": TverskyProjection(16, 3, 4)}, shape=(4, 4)), "figure.png")
""",
    "sklearn": """
from sklearn.datasets import load_iris
from similitude.estimator import TverskyClassifier
from similitude.human import TverskySimilarityModel, morse
X, y = load_iris(return_X_y=True)
assert TverskyClassifier(random_state=0).fit(X, y).score(X, y) > 0.9
TverskySimilarityModel(restarts=1, steps=5).fit(morse())
""",
    "cli": [
        "doctor",
        "reproduce xor --smoke",
        "table xor",
        "fields words.txt 'w1 & w2'",
        "explore words.txt --out w.html",
    ],
    "explore": """
import re, signal, subprocess, sys, time, urllib.error, urllib.request
command = [sys.executable, "-u", "-m", "similitude", "explore", "words.txt", "--no-browser", "--port", "0"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
address = next(found[0] for line in server.stdout if (found := re.search(r"http://127[^# ]+", line)))
for _ in range(100):  # it answers a moment later
    try:
        page = urllib.request.urlopen(address).read()
        break
    except urllib.error.URLError:
        time.sleep(0.1)
assert b"<html" in page.lower()
server.send_signal(signal.SIGINT)
server.wait(20)
""",
    "demo": ["demo --epochs 1 --features 8"],
    "sentence": """
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from similitude.integrations.sentence_transformers import TverskyCode
from tokenizers import Tokenizer, models
encoder = StaticEmbedding(Tokenizer(models.WordLevel({"cat": 0, "dog": 1}, unk_token="cat")), embedding_dim=8)
model = SentenceTransformer(modules=[encoder, TverskyCode(8, 16, presence=0.2)], device="cpu")
model.similarity(model.encode_query(["cat"]), model.encode_document(["dog"]))
""",
    "metric": """
import torch
from pytorch_metric_learning.losses import TripletMarginLoss
from similitude import TverskySimilarity
from similitude.integrations.metric_learning import TverskyDistance
loss = TripletMarginLoss(distance=TverskyDistance(TverskySimilarity(dim=8, num_features=16)))
loss(torch.randn(6, 8), torch.tensor([0, 0, 1, 1, 2, 2])).backward()
""",
    "faiss": """
import torch
from similitude import TverskySimilarity
from similitude.retrieval import TverskyIndex
from similitude.retrieval.faiss import to_faiss
index = TverskyIndex(TverskySimilarity(dim=8, num_features=16))
index.add(torch.randn(2000, 8), range(2000))
to_faiss(index, "hnsw").search(torch.randn(8), k=3)
""",
    # The extra brings the client; without a server one sentence says so.
    "pgvector": """
import torch
from similitude import TverskySimilarity
from similitude.retrieval import TverskyIndex
from similitude.retrieval.pgvector import to_pgvector
index = TverskyIndex(TverskySimilarity(dim=8, num_features=16))
index.add(torch.randn(20, 8), range(20))
try:
    to_pgvector(index, "host=127.0.0.1 port=1 dbname=none", "documents")
except ConnectionError as error:
    print(error)
""",
}
# Every command, with all extras.
COMMANDS = [
    "--help",
    "--version",
    "doctor",
    "demo --epochs 1 --features 8",
    "reproduce mnist --smoke --out runs/mnist",
    "reproduce ptb --smoke --out runs/ptb",
    "reproduce xor --list --all",
    "table mnist",
    "gallery runs/mnist --out gallery",
    "fields words.txt 'w1 & w2 - w3'",
    "explore words.txt --out words.html",
    "fit said.csv --kind similarities --restarts 1 --steps 5 --bootstrap 2 --out report",
]


class Failure(Exception):
    """What does not hold, in one sentence."""


def run(*words: str | Path, where: Path | None = None, **environment: str) -> str:
    done = subprocess.run(
        [*map(str, words)], cwd=where, capture_output=True, text=True, env={**os.environ, **environment}
    )
    if done.returncode:
        command = " ".join(map(str, words))[:200]
        raise Failure(f"{command} ended with {done.returncode}:\n{done.stdout[-1500:]}{done.stderr[-3000:]}")
    return done.stdout


def build(out: Path) -> tuple[Path, Path]:
    """The sdist and the wheel, which is built from the sdist."""
    address = os.environ.get("SIMILITUDE_REPOSITORY") or ADDRESS
    run(sys.executable, "-m", "build", "--outdir", out, ROOT, SIMILITUDE_REPOSITORY=address)
    run(sys.executable, "-m", "twine", "check", "--strict", *out.iterdir())
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def check_files(sdist: Path, wheel: Path) -> str:
    """Sizes, licences and metadata; returns README as the package's page shows it."""
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (place,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(place).decode()
        largest = sorted(archive.infolist(), key=lambda item: -item.compress_size)[:3]
    size = wheel.stat().st_size
    shown = ", ".join(f"{item.filename} {item.compress_size:,}" for item in largest)
    print(f"{wheel.name}: {size:,} bytes of {MOST:,}; the largest: {shown}")
    print(f"{sdist.name}: {sdist.stat().st_size:,} bytes")
    if size > MOST:
        raise Failure(f"the wheel has {size:,} bytes, and may have {MOST:,}.")
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "release/metadata.py"):
        if name not in inside:
            raise Failure(f"the sdist lacks {name}.")
    for ending in (".dist-info/licenses/LICENSE", "similitude/py.typed", "similitude/human/morse.csv"):
        if not any(name.endswith(ending) for name in names):
            raise Failure(f"the wheel lacks {ending}.")
    foreign = [name for name in names if not name.startswith(("similitude/", place.partition("/")[0]))]
    if foreign:
        raise Failure(f"the wheel has files outside of similitude/: {', '.join(foreign[:5])}.")
    metadata = email.message_from_string(text, policy=email.policy.default)
    version = re.search(r'__version__ = "(.+)"', (ROOT / "similitude" / "__init__.py").read_text())
    wanted = {
        "Name": "similitude",
        "Version": version[1] if version else "",
        "License-Expression": "Apache-2.0",
        "Requires-Python": ">=3.11",
        "Description-Content-Type": "text/markdown",
    }
    for key, value in wanted.items():
        if metadata[key] != value:
            raise Failure(f"the metadata's {key} is {metadata[key]!r}; expected {value!r}.")
    if f"## {wanted['Version']}" not in (ROOT / "CHANGELOG.md").read_text():
        raise Failure(f"CHANGELOG.md has no part on {wanted['Version']}.")
    page = text.partition("\n\n")[2]
    relative = re.findall(r"\]\((?!https?://)([^)]*)\)", page)
    if relative or "Project-URL" not in text:
        raise Failure(f"the package's page has relative links, {relative[:5]}, or no project URLs.")
    return page


def interpreters(wanted: str | None) -> dict[str, str]:
    """Paths of the Pythons that are here, by version."""
    found = {}
    for version in [wanted] if wanted else PYTHONS:
        # pyenv's shims are on the path even for versions that are not chosen, and then run nothing.
        places = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}*/bin/python")]
        for path in filter(None, places):
            if not subprocess.run([path, "-c", "import ensurepip"], capture_output=True).returncode:
                found[version] = str(path)
                break
    return found


def environment(python: str, folder: Path, below: Path | None = None) -> Path:
    """A new virtual environment, which sees the packages of the one below; returns its python."""
    run(python, "-m", "venv", folder)
    if below:
        (library,), (lower,) = (place.glob("lib/python*/site-packages") for place in (folder, below))
        further = (lower / "below.pth").read_text() if (lower / "below.pth").exists() else ""
        (library / "below.pth").write_text(f"{lower}\n{further}")
    return folder / "bin" / "python"


def blocks(page: str) -> str:
    """README's Python blocks as one program that compares what is printed with the block that follows."""
    found = re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", page, flags=re.DOTALL)
    return f"""
import contextlib, io
names = {{"__name__": "page"}}
for code, output in {found!r}:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, names)
    assert not output or said.getvalue() == output, said.getvalue()
"""


def try_extra(extra: str, python: Path, where: Path) -> None:
    purpose = PURPOSES[extra]
    if isinstance(purpose, str):
        run(python, "-c", purpose, where=where)
        return
    for command in purpose:
        try_command(command, python, where)


def try_command(command: str, python: Path, where: Path) -> None:
    run(python.with_name("similitude"), *shlex.split(command), where=where, COLUMNS="100")


def prepare(where: Path) -> None:
    """Files that the commands read."""
    random.seed(0)
    lines = [f"w{i} " + " ".join(f"{random.gauss(0, 1):.3f}" for _ in range(8)) for i in range(60)]
    (where / "words.txt").write_text("\n".join(lines) + "\n")
    names = "abcdefghij"
    table = [[1 if a == b else round(random.random(), 2) for b in names] for a in names]
    rows = [f"{name},{','.join(map(str, row))}" for name, row in zip(names, table, strict=True)]
    (where / "said.csv").write_text("\n".join([f",{','.join(names)}", *rows]) + "\n")


def licences(python: Path) -> list[str]:
    """Installed packages under a licence that users may not want."""
    code = """
from importlib import metadata
for found in metadata.distributions():
    of = found.metadata
    kinds = [line for line in of.get_all("Classifier") or [] if line.startswith("License")]
    said = of["License-Expression"] or " ".join(kinds) or (of["License"] or "")[:80]
    print(of["Name"], "|", " ".join(said.split()))
"""
    lines = run(python, "-c", code).splitlines()
    return [line for line in lines if COPYLEFT.search(line.partition("|")[2]) and "LGPL" not in line]


def try_on(
    version: str, python: str, wheel: Path, page: str, folder: Path, pip: list[str], below: Path | None = None
) -> None:
    base, where = folder / f"base-{version}", folder / f"work-{version}"
    where.mkdir()
    prepare(where)
    alone = environment(python, base, below)
    run(alone, "-m", "pip", "install", "-q", *pip, wheel)
    said = run(alone, "-c", "import torch, sys; print(sys.version.split()[0], torch.__version__)").strip()
    print(f"Python {said}: the package alone", flush=True)
    try_extra("", alone, where)
    run(alone, "-c", blocks(page), where=where)
    missing = subprocess.run([alone.with_name("similitude"), "--help"], capture_output=True, text=True)
    if missing.returncode != 1 or "similitude[cli]" not in missing.stderr:
        raise Failure(f"without the cli extra the program says {missing.stderr!r}.")
    for extra in [name for name in PURPOSES if name]:
        own = environment(python, folder / f"{extra}-{version}", base)
        # The wheel itself is installed here again, so that its script is this environment's.
        run(own, "-m", "pip", "install", "-q", *pip, "--ignore-installed", "--no-deps", wheel)
        run(own, "-m", "pip", "install", "-q", *pip, f"{wheel}[{extra}]")
        try_extra(extra, own, where)
        print(f"Python {version}: the extra {extra} has what it needs", flush=True)
    every = environment(python, folder / f"every-{version}", base)
    run(every, "-m", "pip", "install", "-q", *pip, "--ignore-installed", "--no-deps", wheel)
    run(every, "-m", "pip", "install", "-q", *pip, f"{wheel}[{','.join(name for name in PURPOSES if name)}]")
    for command in COMMANDS:
        try_command(command, every, where)
    print(f"Python {version}: {len(COMMANDS)} commands run", flush=True)
    if found := licences(every):
        raise Failure(f"what the extras bring has a licence to look at: {'; '.join(found)}.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", help="one version, such as 3.11, instead of all that are here")
    parser.add_argument("--constraints", help="pip's file of versions")
    parser.add_argument("--below", type=Path, help="an environment whose torch is used, which saves gigabytes")
    parser.add_argument("--keep", action="store_true", help="leave the environments for a look")
    chosen = parser.parse_args()
    pip = ["-c", str(Path(chosen.constraints).resolve())] if chosen.constraints else []
    folder = Path(tempfile.mkdtemp(prefix="similitude-release-"))
    try:
        sdist, wheel = build(folder / "dist")
        page = check_files(sdist, wheel)
        found = interpreters(chosen.python)
        print(f"Pythons here: {', '.join(found) or 'none'} of {', '.join(PYTHONS)}")
        if not found:
            raise Failure("no Python to try the wheel on.")
        for version, python in found.items():
            try_on(version, python, wheel, page, folder, pip, chosen.below)
            if not chosen.keep:
                # The next environment takes gigabytes too.
                for place in folder.glob(f"*-{version}"):
                    shutil.rmtree(place)
    except Failure as failure:
        print(f"the release is not ready: {failure}", file=sys.stderr)
        return 1
    finally:
        if not chosen.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"the release is ready, as far as {', '.join(found)} can tell.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
