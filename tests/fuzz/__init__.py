"""Programs drawn at random, run on every frontend at sizes chosen to break, and compared with eager: ``make fuzz``.

``python -m fuzz --help`` (from ``tests``) says what there is. A program is drawn from a seed as source text
(:mod:`fuzz.drawing`, by the words of :mod:`fuzz.vocabulary`), run in a process of its own by
:mod:`torchmdla.testing.runner`, and what is found is made small (:mod:`fuzz.shrinking`) and written to
``tests/fuzz/found``, where ``tests/tools/test_fuzz.py`` runs it.
"""
