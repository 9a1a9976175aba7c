"""Converts samples from readers to arrays that can be fed.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program()):
...     x, label = graph.layers.data("x", [2]), graph.layers.data("label", [1], dtype="int64")
...     fed = DataFeeder([x, label], graph.CPUPlace()).feed([([1.0, 2.0], 0), ([3.0, 4.0], 1)])
>>> fed["x"].shape, fed["label"].tolist()
((2, 2), [[0], [1]])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from phalanx.graph import _values, lod
from phalanx.graph._values import Array
from phalanx.graph.errors import FeedError, FeedTypeError
from phalanx.graph.places import CPUPlace, only_cpu
from phalanx.graph.program import Program, Variable, default_main_program


class Slot(NamedTuple):
    """One variable of what a reader gives. It does not know its program, so that a thread can hold it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    site: str
    is_ragged: bool

    @classmethod
    def of(cls, var: Variable) -> Slot:
        if not isinstance(var, Variable):
            raise FeedTypeError(f"feed_list must hold variables, not a {type(var).__name__}")
        if not var.is_data:
            raise FeedError(f"`{var.name}` is computed, not fed ({var.site})", var=var.name, site=var.site)
        return cls(var.name, var.dtype, var.shape, var.site, var.lod_level > 0)

    def of_samples(self, column: Sequence[Any]) -> dict[str, Array]:
        """From what each sample has for it."""
        if self.is_ragged:
            return self._padded(column)
        # Samples of a variable without a batch are put together as they are.
        inner = self.shape[1:] if self.shape and self.shape[0] < 0 else None
        rows = [self._row(i, each, inner) for i, each in enumerate(column)]
        return {self.name: np.stack(rows) if rows else np.zeros([0, *(inner or ())], self.dtype)}

    def of_batch(self, value: Any) -> dict[str, Any]:
        """From a whole batch."""
        if self.is_ragged and (isinstance(value, (list, tuple, lod.LoDTensor))):
            return self._padded(value.sequences() if isinstance(value, lod.LoDTensor) else value)
        if isinstance(value, (list, tuple)):
            return {self.name: self._whole(value)}
        # A reader may write the next batch into the same array before this one is used.
        return {self.name: np.array(value) if isinstance(value, np.ndarray) else value}

    def _whole(self, given: Any) -> Array:
        array = _values.array(given, f"`{self.name}`: the batch", self.name)
        is_odd = array.dtype.kind not in "iubfO"
        bad = f"{array.dtype}{list(array.shape)}" if is_odd else _values.changed(array, self.dtype)
        if bad is None:
            try:
                return array.astype(self.dtype)
            except (TypeError, ValueError):
                bad = f"{array.dtype}{list(array.shape)}"
        wanted = f"{self.dtype}{list(self.shape)}"
        text = f"`{self.name}` wants {wanted} (declared at {self.site}), which cannot hold {bad}"
        raise FeedError(text, var=self.name, site=self.site, wanted=wanted, got=bad)

    def _padded(self, sequences: Sequence[Any]) -> dict[str, Array]:
        both = lod.pad(self.name, sequences, self.shape[1], self.shape[2:], self.dtype, self.site)
        return {self.name: both[0], lod.lengths_of(self.name): both[1]}

    def _row(self, i: int, given: Any, inner: tuple[int, ...] | None) -> Array:
        row = _values.array(given, f"`{self.name}`: sample {i}", self.name)
        fits = inner is None or row.size == int(np.prod(inner, dtype=int))
        bad = _values.misfit(row, self.dtype)
        if fits and bad is None:
            row = row.astype(self.dtype, copy=False)
            return row if inner is None else row.reshape(inner)
        wanted = f"{self.dtype}{list(self.shape[1:] if inner is not None else self.shape)}"
        got = f"{row.dtype}{list(row.shape)}{bad or ''}"
        raise FeedError(
            f"`{self.name}` wants {wanted} of each sample (declared at {self.site}), sample {i} has {got}",
            var=self.name,
            site=self.site,
            wanted=wanted,
            got=got,
        )


def of_samples(slots: Sequence[Slot], samples: Iterable[Any]) -> dict[str, Array]:
    """A batch from samples, each with something for every variable."""
    rows = [_fields(slots, sample, f"sample {i}") for i, sample in enumerate(samples)]
    made: dict[str, Array] = {}
    for k, slot in enumerate(slots):
        made.update(slot.of_samples([row[k] for row in rows]))
    return made


