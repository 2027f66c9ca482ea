"""Decompositions of ops into others, by family. ``registry.py`` maps each op to its decomposition."""
