"""One table on servers: how its rows are pulled, and where gradients wait for the step."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from phalanx import _phalanx
from phalanx.torch import _memory
from phalanx.torch._served_rules import rule_of, states_of_rule

#: Rows are written and gathered in pieces of this many bytes.
_PIECE_BYTES = 4 << 20


class Table:
    """One table: where its rows are pulled and gradients wait for the step."""

    core: _phalanx.ServedTables
    number: int

    def __init__(
        self, name: str, weight: torch.Tensor, group: int, kind: type, rule: tuple[str, dict[str, float]]
    ) -> None:
        self.name = name
        self.height, self.width = int(weight.shape[0]), int(weight.shape[1])
        self.dtype = weight.dtype
        # Which parameter group, by its number: loading a state makes new groups.
        self.group = group
        self.kind, self.rule = kind, rule
        self.is_trained = weight.requires_grad
        #: Whether passes give no gradients at present; steps go on, without rows.
        self.is_frozen = False
        #: Rows travel as often as they are touched.
        self.raw = False
        self.given: list[tuple[torch.Tensor, torch.Tensor]] = []

    def state_parts(self) -> range:
        return range(1, 1 + len(states_of_rule(self.rule[0])))

    def pull(self, ids: torch.Tensor) -> torch.Tensor:
        rows = torch.empty((len(ids), self.width), dtype=self.dtype)
        self.core.pull(self.number, self.core.step(self.number), _memory.lend(ids), _memory.lend(rows))
        if torch.is_grad_enabled() and self.is_trained and not self.is_frozen:
            rows.requires_grad_()
            rows.register_hook(functools.partial(self._note, ids))  # type: ignore[no-untyped-call]
        return rows

    def _note(self, ids: torch.Tensor, gradient: torch.Tensor) -> None:
        # A copy, because a further backward pass may add to this one's memory.
        self.given.append((ids, gradient.detach().clone()))

    def waiting(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers of rows and their gradients of all passes, each row once."""
        if not self.given:
            return torch.empty(0, dtype=torch.int64), torch.empty((0, self.width), dtype=self.dtype)
        ids, inverse = torch.unique(torch.cat([i for i, _ in self.given]), return_inverse=True)
        rows = torch.cat([g.to(self.dtype) for _, g in self.given])
        return ids, torch.zeros((len(ids), self.width), dtype=self.dtype).index_add_(0, inverse, rows)

    def freeze(self, is_frozen: bool) -> None:
        """Passes give no gradients from now on, or give them again."""
        if not is_frozen and not self.is_trained:
            raise ValueError(
                f"table {self.name!r} was frozen when it went to servers, which have no rule for it: serve it unfrozen, and freeze it "
                "afterwards"
            )
        self.is_frozen = is_frozen

    def scale_(self, factor: float) -> None:
        for _, gradient in self.given:
            gradient.mul_(factor)

    def check(self, group: dict[str, Any]) -> None:
        """Refuses numbers of the rule that have changed: servers have those of the beginning."""
        now = rule_of(self.name, self.kind, group) if self.is_trained else self.rule
        if now != self.rule:
            raise ValueError(
                f"{self.name}: servers were told {self.rule} by serve_tables(), and the parameter group says {now} now; only lr may change"
            )

    def forget(self) -> None:
        """Drops what no step has used."""
        self.given.clear()

    def attend(self) -> None:
        """A step of the others, for which this rank has no data; their rate counts."""
        self.given.clear()
        if self.is_trained:
            self.core.attend(self.number, self.core.step(self.number))

    def push(self, group: dict[str, Any]) -> None:
        """Sends what all passes of this step gave; no rows if they gave none."""
        if not self.is_trained:
            return
        ids, gradients = torch.empty(0, dtype=torch.int64), torch.empty((0, self.width), dtype=self.dtype)
        if len(self.given) == 1:
            ((ids, gradients),) = self.given
        elif self.given:
            ids, gradients = (torch.cat(all_of) for all_of in zip(*self.given, strict=True))
        gradients = gradients.to(self.dtype).contiguous()
        self.given.clear()
        step = self.core.step(self.number)
        rate = float(group["lr"])
        if self.rule[0] == "adagrad":
            rate /= 1.0 + self.core.age(self.number) * float(group.get("lr_decay", 0.0))
        self.core.push(self.number, step, _memory.lend(ids), _memory.lend(gradients), rate)

    def settle(self) -> None:
        """Waits until the last step is the version that servers have."""
        # One row: nobody waits for none.
        first, row = torch.zeros(1, dtype=torch.int64), torch.empty((1, self.width), dtype=self.dtype)
        self.core.pull(self.number, self.core.step(self.number), _memory.lend(first), _memory.lend(row))

    def pieces(self) -> Iterator[torch.Tensor]:
        n = max(1, _PIECE_BYTES // (self.width * self.dtype.itemsize))
        for start in range(0, self.height, n):
            yield torch.arange(start, min(start + n, self.height))

    def gather(self, part: int = 0) -> torch.Tensor:
        whole = torch.empty((self.height, self.width), dtype=self.dtype)
        for ids in self.pieces():
            rows = whole[int(ids[0]) : int(ids[-1]) + 1]
            self.core.read(self.number, part, _memory.lend(ids), _memory.lend(rows))
        return whole

    def scatter(self, values: torch.Tensor, part: int = 0) -> None:
        if values.shape != (self.height, self.width):
            raise ValueError(
                f"table {self.name!r} is {self.height} x {self.width}, the values are {tuple(values.shape)}"
            )
        values = values.detach().to(self.dtype).contiguous()
        for ids in self.pieces():
            rows = values[int(ids[0]) : int(ids[-1]) + 1]
            self.core.write(self.number, part, _memory.lend(ids), _memory.lend(rows))


class DenseTable(Table):
    """A parameter whose gradients are dense, as a table of which every step pulls and pushes all rows."""

    def __init__(
        self, name: str, parameter: torch.Tensor, group: int, kind: type, rule: tuple[str, dict[str, float]]
    ) -> None:
        n_rows = int(parameter.shape[0]) if parameter.dim() > 1 else 1
        super().__init__(name, parameter.detach().reshape(n_rows, -1), group, kind, rule)
        self.is_trained = True
        self.parameter = parameter
        #: The step whose values the parameter has.
        self.held: int | None = None
        #: Whether the copy serves all passes of a step.
        self.keeps = True
        #: How often torch has seen the parameter change, and its rows, when they were last set or written.
        self.version = parameter._version
        self.rows: torch.Tensor | None = None

    def refresh(self) -> None:
        """Gives the parameter the values that servers have for this step."""
        if self.parameter._version != self.version and self._is_changed():
            raise RuntimeError(
                f"{self.name} was changed by hand, and servers have other values: write it into the model's state_dict() and call "
                "load_state_dict() on every rank"
            )
        step = self.core.step(self.number)
        if self.keeps and step == self.held:
            return
        rows = torch.empty((self.height, self.width), dtype=self.dtype)
        self.core.pull(self.number, step, _memory.lend(torch.arange(self.height)), _memory.lend(rows))
        self._set(rows)
        self.held = step

    def look(self) -> None:
        """The newest values, as they are read for saving."""
        self._set(self.gather())

    def _is_changed(self) -> bool:
        """Whether its values are others, too: a broadcast writes those that it has."""
        here = self.parameter.detach().to("cpu").reshape(self.height, self.width)
        return self.rows is not None and not torch.equal(here, self.rows)

    def _set(self, rows: torch.Tensor) -> None:
        with torch.no_grad():
            self.parameter.copy_(rows.view(self.parameter.shape))
        self.version, self.rows = self.parameter._version, rows

    def write(self) -> None:
        """Servers get the values of the parameter."""
        self.rows = self.parameter.detach().to("cpu").reshape(self.height, self.width).clone()
        self.scatter(self.rows)
        self.held = None
        self.version = self.parameter._version

    def waiting(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All rows and their gradients, if there are any."""
        gradient = self.parameter.grad
        self.given = [] if gradient is None else [self._whole(gradient)]
        return super().waiting()

    def _whole(self, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        return torch.arange(self.height), dense.detach().to("cpu").reshape(self.height, self.width)

    def scale_(self, factor: float) -> None:
        """Multiplies the gradient."""
        if self.parameter.grad is not None:
            self.parameter.grad.mul_(factor)

    def forget(self) -> None:
        """Drops the gradient, which the optimizer does not know any more."""
        self.parameter.grad = None
        self.given.clear()

    def push(self, group: dict[str, Any]) -> None:
        """Sends the gradient."""
        gradient = self.parameter.grad
        self.given = [] if gradient is None else [self._whole(gradient)]
        super().push(group)
