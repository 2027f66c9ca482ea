"""The code around kernels: entries, chains, vector functions, object files."""
