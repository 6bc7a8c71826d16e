"""The figures of the paper's experiments, drawn from finished runs."""
