"""Memory of the tiled paths, measured in a process of its own."""

import os
import subprocess
import sys

import pytest

MEASURE = """
import torch
import similitude.functional as F

def peak():
    # Not getrusage, which starts with what the parent had.
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024

N, D, P, K = 128, 768, 5000, 4096
x, p, features = (torch.randn(rows, D, requires_grad=True) for rows in (N, P, K))
(x[:2] @ features.mT).sum().backward()  # thread pools and library buffers
start = peak()
F.tversky_projection(x, p, features, intersection="min", difference="subtractmatch").sum().backward()
print(peak() - start)
"""


@pytest.mark.parametrize("kernels", ["1", "0"], ids=["kernels", "plain"])
def test_min_and_subtractmatch_stay_under_a_gigabyte_where_the_law_needs_ten(kernels):
    env = {**os.environ, "SIMILITUDE_CPU_KERNELS": kernels}
    run = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True, env=env)
    megabytes = float(run.stdout)
    # Less than the two tables of measures would mean that nothing was measured.
    assert 160 < megabytes < 1000, f"{megabytes:.0f} MB above the start"
