"""Numbers and 0-d tensors beside tensors of every dtype, on every frontend, compared with eager bit by bit.

``make probe ARGS=--help`` says what there is. :mod:`scalar_probe.table` has the expressions, one or more of every
operator that takes a number or a 0-d tensor; :mod:`scalar_probe.probe` runs them. ``tests/group/test_scalars.py`` runs
a part.
"""
