"""An optimizer whose gradients are reduced over all ranks.

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

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from phalanx import _phalanx
from phalanx._arguments import checked_op, checked_passes
from phalanx.process_sets import ProcessSet, global_process_set, set_id
from phalanx.reductions import Adasum, Average, Sum
from phalanx.torch import _check
from phalanx.torch._gradients import Manner, gradient_of
from phalanx.torch._reducer import Grouping, Reducer, default_cap
from phalanx.torch._wrapping import Uncopied, same_groups, warn_outsider, weakly
from phalanx.torch.adasum_optimizer import AdasumOptimizer
from phalanx.torch.collectives import allreduce
from phalanx.torch.compression import Compression, Compressor

_Parameter = torch.Tensor


class _DistributedOptimizer(Uncopied):
    """What is added to the class of the wrapped optimizer."""

    _unwrapped: torch.optim.Optimizer

    def _start(self, names: dict[_Parameter, str], manner: Manner, passes: int, grouping: Grouping) -> None:
        self._parameter_names = names
        self._manner = manner
        self.op, self._compression, self.process_set = manner.op, manner.compression, manner.process_set
        self.sparse_as_dense, self.gradient_predivide_factor = manner.sparse_as_dense, manner.postscale
        self._synchronized = False
        self._should_synchronize = True
        self._followed: list[int] = []
        self._checks = _check.Checks("DistributedOptimizer", manner.process_set)
        settings = weakly(self, _check.settings_of)
        self._reducer = Reducer(
            "DistributedOptimizer", manner, default_cap(), grouping, passes=passes, settings=settings
        )
        self._is_alone = len(manner.process_set.ranks) == 1 or not manner.process_set.included()
        warn_outsider("DistributedOptimizer", manner.process_set)
        if not self._is_alone:
            self._follow()

    def _follow(self) -> None:
        """Registers all parameters, including those that were just added."""
        before, self._followed = set(self._followed), self._ids()
        own = [(i, j, p) for i, group in enumerate(self.param_groups) for j, p in enumerate(group["params"])]
        for i, j, p in own:
            if p not in self._parameter_names:
                self._parameter_names[p] = f"added.{i}.{j}"
            if p.requires_grad and id(p) not in before:
                # As with Horovod, whose scripts read gradients before the first pass.
                gradient_of(p)
        self._reducer.adopt((self._parameter_names[p], p) for _, _, p in own)

    def _ids(self) -> list[int]:
        return [id(p) for group in self.param_groups for p in group["params"]]

    def _follow_changes(self) -> None:
        """Follows changes in the parameter groups: programs also write to these lists."""
        if not self._is_alone and self._ids() != self._followed:
            self._follow()

    def _let_go(self, leaving: set[int]) -> None:
        """Watches these parameters, by identity, no more: they go to servers."""
        if not self._is_alone:
            own = [p for group in self.param_groups for p in group["params"] if id(p) not in leaving]
            self._reducer.adopt((self._parameter_names[p], p) for p in own)

    def _follow_class(self) -> None:
        """The wrapped optimizer's tables went to servers: it is of another class now, and has fewer parameters, or none to reduce."""
        kind = self._unwrapped.__class__
        self.__class__ = type(kind.__name__, (_DistributedOptimizer, kind), {"__module__": kind.__module__})
        self._follow_changes()
        self._is_alone = self._is_alone or not self._ids()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the wrapped optimizer's; their gradients are reduced from the next pass on. All ranks add the same."""
        super().add_param_group(param_group)
        if not self._is_alone:
            self._follow()

    @property
    def backward_passes_per_step(self) -> int:
        """The number of backward passes that add up to one step."""
        return self._reducer.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """The number of backward passes that add up to one step."""
        self._reducer.passes = checked_passes(passes)

    @property
    def _requires_update(self) -> set[_Parameter]:
        return {p for group in self.param_groups for p in group["params"] if p.requires_grad}

    @property
    def _handles(self) -> dict[_Parameter, Any]:
        return dict(self._reducer.under_way())

    def synchronize(self) -> None:
        """Waits until all gradients are reduced. They are when ``backward()`` returns, unless it used only some parameters.

        :meth:`step` calls it, except inside :meth:`skip_synchronize`.
        """
        if not self._is_alone:
            self._follow_changes()
            self._reducer.complete()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which :meth:`step` does not synchronize, because the program has called :meth:`synchronize`."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which gradients are only accumulated; the first backward pass after it reduces their sum."""
        with self._reducer.no_sync():
            yield

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step with the reduced gradients.

        The loss that a ``closure`` returns is reduced like the gradients, so that an optimizer that uses it, such as LBFGS,
        decides the same on all ranks.
        """
        if closure is not None:
            result: Any = super().step(self._synchronizing(closure))
        else:
            if self._should_synchronize:
                self.synchronize()
            elif not self._synchronized and not self._is_alone:
                raise ValueError(
                    "skip_synchronize() is for a step after synchronize(): call optimizer.synchronize() first"
                )
            if not self._is_alone:
                self._reducer.look_at_gradients()
            result = super().step()
        # A scheduler that was made before the optimizer was wrapped looks there.
        self._unwrapped._opt_called = True  # type: ignore[attr-defined]
        self._synchronized = False
        if not self._is_alone:
            self._reducer.step_done()
            self._checks.step(self._named)
        return result

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        return [(self._parameter_names[p], p) for group in self.param_groups for p in group["params"]]

    def _synchronizing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            loss = closure()
            if self._is_alone:
                return loss
            self._reducer.complete()
            self._reducer.pass_done()
            return self._everybodys(loss)

        return call

    def _everybodys(self, loss: Any) -> Any:
        if loss is None:
            return None
        value = torch.as_tensor(loss).detach()
        op = self.op if self.op == Sum else Average
        reduced = allreduce(value.clone(), name="DistributedOptimizer.loss", op=op, process_set=self.process_set)
        return reduced if isinstance(loss, torch.Tensor) else reduced.item()

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the wrapped optimizer's. After a backward pass without a step it discards the pass; all ranks must do so, or none."""
        if not self._is_alone:
            self._follow_changes()
            self._reducer.leave_out()
        self._synchronized = False
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As the wrapped optimizer's; drops pending reductions."""
        if self._handles:
            self._reducer.forget()
        self._synchronized, self._should_synchronize = False, True
        with same_groups(self):
            super().load_state_dict(*args, **kwargs)


