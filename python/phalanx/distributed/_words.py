"""What ranks tell each other in words: the same exchange on all ranks, also if one of them has failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from phalanx import _world
from phalanx.exceptions import MismatchError, SessionError
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


def check_hooks(told: list[list[tuple[str, str]]]) -> None:
    """Refuses hooks of a rank that would not act: ``"chief"``: rank 0 alone acts on it; ``"all"``: all ranks take part in it."""
    chief = [tuple(one) for one in told[0]]
    for rank, each in enumerate(told):
        own = [tuple(one) for one in each]
        for kind, name in own:
            if kind == "chief" and (kind, name) not in chief:
                raise SessionError(
                    f"hooks of rank {rank} has a {name}, and rank 0, which alone acts on it, has not: give all ranks the same hooks",
                    rank=rank,
                )
        for name in sorted({name for kind, name in (*own, *chief) if kind == "all"}):
            if own.count(("all", name)) != chief.count(("all", name)):
                numbers = f"{own.count(('all', name))} times on rank {rank}, {chief.count(('all', name))} times on rank 0"
                raise SessionError(f"hooks has {name} {numbers}: all ranks take part in it; give it to all of them", rank=rank)


def check_settings(told: list[Mapping[str, str]], of: str) -> None:
    """Refuses arguments that ranks have not alike.

    >>> check_settings([{"num_epochs": "3"}, {"num_epochs": "5"}], "trainers")
    Traceback (most recent call last):
    phalanx.exceptions.MismatchError: num_epochs is 3 on rank 0 and 5 on rank 1: give the trainers of all ranks the same arguments
    """
    for rank, each in enumerate(told):
        for name, value in told[0].items():
            if each.get(name) != value:
                text = f"{name} is {value} on rank 0 and {each.get(name)} on rank {rank}"
                raise MismatchError(f"{text}: give the {of} of all ranks the same arguments", ranks=(0, rank))


__all__ = ["check_alike", "check_hooks", "check_settings", "exchanged"]
