"""How much work an op is: counts of scalar operations by kind, from the sizes of its operands.

The rules are tables, one module for each family. A rule is keyed by the schema's name without namespace, with its
overload (``max.dim``) or, for all overloads, without; an in-place op has the rule of its functional twin.

What is counted: the operations that a plain implementation performs once for each element, in these conventions.

- A sum starts from an initial value, so n terms are n additions; a maximum starts from its first element, so n elements
  are n − 1 comparisons.
- A mean is a sum and one multiplication by the reciprocal of the number of terms, which is known.
- Elements are centred by adding the negated mean: one ``-`` for each mean, one ``+`` for each element.
- A multiplication whose product is added at once is one ``MAC``.
- Windows that reach into padding are counted in full.
- Broadcasting, moving and converting data, indices and random numbers count nothing.
"""

from torchmdla.aten.op_counts.kinds import KINDS, Counts, Rule
from torchmdla.aten.op_counts.table import Work, rule_of, work_of

__all__ = ["KINDS", "Counts", "Rule", "Work", "rule_of", "work_of"]
