"""Work of an op: counts of scalar operations by kind, from the sizes of its operands.

The rules are tables, one module for each op family. The key of a rule is the schema's name without namespace. A key
with an overload (``max.dim``) applies to that overload, a key without one to all overloads. An in-place op has the rule
of its functional counterpart.

The counts are those of a plain implementation that performs each operation once per element. The conventions are:

- A sum starts from an initial value, so n terms are n additions. A maximum starts from its first element, so n elements
  are n − 1 comparisons.
- A mean is a sum and one multiplication by the reciprocal of the number of terms, which is known.
- Elements are centred by adding the negated mean: one ``-`` for each mean, one ``+`` for each element.
- A multiplication whose product is added at once is one ``MAC``.
- Windows that reach into padding are counted in full.
- Broadcasting, moving and converting data, indices and random numbers are not counted.
"""

from torchmdla.aten.op_counts.kinds import KINDS, Counts, Rule
from torchmdla.aten.op_counts.table import Work, rule_of, work_of

__all__ = ["KINDS", "Counts", "Rule", "Work", "rule_of", "work_of"]
