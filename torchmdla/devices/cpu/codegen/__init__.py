"""Code generation: kernels, tile loops, the functions of the ABI, object files and images."""
