"""Adasum: every rank makes its own step, and what the steps changed is combined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from phalanx.reductions import Adasum
from phalanx.torch.collectives import grouped_allreduce
from phalanx.torch.compression import Compressor


class AdasumOptimizer(torch.optim.Optimizer):
    """What is added to the class of the wrapped optimizer."""

    def _start(self, names: dict[torch.Tensor, str], compression: type[Compressor]) -> None:
        self._parameter_names = names
        self._compression = compression

    def synchronize(self) -> None:
        """Nothing is under way between steps."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Has no meaning here."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients never travel, so there is nothing to leave out."""
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Gradients add up until the next step, however many passes that are."""
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be > 0")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of this rank's own, combined with everybody's."""
        ps = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        before = [p.detach().clone() for p in ps]
        loss = super().step(closure) if closure is not None else super().step()
        with torch.no_grad():
            changes = [(p.detach() - start).contiguous() for p, start in zip(ps, before, strict=True)]
            combined = grouped_allreduce(changes, name="adasum", op=Adasum, compression=self._compression)
            for p, start, change in zip(ps, before, combined, strict=True):
                p.copy_(start + change)
        return loss
