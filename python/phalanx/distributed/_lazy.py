"""Numbers of a step that are made when a hook looks at them: that may cost time, on another device for example.

>>> seen = Lazy(lambda: {"loss": 0.5})
>>> seen["loss"], list(seen)
(0.5, ['loss'])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping


class Lazy(Mapping[str, float]):
    """A mapping that is made once, by its first use."""

    def __init__(self, make: Callable[[], Mapping[str, float]]) -> None:
        self._make = make
        self._made: Mapping[str, float] | None = None

    def _values(self) -> Mapping[str, float]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getitem__(self, name: str) -> float:
        return self._values()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())


__all__ = ["Lazy"]
