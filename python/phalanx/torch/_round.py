"""What ranks tell each other at the end of a backward pass: which gradients each of them has, and where it is.

All ranks send bytes of the same layout, and the largest of each place comes back to all. Ranks that have joined send zeros,
which say nothing.

>>> own = Report(gradients={0: DENSE}, is_at_step=True, identity=b"8 bytes.")
>>> other = Report(gradients={2: SPARSE}, is_at_step=False, identity=b"8 bytes.")
>>> largest = bytearray(max(pair) for pair in zip(own.written(3), other.written(3), strict=True))
>>> read(largest, 3)
View(gradients={0: 1, 2: 2}, are_all_at_step=False, are_alike=True)

* ROUND-1: all ranks leave a round with the same view.
"""

from __future__ import annotations

from dataclasses import dataclass

#: What a rank has of a parameter. A parameter of which ranks have both has both.
DENSE, SPARSE, BOTH = 1, 2, 3

_IDENTITY_BYTES = 8


@dataclass(frozen=True)
class Report:
    """What one rank says."""

    #: By the number of a parameter: the kind of its gradient.
    gradients: dict[int, int]
    #: Whether this rank will compute no more before its step.
    is_at_step: bool
    #: Eight bytes that are the same on ranks with the same parameters at the same step.
    identity: bytes

    def written(self, n: int) -> bytearray:
        """As bytes, for `n` parameters."""
        planes = bytearray(2 * n)
        for i, kind in self.gradients.items():
            planes[i if kind == DENSE else n + i] = 1
        inverse = bytes(255 - byte for byte in self.identity)
        return planes + self.identity + inverse + bytes([not self.is_at_step])


@dataclass(frozen=True)
class View:
    """What all ranks said together."""

    gradients: dict[int, int]
    are_all_at_step: bool
    are_alike: bool


def read(largest: bytes | bytearray, n: int) -> View:
    """The view in the largest bytes of all reports."""
    dense, sparse, tail = largest[:n], largest[n : 2 * n], largest[2 * n :]
    gradients = {i: d * DENSE + s * SPARSE for i, (d, s) in enumerate(zip(dense, sparse, strict=True)) if d or s}
    identity, inverse = tail[:_IDENTITY_BYTES], tail[_IDENTITY_BYTES : 2 * _IDENTITY_BYTES]
    are_alike = all(a + b == 255 for a, b in zip(identity, inverse, strict=True))
    return View(gradients, are_all_at_step=tail[-1] == 0, are_alike=are_alike)
