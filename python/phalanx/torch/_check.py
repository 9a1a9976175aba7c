"""Checks that all ranks have the same parameters, bit for bit.

>>> import torch
>>> import phalanx.torch as hvd
>>> hvd.init()
>>> hvd.check_equal(torch.nn.Linear(2, 1))
"""

from __future__ import annotations

import hashlib
import struct
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from phalanx import _phalanx, _world
from phalanx.exceptions import MismatchError
from phalanx.objects import gather_bytes
from phalanx.process_sets import ProcessSet, global_process_set, set_id
from phalanx.torch._memory import CODES, lend, on_host
from phalanx.torch.functions import described

_Named = Sequence[tuple[str, torch.Tensor]]
#: A rank's number, a digest of what its tensors are, and one of what is in them.
_ROW = struct.Struct("<I8s8s")
#: Rounds between comparisons where `PHALANX_CHECK` says nothing.
_INTERVAL = 100
#: Rounds at the start that are all compared: most mistakes show there.
_EARLY = 8


def check_equal(
    model_or_optimizer: torch.nn.Module | torch.optim.Optimizer | Mapping[str, torch.Tensor],
    process_set: ProcessSet = global_process_set,
) -> None:
    """Returns if all ranks have the same bits; otherwise every rank raises :class:`MismatchError`, which says where they differ.

    For a model, the parameters are compared; for an optimizer, its parameters and its state; for a mapping, such as a
    ``state_dict()``, all tensors. ``PHALANX_CHECK=N`` checks the parameters after every N-th step. Without it,
    the first 8 reductions, 16, 32, 64 and then every 100th check them, and a difference is a warning.
    """
    set_id(process_set)
    if len(process_set.ranks) > 1:
        settings = settings_of(model_or_optimizer)
        _compare(type(model_or_optimizer).__name__, _tensors(model_or_optimizer), process_set, settings)


class Checks:
    """Compares parameters after every N-th step; `PHALANX_CHECK` sets N."""

    def __init__(self, what: str, process_set: ProcessSet) -> None:
        self._what, self._set = what, process_set
        self._age, self._n_steps = -1, 0

    def step(self, named: Callable[[], _Named]) -> None:
        """Counts a step."""
        if self._age != _world.age():
            # Ranks that were apart before count together again.
            self._age, self._n_steps = _world.age(), 0
        self._n_steps += 1
        interval = _phalanx.check_every()
        if interval and self._n_steps % interval == 0:
            _compare(f"{self._what}, step {self._n_steps}", named(), self._set)


class Glances:
    """Compares parameters from round to round, at ever greater distances and then in every 100th, where `PHALANX_CHECK` says nothing.

    A difference is a warning: ranks on unlike processors may differ in the last bit of a step. All ranks are in a round together, so
    nobody waits for a rank that does something else. The first round comes before the first step and shows whether parameters were
    broadcast.
    """

    def __init__(self, what: str, process_set: ProcessSet) -> None:
        self._what, self._set = what, process_set
        self._age, self._n_rounds = -1, 0
        self._has_warned = self._is_suspicious = False

    def suspect(self) -> None:
        """Something happened after which ranks may differ: the next round compares."""
        self._is_suspicious = True

    def is_time(self) -> bool:
        """Whether this rank wants to compare in this round."""
        if self._age != _world.age():
            self._age, self._n_rounds, self._has_warned = _world.age(), 0, False
        if self._has_warned or _phalanx.check_every() is not None:
            return False
        n = self._n_rounds
        # Short jobs are over before the 100th.
        is_early = n < _EARLY or (n < _INTERVAL and n & (n + 1) == 0)
        return self._is_suspicious or is_early or n % _INTERVAL == 0

    def round(self, compares: bool, name: str, named: Callable[[], _Named]) -> None:
        """All ranks have reduced the gradients of another pass, and one of them may want to compare."""
        self._n_rounds += 1
        self._is_suspicious = False
        if not compares:
            return
        try:
            _compare(f"{self._what}, reduction {self._n_rounds}", named(), self._set, name=name)
        except MismatchError as why:
            self._has_warned = True
            if _phalanx.place()[0] == min(why.ranks or self._set.ranks):
                remedy = "PHALANX_CHECK=N makes this an error, after every N-th step; PHALANX_CHECK=0 turns it off."
                warnings.warn(f"{why} {remedy}", stacklevel=2)


def _tensors(of: Any) -> _Named:
    if isinstance(of, torch.nn.Module):
        return list(of.named_parameters())
    if isinstance(of, torch.optim.Optimizer):
        return [named for i, group in enumerate(of.param_groups) for named in _of_group(of, i, group)]
    if isinstance(of, Mapping) and all(isinstance(t, torch.Tensor) for t in of.values()):
        return sorted(of.items())
    raise ValueError(
        f"check_equal takes a model, an optimizer or a mapping of names to tensors, not a {type(of).__name__}"
    )


