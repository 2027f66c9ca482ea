"""Programs for any sizes: the symbolic run, and the sizes that a call computes."""
