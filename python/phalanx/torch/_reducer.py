"""Gradients of many parameters, reduced while a backward pass computes more of them; complete when it ends.

A gradient travels as soon as it is there. When a pass ends, ranks tell each other in one small allreduce (`_round`) which gradients
they have; what any of them has is reduced on all, and a rank without it sends zeros.

* REDUCE-1: when ``backward()`` returns, no gradient is under way, and each is the same on all ranks that end the same pass, or
  nobody has computed it. So whoever clips, unscales or looks at gradients then does it with everybody's.
* REDUCE-2: all ranks have the same set of reduced parameters at any round; so they agree on whether a step needs another one.
* REDUCE-3: ranks whose parameters, frozen parameters or steps differ get an error, all of them, in the next round.
"""

from __future__ import annotations

import hashlib
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from phalanx import _phalanx, _world
from phalanx._accord import Accord, explain
from phalanx.exceptions import MismatchError, PhalanxError
from phalanx.reductions import Max
from phalanx.torch import _handles, _submit
from phalanx.torch._gradients import Manner, Travel, drain_all, send, send_sparse, wait_for_all
from phalanx.torch._hooks import can_have_gradient, own_gradient
from phalanx.torch._round import BOTH, DENSE, SPARSE, Report, View, read
from phalanx.torch.functions import described

_Parameter = torch.Tensor
#: Which parameters travel together, of those that are trained.
Grouping = Callable[[Sequence[_Parameter]], Sequence[Sequence[_Parameter]]]

_alive: weakref.WeakSet[Reducer] = weakref.WeakSet()
_made: Counter[tuple[str, tuple[int, ...]]] = Counter()


def _forget_all() -> None:
    """What was under way ended with the engine."""
    for reducer in _alive:
        reducer.forget()


_world._at_shutdown.append(_forget_all)


