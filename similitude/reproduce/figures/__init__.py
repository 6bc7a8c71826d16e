"""Figures of the experiments."""
