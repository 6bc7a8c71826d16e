"""A saved model opens in a fresh process that has imported nothing of ours but similitude."""

import subprocess
import sys

import pytest

from similitude.models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel
from similitude.models.resnet import TverskyResNetConfig, TverskyResNetForImageClassification

ORDERS = {
    "ours first": "import similitude, transformers",
    "ours last": "from transformers import {auto}; import transformers, similitude",
    "a part of ours": "from similitude import convert; import transformers",
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("model", ["gpt2", "resnet"])
def test_auto_classes_open_a_saved_model_in_a_fresh_process(model, order, tmp_path):
    if model == "gpt2":
        sizes = dict(n_embd=8, n_layer=1, n_head=2, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0)
        auto, made = "AutoModelForCausalLM", TverskyGPT2LMHeadModel(TverskyGPT2Config(**sizes, num_features=6))
    else:
        sizes = dict(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_features=6)
        auto = "AutoModelForImageClassification"
        made = TverskyResNetForImageClassification(TverskyResNetConfig(**sizes))
    made.save_pretrained(tmp_path)
    code = f"{order.format(auto=auto)}; print(type(transformers.{auto}.from_pretrained({str(tmp_path)!r})).__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == type(made).__name__, run.stderr


def test_transformers_is_not_imported_for_it():
    code = "import sys, similitude; print('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
