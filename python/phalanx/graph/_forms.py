"""The forms in which values are given to devices, where a plain array would be split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class Replicate:
    """Feeds all of a value to every device, where it would be split."""

    def __init__(self, value: Any) -> None:
        self.value = value


class PerDevice:
    """Feeds each device a value of its own; one without samples leaves its device idle."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)


class Group(list[dict[str, Any]]):
    """What a reader gives for one run, a dict for each place; the last one may have fewer."""

    def __init__(self, places: int, batches: Iterable[dict[str, Any]] = ()) -> None:
        super().__init__(batches)
        self.places = places
