"""Generated names: unique in the process, so that several programs may use one scope.

>>> with guard():
...     generate("fc"), generate("fc"), generate("mean")
('fc_0', 'fc_1', 'mean_0')

Counts are those of the process, not of a program: a second program of the same layers has other names unless it is
written in a guard.

Within a :func:`guard` numbering starts again: the same layers in two guards have the same names and so share their
parameters, as in Paddle. A ``ParamAttr(name=…)`` states that more clearly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class _Names:
    """Counts how often each name was asked for."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.counts: dict[str, int] = {}

    def next(self, key: str) -> int:
        number = self.counts.get(key, 0)
        self.counts[key] = number + 1
        return number


class _Current:
    names = _Names()


def generate(key: str) -> str:
    """The next name that begins with ``key``."""
    return f"{_Current.names.prefix}{key}_{_Current.names.next(key)}"


def number(key: str) -> str:
    """The same for what is part of a layer, whose name may be of this guard already."""
    names = _Current.names
    return f"{'' if key.startswith(names.prefix) else names.prefix}{key}_{names.next(key)}"


@contextmanager
def guard(new_generator: str | None = None) -> Iterator[None]:
    """A context in which numbering starts again, with ``new_generator`` as prefix if given."""
    if new_generator is not None and not isinstance(new_generator, str):
        raise TypeError(f"guard takes the prefix of names, a str, got {type(new_generator).__name__}")
    before, _Current.names = _Current.names, _Names(new_generator or "")
    try:
        yield
    finally:
        _Current.names = before


def switch(new_generator: _Names | None = None) -> _Names:
    """Numbering starts again, or goes on where a generator has stopped; returns the one that was in use."""
    if new_generator is not None and not isinstance(new_generator, _Names):
        raise TypeError(f"switch takes what an earlier switch returned, got {type(new_generator).__name__}")
    before, _Current.names = _Current.names, _Names() if new_generator is None else new_generator
    return before


def _counted() -> dict[str, int]:
    return dict(_Current.names.counts)


def _restore(counts: dict[str, int]) -> None:
    """Frees the names that were generated since."""
    _Current.names.counts = counts


__all__ = ["generate", "guard", "switch"]
