"""Adapters for the libraries that people train with, one file each; each file needs its library."""
