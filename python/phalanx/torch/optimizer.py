"""An optimizer whose gradients are everybody's.

>>> import torch
>>> import phalanx.torch as hvd
>>> hvd.init()
>>> model = torch.nn.Linear(2, 1)
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
>>> isinstance(optimizer, torch.optim.SGD)
True
>>> model(torch.ones(1, 2)).sum().backward()
>>> optimizer.step()
>>> optimizer.zero_grad(set_to_none=True)
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from phalanx import _phalanx, _world
from phalanx._accord import Accord
from phalanx._arguments import checked_op
from phalanx.exceptions import PhalanxError
from phalanx.process_sets import ProcessSet, global_process_set
from phalanx.reductions import Adasum, Average
from phalanx.torch._gradients import Manner, Travel, gradient_of, send, send_sparse, wait_for_all
from phalanx.torch._hooks import on_gradient
from phalanx.torch.adasum_optimizer import AdasumOptimizer
from phalanx.torch.compression import Compression, Compressor
from phalanx.torch.functions import described

_Parameter = torch.Tensor
_alive: weakref.WeakSet[_DistributedOptimizer] = weakref.WeakSet()


def _forget_travels() -> None:
    """What was under way ended with the engine."""
    for optimizer in _alive:
        optimizer._reset()


_world._at_shutdown.append(_forget_travels)


class _DistributedOptimizer(torch.optim.Optimizer):
    """What is added to the class of the wrapped optimizer."""

    def _start(
        self,
        names: dict[_Parameter, str],
        manner: Manner,
        backward_passes_per_step: int,
        groups: list[list[_Parameter]],
    ) -> None:
        self._parameter_names = names
        self._manner = manner
        self.backward_passes_per_step = backward_passes_per_step
        self.process_set = manner.process_set
        self._members: dict[_Parameter, int] = {p: i for i, group in enumerate(groups) for p in group}
        self._groups = groups
        #: Parameters whose gradient was computed since the last step, and its travel once it began.
        self._handles: dict[_Parameter, Travel | None] = {}
        self._allreduce_delay: dict[_Parameter, int] = {}
        self._requires_update: list[_Parameter] = []
        self._sparse: set[_Parameter] = set()
        self._synchronized = False
        self._should_synchronize = True
        self._is_syncing = True
        self._hooks: list[Any] = []
        self._accord = Accord("DistributedOptimizer", self._lines, manner.process_set)
        _alive.add(self)
        if manner.process_set.included() and len(manner.process_set.ranks) > 1:
            self._register_hooks()

    def _register_hooks(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.requires_grad:
                    self._requires_update.append(p)
                    self._allreduce_delay[p] = self.backward_passes_per_step
                    self._hooks.append(on_gradient(p, self._on_gradient))

    def _lines(self) -> list[str]:
        """What must be equal on all ranks."""
        groups = {p: f", group {self._members[p]}" if p in self._members else "" for p in self._requires_update}
        return [described(self._parameter_names[p], p) + group for p, group in groups.items()]

    def _on_gradient(self, p: _Parameter) -> None:
        if not self._is_syncing:
            return
        if self._allreduce_delay[p] <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). "
                "Increase backward_passes_per_step to accumulate gradients locally, or use no_sync()."
            )
        if p.grad is not None and p.grad.is_sparse:
            self._sparse.add(p)
        self._allreduce_delay[p] -= 1
        self._handles[p] = None
        if self._allreduce_delay[p] == 0:
            try:
                self._send(p)
            except PhalanxError:
                # The next pass begins anew.
                self._reset()
                raise
        if len(self._handles) == len(self._requires_update) and not any(self._allreduce_delay.values()):
            # Whoever clips or unscales gradients after backward() finds them reduced.
            torch.autograd.Variable._execution_engine.queue_callback(self._wait)

    def _send(self, p: _Parameter) -> None:
        if not self._accord.is_reached():
            # The first time only; whoever waits for it sends it.
            return
        if p in self._sparse and not self._manner.sparse_as_dense:
            self._handles[p] = send_sparse(p, self._parameter_names[p], self._manner)
            return
        index = self._members.get(p)
        if index is None:
            self._handles[p] = send([p], self._parameter_names[p], self._manner, grouped=False)
            return
        group = [q for q in self._groups[index] if q not in self._sparse or self._manner.sparse_as_dense]
        if all(self._allreduce_delay[q] == 0 for q in group):
            travel = send(group, f"group.{index}", self._manner, grouped=True)
            self._handles.update(dict.fromkeys(group, travel))

    def _wait(self) -> None:
        try:
            self._accord.wait()
            for p in [p for p, travel in self._handles.items() if travel is None and self._allreduce_delay[p] == 0]:
                if self._handles[p] is None:
                    self._send(p)
            wait_for_all(travel for travel in self._handles.values() if travel is not None)
        except PhalanxError:
            # The next pass begins anew.
            self._reset()
            raise

    def synchronize(self) -> None:
        """Waits until all gradients are reduced. :meth:`step` does it, unless it is in :meth:`skip_synchronize`."""
        if not self._requires_update:
            self._synchronized = True
            return
        try:
            self._accord.wait()
            late = [p for p in self._requires_update if self._handles.get(p) is None]
            for p in late:
                # Other ranks may have computed it; and whoever waits for the passes that are missing waits for nothing.
                gradient_of(p)
                self._allreduce_delay[p] = 0
            for p in late:
                if self._handles.get(p) is None:
                    self._send(p)
            self._wait()
        finally:
            self._reset()
        self._synchronized = True

    def _reset(self) -> None:
        self._handles.clear()
        for p in self._allreduce_delay:
            self._allreduce_delay[p] = self.backward_passes_per_step

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In it, :meth:`step` does not synchronize, because the program did."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """In it, gradients are only accumulated; the first backward pass after it reduces their sum."""
        before, self._is_syncing = self._is_syncing, False
        try:
            yield
        finally:
            self._is_syncing = before

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes add up to one step."""
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self.backward_passes_per_step = passes
        for p in self._allreduce_delay:
            self._allreduce_delay[p] = passes

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step with everybody's gradients."""
        if closure is not None:
            return super().step(self._synchronizing(closure))
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
                    "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code.",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        return super().step()

    def _synchronizing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            loss = closure()
            self.synchronize()
            self._synchronized = False
            return loss

        return call

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the wrapped optimizer's; not between a backward pass and its step."""
        if self._handles:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As the wrapped optimizer's; forgets gradients that are under way."""
        for travel in self._handles.values():
            if travel is not None:
                travel.forget()
        self._reset()
        self._synchronized, self._should_synchronize = False, True
        super().load_state_dict(*args, **kwargs)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Wraps an optimizer: gradients are reduced over all ranks as they are computed, while others still are.

    The result is an instance of the wrapped optimizer's class and shares its state and its parameters.

    * ``backward_passes_per_step``: gradients of so many passes are added up before they travel; see also ``no_sync()``.
    * ``gradient_predivide_factor``: averages divide by it before the sum, and by the rest after it.
    * ``groups``: number of groups, or lists of parameters, whose gradients travel together.
    * ``sparse_as_dense``: sparse gradients are made dense before they travel.
    * ``op=Adasum``: reduces the change that each rank's own step makes, instead of gradients.
    """
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    op = checked_op(op)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    names = _names(optimizer, named_parameters)
    if num_groups:
        warnings.warn("Parameter `num_groups` is replaced by `groups`.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    own = {p for group in optimizer.param_groups for p in group["params"]}
    grouped = _grouped(groups, {p: name for p, name in names.items() if p in own})
    manner = Manner(
        compression=compression,
        op=op,
        prescale=1.0 / gradient_predivide_factor,
        postscale=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    if op == Adasum and _phalanx.place()[1] > 1:
        if process_set.process_set_id != 0:
            raise NotImplementedError("Adasum does not support non-global process sets yet.")
        adasum: AdasumOptimizer = _wrapped(optimizer, AdasumOptimizer)
        adasum._start(names, compression)
        return adasum
    wrapped: _DistributedOptimizer = _wrapped(optimizer, _DistributedOptimizer)
    wrapped._start(names, manner, backward_passes_per_step, grouped)
    return wrapped


def _wrapped(optimizer: torch.optim.Optimizer, addition: type) -> Any:
    """The same optimizer as an instance of its class with an addition."""
    if isinstance(optimizer, (_DistributedOptimizer, AdasumOptimizer)):
        raise ValueError("the optimizer is distributed already")
    kind = optimizer.__class__
    made: Any = type(kind.__name__, (addition, kind), {"__module__": kind.__module__})
    wrapped = made.__new__(made)
    wrapped.__dict__.update(optimizer.__dict__)
    # Schedulers replace it in the instance, where it would hide ours.
    wrapped.__dict__.pop("step", None)
    return wrapped


def _names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[_Parameter, str]:
    if named_parameters is None:
        return {
            p: f"noname.{i}.{j}"
            for i, group in enumerate(optimizer.param_groups)
            for j, p in enumerate(group["params"])
        }
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually "
            "produced by model.named_parameters()."
        )
    counts: dict[str, int] = {}
    for name, _ in named:
        counts[name] = counts.get(name, 0) + 1
    twice = sorted(name for name, n in counts.items() if n > 1)
    if twice:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}")
    names = {p: name for name, p in named}
    unnamed = sum(p not in names for group in optimizer.param_groups for p in group["params"])
    if unnamed:
        raise ValueError(
            f"named_parameters was specified, but {unnamed} of the optimizer's parameters have no name in it. "
            "Pass all of model.named_parameters(), or leave it out."
        )
    return names


def _grouped(
    groups: int | Sequence[Sequence[torch.Tensor]] | None, names: dict[_Parameter, str]
) -> list[list[_Parameter]]:
    if groups is None:
        return []
    if isinstance(groups, int):
        if groups <= 0:
            raise ValueError("groups should be a positive integer or a list of lists of torch.Tensor.")
        ps = [p for p in names if p.requires_grad]
        n = min(groups, len(ps))
        return [ps[len(ps) * i // n : len(ps) * (i + 1) // n] for i in range(n)]
    if not isinstance(groups, (list, tuple)):
        raise ValueError("groups should be a positive integer or a list of lists of torch.Tensor.")
    seen: set[_Parameter] = set()
    for group in groups:
        for p in group:
            if not isinstance(p, torch.Tensor):
                raise ValueError("groups must consist of torch.Tensor.")
            if p in seen:
                raise ValueError("A parameter can only appear once in groups.")
            seen.add(p)
    return [[p for p in group if p.requires_grad and p in names] for group in groups]


__all__ = ["DistributedOptimizer"]
