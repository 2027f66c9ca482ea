"""Where in a group's inputs the sizes are that vary."""

from __future__ import annotations

from collections.abc import Sequence

# The values of all symbols.
Values = tuple[int, ...]

# Which symbol each number of a group's inputs is, in order, None where it does not vary. Numbers are the sizes of a
# tensor, an integer, the elements of a list of integers.
Places = Sequence["int | None"]
