"""The first step of a model whose tables may go to servers after it: the rows that it touches, and what its optimizer keeps."""

from __future__ import annotations

import functools
from typing import Any

import torch

from phalanx import _phalanx
from phalanx.torch import _memory, served
from phalanx.torch._served_rules import states_of_rule
from phalanx.torch.collectives import barrier
from phalanx.torch.served import ServedTables

#: For each table: steps so far, and its states.
States = dict[str, tuple[int, list[torch.Tensor]]]


class FirstRows:
    """Counts the rows that passes look up, until it is ended. It changes nothing."""

    def __init__(self, model: torch.nn.Module, sparse: set[int]) -> None:
        self._seen: dict[int, tuple[str, torch.Tensor, list[torch.Tensor]]] = {}
        self._hooks: list[Any] = []
        for path, module in model.named_modules():
            if not isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) or id(module.weight) not in sparse:
                continue
            _, _, into = self._seen.setdefault(id(module.weight), (path, module.weight, []))
            note = functools.partial(_note, into)
            self._hooks.append(module.register_forward_pre_hook(note, with_kwargs=True))

    def ended(self) -> list[tuple[str, int, _phalanx.Lent]]:
        """Each table, the bytes of a row, and the numbers of the rows."""
        for hook in self._hooks:
            hook.remove()
        tables: list[tuple[str, int, _phalanx.Lent]] = []
        for path, weight, seen in self._seen.values():
            ids = torch.cat(seen) if seen else torch.empty(0, dtype=torch.int64)
            tables.append((path, weight.shape[1] * weight.element_size(), _memory.lend(ids)))
        return tables


def _note(into: list[torch.Tensor], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    ids = args[0] if args else kwargs.get("input")
    if not torch.is_grad_enabled() or not isinstance(ids, torch.Tensor):
        return
    # A copy: the model may write new numbers into its input.
    flat = ids.detach().reshape(-1).to("cpu", torch.int64, copy=True)
    into.append(flat if module.padding_idx is None else flat[flat != module.padding_idx])


def table_bytes(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """What the tables take on a worker, with the states of their rule."""
    found = served._found(model, optimizer)
    return sum(w.numel() * w.element_size() * (1 + len(table.state_parts())) for table, w, _ in found)


def states_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> States:
    """What the optimizer has kept for the tables so far."""
    states: States = {}
    for table, weight, _ in served._found(model, optimizer):
        own = optimizer.state.get(weight, {})
        kept = [own[name] for name in states_of_rule(table.rule[0]) if own.get(name) is not None]
        dense = [value.to_dense() if value.is_sparse else value for value in kept]
        steps = own.get("step", 1 if own or not states_of_rule(table.rule[0]) else 0)
        states[table.name] = int(steps), [value.detach().to("cpu") for value in dense]
    return states


def adopt(tables: ServedTables, states: States) -> None:
    """Servers go on from these states; every rank has the same ones."""
    for table in tables._tables:
        steps, values = states[table.name]
        if values and _phalanx.place()[0] == 0:
            for part, value in zip(table.state_parts(), values, strict=True):
                table.scatter(value, part)
        if table.is_trained:
            tables._core.set_age(table.number, steps)
    barrier()


__all__ = ["FirstRows", "adopt", "states_of", "table_bytes"]
