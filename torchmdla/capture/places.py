"""Places of the sizes that vary in a group's inputs."""

from __future__ import annotations

from collections.abc import Sequence

# The values of all symbols.
Values = tuple[int, ...]

# Symbol of each number of a group's inputs, in order; None where the number does not vary. Numbers are the sizes of a
# tensor, an integer, the elements of a list of integers.
Places = Sequence["int | None"]
