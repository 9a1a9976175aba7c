"""The errors of data sets.

>>> issubclass(DataError, ValueError), issubclass(OutOfRangeError, StopIteration)
(True, False)
"""

from __future__ import annotations


class DataError(ValueError):
    """A file, an element or a function that was given to ``map`` is wrong; the message names it."""


class OutOfRangeError(EOFError):
    """``get_next()`` was called after the last element."""


__all__ = ["DataError", "OutOfRangeError"]
