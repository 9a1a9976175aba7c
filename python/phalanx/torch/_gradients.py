"""A gradient, or a bucket of gradients, that is being reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from phalanx._options import Options
from phalanx.exceptions import PhalanxError
from phalanx.process_sets import ProcessSet
from phalanx.torch import _handles, _submit
from phalanx.torch._bucket import Bucket
from phalanx.torch.collectives import sparse_allreduce_async
from phalanx.torch.compression import Compressor, is_native, narrows, wire_of


@dataclass(frozen=True)
class Manner:
    """How gradients are reduced."""

    compression: type[Compressor]
    op: int
    prescale: float
    postscale: float
    sparse_as_dense: bool
    process_set: ProcessSet


class Travel:
    """A pending reduction of the gradients with these numbers. :meth:`wait` may be called repeatedly; it puts the results in place."""

    def __init__(
        self,
        indices: Sequence[int],
        result: Callable[[], Any],
        arrive: Callable[[Any], None],
        handle: int | None = None,
    ) -> None:
        self.indices = indices
        self._result: Callable[[], Any] | None = result
        self._arrive, self._handle = arrive, handle

    def wait(self) -> None:
        if self._result is not None:
            self._arrive(self._ended(self._result))

    def drain(self) -> None:
        """Waits, and leaves the gradients as they are."""
        if self._result is not None:
            self._ended(self._result)

    def _ended(self, result: Callable[[], Any]) -> Any:
        try:
            got = result()
        except PhalanxError:
            self._result = None
            raise
        # Not before: who was interrupted waits for the same result again.
        self._result = None
        return got

    def forget(self) -> None:
        """Drops the operation without its result."""
        self._result = None
        if self._handle is not None:
            _handles.forget(self._handle)


def wait_for_all(travels: Iterable[Travel]) -> None:
    """Waits for all of them, even if one fails; then raises the first error."""
    _each(Travel.wait, travels)


def drain_all(travels: Iterable[Travel]) -> None:
    """As :func:`wait_for_all`; gradients stay as they are."""
    _each(Travel.drain, travels)


def _each(end: Callable[[Travel], None], travels: Iterable[Travel]) -> None:
    failure: PhalanxError | None = None
    for travel in travels:
        try:
            end(travel)
        except PhalanxError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def gradient_of(p: torch.Tensor) -> torch.Tensor:
    """The gradient; zeros where there is none."""
    if p.grad is None:
        p.grad = torch.zeros_like(p)
    return p.grad


def send_sparse(p: torch.Tensor, index: int, name: str, manner: Manner) -> Travel:
    """Sends a sparse gradient as rows; every rank gets the rows of all ranks."""
    grad = p.grad
    if grad is None or not grad.is_sparse:
        # Nothing was computed for it this time, while other ranks may have rows.
        grad = torch.sparse_coo_tensor(
            torch.empty(1, 0, dtype=torch.int64),
            p.detach().new_empty(0, *p.shape[1:]),
            p.shape,
            device=p.device,
            check_invariants=False,
        )
    result = sparse_allreduce_async(grad, name, manner.op, manner.process_set)

    def arrive(reduced: torch.Tensor) -> None:
        p.grad = reduced

    return Travel([index], result, arrive)


def send_bucket(bucket: Bucket, manner: Manner, places: Sequence[int] | None, awaited: bool) -> Travel:
    """Sends the gradients of a bucket's members, or of those at these places."""
    flat = bucket.load(places)
    indices = bucket.indices if places is None else [bucket.indices[place] for place in places]
    handle = _reduce(flat, bucket.name, manner, awaited)
    return Travel(indices, lambda: _handles.synchronize(handle), lambda _: bucket.arrive(), handle)


def send(p: torch.Tensor, index: int, name: str, manner: Manner, awaited: bool) -> Travel:
    """Sends one dense gradient: in place if that is possible."""
    grad = gradient_of(p).detach()
    dense, context = (grad.to_dense() if grad.is_sparse else grad).contiguous(), None
    if not is_native(manner.compression):
        dense, context = manner.compression.compress(dense)
    handle = _reduce(dense, name, manner, awaited)

    def arrive(_result: Any) -> None:
        _bring_home(p, dense, context, manner)

    return Travel([index], lambda: _handles.synchronize(handle), arrive, handle)


def _reduce(tensor: torch.Tensor, name: str, manner: Manner, awaited: bool) -> int:
    is_narrow = is_native(manner.compression) and narrows(tensor, manner.compression)
    options = Options(
        name,
        manner.process_set,
        op=manner.op,
        prescale=manner.prescale,
        postscale=manner.postscale,
        wire=wire_of(manner.compression) if is_narrow else None,
        awaited=awaited,
    )
    return _submit.reduce([tensor], options, in_place=True)


def _bring_home(p: torch.Tensor, reduced: torch.Tensor, context: Any, manner: Manner) -> None:
    if not is_native(manner.compression):
        reduced = manner.compression.decompress(reduced, context)
    if p.grad is None or p.grad.is_sparse:
        # Dense from now on, also on ranks that have computed rows: optimizers decide by it what they do.
        p.grad = reduced
    elif reduced.data_ptr() != p.grad.data_ptr():
        with torch.no_grad():
            p.grad.copy_(reduced)
