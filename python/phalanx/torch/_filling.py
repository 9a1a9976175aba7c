"""Which parameters share a bucket. The decision needs no communication: ranks with the same inputs decide the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import groupby

import torch


def filled(
    ps: Sequence[torch.Tensor],
    groups: Iterable[Sequence[torch.Tensor]],
    order: Mapping[torch.Tensor, int],
    alone: Set[torch.Tensor],
    cap: int,
) -> list[list[torch.Tensor]]:
    """Groups as they are; the rest of these parameters in the order in which gradients are computed, up to ``cap`` bytes together.

    Parameters that are not in the order get buckets of their own, because they may never be computed. A bucket has one type and one device.
    Parameters in ``alone`` are in no bucket.
    """
    kind = _kind
    lists = []
    grouped: set[torch.Tensor] = set()
    place = {p: i for i, p in enumerate(ps)}
    for group in groups:
        # Ranks may list members in different orders.
        members = sorted((p for p in group if p not in alone), key=lambda p: (str(kind(p)), place[p]))
        lists += [list(part) for _, part in groupby(members, kind)]
        grouped.update(group)
    rest = [p for p in reversed(ps) if p not in grouped and p not in alone]
    known, unknown = [p for p in rest if p in order], [p for p in rest if p not in order]
    known.sort(key=order.__getitem__)
    for part in (known, unknown):
        # A model in two types still has few buckets, although its gradients alternate.
        for of in dict.fromkeys(map(kind, part)):
            lists += _cut([p for p in part if kind(p) == of], cap)
    return [members for members in lists if members]


def _kind(p: torch.Tensor) -> tuple[torch.dtype, torch.device]:
    return p.dtype, p.device


def _cut(ps: Sequence[torch.Tensor], cap: int) -> list[list[torch.Tensor]]:
    """Groups neighbours up to ``cap`` bytes; a larger parameter is alone."""
    lists: list[list[torch.Tensor]] = []
    n_bytes = 0
    for p in ps:
        size = p.numel() * p.element_size()
        if not lists or n_bytes + size > cap:
            lists.append([])
            n_bytes = 0
        lists[-1].append(p)
        n_bytes += size
    return lists
