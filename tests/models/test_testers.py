"""transformers' own testers pass, but for what asks for an nn.Linear head or equal random numbers: docs/testers.md."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ALONE = Path(__file__).with_name("testers.py")
ROOT = ALONE.parents[2]
CLONE = ROOT / "out" / "transformers"  # where make test-all puts it
SOURCE = os.environ.get("TRANSFORMERS_SOURCE") or (str(CLONE) if CLONE.is_dir() else None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SOURCE, reason="there is no clone of transformers: see docs/testers.md"),
    pytest.mark.skipif(
        not importlib.util.find_spec("parameterized"), reason="transformers' testers need parameterized"
    ),
]

# These ask for the weight of an nn.Linear head, and for buffers that are not calibrated.
OF_GPT2 = {"test_model_get_set_embeddings", "test_resize_embeddings_untied", "test_init_weights_can_init_buffers"}
# The first two fail for a plain ResNet too.
OF_RESNET = {"test_model_get_set_embeddings", "test_hidden_states_output", "test_init_weights_can_init_buffers"}


@pytest.mark.parametrize(
    "model", ["TestHeadTied", "TestHeadUntied", "TestAllTied", "TestAllUntied", "TestTverskyResNet"]
)
def test_transformers_own_testers_pass(model):
    assert SOURCE
    path = os.pathsep.join([SOURCE, str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    run = subprocess.run([sys.executable, ALONE, model], env=env, cwd=ROOT, capture_output=True, text=True)
    outcomes = json.loads(run.stdout)[model]
    failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
    assert failed == (OF_RESNET if model == "TestTverskyResNet" else OF_GPT2), run.stderr
    assert sum(outcome == "passed" for outcome in outcomes.values()) > (60 if model == "TestTverskyResNet" else 120)
