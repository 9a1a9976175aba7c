"""Adasum: every rank makes its own step, and the changes of all ranks are combined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from phalanx._arguments import checked_passes
from phalanx.exceptions import PhalanxError
from phalanx.process_sets import global_process_set
from phalanx.reductions import Adasum, Max
from phalanx.torch import _check
from phalanx.torch._hooks import can_have_gradient, on_gradient
from phalanx.torch._wrapping import Uncopied, same_groups
from phalanx.torch.collectives import allreduce_, grouped_allreduce
from phalanx.torch.compression import Compressor


class AdasumOptimizer(Uncopied):
    """What is added to the class of the wrapped optimizer."""

    def _start(
        self, names: dict[torch.Tensor, str], compression: type[Compressor], passes: int, sparse_as_dense: bool
    ) -> None:
        self._parameter_names = names
        self._compression = compression
        self.backward_passes_per_step, self.sparse_as_dense = passes, sparse_as_dense
        self.op, self.process_set = Adasum, global_process_set
        self._is_counting = True
        #: How often the gradient of each parameter was computed since the last step.
        self._passes: dict[torch.Tensor, int] = {}
        self._hooks = [on_gradient(p, self._on_gradient) for p in self._ps() if can_have_gradient(p)]
        self._checks = _check.Checks("DistributedOptimizer", self.process_set)
        self._glances = _check.Glances("DistributedOptimizer", self.process_set)

    def _ps(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        return [(self._parameter_names.get(p, f"added.{i}"), p) for i, p in enumerate(self._ps())]

    def _on_gradient(self, p: torch.Tensor) -> None:
        if not self._is_counting:
            return
        self._passes[p] = self._passes.get(p, 0) + 1
        if self._passes[p] > self.backward_passes_per_step:
            raise AssertionError(
                f"backward pass {self._passes[p]} before step(), although a step is made of {self.backward_passes_per_step}: "
                "raise backward_passes_per_step, use no_sync(), or call optimizer.zero_grad() where a step is skipped"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the wrapped optimizer's. All ranks add the same."""
        before = set(self._ps())
        super().add_param_group(param_group)
        added = [p for p in self._ps() if p not in before]
        self._parameter_names.update({p: f"added.{len(before) + i}" for i, p in enumerate(added)})
        self._hooks += [on_gradient(p, self._on_gradient) for p in added if can_have_gradient(p)]

    def synchronize(self) -> None:
        """Does nothing: no operation is pending between steps."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Is an error: with Adasum the step itself communicates."""
        raise AssertionError(
            "with Adasum the step itself communicates, so synchronize() cannot be skipped: call step() outside of "
            "skip_synchronize()"
        )
        yield

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside do not count; Adasum never reduces gradients, so nothing else is skipped."""
        before, self._is_counting = self._is_counting, False
        try:
            yield
        finally:
            self._is_counting = before

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes may add up to one step."""
        self.backward_passes_per_step = checked_passes(passes)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the wrapped optimizer's."""
        self._passes.clear()
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As the wrapped optimizer's."""
        with same_groups(self):
            super().load_state_dict(*args, **kwargs)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes this rank's own step and combines the changes of all ranks."""
        # Frozen ones, too: momentum may still move them.
        ps = [p for p in self._ps() if can_have_gradient(p)]
        if self.sparse_as_dense:
            for p in ps:
                if p.grad is not None and p.grad.is_sparse:
                    p.grad = p.grad.to_dense()
        before = [p.detach().clone() for p in ps]
        loss = super().step(closure) if closure is not None else super().step()
        self._passes.clear()
        with torch.no_grad():
            changes = [(p.detach() - start).contiguous() for p, start in zip(ps, before, strict=True)]
            try:
                combined = grouped_allreduce(changes, name="adasum", op=Adasum, compression=self._compression)
            except PhalanxError:
                for p, start in zip(ps, before, strict=True):
                    p.copy_(start)
                raise
            for p, start, change in zip(ps, before, combined, strict=True):
                p.copy_(start + change)
        self._checks.step(self._named)
        # Ranks that have joined or left may count otherwise: all compare if one of them wants to.
        compares = torch.tensor([int(self._glances.is_time())], dtype=torch.uint8)
        allreduce_(compares, name="adasum.compares", op=Max, process_set=self.process_set)
        self._glances.round(bool(compares.item()), "adasum.parameters", self._named)
        return loss


# The step of the wrapped class calls the hooks of a step; torch must not add them to this one as well.
AdasumOptimizer.step.hooked = True  # type: ignore[attr-defined]
