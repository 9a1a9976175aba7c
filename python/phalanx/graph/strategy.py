"""Which graph is built, and how it is run. Executors never change a strategy; ``effective`` is what they use.

>>> strategy = BuildStrategy()
>>> strategy.reduce_strategy = BuildStrategy.ReduceStrategy.Reduce
>>> strategy.reduce_strategy
ReduceStrategy.Reduce
>>> strategy.fuse_bn_act_ops = True
Traceback (most recent call last):
phalanx.graph.errors.StrategyError: fuse_bn_act_ops is for CUDA only and cannot be True here
>>> strategy.no_such_field = 1
Traceback (most recent call last):
AttributeError: BuildStrategy has no field 'no_such_field'
"""

from __future__ import annotations

import enum
import os
from typing import Any, ClassVar, NoReturn

from phalanx import _phalanx
from phalanx.graph._attributes import once
from phalanx.graph.errors import StrategyError

_NONE = type(None)


class _Reduce(enum.Enum):
    """How gradients are reduced."""

    def __repr__(self) -> str:
        return f"ReduceStrategy.{self.name}"

    AllReduce = "AllReduce"
    Reduce = "Reduce"
    NoReduce = "NoReduce"


class _Scale(enum.Enum):
    """The initial gradient of the loss on each device.

    ``CoeffNumDevice``: 1 / devices that have samples. ``One``: 1. ``Customized``: what every run is fed as ``<loss>@GRAD``.
    ``BySamples`` (not in Paddle): n devices learn what one device would learn from the whole batch, even if shares are uneven.
    """

    def __repr__(self) -> str:
        return f"GradientScaleStrategy.{self.name}"

    CoeffNumDevice = "CoeffNumDevice"
    One = "One"
    Customized = "Customized"
    BySamples = "BySamples"


def _choices(kind: type) -> str:
    """What a field takes, as scripts write it."""
    if not issubclass(kind, enum.Enum):
        return "None" if kind is _NONE else kind.__name__
    return " or ".join(f"BuildStrategy.{member!r}" for member in kind)


class _Strategy:
    """Fields with defaults; setting a wrong type or an unknown field is an error."""

    _fields: ClassVar[dict[str, Any]] = {}
    _fixed: ClassVar[dict[str, tuple[Any, str]]] = {}
    # Accepted, and said once to have no effect, with the reason.
    _idle: ClassVar[dict[str, tuple[Any, str]]] = {}
    # For the reference; a test looks that none is missing.
    _meanings: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        for name, default in self._fields.items():
            object.__setattr__(self, name, default[0])

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._fixed:
            only, why = self._fixed[name]
            if value != only:
                raise StrategyError(f"{name} {why} and cannot be {value!r} here", var=name)
            return
        if name in self._idle:
            default, why = self._idle[name]
            if type(value) is not type(default):
                raise TypeError(f"{type(self).__name__}.{name} wants {type(default).__name__}, got {value!r}")
            if value != default:
                once(f"{type(self).__name__}.{name} has no effect: {why}")
            return
        if name not in self._fields:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}")
        _, kinds = self._fields[name]
        # True is an int, but no number of threads.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(_choices(kind) for kind in kinds)
            raise TypeError(f"{type(self).__name__}.{name} wants {wanted}, got {value!r}")
        if type(value) is int and value < 0:
            text = f"{type(self).__name__}.{name} cannot be negative, got {value}"
            raise StrategyError(text, var=name, got=repr(value))
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name in self._fixed:
            return self._fixed[name][0]
        if name in self._idle:
            return self._idle[name][0]
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(getattr(self, n) == getattr(other, n) for n in self._fields)

    __hash__ = None  # type: ignore[assignment]

    def _copy(self) -> Any:
        twin = type(self)()
        for name in self._fields:
            object.__setattr__(twin, name, getattr(self, name))
        return twin


_CUDA = "is for CUDA only"


