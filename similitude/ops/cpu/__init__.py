"""C++ kernels for a CPU, built on first use: what ops/ does, faster, where there is a compiler."""
