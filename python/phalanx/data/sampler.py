"""Which samples of a data set a rank gets."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakSet

from phalanx import _phalanx, _world
from phalanx.data.errors import DataError

_KEYS = ("n", "seed", "epoch", "consumed")


class Sampler:
    """Divides the samples ``0 .. n - 1`` among ranks, in an order that is new in each epoch.

    The order depends on ``n``, ``seed`` and the epoch, not on the ranks. Without ``world`` and ``rank``, those of this
    process count. ``ends`` says what happens if the samples cannot be divided equally:

    - ``"pad"``: every rank gets the same number; the epoch's first samples come again.
    - ``"drop"``: every rank gets the same number; the last samples, fewer than there are ranks, are left out.
    - ``"uneven"``: the last ranks may get one sample less. Training has to end with ``join()``.

    It can be the ``sampler=`` of torch's ``DataLoader``. Call :meth:`set_epoch` before each epoch.

    The state says how many samples all ranks together have consumed, and any number of ranks can continue from it. It is the
    same on all ranks that took the same number of samples; with ``"uneven"`` shares, save the one of rank 0.

    >>> four = [Sampler(20, world=4, rank=rank) for rank in range(4)]
    >>> parts = [iter(one) for one in four]
    >>> first = [next(part) for part in parts for _ in range(2)]
    >>> two = [Sampler(20, world=2, rank=rank) for rank in range(2)]
    >>> for one in two:
    ...     one.load_state_dict(four[0].state_dict())
    >>> sorted(first + list(two[0]) + list(two[1])) == list(range(20))
    True

    The state counts samples that the iterator gave out. If something reads ahead, a ``DataLoader`` with workers for
    example, call :meth:`record` after each batch; then the state counts what was recorded.
    """

    def __init__(
        self, n: int, world: int | None = None, rank: int | None = None, seed: int = 0, ends: str = "pad"
    ) -> None:
        self._n, self._seed = _whole("n", n), _whole("seed", seed)
        if (world is None) != (rank is None):
            raise ValueError("world and rank belong together: give both, or neither for this process's own")
        if not isinstance(ends, str):
            raise ValueError(f'ends must be "pad", "drop" or "uneven", not {ends!r}')
        self._sampler = _phalanx.DataSampler(self._n, self._seed, ends)
        self._place = None if world is None else (_whole("world", world), _whole("rank", rank))
        self._epoch = 0
        self._begin = 0
        self._running: _phalanx.DataIndices | None = None
        self._n_recorded: int | None = None
        self._iterators: WeakSet[SamplerIterator] = WeakSet()
        if self._place is not None:
            self._indices()

    @property
    def epoch(self) -> int:
        """The epoch whose samples come next."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch. In an epoch that was loaded from a state, the position stays."""
        epoch = _whole("epoch", epoch)
        if epoch != self._epoch:
            self._set(epoch, 0)

    def record(self, count: int) -> None:
        """Records that this rank, and each other one, has processed this many more samples since the iteration began."""
        self._n_recorded = (self._n_recorded or 0) + _whole("count", count)

    def state_dict(self) -> dict[str, int]:
        """The position in the epoch, as plain numbers."""
        consumed = self._begin
        if self._running is not None:
            taken = self._running.taken if self._n_recorded is None else self._n_recorded
            consumed = self._running.consumed_after(taken)
        return {"n": self._n, "seed": self._seed, "epoch": self._epoch, "consumed": consumed}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Continues from a saved position: the next iteration begins there. Its world may have had another size.

        An iterator that has given no samples yet goes on from there; one that has raises a :class:`DataError` when it is asked for more.
        """
        if set(state_dict) != set(_KEYS):
            raise ValueError(f"the state of a sampler has {', '.join(_KEYS)}, not {', '.join(map(str, state_dict))}")
        n, seed, epoch, consumed = (_whole(key, state_dict[key]) for key in _KEYS)
        self._sampler.check(n, seed, epoch, consumed)
        is_here = dict(state_dict) == self.state_dict()
        running, n_recorded = self._running, self._n_recorded
        self._set(epoch, consumed)
        for each in self._iterators:
            if not len(each._indices):
                continue
            if is_here and each._indices is running:
                # Nothing has changed for it.
                self._running, self._n_recorded = running, n_recorded
            elif each._indices.taken == 0:
                each._indices = self._running = self._indices()
            else:
                each._is_lost = True

    def __iter__(self) -> Iterator[int]:
        self._set(self._epoch, self._next_begin())
        self._running = self._indices()
        made = SamplerIterator(self._running)
        self._iterators.add(made)
        return made

    def __len__(self) -> int:
        """How many samples this rank gets in an iteration that begins now."""
        return len(self._indices())

    def _set(self, epoch: int, begin: int) -> None:
        self._epoch, self._begin = epoch, begin
        self._running = self._n_recorded = None

    def _next_begin(self) -> int:
        # The rest of an epoch is given once; who iterates again without set_epoch wants all of it.
        return 0 if self._running is not None and len(self._running) == 0 else self._begin

    def _indices(self) -> _phalanx.DataIndices:
        world, rank = self._place or (_world.size(), _world.rank())
        return self._sampler.indices(world, rank, self._epoch, self._next_begin())


class SamplerIterator(Iterator[int]):
    """The samples of one iteration."""

    def __init__(self, indices: _phalanx.DataIndices) -> None:
        self._indices = indices
        self._is_lost = False

    def __next__(self) -> int:
        if self._is_lost:
            raise DataError(
                "the position of the sampler was loaded after this iterator had given samples, which would come twice: call iter(sampler) "
                "after the session has begun"
            )
        return next(self._indices)

    def __len__(self) -> int:
        """How many samples are left."""
        return len(self._indices)


def _whole(name: str, value: Any) -> int:
    is_whole = not isinstance(value, bool) and hasattr(value, "__index__")
    if not is_whole or not 0 <= operator.index(value) < 1 << 64:
        raise ValueError(f"{name} must be a whole number from 0, not {value!r}")
    return operator.index(value)


__all__ = ["Sampler"]