class BuildStrategy(_Strategy):
    """Which graph is built, with Paddle's names and defaults.

    ``bucket_bytes``, ``check_nan_inf`` and ``accumulate`` are not in Paddle. With ``accumulate=k``, each device processes
    its share in k pieces, one after another in the same memory.
    """

    ReduceStrategy = _Reduce
    GradientScaleStrategy = _Scale

    reduce_strategy: _Reduce
    gradient_scale_strategy: _Scale
    fuse_all_reduce_ops: bool | None
    bucket_bytes: int
    accumulate: int
    fuse_all_optimizer_ops: bool
    fuse_elewise_add_act_ops: bool
    enable_sequential_execution: bool
    sync_batch_norm: bool
    async_mode: bool
    memory_optimize: bool | None
    enable_inplace: bool
    num_trainers: int
    trainer_id: int
    debug_graphviz_path: str | os.PathLike[str]
    check_nan_inf: bool
    _without: tuple[str, ...]

    _fields: ClassVar[dict[str, Any]] = {
        "reduce_strategy": (_Reduce.AllReduce, (_Reduce,)),
        "gradient_scale_strategy": (_Scale.CoeffNumDevice, (_Scale,)),
        "fuse_all_reduce_ops": (None, (bool, _NONE)),
        "bucket_bytes": (4 << 20, (int,)),
        "accumulate": (1, (int,)),
        "fuse_all_optimizer_ops": (False, (bool,)),
        "fuse_elewise_add_act_ops": (False, (bool,)),
        "enable_sequential_execution": (False, (bool,)),
        "sync_batch_norm": (False, (bool,)),
        "async_mode": (False, (bool,)),
        "memory_optimize": (None, (bool, _NONE)),
        "enable_inplace": (True, (bool,)),
        "num_trainers": (1, (int,)),
        "trainer_id": (0, (int,)),
        "debug_graphviz_path": ("", (str, os.PathLike)),
        "check_nan_inf": (False, (bool,)),
        "_without": ((), (tuple,)),
    }
    _fixed: ClassVar[dict[str, tuple[Any, str]]] = {
        "remove_unnecessary_lock": (True, _CUDA),
        "fuse_bn_act_ops": (False, _CUDA),
        "fuse_relu_depthwise_conv": (False, _CUDA),
        "enable_auto_fusion": (False, _CUDA),
        "cache_runtime_context": (False, "has nothing to cache: runs are planned once"),
        "fuse_bn_add_act_ops": (False, _CUDA),
        "fuse_gemm_epilogue": (False, _CUDA),
        "allow_cuda_graph_capture": (False, _CUDA),
        "nccl_comm_num": (1, _CUDA),
        "bkcl_comm_num": (1, "is for XPUs only"),
        "use_hierarchical_allreduce": (False, "is for NCCL: ranks of one host are always reduced first,"),
        "hierarchical_allreduce_inter_nranks": (0, "is for NCCL: ranks of one host are always reduced first,"),
        "use_mkldnn": (False, "chooses kernels of another library"),
        "mkldnn_enabled_op_types": (set(), "chooses kernels of another library"),
        "trainers_endpoints": ([], "is not needed: start ranks with `phalanx run`; it"),
        "is_distribution": (False, "is for parameter servers"),
        "enable_inference_pass": (False, "is for inference: use save_inference_model; it"),
        "delete_dropout": (False, "is what clone(for_test=True) does; it"),
        "enable_data_balance": (False, "is not needed (shares differ by one sample at most)"),
    }
    _idle: ClassVar[dict[str, tuple[Any, str]]] = {
        "fix_op_run_order": (False, "results have the same bits in any order"),
        "enable_addto": (False, "gradients are added up where they are needed, in one order"),
        "fuse_broadcast_ops": (False, "parameters are not sent between devices of a process"),
        "enable_backward_optimizer_op_deps": (True, "updates always follow all gradients"),
    }

    _meanings: ClassVar[dict[str, str]] = {
        "reduce_strategy": "whether sums of gradients go to each device's parameters, to one copy for all, or nowhere",
        "gradient_scale_strategy": "the initial gradient of the loss on each device",
        "fuse_all_reduce_ops": "whether gradients are reduced in buckets; `None` is yes",
        "bucket_bytes": "about how large a bucket is",
        "accumulate": "pieces in which a device processes its share, one after another in the same memory",
        "fuse_all_optimizer_ops": "whether updates of one kind are one operation",
        "fuse_elewise_add_act_ops": "whether an addition and the activation after it are one operation",
        "enable_sequential_execution": "whether operations run in the order of the program",
        "sync_batch_norm": "whether statistics are those of the batches of all devices",
        "async_mode": "whether devices update without waiting for each other",
        "memory_optimize": "whether variables that are not needed at the same time share memory; `None` is yes",
        "enable_inplace": "whether an operation may write where it reads",
        "num_trainers": "number of ranks; 1: that of the world",
        "trainer_id": "this rank's number; 0: that in the world",
        "debug_graphviz_path": "prefix of the files that show the graph after each pass; empty: none",
        "check_nan_inf": "whether every operation's results are checked for NaN and infinity",
    }

    def _finalize_strategy_and_create_passes(self) -> BuildStrategy:
        """Itself: :meth:`all_passes` and :meth:`remove_pass` are its own."""
        return self

    def append_pass(self, name: str) -> NoReturn:
        """Refused: passes are chosen by fields."""
        raise StrategyError(f"append_pass({name!r}): passes are chosen by the fields of the strategy", var=name)

    def all_passes(self) -> list[str]:
        """The passes that make the graph, in order, without those that were removed."""
        return [name for name in _phalanx.GraphParallelExecutor.passes() if name not in self._without]

    def remove_pass(self, name: str) -> None:
        """Takes a pass out."""
        if name not in self.all_passes():
            raise StrategyError(f"there is no pass {name!r}; known passes: {', '.join(self.all_passes())}", var=name)
        self._without = (*self._without, name)


