"""Python objects between ranks. They are pickled, but only between ranks of one world, which share a secret.
``PHALANX_STRICT=1`` forbids even that, because unpickling can run arbitrary code.

>>> import phalanx
>>> phalanx.init()
>>> phalanx.broadcast_object({"lr": 0.1}, root_rank=0)
{'lr': 0.1}
>>> phalanx.allgather_object("here")
['here']
"""

from __future__ import annotations

import pickle
import struct
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from phalanx import _phalanx
from phalanx._arguments import checked_root
from phalanx.exceptions import MismatchError, UnsupportedError
from phalanx.process_sets import ProcessSet, global_process_set, set_id

T = TypeVar("T")


def broadcast_object(
    obj: T, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> T:
    """Returns the object of ``root_rank`` on every rank."""
    _refuse_if_strict("broadcast_object")
    root_rank = checked_root(root_rank, process_set)
    mine, failure = _letter(obj, root_rank, is_sender=_phalanx.place()[0] == root_rank)
    answers = gather_bytes(mine, f"broadcast_object.{name}" if name else None, process_set)
    theirs = _opened(answers, failure, "broadcast_object")
    if root_rank not in theirs:
        text = f"broadcast_object: rank {root_rank} has joined and sends nothing: choose a root that still has data"
        raise MismatchError(text, rank=root_rank)
    return obj if _phalanx.place()[0] == root_rank else pickle.loads(theirs[root_rank])


def allgather_object(obj: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[T]:
    """Returns the objects of all ranks, in rank order."""
    _refuse_if_strict("allgather_object")
    set_id(process_set)
    mine, failure = _letter(obj, _EVERYBODY, is_sender=True)
    answers = gather_bytes(mine, f"allgather_object.{name}" if name else None, process_set)
    return [pickle.loads(theirs) for theirs in _opened(answers, failure, "allgather_object").values()]


#: A rank, the root it names, whether there is an object or the reason why there is none, and how many bytes follow.
_HEAD = struct.Struct("<ii?Q")
_EVERYBODY = -1


def _letter(obj: Any, root: int, is_sender: bool) -> tuple[bytes, Exception | None]:
    """An object as it is sent; if it cannot be pickled, the reason is sent instead, so that no rank waits for it."""
    body, failure = b"", None
    if is_sender:
        try:
            body = _pickled(obj)
        except Exception as error:
            body, failure = f"{type(obj).__name__}: {type(error).__name__}: {error}".encode(), error
    return _HEAD.pack(_phalanx.place()[0], root, failure is None, len(body)) + body, failure


def _opened(answers: bytes, failure: Exception | None, what: str) -> dict[int, bytes]:
    """The pickled objects by rank. If ranks disagree, or one could not send its object, every rank raises the same error."""
    bodies: dict[int, bytes] = {}
    roots: dict[int, int] = {}
    refused: list[tuple[int, str]] = []
    at = 0
    while at < len(answers):
        rank, roots[rank], is_object, n = _HEAD.unpack_from(answers, at)
        at += _HEAD.size
        if not is_object:
            refused.append((rank, answers[at : at + n].decode(errors="replace")))
        elif n:
            bodies[rank] = answers[at : at + n]
        at += n
    a = min(roots)
    b = next((rank for rank in sorted(roots) if roots[rank] != roots[a]), None)
    if b is not None:
        text = f"{what}: rank {a} names root {roots[a]}, rank {b} root {roots[b]}: name the same root on every rank"
        raise MismatchError(text, ranks=(a, b))
    if refused:
        rank, why = refused[0]
        text = f"{what}: rank {rank} cannot send its object ({why}): send objects that can be pickled, such as tensors and numbers"
        raise UnsupportedError(text, rank=rank, cause=why) from failure
    return bodies


def gather_bytes(mine: bytes, name: str | None, process_set: ProcessSet = global_process_set) -> bytes:
    """The bytes of all ranks, in rank order."""
    arrays, _ = _phalanx.submit("allgather", [mine], name=name, process_set=set_id(process_set)).wait()
    return arrays[0].tobytes()


def _refuse_if_strict(what: str) -> None:
    """Raises before anything is sent, and on every rank: a world forms only if all ranks have the same setting."""
    if _phalanx.is_strict():
        raise UnsupportedError(
            f"{what} pickles objects, which PHALANX_STRICT=1 forbids: send tensors or arrays instead, "
            "or unset PHALANX_STRICT on all ranks if every rank may run code on every other"
        )


def _pickled(obj: Any) -> bytes:
    try:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        # Functions and classes that no module names.
        if find_spec("cloudpickle") is None:
            raise
        pickled: bytes = import_module("cloudpickle").dumps(obj)
        return pickled


__all__ = ["allgather_object", "broadcast_object"]