def _of_group(optimizer: torch.optim.Optimizer, i: int, group: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    names: dict[torch.Tensor, str] = getattr(optimizer, "_parameter_names", {})
    named: list[tuple[str, torch.Tensor]] = []
    for j, p in enumerate(group["params"]):
        name = names.get(p, f"parameter {i}.{j}")
        state = optimizer.state.get(p, {})
        named += [(name, p), *((f"{key} of {name}", t) for key, t in state.items() if isinstance(t, torch.Tensor))]
    return named


#: Options that choose between ways to compute the same.
_WAYS = ("capturable", "differentiable", "foreach", "fused")


def settings_of(of: Any) -> list[str]:
    """The options of an optimizer, such as learning rates."""
    if not isinstance(of, torch.optim.Optimizer):
        return []
    return [
        f"{key} of group {i} = {value!r}"
        for i, group in enumerate(of.param_groups)
        for key, value in ((key, _plain(value)) for key, value in sorted(group.items()) if key in of.defaults)
        if key not in _WAYS and isinstance(value, (bool, int, float, str, tuple))
    ]


def _plain(value: Any) -> Any:
    """Rates may be tensors of one element."""
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _compare(
    what: str, named: _Named, process_set: ProcessSet, settings: Sequence[str] = (), *, name: str = "check_equal"
) -> None:
    usable = [(of, t) for of, t in named if t.dtype in CODES and t.layout is torch.strided]
    hosted = [on_host(t.detach()) for _, t in usable]
    digests = _phalanx.digests([lend(t) for t in hosted])
    kinds = [described(of, t) for of, t in usable] + list(settings)
    digests += [0] * len(settings)
    me = _phalanx.place()[0]
    parts = [_short("\n".join(kinds).encode()), _short(struct.pack(f"<{len(digests)}Q", *digests))]
    rows = list(_ROW.iter_unpack(gather_bytes(_ROW.pack(me, *parts), name, process_set)))
    if len({row[1:] for row in rows}) == 1:
        return
    # Only now all digests travel.
    text = "\n".join(f"{digest:016x} {kind}" for digest, kind in zip(digests, kinds, strict=True))
    block = text.encode()
    answers = gather_bytes(struct.pack("<IQ", me, len(block)) + block, f"{name}.all", process_set)
    _raise(what, _blocks(answers))


def _short(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _blocks(data: bytes) -> dict[int, list[tuple[str, str]]]:
    """For each rank, digest and description of each of its tensors."""
    blocks: dict[int, list[tuple[str, str]]] = {}
    at, head = 0, struct.Struct("<IQ")
    while at < len(data):
        rank, n = head.unpack_from(data, at)
        at += head.size
        lines = data[at : at + n].decode().splitlines()
        blocks[rank] = [(line[:16], line[17:]) for line in lines]
        at += n
    return blocks


def _raise(what: str, blocks: dict[int, list[tuple[str, str]]]) -> None:
    a, *others = sorted(blocks)
    for i, (digest, kind) in enumerate(blocks[a]):
        for b in others:
            theirs = blocks[b][i] if i < len(blocks[b]) else ("nothing", "no such tensor")
            if theirs == (digest, kind):
                continue
            name = kind.split(" [")[0]
            if theirs[1] != kind:
                text = f"rank {a} has {kind} where rank {b} has {theirs[1]}"
            else:
                unlike = [str(r) for r in blocks if i >= len(blocks[r]) or blocks[r][i][0] != digest]
                listed = f"rank {b}" if len(unlike) == 1 else f"ranks {', '.join(unlike)}"
                text = (
                    f"{kind} is {digest} on rank {a} and {theirs[0]} on {listed if len(unlike) == 1 else f'rank {b}'}"
                )
                text += "" if len(unlike) == 1 else f" ({listed} differ from rank {a})"
            raise MismatchError(
                f"{what}: ranks have different values: {text}. Look for code that runs differently on some ranks: random numbers, changes "
                "of parameters outside of the optimizer, or parameters that were not broadcast at the start (broadcast_parameters).",
                ranks=(a, b),
                tensor=name,
            )
    longer = next(b for b in others if len(blocks[b]) > len(blocks[a]))
    kind = blocks[longer][len(blocks[a])][1]
    text = f"{what}: rank {longer} has {kind}, which rank {a} does not have. Build the same on every rank."
    raise MismatchError(text, ranks=(a, longer), tensor=kind.split(" [")[0])


__all__ = ["check_equal"]