class Reducer:
    """The gradients of one optimizer or model.

    ``passes``: how many backward passes add up before gradients travel. ``again``: whether passes may follow each other without
    a step in between; then each one reduces what is there.
    """

    def __init__(self, what: str, manner: Manner, grouping: Grouping, *, passes: int = 1, again: bool = False) -> None:
        self._what, self._manner, self._grouping, self._again = what, manner, grouping, again
        self.passes = passes
        self.is_syncing = True
        # Ranks make their optimizers in the same order, or hear that they do not: the number is one of the lines they compare.
        made = (what, tuple(manner.process_set.ranks))
        self._number = _made[made]
        _made[made] += 1
        self.prefix = f"{what}.{self._number}." if self._number else ""
        self._ps: list[_Parameter] = []
        self._names: dict[_Parameter, str] = {}
        self._hooks: list[Any] = []
        self._trained: tuple[bool, ...] = ()
        self._is_known = False
        self._accord = Accord(what, self._lines, manner.process_set)
        self._age, self._n_steps, self._n_left_out, self._n_touched = -1, 0, 0, 0
        #: Passes that have not ended, by the numbers that torch gives them.
        self._open: set[int] = set()
        self._reset()
        _alive.add(self)

    # Which parameters there are.

    def adopt(self, named: Iterable[tuple[str, _Parameter]]) -> None:
        """Follows these parameters from now on, whether they are trained now or later."""
        for name, p in named:
            if can_have_gradient(p) and p not in self._names:
                self._names[p] = name
                self._hooks.append(own_gradient(p, self._what, self._on_gradient))
        # By name, because ranks may have them in different orders.
        self._ps = sorted(self._names, key=self._names.__getitem__)
        self._index = {p: i for i, p in enumerate(self._ps)}
        self._is_known = False

    def _look(self) -> None:
        """Notices what was frozen, unfrozen or adopted since the last time."""
        trained = tuple(p.requires_grad for p in self._ps)
        if self._is_known and trained == self._trained:
            return
        self._trained, self._is_known = trained, True
        #: Those whose gradients are expected.
        self.wanted = {p for p in self._ps if p.requires_grad}
        self._groups = [list(group) for group in self._grouping([p for p in self._names if p in self.wanted])]
        self._group_of = {p: i for i, group in enumerate(self._groups) for p in group}
        self._digest = hashlib.blake2b("\n".join(self._lines()).encode()).digest()
        self._waiting = [set(group) for group in self._groups]

    def _lines(self) -> list[str]:
        """What must be equal on all ranks."""
        self._look()
        tensors = [described(self._names[p], p) + self._in_group(p) for p in self._ps if p in self.wanted]
        every = _phalanx.check_every()
        return [f"{self._what} number {self._number}", f"PHALANX_CHECK={every}", *tensors]

    def _in_group(self, p: _Parameter) -> str:
        return f", group {self._group_of[p]}" if p in self._group_of else ""

    def agree(self) -> None:
        """Waits until all ranks were seen to have the same parameters."""
        self._accord.wait()

    # What a backward pass does.

    def _on_gradient(self, p: _Parameter) -> None:
        self._fresh.add(p)
        if not self.is_syncing:
            if not self._again and p in self._reduced:
                # What this rank computes alone would be added to what is everybody's.
                self._refuse(p)
            return
        task = torch._C._current_graph_task_id()
        if task not in self._open:
            self._begin(task)
        if p in self._travels or p in self._reduced:
            if not self._again or p in self._travels:
                self._refuse(p)
            # Reduced by the pass of a checkpoint within this one.
            self._begin_anew({task})
            self._fresh.add(p)
        if self._n_passes >= self.passes:
            try:
                self._send_if_due(p)
                if len(self._travels) + len(self._reduced) == len(self.wanted) and not self._fresh - self.wanted:
                    # Nothing more can come, and the round may travel while others still compute.
                    self._ask(is_at_step=False)
            except PhalanxError:
                self.forget()
                raise

    def _begin(self, task: int) -> None:
        if self._again and not self._open:
            # What was computed and not reduced still counts: no_sync() leaves it behind.
            self._begin_anew(set())
        self._look()
        self._open.add(task)
        self._n_passes += 1
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end(task))

    def is_abandoned(self) -> bool:
        """Whether a pass has begun and ended with an exception; asked outside of passes."""
        return bool(self._open) and torch._C._current_graph_task_id() == -1

    def _refuse(self, p: _Parameter) -> None:
        name, passes = self._names[p], self.passes
        if self._again:
            raise AssertionError(
                f"the gradient of {name} was computed again while it was under way: it is used both inside and outside of "
                "a checkpoint; write checkpoint(..., use_reentrant=False)"
            )
        raise AssertionError(
            f"a further backward pass computed the gradient of {name} before step(), although gradients are reduced after "
            f"{passes} of them: raise backward_passes_per_step, put the passes before the last into no_sync(), or call "
            "optimizer.zero_grad() where a step is left out. A checkpoint with use_reentrant=True counts as a pass of its own."
        )

    def _end(self, task: int) -> None:
        self._open.discard(task)
        if self._n_passes >= self.passes and (self._again or not self.is_complete()):
            self._settle(is_at_step=False)

    # Sending.

    def _send_if_due(self, p: _Parameter) -> None:
        if not self._accord.is_reached():
            # The first time only; the end of the pass sends it.
            return
        index = self._group_of.get(p)
        if index is not None:
            self._waiting[index].discard(p)
        if self._is_sparse(p):
            self._send_one(p, SPARSE)
        elif index is None:
            self._send_one(p, DENSE)
        elif not self._waiting[index]:
            due = [q for q in self._groups[index] if q not in self._travels and q not in self._reduced]
            self._send_group(index, [q for q in due if not self._is_sparse(q)])

    def _kind(self, p: _Parameter) -> int:
        travel = self._travels.get(p)
        is_sparse = self._is_sparse(p) if travel is None else travel.is_sparse
        return SPARSE if is_sparse else DENSE

    def _is_sparse(self, p: _Parameter) -> bool:
        return p.grad is not None and p.grad.is_sparse and not self._manner.sparse_as_dense

    def _send_one(self, p: _Parameter, kind: int) -> None:
        name = self.prefix + self._names[p]
        self._travels[p] = (
            send_sparse(p, name, self._manner) if kind == SPARSE else send([p], name, self._manner, grouped=False)
        )

    def _send_group(self, index: int, members: list[_Parameter]) -> None:
        if members:
            travel = send(members, f"{self.prefix}group.{index}", self._manner, grouped=True)
            self._travels.update(dict.fromkeys(members, travel))

    def _send_rest(self, gradients: dict[int, int]) -> None:
        """Sends what somebody has and this rank has not sent: its own, or zeros."""
        rest = {self._ps[i]: kind for i, kind in gradients.items()}
        rest = {p: kind for p, kind in rest.items() if p not in self._travels and p not in self._reduced}
        groups: dict[int, set[_Parameter]] = {}
        for p, kind in rest.items():
            if kind == DENSE and p in self._group_of:
                groups.setdefault(self._group_of[p], set()).add(p)
            else:
                self._send_one(p, kind)
        for index, members in groups.items():
            self._send_group(index, [p for p in self._groups[index] if p in members])

    # Rounds.

    def _ask(self, is_at_step: bool) -> None:
        if self._asked is not None:
            return
        if self._age != _world.age():
            self._age, self._n_steps, self._n_left_out, self._n_touched = _world.age(), 0, 0, 0
        has = {p for p in self._fresh if p.grad is not None} | self._travels.keys()
        if is_at_step:
            # Gradients that the program has set itself count, too.
            has |= {p for p in self.wanted if p.grad is not None}
        has -= self._reduced.keys()
        gradients = {self._index[p]: self._kind(p) for p in has}
        counts = struct.pack("<qqq", self._n_steps, self._n_left_out, self._n_touched)
        identity = hashlib.blake2b(self._digest + counts, digest_size=8).digest()
        report = Report(gradients, is_at_step, identity).written(len(self._ps))
        handle = _submit.reduce(
            [torch.frombuffer(report, dtype=torch.uint8)],
            in_place=True,
            grouped=False,
            name=f"{self._what}.{self._number}.round",
            op=Max,
            process_set=self._manner.process_set,
        )
        self._asked = (handle, report)

    def _answer(self) -> View:
        assert self._asked is not None, "_ask() was called"
        handle, report = self._asked
        try:
            _handles.synchronize(handle)
            view = read(report, len(self._ps))
        except MismatchError:
            view = None
        self._asked = None
        if view is None or not view.are_alike:
            places = [
                f"{self._n_steps} finished steps",
                f"{self._n_left_out} passes without a step",
                f"{self._n_touched} steps with gradients that were changed after they were reduced",
            ]
            explain(self._what, f"{self._what}.{self._number}.round", self._lines() + places, self._manner.process_set)
        assert view is not None, "explain() raises"
        both = next((self._ps[i] for i, kind in view.gradients.items() if kind == BOTH), None)
        if both is not None:
            raise MismatchError(
                f"{self._names[both]} has a sparse gradient on some ranks and a dense one on others: pass "
                "sparse_as_dense=True, or make it sparse everywhere",
                tensor=self._names[both],
            )
        return view

    def _settle(self, is_at_step: bool, end: Callable[[Iterable[Travel]], None] = wait_for_all) -> bool:
        """One round: afterwards everybody's gradients so far are complete. Whether all ranks are at their step."""
        try:
            self._look()
            self._accord.wait()
            self._ask(is_at_step)
            view = self._answer()
            self._send_rest(view.gradients)
            end(dict.fromkeys(self._travels.values()))
        except PhalanxError:
            # The next pass begins anew.
            self.forget()
            raise
        for p in self._travels:
            self._reduced[p] = (p.grad, p.grad._version if p.grad is not None else 0)
        self._travels.clear()
        self._fresh -= self._reduced.keys()
        return view.are_all_at_step

    # What optimizers and models call.

    def complete(self) -> None:
        """Waits until all gradients are everybody's, also those that the program has set itself."""
        self._open.clear()
        self._look()
        while not self.is_complete():
            if self._settle(is_at_step=True):
                break

    def is_complete(self) -> bool:
        """Whether every gradient that is wanted was reduced since the last step. The same on all ranks (REDUCE-2)."""
        return not self._travels and self.wanted <= self._reduced.keys()

    def pass_done(self) -> None:
        """The gradients so far were used; the next pass may belong to the same step."""
        self._reset()

    def look_at_gradients(self) -> None:
        """Counts the step if the program changed gradients after they were reduced: clipped them, or unscaled them.

        A rank whose gradients were reduced only by its step could not, and would go its own way; the next round tells.
        """
        self._n_touched += any(
            p.grad is not grad or (grad is not None and grad._version != version)
            for p, (grad, version) in self._reduced.items()
        )

    def step_done(self) -> None:
        """The next pass belongs to the next step."""
        self._n_steps += 1
        self._reset()

    def leave_out(self) -> None:
        """The gradients so far are thrown away without a step."""
        if self._travels or self._open:
            # A pass that ended with an exception: ranks may have sent different parts of it. All get all of it, so that
            # names are free again, and nobody keeps it.
            self._open.clear()
            kept = {p: p.grad for p in self._ps if p not in self._travels}
            try:
                for p in kept:
                    p.grad = None
                self._settle(is_at_step=False, end=drain_all)
            finally:
                for p, grad in kept.items():
                    p.grad = grad
        if self._reduced:
            self._n_left_out += 1
        self._begin_anew(set())
        self._fresh.clear()

    def _begin_anew(self, open_tasks: set[int]) -> None:
        """Waits for what is under way, so that its names are free again, and forgets it."""
        travels, asked, fresh = dict.fromkeys(self._travels.values()), self._asked, self._fresh
        self._reset()
        self._open, self._fresh, self._n_passes = open_tasks, fresh, len(open_tasks)
        drain_all(travels)
        if asked is not None:
            _handles.synchronize(asked[0])

    def forget(self) -> None:
        """Begins anew without waiting: after a failure, or a shutdown."""
        for travel in self._travels.values():
            travel.forget()
        if self._asked is not None:
            _handles.forget(self._asked[0])
        self._open.clear()
        self._reset()

    def _reset(self) -> None:
        #: Gradients that this rank has computed and nobody has reduced.
        self._fresh: set[_Parameter] = set()
        self._travels: dict[_Parameter, Travel] = {}
        #: Those that were reduced since the last step, with the gradient and its version then.
        self._reduced: dict[_Parameter, tuple[torch.Tensor | None, int]] = {}
        self._n_passes = 0
        self._asked: tuple[int, bytearray] | None = None
        if self._is_known:
            self._waiting = [set(group) for group in self._groups]

    @contextmanager
    def no_sync(self) -> Any:
        """In it, gradients are only accumulated; the first pass after it reduces their sum."""
        before, self.is_syncing = self.is_syncing, False
        try:
            yield
        finally:
            self.is_syncing = before
