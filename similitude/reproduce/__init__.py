"""Runs that can be repeated: the demo and the paper's sections, one a file."""
