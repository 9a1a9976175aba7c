"""Hosts, their slots, and which rank runs where, for programs that start Horovod themselves.

>>> slots = get_host_assignments(parse_hosts("a:2,b:1"), 3)
>>> [(slot.hostname, slot.rank, slot.local_rank, slot.cross_rank) for slot in slots]
[('a', 0, 0, 0), ('a', 1, 1, 0), ('b', 2, 0, 1)]
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class HostInfo:
    """A host and how many ranks it takes."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Reads ``host:slots``."""
        name, slots = _entry(host_string)
        return HostInfo(name, slots)


@dataclass
class SlotInfo:
    """The place of one rank."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """The numbers, as Horovod's rendezvous sends them."""
        numbers = (self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size)
        return ",".join(map(str, numbers))


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def _entry(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"([\w.-]+|\[[0-9a-fA-F:.%\w]+\]):([0-9]+)", text.strip())
    if found is None:
        raise ValueError(f"{text.strip()!r} is not a host with its slots; write e.g. node1:4,node2:4")
    return found[1], int(found[2])


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """The names in ``a:2,b:2`` in their order, and the slots of each."""
    entries = [_entry(entry) for entry in hosts.split(",")]
    return [name for name, _ in entries], dict(entries)


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Reads ``a:2,b:2``."""
    return [HostInfo(name, slots) for name, slots in map(_entry, hosts_string.split(","))]


def parse_host_files(filename: str | os.PathLike[str]) -> str:
    """A file with lines ``host slots=N`` as ``host:N,...``; ``#`` begins a comment."""
    entries = []
    with open(filename, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            slots = [word.partition("=")[2] for word in words[1:] if word.startswith("slots=")]
            if len(slots) != 1 or not slots[0].isdecimal():
                raise ValueError(f"{filename} line {number}: write a host and its slots, e.g. {words[0]} slots=4")
            entries.append(f"{words[0]}:{slots[0]}")
    return ",".join(entries)


def get_host_assignments(hosts: Sequence[HostInfo], min_np: int, max_np: int | None = None) -> list[SlotInfo]:
    """Fills the hosts' slots in the order given, with at least ``min_np`` ranks and at most ``max_np``."""
    left = sum(host.slots for host in hosts)
    if left < min_np:
        raise ValueError(
            f"{min_np} ranks do not fit into the {left} slots of the hosts; give more slots or fewer ranks"
        )
    left = left if max_np is None else min(left, max_np)
    size, n_local = left, []
    for host in hosts:
        n_local.append(min(host.slots, left))
        left -= n_local[-1]
    slots: list[SlotInfo] = []
    for i, host in enumerate(hosts):
        for local_rank in range(n_local[i]):
            peers = [j for j, n in enumerate(n_local) if n > local_rank]
            place = (len(slots), local_rank, peers.index(i), size, n_local[i], len(peers))
            slots.append(SlotInfo(host.hostname, *place))
    return slots


__all__ = [
    "INVALID_SLOT_INFO",
    "HostInfo",
    "SlotInfo",
    "get_host_assignments",
    "parse_host_files",
    "parse_hosts",
    "parse_hosts_and_slots",
]