class ExecutionStrategy(_Strategy):
    """How the graph is run, with Paddle's names and defaults. By default ``num_threads`` is one per device, at most one per core."""

    num_threads: int
    num_iteration_per_drop_scope: int
    num_iteration_per_run: int
    dry_run: bool

    _fields: ClassVar[dict[str, Any]] = {
        "num_threads": (0, (int,)),
        "num_iteration_per_drop_scope": (100, (int,)),
        "num_iteration_per_run": (1, (int,)),
        "dry_run": (False, (bool,)),
    }
    _fixed: ClassVar[dict[str, tuple[Any, str]]] = {
        "use_experimental_executor": (True, "chooses between two executors of Paddle's"),
        "allow_op_delay": (False, "has no meaning"),
        "use_thread_barrier": (False, "is for parameter servers"),
    }
    _meanings: ClassVar[dict[str, str]] = {
        "num_threads": "threads of all devices together; 0: one per device, at most one per core",
        "num_iteration_per_drop_scope": "runs after which the memory of temporaries is freed; 0: never",
        "num_iteration_per_run": "how often a run goes through the program; in `async_mode`, batches for each device",
        "dry_run": "whether runs visit all tasks without computing",
    }


class BuildForm:
    """A build strategy, as the compiled module takes it."""

    def __init__(self, strategy: BuildStrategy) -> None:
        self.reduce_strategy = strategy.reduce_strategy.value
        self.gradient_scale_strategy = strategy.gradient_scale_strategy.value
        self.fuse_all_reduce_ops = strategy.fuse_all_reduce_ops is not False
        self.bucket_bytes = strategy.bucket_bytes
        self.accumulate = strategy.accumulate
        self.fuse_all_optimizer_ops = strategy.fuse_all_optimizer_ops
        self.fuse_elewise_add_act_ops = strategy.fuse_elewise_add_act_ops
        self.enable_sequential_execution = strategy.enable_sequential_execution
        self.sync_batch_norm = strategy.sync_batch_norm
        self.async_mode = strategy.async_mode
        self.memory_optimize = strategy.memory_optimize is not False
        self.enable_inplace = strategy.enable_inplace
        # Paddle's default means that nobody has said anything; the world knows.
        alone = strategy.num_trainers == 1 and strategy.trainer_id == 0
        self.num_trainers = None if alone else strategy.num_trainers
        self.trainer_id = None if alone else strategy.trainer_id
        self.debug_graphviz_path = strategy.debug_graphviz_path or None
        self.check_nan_inf = strategy.check_nan_inf
        self.without_passes = list(strategy._without)


__all__ = ["BuildStrategy", "ExecutionStrategy"]
