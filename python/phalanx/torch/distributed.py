"""A model whose gradients are averaged over all ranks, with the interface of torch's class.

>>> import torch
>>> import phalanx.torch as hvd
>>> hvd.init()
>>> model = hvd.DistributedDataParallel(torch.nn.Linear(2, 1))
>>> model(torch.ones(1, 2)).sum().backward()
>>> model.module.weight.grad
tensor([[1., 1.]])
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch

from phalanx._accord import Accord
from phalanx.process_sets import ProcessSet, global_process_set, set_id
from phalanx.reductions import Average
from phalanx.torch import _check
from phalanx.torch._gradients import Manner
from phalanx.torch._reducer import Reducer, default_cap
from phalanx.torch._wrapping import warn_outsider
from phalanx.torch.compression import Compression, Compressor
from phalanx.torch.functions import broadcast_parameters, broadcast_tensors, described

#: Words of torch's class for which there is nothing here, and why.
_ELSEWHERE = {
    "batched_grad_copy": "gradients are always views of bucket memory",
    "bucket_cap_mb_list": "all buckets have one limit: pass bucket_cap_mb",
    "delay_all_reduce_named_params": "gradients are reduced as soon as they are computed",
    "device_mesh": "pass process_set",
    "forward_sync_buffers": "pass broadcast_buffers",
    "lazy_bucket_allocation": "buckets allocate their memory when the first pass ends",
    "mixed_precision": "use torch.autocast, or compression=Compression.fp16 to send fewer bits",
    "param_to_hook_all_reduce": "gradients are reduced as soon as they are computed",
    "skip_all_reduce_unused_params": "gradients that no rank has computed are never sent",
}


#: How many parameters and layers models of this process were given so far.
_n_registered = 0


def _count_registration(_module: torch.nn.Module, _name: str, _given: Any) -> None:
    global _n_registered
    _n_registered += 1


torch.nn.modules.module.register_module_parameter_registration_hook(_count_registration)
torch.nn.modules.module.register_module_module_registration_hook(_count_registration)


class DistributedDataParallel(torch.nn.Module):
    """Wraps a model: all ranks start with rank 0's parameters, and every backward pass ends with averaged gradients.

    Gradients travel in buckets of at most ``bucket_cap_mb`` (default 8, or less by ``PHALANX_FUSION_BYTES``), in the order in which the
    first pass computed them, while others are still computed. Large gradients are parts of their bucket's memory; one that the program
    holds stays what it is. Sparse gradients travel as rows. Parameters that a pass does not use count as zero; if no rank uses them,
    they are left alone. They are always found, so ``find_unused_parameters`` makes no difference. Parameters that are unfrozen, or
    given to the model, later are followed. ``init_sync=False`` leaves the parameters at the start as they are.
    """

    _ids: list[int]
    _ignored: set[str]
    _is_alone: bool

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        *,
        compression: type[Compressor] = Compression.none,
        process_set: ProcessSet = global_process_set,
        **others: Any,
    ) -> None:
        super().__init__()
        if not isinstance(module, torch.nn.Module):
            kind = type(module).__name__
            raise ValueError(
                f"DistributedDataParallel wraps a torch.nn.Module, not a {kind}; optimizers have DistributedOptimizer"
            )
        _refuse(others)
        _check_devices(module, device_ids, output_device)
        if dim != 0:
            raise ValueError(
                f"dim={dim} is not supported: every rank has its own batch, which is not split; leave dim out"
            )
        if process_group is not None:
            raise ValueError("process groups of torch are not supported: pass process_set, see add_process_set()")
        if not isinstance(find_unused_parameters, bool):
            raise ValueError(f"find_unused_parameters must be True or False, not {find_unused_parameters!r}")
        without_effect = {
            "check_reduction": check_reduction,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "static_graph": static_graph,
        }
        for word in (word for word, is_set in without_effect.items() if is_set):
            warnings.warn(f"{word}=True has no effect: leave it out", stacklevel=2)
        set_id(process_set)
        self.module = module
        cap = default_cap() if bucket_cap_mb is None else _checked_cap(bucket_cap_mb)
        manner = Manner(compression, Average, 1.0, 1.0, sparse_as_dense=False, process_set=process_set)
        self._take(broadcast_buffers is not False, process_set, manner, cap)
        if self._is_alone:
            return
        if any(isinstance(layer, torch.nn.SyncBatchNorm) for layer in module.modules()):
            warnings.warn(
                "torch.nn.SyncBatchNorm knows only torch's process groups and would use the statistics of each rank alone: convert the "
                "model with phalanx.torch.SyncBatchNorm.convert_sync_batchnorm",
                stacklevel=2,
            )
        # Buckets are filled in the order of parameters, which therefore must be the same, too.
        Accord("DistributedDataParallel", self._order, process_set).wait()
        if init_sync:
            # Modules may have a state of another kind, which is theirs to agree on.
            state = {
                name: t
                for name, t in module.state_dict().items()
                if isinstance(t, torch.Tensor) and name not in self._ignored
            }
            broadcast_parameters(state, self._root, process_set)
        self._adopt()

    def _adopt(self) -> None:
        self._n_registered = _n_registered
        named = [(name, p) for name, p in self.module.named_parameters() if name not in self._ignored]
        ids = [id(p) for _, p in named]
        if ids != self._ids:
            self._reducer.adopt(named)
            self._ids = ids

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether backward passes reduce gradients; :meth:`no_sync` sets it for a while, as in torch."""
        return self._reducer.is_syncing

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, is_syncing: bool) -> None:
        self._reducer.is_syncing = bool(is_syncing)

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedDataParallel:
        """An independent copy, whose gradients are reduced once all ranks use their copies. Does not communicate."""
        copy = DistributedDataParallel.__new__(DistributedDataParallel)
        torch.nn.Module.__init__(copy)
        memo[id(self)] = copy
        copy.module = deepcopy(self.module, memo)
        copy.training = self.training
        copy._take(self.broadcast_buffers, self.process_set, self._manner, self._cap, is_copy=True)
        if not copy._is_alone:
            copy._adopt()
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a distributed model cannot be pickled: save model.module, or its state_dict()")

    def _take(
        self, broadcast_buffers: bool, process_set: ProcessSet, manner: Manner, cap: int, is_copy: bool = False
    ) -> None:
        """Everything but the model."""
        self.broadcast_buffers, self.process_set, self._manner, self._cap = broadcast_buffers, process_set, manner, cap
        self._root = process_set.ranks[0]
        self._checks = _check.Checks("DistributedDataParallel", process_set)
        # Copies have numbers of their own: only some ranks may have made one, for an average of parameters.
        what = "copy of DistributedDataParallel" if is_copy else "DistributedDataParallel"
        self._reducer = Reducer(what, manner, cap, again=True)
        self._ids = []
        self._is_alone = len(process_set.ranks) == 1 or not process_set.included()
        warn_outsider("DistributedDataParallel", process_set)
        # What torch's class knows under this name.
        self._ignored = set(getattr(self.module, "_ddp_params_and_buffers_to_ignore", ()))

    def _order(self) -> list[str]:
        named = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad and n not in self._ignored]
        return [described(f"parameter {i}, {name}", p) for i, (name, p) in enumerate(named)]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which gradients are only accumulated; the first backward pass after it averages their sum."""
        with self._reducer.no_sync():
            yield

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model. In training, rank 0's buffers are broadcast first."""
        if self._is_alone:
            return self.module(*args, **kwargs)
        if self._n_registered != _n_registered:
            # Some model has another parameter or layer; perhaps this one.
            self._adopt()
        if self._reducer.is_abandoned():
            # The program may have made a step with what it had.
            self._reducer.leave_out()
        if not self.training or not self._reducer.is_syncing:
            return self.module(*args, **kwargs)
        self._checks.step(self._named)
        if self.broadcast_buffers:
            buffers = {name: b for name, b in self.module.named_buffers() if name not in self._ignored}
            if buffers:
                prefix = self._reducer.prefix
                broadcast_tensors([(f"{prefix}ddp.{k}", b) for k, b in buffers.items()], self._root, self.process_set)
        return self.module(*args, **kwargs)

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        return list(self.module.named_parameters())


