"""Facts about processors: features, costs, supported operators, and vector functions."""
