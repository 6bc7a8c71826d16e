import gc
import os

import hypothesis
import pytest
import torch

# Before anything imports triton: without a GPU its interpreter runs the kernels.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Workers share the cores: more threads than those would wait for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)

hypothesis.settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.load_profile("ci")

# Memory that a kernel forgot to write shows as NaN.
torch.utils.deterministic.fill_uninitialized_memory = True
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """Thousands of collected tests are never garbage; each collection would look at all of them again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
