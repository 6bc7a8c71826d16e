"""The data of the paper's experiments, read from files or made up."""
