"""A model of torch and its optimizer as what a session trains."""

from __future__ import annotations

import inspect
import os
import socket
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch

from phalanx import _world
from phalanx.distributed.hooks import CheckpointSaverHook
from phalanx.parallax import _auto, partitions
from phalanx.parallax._first_rows import FirstRows, adopt, states_of, table_bytes
from phalanx.parallax._log import log
from phalanx.parallax._search import PartitionSearch
from phalanx.parallax._unused import say_unused
from phalanx.parallax.config import ParallaxConfig, _wire_name
from phalanx.parallax.session import GLOBAL_STEP, TRAIN_OP
from phalanx.reductions import Average, Sum
from phalanx.torch import served
from phalanx.torch._wrapping import Uncopied
from phalanx.torch.collectives import allgather
from phalanx.torch.functions import broadcast_optimizer_state, broadcast_parameters
from phalanx.torch.optimizer import DistributedOptimizer
from phalanx.torch.served import ServedTables, serve_tables
from phalanx.torch.session import Session

#: Parallax keeps all of them.
_KEEP = 1_000_000
#: Models and optimizers that sessions have; their hooks stay.
_taken: weakref.WeakSet[Any] = weakref.WeakSet()


class TorchTrained:
    """A model, its optimizer, and how ranks train them together."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, config: ParallaxConfig, sync: bool
    ) -> None:
        _check(model, optimizer, config)
        self._model, self._config = model, config
        self._optimizer: Any = optimizer
        self._given = optimizer
        self._in_step = sync and config._ps.staleness is None
        self._worker = _world.rank()
        self._step = 0
        self._search: PartitionSearch | None = None
        self._sparse = sparse = _looked_up(model, optimizer)
        self.strategy, why = _strategy(model, optimizer, config, sync, bool(sparse))
        self._explained = _Explained(model, sparse, self.strategy, why)
        self._tables: ServedTables | None = None
        #: What the first step touches, where that decides.
        self._first = FirstRows(model, sparse) if self.strategy == _auto.AUTO else None
        if self.strategy == "PS" or (self.strategy == "HYBRID" and sparse):
            self._tables = self._serve(sync)
        elif self._first is None:
            self._say_unused()
        rest = list(self._optimizer.param_groups)
        if any(group["params"] for group in rest):
            self._reduce(bool(sparse) and self._tables is None)
        self._alike()
        self._session = self._resumed()
        self._exports()
        _taken.update((model, optimizer))

    def _say_unused(self) -> None:
        """No table is served: settings of tables have no effect."""
        say_unused(self._config, self.strategy)

    def _serve(self, sync: bool) -> ServedTables:
        config, ps = self._config, self._config._ps
        wire = _wire_name(ps.wire_dtype)
        heights = [p.shape[0] for p in self._model.parameters() if id(p) in self._sparse]
        self._search = PartitionSearch.of(config, sync, heights)
        first = partitions.wanted() if self._search is None else self._search.first
        found = serve_tables(
            self._model,
            self._optimizer,
            op=Average if config.average_sparse else Sum,
            staleness=ps.staleness if sync else -1,
            wire_dtype=None if wire is None else getattr(torch, wire),
            partitions=first,
            dense=self.strategy == "PS",
            local_aggregation=ps.local_aggregation,
            merge_rows=ps.boundary_between_workers_and_servers,
        )
        for table in found._dense():
            table.keeps = ps.replicate_variables
        if not ps.boundary_among_servers and self._worker == 0:
            log.info(
                "boundary_among_servers=False changes nothing: no operation stands between gradients and the rules of servers"
            )
        return found

    def _reduce(self, has_rows: bool) -> None:
        # Whatever fails from here on: it has hooks.
        _taken.update((self._model, self._given))
        named = [(name, p) for name, p in self._model.named_parameters()]
        if has_rows and not self._config.average_sparse:
            # Before the step, and after the reduction, which averages everything.
            self._optimizer.register_step_pre_hook(_sum_rows)
        given: Any = self._optimizer
        wrapped = DistributedOptimizer(given, named_parameters=named)
        # A step of the user's own has only the optimizer that was given.
        # Schedulers take the function of the method, and call it with the optimizer that they were given.
        given.step = MethodType(lambda _, *args, **kwargs: wrapped.step(*args, **kwargs), given)
        given.zero_grad = wrapped.zero_grad
        self._optimizer = wrapped

    def _alike(self) -> None:
        """All workers begin with what worker 0 has; servers have theirs."""
        if _world.size() == 1:
            return
        on_servers = set() if self._tables is None else {id(table.parameter) for table in self._tables._dense()}
        own = {name: p.data for name, p in self._model.named_parameters() if id(p) not in on_servers}
        own.update(dict(self._model.named_buffers()))
        if own:
            broadcast_parameters(own, root_rank=0)
        if any(group["params"] for group in self._optimizer.param_groups):
            broadcast_optimizer_state(self._optimizer, root_rank=0)

    def _resumed(self) -> Session | None:
        ckpt = self._config.ckpt_config
        if ckpt.ckpt_dir is None:
            return None
        hooks = [
            CheckpointSaverHook(ckpt.ckpt_dir, save_secs=secs, save_steps=steps, keep=_KEEP)
            for steps, secs in ((ckpt.save_ckpt_steps, None), (None, ckpt.save_ckpt_secs))
            if steps is not None or secs is not None
        ]
        return Session(
            self._model,
            self._optimizer,
            [self._tables] if self._tables is not None else [],
            checkpoint_dir=ckpt.ckpt_dir,
            hooks=hooks,
            save_checkpoint_secs=None,
            log_step_count_steps=None,
        )

    def _exports(self) -> None:
        folder = self._config.export_graph_path
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
            Path(folder, f"worker-{self._worker}_metagraph").write_text(f"{self._model}\n{self.explain()}\n")

    @property
    def step(self) -> int:
        """Steps so far."""
        return self._step if self._session is None else self._session.global_step

    def has_stopped(self) -> bool:
        """Whether the session has."""
        return self._session is not None and self._session.should_stop()

    def run(self, names: Sequence[str], feeds: list[dict[str, Any]]) -> dict[str, list[Any]]:
        """One pass of the model, and a step if it is asked for."""
        trains = TRAIN_OP in names
        feed = {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in feeds[0].items()}
        if not feed and not trains and all(name == GLOBAL_STEP for name in names):
            return {}
        self._bound(feed)
        if not trains:
            if all(name == GLOBAL_STEP for name in names):
                return {}
            with torch.no_grad():
                return self._named(names, _outputs(self._model(**feed)))
        made = self._made(lambda: self._trains(feed))
        return self._named(names, made)

    def call(self, fn: Callable[..., Any], feeds: list[dict[str, Any]]) -> Any:
        """One step of the user's own."""
        return self._made(lambda: fn(**feeds[0]))

    def _made(self, step: Callable[[], Any]) -> Any:
        number = self.step + 1
        profile = self._config.profile_config
        if profile._wants(number, self._worker):
            made, trace = _recorded(lambda: self._counted(step))
            folder = Path(
                os.fspath(profile.profile_dir or "."), socket.gethostname(), f"worker:{self._worker}", "run_meta"
            )
            folder.mkdir(parents=True, exist_ok=True)
            trace(str(folder / f"run_meta_{number}"))
            return made
        return self._counted(step)

    def _counted(self, step: Callable[[], Any]) -> Any:
        begin = time.monotonic()
        if self._session is not None:
            made = self._session.run(step)
        else:
            made = step()
            self._step += 1
        if self._first is not None:
            self._settle(self._first)
        elif self._search is not None and self._tables is not None:
            self._search.step(time.monotonic() - begin, _of_all, self._tables)
        return made

    def _settle(self, first: FirstRows) -> None:
        """The first step has gathered rows: from here on they go where they are predicted to take less time."""
        self._first = None
        tables = first.ended()
        if len(_of_all(0.0)) < _world.size():
            self.strategy, why = "MPI", "a worker has joined before the first step could be measured"
        else:
            gathered, served_s = _auto.predicted(tables)
            self.strategy = "HYBRID" if served_s < gathered else "MPI"
            why = f"the first step was measured: predicted {served_s * 1e3:.3f} ms on servers, {gathered * 1e3:.3f} ms gathered"
        self._explained = _Explained(self._model, self._sparse, self.strategy, why)
        if self.strategy == "HYBRID":
            self._move()
        else:
            self._say_unused()
        self._exports()
        _auto.tell(self.strategy, why)

    def _move(self) -> None:
        """Tables go to servers between two steps, with what the optimizer keeps for them."""
        wrapped, self._optimizer = self._optimizer, self._given
        wrapped._let_go(self._sparse)
        states = states_of(self._model, self._given)
        self._tables = self._serve(True)
        adopt(self._tables, states)
        # It shares groups, states and hooks with the optimizer that it wraps, whose class drops gradients of tables, too.
        wrapped._follow_class()
        self._optimizer = wrapped

    def _trains(self, feed: dict[str, Any]) -> dict[str, Any]:
        self._optimizer.zero_grad()
        out = _outputs(self._model(**feed))
        loss = out.get("loss")
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TypeError('"train_op" needs a loss: let the model return one number, or a dict with one under "loss"')
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in out.items()}

    def _named(self, names: Sequence[str], out: Mapping[str, Any]) -> dict[str, list[Any]]:
        values: dict[str, list[Any]] = {TRAIN_OP: [None]}
        for name in names:
            if name in (TRAIN_OP, GLOBAL_STEP):
                continue
            if name not in out:
                raise KeyError(f"the model returns {', '.join(map(repr, out))}, and not {name!r}")
            values[name] = [out[name]]
        return values

    def _bound(self, feed: dict[str, Any]) -> None:
        try:
            inspect.signature(self._model.forward).bind(**feed)
        except TypeError as why:
            wanted = ", ".join(inspect.signature(self._model.forward).parameters)
            raise TypeError(
                f"feed_dict has {', '.join(feed) or 'nothing'}, and forward() of the model takes {wanted}: {why}"
            ) from None

    def explain(self) -> str:
        """Each parameter, where it is trained, and why."""
        text = str(self._explained)
        return text if self._tables is None else f"{text}\n{self._tables.explain()}"

    def counters(self) -> dict[str, int]:
        """Of the engine and of the tables."""
        engine = {f"allreduce_{name}": n for name, n in _world.counters().items() if name in ("operations", "bytes")}
        return engine if self._tables is None else {**engine, **self._tables.counters()}

    def close(self) -> None:
        """Ends it in order."""
        if self._session is not None:
            self._session.close()
        if self._tables is not None:
            try:
                self._settle_last()
            finally:
                self._tables.close()

    def _settle_last(self) -> None:
        """A step that another worker never makes is no step of this one either, and must not be lost without a word."""
        if self._tables is not None and self._in_step and _world.size() > 1:
            self._tables._settle()

    def abandon(self, error: BaseException) -> None:
        """The others learn of the exception."""
        if self._session is not None:
            self._session.__exit__(type(error), error, error.__traceback__)


