"""Shared code of the benchmarks: interleaved timing, single-thread timing, child processes, peers, tables, charts."""
