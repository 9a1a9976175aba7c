"""What ranks tell each other in words: the same exchange on all ranks, also if one of them has failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from phalanx import _world
from phalanx.exceptions import SessionError
from phalanx.objects import gather_bytes


def exchanged(name: str, mine: Any, failure: Exception | None, what: str) -> list[Any]:
    """What each rank has, in their order. If one has failed instead, it raises its failure, and the others are told of it."""
    if failure is None and _world.size() == 1:
        return [mine]
    word = {"is": mine} if failure is None else {"failed": f"{type(failure).__name__}: {failure}"}
    words = [json.loads(line) for line in gather_bytes(json.dumps(word).encode() + b"\n", name).splitlines()]
    if failure is not None:
        raise failure
    for rank, each in enumerate(words):
        if "failed" in each:
            why = each["failed"]
            raise SessionError(f"{what} failed on rank {rank}: {why}", rank=rank, cause=why)
    return [each["is"] for each in words]


def check_alike(told: list[Mapping[str, str]]) -> None:
    """Refuses objects of which a rank has another digest than rank 0: a checkpoint holds one state for all ranks."""
    for rank, each in enumerate(told):
        odd = next((name for name in {**told[0], **each} if told[0].get(name) != each.get(name)), None)
        if odd is not None:
            raise SessionError(
                f"{odd}, has not the same state on rank {rank} as on rank 0, and a checkpoint holds one for all ranks: use it "
                "alike on all ranks, and give what is random in it a seed",
                rank=rank,
            )


__all__ = ["check_alike", "exchanged"]