class _Explained:
    """Where each parameter is trained, as text; it is written down before tables leave the model."""

    def __init__(self, model: torch.nn.Module, sparse: set[int], strategy: str, why: str) -> None:
        self._lines = [f"{strategy}: {why}"]
        n = _world.size()
        for name, p in model.named_parameters():
            n_bytes = p.numel() * p.element_size()
            if not p.requires_grad:
                where = "is frozen: every worker has it"
            elif id(p) in sparse:
                row = n_bytes // max(1, p.shape[0])
                at = "every worker; rows by allgather" if strategy in ("MPI", _auto.AUTO) else "servers"
                where = f"has sparse gradients, rows of {row} bytes: {at}"
            elif strategy == "PS":
                where = f"has dense gradients: servers, {2 * n_bytes} bytes a step"
            else:
                where = f"has dense gradients: allreduce, {2 * n_bytes * (n - 1) // n} bytes a step and worker"
            self._lines.append(f"  {name} {list(p.shape)} {where}")

    def __str__(self) -> str:
        return "\n".join(self._lines)


def _check(model: Any, optimizer: Any, config: ParallaxConfig) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"single_gpu_graph is (module, optimizer), and its first is a {type(model).__name__}, not a torch.nn.Module"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"single_gpu_graph is (module, optimizer), and its second is a {type(optimizer).__name__}, not a torch.optim.Optimizer"
        )
    if isinstance(optimizer, Uncopied):
        raise ValueError(
            "the optimizer is distributed already: give parallel_run the optimizer of torch, which it wraps itself"
        )
    if hasattr(model, "_phalanx_served"):
        raise ValueError(
            "the tables of this model are served already: give parallel_run the model as it was made, once"
        )
    if model in _taken or optimizer in _taken:
        what = "model" if model in _taken else "optimizer"
        raise ValueError(
            f"parallel_run has taken this {what} already: go on with its session, or make a new model and a new optimizer"
        )
    if config.sess_config is not None:
        raise ValueError("sess_config is for programs; a model of torch has no session to configure: leave it out")
    own = {id(p) for p in model.parameters()}
    strange = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]
    if strange:
        raise ValueError(
            f"the optimizer has {len(strange)} parameters that are not in the module: make it of module.parameters()"
        )
    if not any(p.requires_grad for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("the module has nothing to learn: all parameters of the optimizer are frozen")


def _looked_up(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> set[int]:
    """Trained parameters whose gradients are sparse, by their identity; one that is used both ways has dense ones."""
    trained = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    looked_up: set[int] = set()
    used: set[int] = set()
    for module in model.modules():
        rows = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse
        for p in module._parameters.values():
            if p is not None:
                (looked_up if rows else used).add(id(p))
    return (looked_up - used) & trained


def _strategy(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, config: ParallaxConfig, sync: bool, has_rows: bool
) -> tuple[str, str]:
    """How it is trained, and why."""
    option = config.run_option
    if option in ("PS", "MPI"):
        return option, "run_option says so"
    if option is None and not sync:
        return "PS", "sync=False is for servers"
    if not has_rows:
        return "MPI", "no gradient is sparse, so no server is needed"
    if option == "HYBRID":
        return "HYBRID", "run_option says so"
    try:
        # What servers cannot train is refused here, before anything is changed.
        served._found(model, optimizer)
    except ValueError as refused:
        if config._ps.staleness is not None:
            raise
        log.info("sparse gradients travel by allgather, not to servers: %s", refused)
        return "MPI", f"servers cannot train a table: {refused}"
    if config._ps.staleness is not None:
        option, why = "HYBRID", "workers that may be apart need servers"
    elif config.ckpt_config.ckpt_dir is not None:
        # What is saved must fit what is resumed, however fast the network is then.
        option, why = "HYBRID", "a checkpoint is resumed with its tables on servers, so nothing is measured"
    else:
        option, why = _auto.first_choice(table_bytes(model, optimizer))
    if option != _auto.AUTO:
        _auto.tell(option, why)
    return option, why


def _of_all(seconds: float) -> list[float]:
    """What each worker needed; those that have joined give nothing."""
    every: list[float] = allgather(torch.tensor([seconds], dtype=torch.float64), name="parallax.trial").tolist()
    return every


def _outputs(made: Any) -> dict[str, Any]:
    if isinstance(made, Mapping):
        return {str(name): value for name, value in made.items()}
    if isinstance(made, torch.Tensor):
        return {"loss": made}
    raise TypeError(f"the model returns its loss, or a dict of what can be fetched, not a {type(made).__name__}")


def _sum_rows(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Makes sums of averages, for gradients of rows."""
    n = _world.size()
    for group in optimizer.param_groups:
        for p in group["params"]:
            if n > 1 and p.grad is not None and p.grad.is_sparse:
                p.grad = p.grad * n


def _recorded(step: Callable[[], Any]) -> tuple[Any, Callable[[str], None]]:
    with torch.profiler.profile() as recorder:
        made = step()
    return made, recorder.export_chrome_trace


__all__ = ["TorchTrained"]
