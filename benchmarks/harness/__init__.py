"""What the benchmarks share: timing in turn, child processes, the machine's limits, peers, tables and charts."""