def _refuse(others: dict[str, Any]) -> None:
    for word, value in others.items():
        if word not in _ELSEWHERE:
            raise TypeError(f"DistributedDataParallel has no argument {word!r}")
        if value not in (None, False):
            raise ValueError(f"{word} is not supported: {_ELSEWHERE[word]}")


def _check_devices(module: torch.nn.Module, device_ids: Any, output_device: Any) -> None:
    """Refuses several devices: a model is on one device here; torch's class can split batches over several."""
    named = list(device_ids or []) + ([] if output_device is None else [output_device])
    if not named:
        return
    wanted = {torch.device("cuda", d) if isinstance(d, int) else torch.device(d) for d in named}
    have = {p.device for p in module.parameters()}
    if wanted != have:
        raise ValueError(
            f"device_ids and output_device name {_listed(wanted)}, but the model is on {_listed(have)}: every rank has one "
            "device, that of its model; move the model there and leave both out"
        )


def _listed(devices: set[torch.device]) -> str:
    return ", ".join(sorted(map(str, devices))) or "no device"


def _checked_cap(megabytes: float) -> int:
    if isinstance(megabytes, bool) or not isinstance(megabytes, (int, float)) or not megabytes > 0:
        raise ValueError(f"bucket_cap_mb must be a number of megabytes > 0, not {megabytes!r}")
    return int(megabytes * (1 << 20))


__all__ = ["DistributedDataParallel"]
