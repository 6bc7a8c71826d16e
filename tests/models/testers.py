"""transformers' own ModelTesterMixin and GenerationTesterMixin on our models, and on the plain ones beside them.

They come with the sources of transformers, not with its wheel: ``git clone --depth 1 -b v5.22.2
https://github.com/huggingface/transformers`` (the installed version), and then

    PYTHONPATH=<the clone>:. python tests/models/testers.py               # the tables of docs/testers.md
    PYTHONPATH=<the clone>:. python tests/models/testers.py TestHeadTied  # outcomes of one model
"""

import json
import os
import sys
import unittest
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch
import transformers
from tests.generation.test_utils import GenerationTesterMixin
from tests.test_modeling_common import ModelTesterMixin, floats_tensor, ids_tensor
from transformers import GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetForImageClassification

from similitude.models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel
from similitude.models.resnet import TverskyResNetConfig, TverskyResNetForImageClassification

# As in the testers of GPT-2 and ResNet.
GPT2 = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=99, n_positions=512)
TOKENS = dict(bos_token_id=98, eos_token_id=98, pad_token_id=98)
RESNET = dict(embedding_size=10, hidden_sizes=[10, 20, 30, 40], depths=[1, 1, 2, 1], num_labels=3)

HEAD = "asks for an nn.Linear head"
UNITS = (
    "asks that buffers start at the same numbers: units are calibrated for random prototypes (and sets our scale to 0)"
)
PLAIN = "the plain model fails too, and its own tests skip or replace it"
WHY = {
    "test_model_get_set_embeddings": HEAD,
    "test_resize_embeddings_untied": HEAD,
    "test_init_weights_can_init_buffers": UNITS,
}


# The testers run this one for models that are newer than 2023.
ModelTesterMixin.test_can_init_all_missing_weights_before_2023 = True


class Words(ModelTesterMixin, GenerationTesterMixin):
    batch_size, seq_length, is_training = 13, 7, True
    vocab_size, hidden_size, num_hidden_layers, num_attention_heads = 99, 32, 2, 4

    def setUp(self):
        # The testers ask another object for sizes and inputs.
        self.model_tester = self

    def prepare_config_and_inputs_for_common(self):
        ids = ids_tensor([self.batch_size, self.seq_length], self.vocab_size)
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels)
        # The testers know by its class what labels a model takes.
        return {**inputs, "labels": inputs["input_ids"]} if return_labels and "input_ids" in inputs else inputs


class Pictures(ModelTesterMixin):
    test_resize_embeddings, has_attentions = False, False
    batch_size, is_training, image_size = 3, True, 32

    def setUp(self):
        self.model_tester = self

    def prepare_config_and_inputs_for_common(self):
        return self.get_config(), {"pixel_values": floats_tensor([self.batch_size, 3, 32, 32])}

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels)
        return {**inputs, "labels": torch.zeros(self.batch_size, dtype=torch.long)} if return_labels else inputs


def case(kind, model, config, **options):
    """A test case of ``kind`` for the model with this config."""
    body = {"all_model_classes": (model,), "get_config": lambda self: config(**options)}
    return type(model.__name__, (kind, unittest.TestCase), body)


def tversky(variant, tied):
    options = dict(variant=variant, tie_word_embeddings=tied, num_features=48)
    return case(Words, TverskyGPT2LMHeadModel, TverskyGPT2Config, **GPT2, **TOKENS, **options)


def gpt2(tied):
    return case(Words, GPT2LMHeadModel, GPT2Config, **GPT2, **TOKENS, tie_word_embeddings=tied)


TestGPT2Tied = gpt2(True)
TestGPT2Untied = gpt2(False)
TestHeadTied = tversky("head", True)
TestHeadUntied = tversky("head", False)
TestAllTied = tversky("all-1layer", True)
TestAllUntied = tversky("all-1layer", False)
TestResNet = case(Pictures, ResNetForImageClassification, ResNetConfig, **RESNET)
TestTverskyResNet = case(Pictures, TverskyResNetForImageClassification, TverskyResNetConfig, **RESNET, num_features=20)

MODELS = {
    "TestGPT2Tied": "GPT-2, tied",
    "TestGPT2Untied": "GPT-2, untied",
    "TestHeadTied": 'TverskyGPT-2 "head", tied',
    "TestHeadUntied": 'TverskyGPT-2 "head", untied',
    "TestAllTied": 'TverskyGPT-2 "all-1layer", tied',
    "TestAllUntied": 'TverskyGPT-2 "all-1layer", untied',
    "TestResNet": "ResNet",
    "TestTverskyResNet": "TverskyResNet",
}


class Outcomes:
    """A plugin of pytest that keeps what became of each test."""

    def __init__(self):
        self.of: dict[str, dict[str, str]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report):
        _, model, test = report.nodeid.split("::")
        ended = report.when == "call" or not report.passed
        if report.failed or (ended and self.of[model].get(test) != "failed"):
            self.of[model][test] = report.outcome


def table(outcomes: dict[str, dict[str, str]]) -> str:
    """What passed, failed and was skipped, for each model, and why."""
    lines = ["| model | passed | failed | skipped by the tester |", "|---|---|---|---|"]
    failed: dict[str, list[str]] = defaultdict(list)
    for model, name in MODELS.items():
        count = Counter(outcomes[model].values())
        lines.append(f"| {name} | {count['passed']} | {count['failed']} | {count['skipped']} |")
        for test, outcome in outcomes[model].items():
            if outcome == "failed":
                failed[test].append(name)
    lines += ["", "| failed | of | why |", "|---|---|---|"]
    for test, models in sorted(failed.items()):
        reasons = {
            PLAIN if outcomes[model].get(test) == "failed" else WHY.get(test, "unknown") for model in plain(models)
        }
        lines.append(f"| `{test}` | {', '.join(together(models))} | {'; '.join(sorted(reasons))} |")
    versions = f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}"
    return "\n".join([*lines, "", f"Written by `tests/models/testers.py`; {versions}."])


def together(models: list[str]) -> list[str]:
    """The models, with one name for the variants of TverskyGPT-2 where all are among them."""
    variants = [name for name in MODELS.values() if name.startswith("TverskyGPT-2")]
    if not set(variants) <= set(models):
        return models
    return ["every TverskyGPT-2", *(name for name in models if name not in variants)]


def plain(models: list[str]) -> set[str]:
    """The plain models that the named ones are made from."""
    return {"TestResNet" if "ResNet" in model else "TestGPT2Tied" for model in models}


def main(*models: str) -> dict[str, dict[str, str]]:
    """Runs the testers of some models, or of all, apart from the settings of our own tests."""
    found = Outcomes()
    alone = ["-c", os.devnull, "--noconftest", "--rootdir", str(Path(__file__).parent), "-p", "no:cacheprovider"]
    pytest.main([*alone, "-q", "--tb=short", "-k", " or ".join(models), __file__], [found])
    return found.of


if __name__ == "__main__":
    stdout, sys.stdout = sys.stdout, sys.stderr
    outcomes = main(*sys.argv[1:])
    print(json.dumps(outcomes) if sys.argv[1:] else table(outcomes), file=stdout)
