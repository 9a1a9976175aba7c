"""Embedding tables on servers: no rank keeps a table, and only the rows of a step travel.

>>> import torch
>>> import phalanx.torch as hvd
>>> hvd.init()
>>> model = torch.nn.Sequential(torch.nn.Embedding(1000, 8, sparse=True), torch.nn.Flatten(), torch.nn.Linear(16, 1))
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> tables = hvd.serve_tables(model, optimizer)
>>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
>>> model(torch.tensor([[3, 7]])).sum().backward()
>>> optimizer.step()
>>> tables.counters()["pushed_rows"]
2
"""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from phalanx import _phalanx, _world
from phalanx.reductions import Average, Sum
from phalanx.torch import _memory, _served_modules
from phalanx.torch._served_joined import Attendance
from phalanx.torch._served_rules import rule_of
from phalanx.torch._served_table import DenseTable, Table
from phalanx.torch._wrapping import Uncopied
from phalanx.torch.collectives import barrier

_REDUCTIONS = {Average: "mean", Sum: "sum", "by-touch": "by-touch"}


class ServedTables:
    """The served tables of a model; :func:`serve_tables` makes it."""

    def __init__(self, core: _phalanx.ServedTables, tables: list[Table]) -> None:
        self._core = core
        self._tables = tables
        self._owner = os.getpid()
        #: Whether ranks wait for each other's steps.
        self._waits = True
        for number, table in enumerate(tables):
            table.core, table.number = core, number

    @property
    def names(self) -> list[str]:
        """The names of the tables, in the order in which servers have them."""
        return [table.name for table in self._tables]

    def explain(self) -> str:
        """Which server has which partitions, and how many bytes each has."""
        return self._core.explain()

    def counters(self) -> dict[str, int]:
        """What ranks of this host wanted and gave, and what of it left the host. Zeros on ranks that do not collect it."""
        return self._core.counters()

    def state_dict(self) -> dict[str, Any]:
        """The states that the rules keep on the servers (momentum, sums of squares), and the steps that each rule has counted.

        The rows themselves are in the model's ``state_dict()``.
        """
        return {
            table.name: {
                "step": self._core.age(table.number),
                "states": [table.gather(p) for p in table.state_parts()],
            }
            for table in self._tables
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replaces the states and counts on from their steps. Every rank calls it with the same values, as it does with the model's
        ``load_state_dict()``.
        """
        for table in self._tables:
            if table.name not in state:
                raise KeyError(f"the saved states have no table {table.name!r}; they have {sorted(state)}")
            saved = state[table.name]["states"]
            if len(saved) != len(table.state_parts()):
                raise ValueError(
                    f"table {table.name!r} has {len(table.state_parts())} states, the saved one {len(saved)}: "
                    "another optimizer was used"
                )
            for part, values in zip(table.state_parts(), saved, strict=True):
                table.scatter(values, part)
            if table.is_trained:
                self._core.set_age(table.number, int(state[table.name]["step"]))

    def reshard(self, partitions: int) -> None:
        """Cuts every table into this many partitions, or as many as it has rows.

        Every rank calls it after the same step, of which there is at least one; no bit of a row changes.
        """
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions < 1 << 32:
            raise ValueError(f"partitions must be a whole number from 1, not {partitions!r}")
        self._core.reshard(partitions)

    def admits(self, partitions: int) -> str | None:
        """Why this rank could not have its part of that number of partitions, if it could not."""
        return self._core.admits(partitions)

    def close(self) -> None:
        """Ends the service; every rank calls it. :func:`shutdown` and the end of the process do, too."""
        if self._end in _world._at_shutdown:
            _world._at_shutdown.remove(self._end)
        if self._attend in _world._at_join:
            _world._at_join.remove(self._attend)
        self._core.close()

    def _settle(self) -> None:
        """Waits until servers have added up the last step of this rank; an error if another rank never makes it."""
        for table in self._tables:
            if table.is_trained:
                table.settle()

    def norm(self) -> float:
        """The 2-norm of the gradients of all tables that wait on this rank for its next step, before they are reduced over ranks.

        They are in no ``.grad``: ``clip_grad_norm_`` and ``GradScaler`` do not see them.
        """
        rows = [table.waiting()[1] for table in self._tables]
        return math.sqrt(sum(float(r.double().square().sum()) for r in rows))

    def scale_(self, factor: float) -> None:
        """Multiplies the gradients that wait on this rank for its next step: to clip them, or to unscale them.

        Every rank calls it with the same factor.
        """
        for table in self._tables:
            table.scale_(float(factor))

    def _end(self) -> None:
        # A forked child inherits what is done at the end, but not the tables.
        if os.getpid() == self._owner:
            self.close()

    def _check(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for table in self._tables:
            table.check(optimizer.param_groups[table.group])
        if self._dense():
            late = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            if late:
                raise ValueError(
                    f"the optimizer has a parameter of shape {list(late[0].shape)} that came after the others went to servers, or was "
                    "frozen then, so ranks would train it apart: make all parameters before the tables are served, freeze them later"
                )

    def _push(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for table in self._tables:
            table.push(optimizer.param_groups[table.group])

    def _forget(self) -> None:
        for table in self._tables:
            table.forget()

    def _refresh(self, *_: Any) -> None:
        for table in self._dense():
            table.refresh()

    def _look(self, *_: Any) -> None:
        for table in self._dense():
            table.look()

    def _write(self, *_: Any) -> None:
        for table in self._dense():
            table.write()

    def _dense(self) -> list[DenseTable]:
        return [table for table in self._tables if isinstance(table, DenseTable)]

    def _attend(self) -> Callable[[], None]:
        """This rank has no more data: it takes part in the others' steps without rows. What it gives ends that, once all have joined."""
        if not self._waits or not any(table.is_trained for table in self._tables):
            # Nobody waits for this rank's steps.
            return lambda: None
        return Attendance(self._tables).end


class ServedEmbedding(torch.nn.Module):
    """An ``Embedding`` or ``EmbeddingBag`` whose rows are on servers; :func:`serve_tables` puts it in their place."""

    def __init__(self, table: Table, like: torch.nn.Embedding | torch.nn.EmbeddingBag) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = like.num_embeddings, like.embedding_dim
        self.padding_idx = like.padding_idx
        self._table = table
        self._is_bag = isinstance(like, torch.nn.EmbeddingBag)
        if isinstance(like, torch.nn.EmbeddingBag):
            self.mode, self.include_last_offset = like.mode, like.include_last_offset

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The rows of these numbers, as the module gave them whose place it took."""
        if input.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"table {self._table.name!r}: numbers of rows are int64 or int32, not {input.dtype}")
        device = input.device
        # Servers have the rows in memory of the host.
        ids = input.reshape(-1).to("cpu", torch.int64)
        # A row of padding has no gradient, which needs it to be one row.
        if self._table.raw and self.padding_idx is None:
            # A copy: the caller may fill the input anew before the step, and it need not lie in one piece.
            ids, inverse = ids.clone(memory_format=torch.contiguous_format), torch.arange(len(ids))
        else:
            ids, inverse = torch.unique(ids, return_inverse=True)
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.num_embeddings):
            wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
            raise IndexError(f"table {self._table.name!r}: row {wrong} is not in 0..{self.num_embeddings}")
        rows = self._table.pull(ids)
        padding = None
        if self.padding_idx is not None:
            at = torch.searchsorted(ids, self.padding_idx).item()
            if at < len(ids) and int(ids[int(at)]) == self.padding_idx:
                padding = int(at)
        # Gradients come back to the host the same way.
        places, rows = inverse.view(input.shape).to(device), rows.to(device)
        if self._is_bag:
            return F.embedding_bag(
                places,
                rows,
                offsets,
                mode=self.mode,
                per_sample_weights=per_sample_weights,
                include_last_offset=self.include_last_offset,
                padding_idx=padding,
            )
        if offsets is not None or per_sample_weights is not None:
            raise TypeError("an Embedding takes numbers of rows and nothing else")
        return F.embedding(places, rows, padding_idx=padding)

    def requires_grad_(self, requires_grad: bool = True) -> ServedEmbedding:
        """With ``False`` passes from now on give the table no gradients: no row changes, on any rank that calls it."""
        self._table.freeze(not requires_grad)
        return self

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            table = self.__dict__["_table"].name
            raise AttributeError(
                f"table {table!r} is on servers, so that no rank has its weight: call the module, read it from state_dict(), or "
                "make it sparse=False where all of it is used"
            )
        return super().__getattr__(name)

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return f"{self.num_embeddings}, {self.embedding_dim}, table={self._table.name!r}"

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self._table.gather()

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = prefix + "weight"
        if key in state_dict:
            self._table.scatter(state_dict[key])
        elif strict:
            missing_keys.append(key)

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError(
            "a served embedding cannot be copied: its rows are on servers; copy the model before serve_tables()"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a served embedding cannot be pickled: save the model's state_dict()")


def serve_tables(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    op: Any = Average,
    staleness: int | None = None,
    wire_dtype: torch.dtype | None = None,
    partitions: int | None = None,
    spread: str = "mod",
    dense: bool = False,
    local_aggregation: bool = True,
    merge_rows: bool = True,
) -> ServedTables:
    """Moves the tables of all ``Embedding`` and ``EmbeddingBag`` modules with ``sparse=True`` to servers.

    Every rank calls it with the same model, before :func:`DistributedOptimizer` or :class:`DistributedDataParallel`; the rows begin with
    those of rank 0. The modules are replaced in place, and their weights leave the optimizer, whose rule servers apply from then on, with
    the learning rate of their parameter group at each step. Gradients of all passes since the last step are sent by ``optimizer.step()``;
    they are in no ``.grad``, so that clipping and ``GradScaler`` do not reach them: see ``norm()`` and ``scale_()`` of the result. Momentum
    is lazy: a step moves the rows that it touches, where torch also moves those that earlier steps have touched.

    ``op`` is :data:`Average`, :data:`Sum`, or ``"by-touch"``: divided by the number of ranks that touched a row. ``staleness`` lets ranks
    be apart by that many steps, -1 by any number; they need ``op=Sum``. ``wire_dtype`` is ``torch.float16`` or ``torch.bfloat16`` for rows
    that travel between hosts. A table is cut into ``partitions``, by default one for each rank.

    With ``dense=True`` servers have the other parameters of the optimizer, too: a forward pass of the model pulls them, and a step pushes
    their gradients, which are averaged, or with ``staleness`` applied one by one. Then the optimizer is not wrapped.

    With ``local_aggregation=False`` each rank asks servers by itself, and with ``merge_rows=False`` a row travels as often as a rank
    touches it: ways to compare with. Both send more and learn the same.
    """
    if isinstance(optimizer, Uncopied):
        raise ValueError("call serve_tables() before the optimizer is wrapped, with the optimizer that it will wrap")
    if op not in _REDUCTIONS:
        raise ValueError(f"op must be Average, Sum or 'by-touch', not {op!r}")
    if staleness is not None and not isinstance(staleness, int):
        raise TypeError(f"staleness is a number of steps, -1 or None, not {staleness!r}")
    wires = {None: None, torch.float16: "float16", torch.bfloat16: "bfloat16"}
    if wire_dtype not in wires:
        raise ValueError(f"wire_dtype must be torch.float16, torch.bfloat16 or None, not {wire_dtype!r}")
    found = _found(model, optimizer)
    others = _others(model, optimizer, {id(weight) for _, weight, _ in found}) if dense else []
    if not found and not others:
        raise ValueError(
            "the model has no Embedding or EmbeddingBag with sparse=True whose weight this optimizer trains"
        )
    n = _phalanx.place()[1]
    tables = [table for table, _, _ in found] + others
    for table, _, _ in found:
        table.raw = not merge_rows
    # Dense gradients are averaged, unless each is applied by itself.
    of_dense = "mean" if staleness is None else "sum"
    described = [
        (
            table.name,
            table.height,
            table.width,
            _memory.CODES[table.dtype],
            table.rule,
            of_dense if isinstance(table, DenseTable) else _REDUCTIONS[op],
            wires[wire_dtype],
            min(table.height, partitions if partitions is not None else n),
            spread,
            table.raw,
        )
        for table in tables
    ]
    core = _phalanx.ServedTables(described, staleness, local_aggregation)
    served = ServedTables(core, tables)
    served._waits = staleness is None or staleness >= 0
    if _phalanx.place()[0] == 0:
        for table, weight, _ in found:
            table.scatter(weight)
        served._write()
    barrier()
    for whole in others:
        # All ranks begin with the values of rank 0, and know when the program changes them.
        whole.refresh()
    for table, weight, places in found:
        for parent, child, module in places:
            setattr(parent, child, ServedEmbedding(table, module))
            _served_modules.take_over(getattr(parent, child), module)
        _leave(optimizer, table, weight)
    _served_modules.let_freeze(model, lambda module: module._table if isinstance(module, ServedEmbedding) else None)
    for table in others:
        _leave(optimizer, table, table.parameter)
    if others:
        model.register_forward_pre_hook(served._refresh)
        model.register_state_dict_pre_hook(served._look)  # type: ignore[no-untyped-call]
        model.register_load_state_dict_post_hook(served._write)  # type: ignore[no-untyped-call]
    # Sessions look for it; not a submodule, and in no state_dict.
    object.__setattr__(model, "_phalanx_served", served)
    optimizer.register_step_pre_hook(served._check)
    # After the step, because a closure computes the gradients within it.
    optimizer.register_step_post_hook(served._push)
    # A class and not an attribute of the instance, which would hide the zero_grad of an optimizer that wraps this one.
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (_Serving, kind), {"__module__": kind.__module__, "_served": served})
    model.zero_grad = functools.partial(_zero_grad, served, model.zero_grad)  # type: ignore[method-assign]
    _world._at_shutdown.append(served._end)
    _world._at_join.append(served._attend)
    return served


def _leave(optimizer: torch.optim.Optimizer, table: Table, weight: torch.Tensor) -> None:
    """From now on servers train it."""
    params = optimizer.param_groups[table.group]["params"]
    params[:] = [p for p in params if p is not weight]
    optimizer.state.pop(weight, None)


def _others(model: torch.nn.Module, optimizer: torch.optim.Optimizer, served: set[int]) -> list[DenseTable]:
    """The optimizer's other parameters, as tables."""
    kind = _kind(optimizer)
    names = {id(p): name for name, p in model.named_parameters()}
    made = []
    for i, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if id(p) in served or not p.requires_grad:
                continue
            name = names.get(id(p))
            if name is None:
                raise ValueError(
                    f"the optimizer has a parameter of shape {list(p.shape)} that is not in the model: make it of model.parameters()"
                )
            if p.dtype not in (torch.float32, torch.float64):
                raise ValueError(f"{name}: servers have parameters of float32 or float64, not {p.dtype}")
            made.append(DenseTable(name, p, i, kind, rule_of(name, kind, group)))
    return made


class _Serving(torch.optim.Optimizer):
    """What is added to the class of an optimizer whose tables are served."""

    _served: ServedTables

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's; gradients of tables that no step has used are dropped with the others."""
        self._served._forget()
        super().zero_grad(*args, **kwargs)


def _zero_grad(served: ServedTables, own: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    served._forget()
    own(*args, **kwargs)


_Places = list[tuple[torch.nn.Module, str, Any]]


def _found(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[Table, torch.Tensor, _Places]]:
    """The tables to serve, each with its weight and the modules that use it."""
    kind = _kind(optimizer)
    groups = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    places: dict[int, _Places] = {}
    weights: dict[int, tuple[str, torch.Tensor]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse:
            parent, _, child = path.rpartition(".")
            _served_modules.check_weight(path, module)
            if not path:
                raise ValueError(
                    "the model itself is an embedding: put it into a module, torch.nn.Sequential(embedding)"
                )
            weights.setdefault(id(module.weight), (path, module.weight))
            places.setdefault(id(module.weight), []).append((model.get_submodule(parent), child, module))
    found = []
    for key, (path, weight) in weights.items():
        users = places[key]
        if key not in groups:
            warnings.warn(f"{path}.weight is not among the optimizer's parameters: it is not served", stacklevel=3)
            continue
        others = sum(p is weight for m in model.modules() for p in m._parameters.values())
        if others != len({id(m) for _, _, m in users}):
            warnings.warn(
                f"{path}.weight is used by another module, too: its gradient is dense, and it is not served",
                stacklevel=3,
            )
            continue
        for _, _, module in users:
            _served_modules.check(path, module)
        rule = rule_of(path, kind, optimizer.param_groups[groups[key]])
        found.append((Table(path, weight, groups[key], kind, rule), weight, users))
    return found


def _kind(optimizer: torch.optim.Optimizer) -> type:
    """The optimizer's own class; it may serve tables of another model already."""
    return next(kind for kind in type(optimizer).__mro__ if not issubclass(kind, _Serving))
