"""What the benchmarks share: timing in turn, on one thread, in child processes; the machine, peers, tables, charts."""