def of_batch(slots: Sequence[Slot], batch: Any) -> dict[str, Any]:
    """A batch from arrays: a dict, or one for every variable in order."""
    if isinstance(batch, Mapping):
        odd = sorted(batch.keys() ^ {slot.name for slot in slots})
        if odd:
            raise FeedError(f"the reader gives {sorted(batch)}, which differs from feed_list in {odd}", var=str(odd[0]))
        batch = [batch[slot.name] for slot in slots]
    made: dict[str, Any] = {}
    for slot, value in zip(slots, _fields(slots, batch, "the batch"), strict=True):
        made.update(slot.of_batch(value))
    return made


def unnamed_samples(samples: Iterable[Any]) -> dict[str, Array]:
    """The same where no variable says what samples hold: their parts by number, as arrays.

    >>> {name: array.dtype.name for name, array in unnamed_samples([(0.5, 1), (1.5, 2)]).items()}
    {'0': 'float32', '1': 'int64'}
    """
    rows = [list(sample) if isinstance(sample, (list, tuple)) else [sample] for sample in samples]
    odd = next((i for i, row in enumerate(rows) if len(row) != len(rows[0])), None)
    if odd is not None:
        raise FeedError(f"sample {odd} has {len(rows[odd])} parts, and sample 0 has {len(rows[0])}")
    return {str(k): _unnamed([row[k] for row in rows], k) for k in range(len(rows[0]) if rows else 0)}


def unnamed_batch(batch: Any) -> dict[str, Any]:
    """The same from arrays of a whole batch."""
    if isinstance(batch, Mapping):
        return dict(batch)
    parts = list(batch) if isinstance(batch, (list, tuple)) else [batch]
    return {str(k): _unnamed(part, k) for k, part in enumerate(parts)}


def _unnamed(given: Any, k: int) -> Array:
    rows = given if isinstance(given, np.ndarray) else [_values.array(each, f"part {k} of a sample") for each in given]
    if not isinstance(rows, np.ndarray) and len({row.shape for row in rows}) > 1:
        raise FeedError(
            f"part {k} of samples differs in shape from one to another; declare a variable with lod_level=1 and pass "
            "feed_list for sequences"
        )
    array = np.array(rows)
    # Numbers of Python's are float64, and layers compute in float32.
    is_python = not isinstance(given, np.ndarray) and not any(
        isinstance(each, np.generic | np.ndarray) for each in given
    )
    return array.astype("float32") if is_python and array.dtype == np.float64 else array


def _fields(slots: Sequence[Slot], given: Any, what: str) -> Sequence[Any]:
    names = ", ".join(slot.name for slot in slots)
    if not isinstance(given, (list, tuple)):
        # One array for one variable needs no tuple around it.
        if len(slots) == 1:
            return [given]
        raise FeedTypeError(f"{what} is a tuple with {names}, not a {type(given).__name__}")
    if len(given) != len(slots):
        raise FeedError(
            f"{what} has {len(given)} parts, but feed_list has {len(slots)}: {names}",
            wanted=str(len(slots)),
            got=str(len(given)),
        )
    return given


class DataFeeder:
    """Makes feeds from samples. ``feed_list`` has variables, or their names in ``program``."""

    def __init__(
        self, feed_list: Sequence[Variable | str], place: CPUPlace | None = None, program: Program | None = None
    ) -> None:
        only_cpu(place)
        main = program or default_main_program()
        self._slots = [Slot.of(main.var(v) if isinstance(v, str) else v) for v in feed_list]

    def feed(self, iterable: Iterable[Any]) -> dict[str, Array]:
        """One batch from samples, each a tuple with something for every variable."""
        return of_samples(self._slots, iterable)

    def feed_parallel(
        self, iterable: Iterable[Iterable[Any]], num_places: int | None = None
    ) -> Iterator[dict[str, Array]]:
        """A batch for each device, from a list of samples for each."""
        batches = list(iterable)
        if num_places is not None and len(batches) != num_places:
            raise FeedError(
                f"samples for {len(batches)} devices, but there are {num_places}",
                wanted=str(num_places),
                got=str(len(batches)),
            )
        return iter([self.feed(samples) for samples in batches])

    def decorate_reader(
        self,
        reader: Callable[[], Iterable[Any]],
        multi_devices: bool = False,
        num_places: int | None = None,
        drop_last: bool = True,
    ) -> Callable[[], Iterator[Any]]:
        """A reader of feeds from one of lists of samples; with ``multi_devices`` a list of feeds for the devices."""
        from phalanx.graph.io import grouped
        from phalanx.graph.places import cpu_places

        n = num_places or len(cpu_places()) if multi_devices else 1

        def feeds() -> Iterator[Any]:
            made = (self.feed(samples) for samples in reader())
            return grouped(made, n, drop_last) if multi_devices else made

        return feeds


__all__ = ["DataFeeder"]
