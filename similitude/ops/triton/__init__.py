"""Triton kernels: what ops/ does, faster on a GPU."""
