"""A saved model opens in a fresh process that has imported nothing of ours but similitude."""

import subprocess
import sys

import pytest

from similitude.models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel
from similitude.models.resnet import TverskyResNetConfig, TverskyResNetForImageClassification

AUTO = "AutoModelForCausalLM, AutoModelForImageClassification"
ORDERS = {
    "ours first": "import similitude, transformers",
    "ours last": f"from transformers import {AUTO}; import transformers, similitude",
    "a part of ours": "from similitude import convert; import transformers",
}


FIRST, *OTHERS = ORDERS


@pytest.mark.parametrize("order", [FIRST, *(pytest.param(order, marks=pytest.mark.slow) for order in OTHERS)])
def test_auto_classes_open_saved_models_in_a_fresh_process(order, tmp_path):
    sizes = dict(n_embd=8, n_layer=1, n_head=2, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0)
    TverskyGPT2LMHeadModel(TverskyGPT2Config(**sizes, num_features=6)).save_pretrained(tmp_path / "gpt2")
    sizes = dict(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_features=6)
    TverskyResNetForImageClassification(TverskyResNetConfig(**sizes)).save_pretrained(tmp_path / "resnet")
    code = f"""{ORDERS[order]}
for auto, folder in (("AutoModelForCausalLM", "gpt2"), ("AutoModelForImageClassification", "resnet")):
    print(type(getattr(transformers, auto).from_pretrained({str(tmp_path)!r} + "/" + folder)).__name__)"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.split() == ["TverskyGPT2LMHeadModel", "TverskyResNetForImageClassification"], run.stderr


def test_transformers_is_not_imported_for_it():
    code = "import sys, similitude; print('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
