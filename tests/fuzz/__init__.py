"""Fuzzer of random programs on all frontends, at sizes that are likely to fail: ``make fuzz``.

Results are compared with eager. ``python -m fuzz --help`` (from ``tests``) lists the options.

:mod:`fuzz.drawing` draws a program from a seed as source text, from the templates of :mod:`fuzz.vocabulary`.
:mod:`torchmdla.testing.runner` runs it in a separate process. :mod:`fuzz.shrinking` reduces programs that fail.
They are written to ``tests/fuzz/found``, where ``tests/tools/test_fuzz.py`` runs them.
"""
