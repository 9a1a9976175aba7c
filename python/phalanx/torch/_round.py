"""What ranks exchange at the end of a backward pass: which gradients each of them has, and which step it is at.

All ranks send bytes of the same layout; every rank gets the maximum of each byte. Ranks that have joined send zeros,
which have no effect.

>>> own = written(dense=b"\\1\\0\\0", sparse=b"\\0\\0\\0", is_at_step=True, compares=False, identity=b"8 bytes.")
>>> other = written(dense=b"\\0\\0\\0", sparse=b"\\0\\0\\1", is_at_step=False, compares=True, identity=b"8 bytes.")
>>> read(bytearray(max(pair) for pair in zip(own, other, strict=True)), 3)
View(dense=b'\\x01\\x00\\x00', sparse=b'\\x00\\x00\\x01', are_all_at_step=False, compares=True, are_alike=True)

* ROUND-1: all ranks leave a round with the same view.
"""

from __future__ import annotations

from dataclasses import dataclass

_IDENTITY_BYTES = 8
_INVERSE = bytes(255 - byte for byte in range(256))


def written(dense: bytes, sparse: bytes, is_at_step: bool, compares: bool, identity: bytes) -> bytearray:
    """What one rank says: for each parameter whether it has a gradient of either kind, 1 or 0; whether it will compute no more before
    its step; whether it is time to compare parameters; eight bytes that are the same on ranks with the same parameters at the same
    step."""
    flags = bytes([compares, not is_at_step])
    return bytearray(b"".join((dense, sparse, identity, identity.translate(_INVERSE), flags)))


@dataclass(frozen=True)
class View:
    """What all ranks sent, combined."""

    dense: bytes
    sparse: bytes
    are_all_at_step: bool
    compares: bool
    are_alike: bool

    def kinds(self) -> bytes:
        """The gradients that any rank has, of either kind."""
        return bytes(map(max, self.dense, self.sparse)) if any(self.sparse) else self.dense

    def in_both(self) -> int | None:
        """The first parameter that has a dense gradient on one rank and a sparse one on another."""
        return next((i for i, both in enumerate(zip(self.dense, self.sparse, strict=True)) if both == (1, 1)), None)


def read(largest: bytes | bytearray, n: int) -> View:
    """The view in the largest bytes of all ranks."""
    dense, sparse, tail = bytes(largest[:n]), bytes(largest[n : 2 * n]), bytes(largest[2 * n :])
    identity, inverse = tail[:_IDENTITY_BYTES], tail[_IDENTITY_BYTES : 2 * _IDENTITY_BYTES]
    are_alike = identity.translate(_INVERSE) == inverse
    return View(dense, sparse, are_all_at_step=tail[-1] == 0, compares=tail[-2] == 1, are_alike=are_alike)
