"""A rank that has joined, beside tables on servers."""

from __future__ import annotations

import threading

import torch

from phalanx.torch import _memory
from phalanx.torch._served_table import Table
from phalanx.torch.collectives import allgather


class Attendance:
    """A rank that has joined: it pushes no rows in every step that the others make.

    It is one step ahead of them at most: after each push it waits for the version that needs theirs. When all have joined, those that are
    behind make up for that step, and all count alike again.
    """

    def __init__(self, tables: list[Table]) -> None:
        self._tables = [table for table in tables if table.is_trained]
        self._steps = [table.core.step(table.number) for table in self._tables]
        self._lock, self._has_ended = threading.Lock(), False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="phalanx-joined", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while self._push():
                for table, step in zip(self._tables, self._steps, strict=True):
                    row = torch.empty((1, table.width), dtype=table.dtype)
                    table.core.pull(
                        table.number, step, _memory.lend(torch.zeros(1, dtype=torch.int64)), _memory.lend(row)
                    )
        except Exception as error:
            self._error = error

    def _push(self) -> bool:
        with self._lock:
            if self._has_ended:
                return False
            for i, table in enumerate(self._tables):
                table.attend()
                self._steps[i] += 1
        return True

    def end(self) -> None:
        """All ranks have joined: they agree on the step, and go on together."""
        with self._lock:
            self._has_ended = True
        every = allgather(torch.tensor([self._steps]), name="served.joined")
        # First: the version that the thread of a rank behind waits for needs no more pushes, and goes with the next one.
        self._thread.join()
        for table, have, wanted in zip(self._tables, self._steps, every.amax(0).tolist(), strict=True):
            for _ in range(wanted - have):
                table.attend()
        if self._error is not None:
            raise self._error
