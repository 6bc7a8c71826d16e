"""The data of the paper's experiments: found, read, or made up."""