# The step of the wrapped class calls the hooks of a step; torch must not add them to this one as well.
_DistributedOptimizer.step.hooked = True  # type: ignore[attr-defined]


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
    """Wraps an optimizer: gradients are reduced over all ranks while the backward pass computes others.

    The result is an instance of the wrapped optimizer's class and shares its state and its parameters. When ``backward()``
    returns, all gradients are reduced, whichever parameters each rank has used, and can be clipped, unscaled or read.
    Parameters that are unfrozen or added later are included.

    Dense gradients are reduced in buckets of at most 8 MB or ``PHALANX_FUSION_BYTES``, in the order in which the first pass
    computed them; a bucket has the name of its first parameter and the number of the others. Each gradient is a view of its
    bucket's memory; one that the program holds stays valid. Sparse gradients are sent as rows.

    * ``compression``: the type in which dense gradients are sent; sparse ones are not compressed.
    * ``backward_passes_per_step``: the number of passes whose gradients are added up before they are reduced; see also ``no_sync()``.
    * ``gradient_predivide_factor``: for averages, gradients are divided by it before the sum and by size / factor after it.
    * ``groups``: number of groups, or lists of parameters, whose gradients are reduced together.
    * ``sparse_as_dense``: sparse gradients are made dense before they are reduced.
    * ``op=Adasum``: reduces the change that each rank's own step makes, instead of gradients.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"DistributedOptimizer wraps a torch.optim.Optimizer, not a {type(optimizer).__name__}: make the optimizer of "
            "model.parameters() first. DistributedDataParallel wraps models."
        )
    passes = checked_passes(backward_passes_per_step)
    op = checked_op(op)
    set_id(process_set)
    if not 0.0 < gradient_predivide_factor < math.inf:
        raise ValueError(f"gradient_predivide_factor must be a number > 0, not {gradient_predivide_factor!r}")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor works only with averages: leave it out, or use op=Average")
    names = _names(optimizer, named_parameters)
    if num_groups:
        warnings.warn("num_groups is deprecated: pass groups=", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    own = {p for group in optimizer.param_groups for p in group["params"]}
    grouping = _grouping(groups, own)
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
            raise NotImplementedError(
                "Adasum combines the steps of all ranks: leave process_set out, or use op=Average"
            )
        if groups is not None:
            raise ValueError("Adasum combines all parameters of a step together: leave groups out")
        adasum: AdasumOptimizer = _wrapped(optimizer, AdasumOptimizer)
        adasum._start(names, compression, passes, sparse_as_dense)
        return adasum
    wrapped: _DistributedOptimizer = _wrapped(optimizer, _DistributedOptimizer)
    wrapped._start(names, manner, passes, grouping)
    return wrapped


def _wrapped(optimizer: torch.optim.Optimizer, addition: type) -> Any:
    """The same optimizer as an instance of a subclass of its class."""
    if isinstance(optimizer, (_DistributedOptimizer, AdasumOptimizer)):
        raise ValueError("the optimizer is already distributed: do not wrap it again")
    kind = optimizer.__class__
    made: Any = type(kind.__name__, (addition, kind), {"__module__": kind.__module__})
    wrapped = made.__new__(made)
    wrapped.__dict__.update(optimizer.__dict__)
    # Schedulers replace it in the instance, where it would hide ours.
    wrapped.__dict__.pop("step", None)
    wrapped._unwrapped = optimizer
    return wrapped


def _names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[_Parameter, str]:
    if named_parameters is None:
        return {
            p: f"allreduce.noname.{i}.{j}"
            for i, group in enumerate(optimizer.param_groups)
            for j, p in enumerate(group["params"])
        }
    if isinstance(named_parameters, torch.nn.Module):
        raise ValueError(
            "named_parameters takes pairs of name and parameter: pass model.named_parameters(), not the model"
        )
    named = list(named_parameters)
    for pair in named:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise ValueError(
                f"named_parameters takes tuples of name and parameter, not a {type(pair).__name__}: pass "
                "model.named_parameters()"
            )
    counts: dict[str, int] = {}
    for name, _ in named:
        counts[name] = counts.get(name, 0) + 1
    twice = sorted(name for name, n in counts.items() if n > 1)
    if twice:
        raise ValueError(
            f"named_parameters has these names more than once: {', '.join(twice)}. Every parameter needs its own name: give "
            "those of a second model a prefix"
        )
    names = {p: name for name, p in named}
    unnamed = sum(p not in names for group in optimizer.param_groups for p in group["params"])
    if unnamed:
        raise ValueError(
            f"{unnamed} of the optimizer's parameters have no name in named_parameters: pass all of "
            "model.named_parameters(), or leave it out"
        )
    return names


def _grouping(groups: int | Sequence[Sequence[torch.Tensor]] | None, own: set[_Parameter]) -> Grouping:
    """Which trainable parameters are reduced together."""
    if groups is None:
        return lambda _: ()
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        n_groups = groups

        def parts(ps: Sequence[_Parameter]) -> Sequence[Sequence[_Parameter]]:
            n = min(n_groups, len(ps))
            return [ps[len(ps) * i // n : len(ps) * (i + 1) // n] for i in range(n)]

        return parts
    if isinstance(groups, (int, str)) or not isinstance(groups, Sequence):
        raise ValueError(f"groups must be a positive number of groups or a list of lists of parameters, not {groups!r}")
    lists = [list(group) for group in groups]
    seen: set[_Parameter] = set()
    for p in (p for group in lists for p in group):
        if not isinstance(p, torch.Tensor):
            raise ValueError(f"groups holds a {type(p).__name__} where a parameter belongs: pass lists of torch.Tensor")
        if p not in own:
            raise ValueError(
                f"groups holds a tensor of shape {list(p.shape)} that the optimizer does not have: leave it out"
            )
        if p in seen:
            raise ValueError(f"a parameter of shape {list(p.shape)} is in groups more than once: list it once")
        seen.add(p)

    def listed(ps: Sequence[_Parameter]) -> Sequence[Sequence[_Parameter]]:
        trained = set(ps)
        return [[p for p in group if p in trained] for group in lists]

    return listed


__all__ = ["DistributedOptimizer"]
