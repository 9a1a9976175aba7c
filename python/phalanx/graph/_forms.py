"""Forms for values that should not be split over devices like a plain array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class Replicate:
    """Feeds the whole value to every device instead of splitting it."""

    def __init__(self, value: Any) -> None:
        self.value = value


class PerDevice:
    """Feeds each device its own value; a device without samples is idle."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)


class Group(list[dict[str, Any]]):
    """What a reader gives for one run, a dict for each place; the last one may have fewer."""

    def __init__(self, places: int, batches: Iterable[dict[str, Any]] = ()) -> None:
        super().__init__(batches)
        self.places = places
