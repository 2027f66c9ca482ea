"""Bitwise comparison with eager of scalars beside tensors of each dtype, on all frontends.

A scalar is a number or a 0-d tensor. ``make probe ARGS=--help`` lists the options. :mod:`scalar_probe.table` has the
expressions, at least one for each operator with a number or a 0-d tensor as argument. :mod:`scalar_probe.probe` runs
them. ``tests/group/test_scalars.py`` runs a part.
"""
