"""What a call of a collective says beside its tensors: the same for torch and numpy.

>>> Options(name="loss").full_name("allreduce")
'allreduce.loss'
>>> Options(name="loss", grouped=True).of("grad").full_name("allreduce")
'grouped_allreduce.loss.grad'
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from phalanx import _phalanx
from phalanx._arguments import checked_op
from phalanx.process_sets import ProcessSet, global_process_set, set_id
from phalanx.reductions import Sum

#: Whether MPI does the allreduces of this thread, and how far results may be from a baseline.
_manner: ContextVar[tuple[bool, float]] = ContextVar("phalanx_manner", default=(False, 0.0))


@contextmanager
def manner(mpi: bool, check: float) -> Iterator[None]:
    """Allreduces that this thread submits meanwhile are done so, as all ranks agree on."""
    token = _manner.set((mpi, check))
    try:
        yield
    finally:
        _manner.reset(token)


@dataclass(slots=True)
class Options:
    """Every collective reads the name, the set and whether its tensors are a group; reductions read the rest, too."""

    name: str | None = None
    process_set: ProcessSet = global_process_set
    grouped: bool = False
    op: int = Sum
    prescale: float = 1.0
    postscale: float = 1.0
    #: The type in which elements travel, as the engine numbers it, where that is not their own.
    wire: int | None = None
    #: This thread waits for it at once, and runs it itself where it can.
    awaited: bool = False

    def full_name(self, kind: str) -> str | None:
        """The name under which ranks find each other; without one, the engine counts."""
        if self.name is None:
            return None
        return f"grouped_{kind}.{self.name}" if self.grouped else f"{kind}.{self.name}"

    def of(self, part: str) -> Options:
        """The same for another operation, which belongs to this one."""
        return replace(self, name=None if self.name is None else f"{self.name}.{part}")

    def but(self, **changes: Any) -> Options:
        """The same with these changes."""
        return replace(self, **changes)

    def submit(
        self,
        kind: str,
        tensors: Sequence[Any],
        outputs: Sequence[Any] | None = None,
        *,
        root: int = 0,
        splits: Sequence[int] | None = None,
        device: int = -1,
    ) -> _phalanx.Operation:
        """Hands an operation to the engine."""
        mpi, check = _manner.get() if kind == "allreduce" else (False, 0.0)
        return _phalanx.submit(
            kind,
            tensors,
            outputs=outputs,
            name=self.full_name(kind),
            op=checked_op(self.op),
            prescale=self.prescale,
            postscale=self.postscale,
            root=root,
            splits=splits,
            process_set=set_id(self.process_set),
            wire=self.wire,
            device=device,
            grouped=self.grouped,
            awaited=self.awaited,
            mpi=mpi,
            check=check,
        )
