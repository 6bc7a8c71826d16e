"""What the shell shows: completion, settings in the help, what doctor finds, extras, and smoke runs without numbers."""

import re
import sys
from dataclasses import asdict, fields
from importlib import metadata

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner

from similitude import cli, doctor
from similitude.extras import advice, extra_of
from similitude.reproduce import EXPERIMENTS, described
from similitude.reproduce import find as find_experiment
from similitude.reproduce.data import find
from similitude.reproduce.settings import changed


def invoke(*arguments: str):
    return CliRunner().invoke(cli.make_app(), arguments)


def test_doctor_names_the_extra_that_brings_what_is_missing(monkeypatch):
    there = metadata.version

    def version(name: str) -> str:
        if name in ("transformers", "mlxtend", "triton"):
            raise metadata.PackageNotFoundError(name)
        return there(name)

    monkeypatch.setattr(metadata, "version", version)
    said = invoke("doctor").stdout
    assert "\ntransformers: not installed, it comes with: pip install 'similitude[hf]'\n" in said
    assert "\nmlxtend: not installed, it comes with: pip install 'similitude[demo]'\n" in said
    assert "\ntriton: not installed\n" in said


def test_doctor_checks_the_data(monkeypatch, tmp_path):
    monkeypatch.setenv("SIMILITUDE_DATA", str(tmp_path))
    (tmp_path / "ptb").mkdir()
    (tmp_path / "gpt2-tokenizer").mkdir()
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / "gpt2-tokenizer" / name).write_text("x")
    (tmp_path / "nabirds").mkdir()
    (tmp_path / "nabirds" / "images").mkdir()
    said = list(doctor.data())
    assert said[0] == f"data in SIMILITUDE_DATA={tmp_path}"
    said = "\n".join(said)
    assert "\n  mnist: not there; it would be train-images" in said
    assert f"\n  ptb: no, {tmp_path}/ptb/ptb.train.txt is not there" in said
    assert "vocab.json is not the file that was published" in said
    assert "\n  nabirds: yes, 1 entries, which are not checked" in said
    monkeypatch.setattr(find, "KNOWN", {})
    assert "\n  gpt2-tokenizer: yes, not checked" in "\n".join(doctor.data())
    monkeypatch.setenv("SIMILITUDE_DATA", str(tmp_path / "nowhere"))
    assert list(doctor.data()) == [
        f"data: SIMILITUDE_DATA={tmp_path}/nowhere is not there; set it to the folder of your data"
    ]
    monkeypatch.delenv("SIMILITUDE_DATA")
    assert next(doctor.data()).startswith("data: SIMILITUDE_DATA is not set")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_help_lists_what_set_takes(name):
    experiment = find_experiment(name)
    keys = [field.name for field in fields(experiment.config) if field.name != "made_up"]
    assert [setting.key for setting in described.settings(name)] == keys
    assert sorted(described.recipes(name)) == sorted(experiment.recipes)
    said = invoke("reproduce", name, "--help").stdout
    assert [line.split("=")[0].strip() for line in said.splitlines() if re.match(r"  \w+=", line)] == keys
    usual = asdict(experiment.config())
    for setting in described.settings(name):
        if "(" not in setting.value and setting.value.islower():
            assert (
                getattr(changed(experiment.config(), [f"{setting.key}={setting.value}"]), setting.key)
                == usual[setting.key]
            )


def test_a_smoke_run_shows_no_numbers(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    said = invoke("reproduce", "xor", "--smoke").stdout
    assert "mean nothing" in said
    assert "result written to runs/xor-smoke-paper-seed0/result.json" in said
    assert "paper's" not in said
    assert not re.search(r"\d\.\d\d", said.partition("mean nothing")[2])


def test_the_help_without_a_name_lists_the_keys_of_all():
    said = invoke("reproduce", "--help").stdout
    assert all(f"\n  {name}: " in said for name in EXPERIMENTS)
    assert "difference_rate" in said


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("reproduce le", "legibility"),
        ("table hu", "human"),
        ("reproduce ptb --recipe tu", "tuned"),
        ("reproduce xor --set lea", "leak="),
        ("gal", "gallery"),
    ],
)
def test_a_shell_completes_names_recipes_and_settings(typed, wanted):
    environment = {"_SIMILITUDE_COMPLETE": "complete_bash", "COMP_WORDS": f"similitude {typed}"}
    environment["COMP_CWORD"] = str(len(typed.split()))
    found = CliRunner().invoke(cli.make_app(), [], prog_name="similitude", env=environment)
    assert found.stdout.split() == [wanted]


def test_completion_is_installed_for_the_program_alone(monkeypatch, capsys):
    monkeypatch.setattr(cli, "make_app", lambda: lambda: print("runs"))
    for program, words in (
        ("similitude/__main__.py", ["--install-completion"]),
        ("x.py", ["--install-completion=zsh"]),
    ):
        monkeypatch.setattr(sys, "argv", [program, *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2
        sentence = "completion is of the command similitude; run: similitude --install-completion\n"
        assert capsys.readouterr() == ("", sentence)
    for argv in (["bin/similitude", "--install-completion"], ["similitude/__main__.py", "--help"]):
        monkeypatch.setattr(sys, "argv", argv)
        cli.main()
    assert capsys.readouterr() == ("runs\nruns\n", "")


def test_the_smallest_extra_that_brings_a_library_is_named():
    wanted = {"transformers": "hf", "sklearn.svm": "sklearn", "PIL": "viz", "rich": "cli", "mlxtend": "demo"}
    wanted |= {"uvicorn": "explore", "onnxruntime": "onnx"}
    assert {library: extra_of(library) for library in wanted} == wanted
    assert advice("onnx") == "pip install 'similitude[onnx]'"
    assert advice("nosuch") == "pip install nosuch"


def test_a_file_that_is_not_there_is_named():
    pytest.importorskip("sklearn")
    found = invoke("fit", "nowhere.csv", "--kind", "confusions", "--out", "report")
    assert (found.exit_code, found.stderr) == (1, "cannot open nowhere.csv: No such file or directory.\n")
