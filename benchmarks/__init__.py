"""Time and memory, ours beside plain torch. `python -m benchmarks --help`."""
