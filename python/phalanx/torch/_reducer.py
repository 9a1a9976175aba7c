"""Reduces the gradients of many parameters while a backward pass computes more of them; all are reduced when it ends.

Dense gradients are sent in buckets (`_bucket`), each as soon as all of its members are computed; sparse ones are sent alone. When a pass
ends, one small allreduce (`_round`) compares which gradients each rank has. A gradient that any rank has is reduced on all ranks; a rank
without it sends zeros. Buckets are filled in the order in which the first pass computed gradients.

* REDUCE-1: when ``backward()`` returns, no reduction is pending, and each gradient is the same on all ranks that end the same pass, or
  no rank has computed it. So a program that clips, unscales or reads gradients then uses the reduced ones.
* REDUCE-2: all ranks have the same set of reduced parameters at any round; so they agree on whether a step needs another round.
* REDUCE-3: ranks whose parameters, frozen parameters or steps differ get an error, all of them, in the next round.
* REDUCE-4: all ranks have the same buckets, or get an error, all of them, in the next round.
"""

from __future__ import annotations

import hashlib
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter, is_not
from typing import Any

import torch

from phalanx import _phalanx, _world
from phalanx._accord import Accord, explain
from phalanx._options import Options
from phalanx.exceptions import MismatchError, PhalanxError
from phalanx.reductions import Max
from phalanx.torch import _handles, _submit
from phalanx.torch._bucket import Bucket, is_laid_out
from phalanx.torch._check import Glances
from phalanx.torch._filling import filled
from phalanx.torch._gradients import Manner, Travel, drain_all, send, send_bucket, send_sparse, wait_for_all
from phalanx.torch._hooks import can_have_gradient, own_gradient
from phalanx.torch._round import View, read, written
from phalanx.torch._throughput import Throughput
from phalanx.torch.compression import is_native
from phalanx.torch.functions import described

_Parameter = torch.Tensor
#: Which parameters travel together, of those that are trained.
Grouping = Callable[[Sequence[_Parameter]], Sequence[Sequence[_Parameter]]]

#: What becomes of a gradient: an earlier pass has computed it, this one has, it travels, it is everybody's.
_IDLE, _FRESH, _BORN, _SENT, _REDUCED = range(5)


def _table(*chosen: int) -> bytes:
    return bytes(state in chosen for state in range(256))


_IS_HAD, _IS_SENT = _table(_FRESH, _BORN, _SENT), _table(_SENT)
_NEXT_PASS = bytes([_IDLE, _FRESH, _FRESH, _SENT, _REDUCED, *range(5, 256)])
_ANEW = bytes([_IDLE, _FRESH, _FRESH, _FRESH, _IDLE, *range(5, 256)])

_GRAD, _IS_TRAINED, _DTYPE, _VERSION = map(attrgetter, ("grad", "requires_grad", "dtype", "_version"))

_BUCKET_BYTES = 8 << 20
_NO_TASK = -2
_task_id = torch._C._current_graph_task_id

_alive: weakref.WeakSet[Reducer] = weakref.WeakSet()
_made: Counter[tuple[str, tuple[int, ...]]] = Counter()


def _forget_all() -> None:
    """Drops pending reductions, which ended with the engine."""
    for reducer in _alive:
        reducer.forget()


_world._at_shutdown.append(_forget_all)


class _Member:
    """A parameter's number and bucket, which change when parameters are added."""

    __slots__ = ("bucket", "index")

    def __init__(self) -> None:
        self.index = -1
        self.bucket: Bucket | None = None


class _Seen:
    """Parameters that were reduced since the last step, their gradients then, and the versions of these."""

    __slots__ = ("grads", "ps", "versions")

    def __init__(self) -> None:
        self.ps: list[_Parameter] = []
        self.grads: list[torch.Tensor | None] = []
        self.versions: list[int] = []

    def is_touched(self) -> bool:
        """Whether the program wrote to a gradient or replaced one."""
        return any(map(is_not, map(_GRAD, self.ps), self.grads)) or self.versions != _versions(self.grads)


class Reducer:
    """The gradients of one optimizer or model.

    ``cap``: the most bytes of a bucket. ``passes``: the number of backward passes that add up before gradients are reduced. ``again``:
    whether passes may follow each other without a step in between; then each pass reduces the gradients so far.
    """

    def __init__(
        self,
        what: str,
        manner: Manner,
        cap: int,
        grouping: Grouping = lambda _: (),
        *,
        passes: int = 1,
        again: bool = False,
        settings: Callable[[], Sequence[str]] = list,
    ) -> None:
        self._what, self._manner, self._cap, self._grouping, self._again = what, manner, cap, grouping, again
        self.passes = passes
        #: What else ranks must have alike, such as learning rates; and what the last step had.
        self._settings = settings
        self._used: Sequence[str] = ()
        #: What is sent now is waited for at once.
        self._is_ending = False
        self.is_syncing = True
        # Ranks make their optimizers in the same order, or hear that they do not: the number is one of the lines they compare.
        made = (what, tuple(manner.process_set.ranks))
        self._number = _made[made]
        _made[made] += 1
        # Names of the first optimizer are those of its parameters, as with Horovod.
        self.prefix = f"{what}.{self._number}." if self._number or what != "DistributedOptimizer" else ""
        self._ps: list[_Parameter] = []
        self._names: dict[_Parameter, str] = {}
        self._members: dict[_Parameter, _Member] = {}
        self._hooks: dict[_Parameter, Any] = {}
        #: What gradients must fit.
        self._forms: tuple[list[Any], ...] = ()
        self._is_known = False
        self._buckets: list[Bucket] = []
        #: Parameters whose gradients were sparse.
        self._sparse: set[_Parameter] = set()
        #: In which order the first rank's pass computed gradients: of a pass that has not ended, and as all ranks know it.
        self._births: dict[int, None] | None = None
        self._order: dict[_Parameter, int] = {}
        self._state = bytearray()
        self._seen = _Seen()
        self._travels: list[Travel] = []
        self._rows: set[int] = set()
        self._loose: set[int] = set()
        #: Buckets, and gradients without one, that are complete and not sent.
        self._due: list[Bucket | int] = []
        self._n_passes = 0
        self._asked: tuple[int, bytearray] | None = None
        self._accord = Accord(what, self._lines, manner.process_set)
        self._glances = Glances(what, manner.process_set)
        self._throughput = Throughput(what, manner.process_set)
        self._layout_age = self._age = -1
        self._n_steps = self._n_left_out = self._n_touched = 0
        #: Passes that have not ended, by the numbers that torch gives them.
        self._open: set[int] = set()
        self._reset()
        _alive.add(self)

    # Which parameters there are.

    def adopt(self, named: Iterable[tuple[str, _Parameter]]) -> None:
        """Follows these parameters from now on, and no others, whether they are trained now or later."""
        before = dict(zip(self._ps, self._state, strict=True))
        old = self._ps
        given = {p: name for name, p in named if can_have_gradient(p)}
        for p in [p for p in self._names if p not in given]:
            self._hooks.pop(p).remove()
            del self._names[p], self._members[p]
            self._sparse.discard(p)
        for p, name in given.items():
            if p not in self._names:
                self._names[p] = name
                self._members[p] = _Member()
                self._hooks[p] = own_gradient(p, self._what, partial(self._on_gradient, self._members[p]))
        # By name, because ranks may have them in different orders.
        self._ps = sorted(self._names, key=self._names.__getitem__)
        self._state = bytearray(before.get(p, _IDLE) for p in self._ps)
        for i, p in enumerate(self._ps):
            self._members[p].index = i
        self._renumber([self._members[p].index if p in self._members else None for p in old])
        self._is_known = False
        # New parameters have the values that each rank gave them.
        self._glances.suspect()

    def _renumber(self, new: list[int | None]) -> None:
        """Numbers the parameters again, after some were added or removed."""

        def moved(indices: Iterable[int]) -> Iterator[int]:
            return (i for i in map(new.__getitem__, indices) if i is not None)

        self._rows, self._loose = set(moved(self._rows)), set(moved(self._loose))
        self._due = [i for due in self._due if isinstance(due, int) for i in moved([due])]
        for travel in self._travels:
            travel.indices = list(moved(travel.indices))

    def _look(self) -> None:
        """Finds parameters that were frozen, unfrozen or adopted since the last call."""
        if self._layout_age != _world.age():
            # Ranks that had joined have learned nothing meanwhile.
            self._layout_age, self._is_known, self._order, self._sparse = _world.age(), False, {}, set()
        forms = _forms(self._ps)
        if self._is_known and forms == self._forms:
            return
        self._forms, self._is_known = forms, True
        #: Those whose gradients are expected.
        self._wanted = [i for i, p in enumerate(self._ps) if p.requires_grad]
        self._births = {}
        self._fill()
        self._digest = hashlib.blake2b("\n".join(self._lines()).encode()).digest()

    def _fill(self) -> None:
        """Makes the buckets (REDUCE-4)."""
        wanted = [self._ps[i] for i in self._wanted]
        alone = self._sparse if is_native(self._manner.compression) else set(wanted)
        lists = filled(wanted, self._groups(), self._order, alone, self._cap)
        self._buckets = []
        for member in self._members.values():
            member.bucket = None
        for ps in lists:
            name = self._names[ps[0]] + (f"+{len(ps) - 1}" if len(ps) > 1 else "")
            bucket = Bucket(self.prefix + name, [self._members[p].index for p in ps], ps)
            self._buckets.append(bucket)
            for p in ps:
                self._members[p].bucket = bucket
        layout = repr([(bucket.name, bucket.indices) for bucket in self._buckets])
        self._layout = hashlib.blake2b(layout.encode(), digest_size=8).digest()
        self._count()

    def _lines(self) -> list[str]:
        """What must be equal on all ranks."""
        self._look()
        wanted = [self._ps[i] for i in self._wanted]
        groups = {p: i for i, group in enumerate(self._groups()) for p in group}
        compression = self._manner.compression
        lines = [
            f"{self._what} number {self._number}",
            f"PHALANX_CHECK={_phalanx.check_every()}",
            f"buckets of {self._cap} bytes",
            "compression by the engine" if is_native(compression) else f"compression by {compression.__name__}",
        ]
        for p in wanted:
            group = f", group {groups[p]}" if p in groups else ""
            layout = f", strides {list(p.stride())}" if is_laid_out(p) else ""
            lines.append(described(self._names[p], p) + group + layout)
        return lines

    def _groups(self) -> Sequence[Sequence[_Parameter]]:
        wanted = {self._ps[i] for i in self._wanted}
        return self._grouping([p for p in self._names if p in wanted])

    def agree(self) -> None:
        """Waits until all ranks are known to have the same parameters."""
        self._accord.wait()

    # What a backward pass does.

    def _on_gradient(self, member: _Member, p: _Parameter) -> None:
        # In full, because it runs for every parameter of every pass: what `_is_born` does where nothing is due and more is to come.
        state, i, bucket = self._state, member.index, member.bucket
        if self._task != _task_id() or state[i] >= _BORN:
            self._notice(member)
        elif self._due or bucket is None or bucket.n_missing == 1:
            self._is_born(member)
        else:
            state[i] = _BORN
            bucket.n_missing -= 1

    def _notice(self, member: _Member) -> None:
        """As :meth:`_is_born`, for the first gradient of a pass, and for gradients that are not sent immediately."""
        i = member.index
        if not self.is_syncing:
            if not self._again and self._state[i] == _REDUCED:
                # What this rank computes alone would be added to what is everybody's.
                self._refuse(i)
            self._state[i] = _FRESH
            return
        task = _task_id()
        if task not in self._open:
            self._begin(task)
        if self._state[i] >= _SENT:
            if not self._again or self._state[i] == _SENT:
                self._refuse(i)
            # Reduced by the pass of a checkpoint within this one.
            self._begin_anew({task})
        if self._births is not None:
            self._births[i] = None
        if self._n_passes < self.passes or not self._is_agreed():
            # Another pass sends it, or the end of this one.
            self._state[i] = _FRESH
            return
        if self._births is None:
            self._task = task
        if self._state[i] < _BORN:
            self._is_born(member)

    def _is_agreed(self) -> bool:
        try:
            return self._accord.is_reached()
        except PhalanxError:
            self.forget()
            raise

    def _is_born(self, member: _Member) -> None:
        """Called when a gradient has been computed."""
        self._state[member.index] = _BORN
        if self._due:
            self._send_due()
        bucket = member.bucket
        if bucket is None:
            self._due.append(member.index)
        else:
            bucket.n_missing -= 1
            # A checkpoint within this pass may have sent a part of it.
            if bucket.n_missing == 0 and not bucket.is_sent and not self._has_reduced(bucket):
                self._due.append(bucket)

    def _send_due(self) -> None:
        """Sends complete buckets. A bucket is sent when the next gradient comes, because the program's hooks run after ours."""
        due, self._due = self._due, []
        try:
            for what in due:
                if isinstance(what, int):
                    self._send_alone(what)
                elif what.is_loadable(self._manner.sparse_as_dense):
                    self._send_bucket(what)
        except PhalanxError:
            self.forget()
            raise

    def _begin(self, task: int) -> None:
        if self._again and not self._open:
            # What was computed and not reduced still counts: no_sync() leaves it behind.
            self._begin_anew(set())
        self._look()
        if not self._open:
            self._state = self._state.translate(_NEXT_PASS)
            self._count()
        self._open.add(task)
        self._n_passes += 1
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end(task))

    def _count(self) -> None:
        """The number of gradients that a pass beginning now has to compute."""
        for bucket in self._buckets:
            # The rest of one that was sent already is sent by the round, one by one.
            bucket.n_missing = -1 if bucket.is_sent or self._has_reduced(bucket) else len(bucket.ps)

    def _has_reduced(self, bucket: Bucket) -> bool:
        return _REDUCED in self._state and any(self._state[i] == _REDUCED for i in bucket.indices)

    def is_abandoned(self) -> bool:
        """Whether a pass has begun and ended with an exception; called outside of passes."""
        return bool(self._open) and _task_id() == -1

    def _refuse(self, i: int) -> None:
        name, passes = self._names[self._ps[i]], self.passes
        if self._again:
            raise AssertionError(
                f"the gradient of {name} was computed again while it was being reduced: it is used both inside and outside of "
                "a checkpoint; write checkpoint(..., use_reentrant=False)"
            )
        raise AssertionError(
            f"a further backward pass computed the gradient of {name} before step(), although gradients are reduced after "
            f"{passes} of them: raise backward_passes_per_step, put the passes before the last into no_sync(), or call "
            "optimizer.zero_grad() where a step is skipped. A checkpoint with use_reentrant=True counts as a pass of its own."
        )

    def _end(self, task: int) -> None:
        self._open.discard(task)
        self._task = _NO_TASK
        if self._n_passes >= self.passes and (self._again or not self.is_complete() or self._due):
            self._settle(is_at_step=False)
        else:
            self._send_due()

    # Sending.

    def _send_bucket(self, bucket: Bucket, places: Sequence[int] | None = None) -> None:
        self._travels.append(send_bucket(bucket, self._manner, places, self._is_ending))
        bucket.is_sent = True
        for i in bucket.indices if places is None else [bucket.indices[place] for place in places]:
            self._state[i] = _SENT

    def _send_alone(self, i: int) -> None:
        """Sends a gradient without a bucket, unless the other ranks do not expect its kind: the round decides that."""
        p = self._ps[i]
        if p.grad is not None and p.grad.is_sparse and not self._manner.sparse_as_dense:
            self._send_rows(i)
        elif p.grad is not None and p not in self._sparse:
            self._send_loose(i)

    def _send_rows(self, i: int) -> None:
        name = self.prefix + self._names[self._ps[i]]
        self._rows.add(i)
        self._travels.append(send_sparse(self._ps[i], i, name, self._manner))
        self._state[i] = _SENT

    def _send_loose(self, i: int) -> None:
        name = self.prefix + self._names[self._ps[i]]
        self._loose.add(i)
        self._travels.append(send(self._ps[i], i, name, self._manner, self._is_ending))
        self._state[i] = _SENT

    def _send_rest(self, view: View) -> None:
        """Sends the gradients that some rank has and this rank has not sent yet: its own, or zeros."""
        if view.in_both() is None and view.kinds() == self._state.translate(_IS_SENT):
            return
        for i in (i for i, has in enumerate(view.sparse) if has and i not in self._rows):
            self._send_rows(i)
        buckets: dict[Bucket, None] = {}
        for i in (i for i, has in enumerate(view.dense) if has):
            bucket = self._members[self._ps[i]].bucket
            if bucket is not None and not bucket.is_sent and not self._has_reduced(bucket):
                buckets[bucket] = None
            elif i not in self._loose and (self._state[i] < _SENT or (bucket is None and i in self._rows)):
                self._send_loose(i)
        for bucket in buckets:
            self._send_bucket(bucket, [place for place, i in enumerate(bucket.indices) if view.dense[i]])

    # Rounds.

    def _ask(self, is_at_step: bool) -> None:
        if self._asked is not None:
            return
        if self._age != _world.age():
            self._age, self._n_steps, self._n_left_out, self._n_touched = _world.age(), 0, 0, 0
            self._used = ()
        dense, sparse = bytearray(self._state.translate(_IS_HAD)), bytearray(len(self._ps))
        for i in self._rows:
            if self._state[i] == _SENT:
                dense[i], sparse[i] = 0, 1
        unsent = () if min(self._state, default=_SENT) >= _SENT else enumerate(self._state)
        for i, state in unsent:
            if state >= _SENT:
                continue
            grad = self._ps[i].grad
            # Gradients that the program has set itself count at a step, too.
            has = grad is not None and (state != _IDLE or (is_at_step and self._forms[0][i]))
            is_sparse = has and grad is not None and grad.is_sparse and not self._manner.sparse_as_dense
            dense[i], sparse[i] = has and not is_sparse, is_sparse
        counts = struct.pack("<qqq", self._n_steps, self._n_left_out, self._n_touched)
        used = "\n".join(self._used).encode()
        identity = hashlib.blake2b(self._digest + self._layout + counts + used, digest_size=8).digest()
        report = written(bytes(dense), bytes(sparse), is_at_step, self._glances.is_time(), identity)
        handle = self._largest(torch.frombuffer(report, dtype=torch.uint8), "round")
        self._asked = (handle, report)

    def _largest(self, tensor: torch.Tensor, of: str) -> int:
        """Starts to replace each element by the largest one of all ranks."""
        options = Options(f"{self._what}.{self._number}.{of}", self._manner.process_set, op=Max, awaited=True)
        return _submit.reduce([tensor], options, in_place=True)

    def _answer(self) -> View:
        assert self._asked is not None, "_ask() was called"
        handle, report = self._asked
        view = None
        try:
            _handles.synchronize(handle)
            view = read(report, len(self._ps))
        except MismatchError:
            pass
        self._asked = None
        if view is None or not view.are_alike:
            places = [
                f"{self._n_steps} finished steps",
                f"{self._n_left_out} passes without a step",
                f"buckets {self._layout.hex()}",
                f"{self._n_touched} steps with gradients that were changed after they were reduced",
                *(f"the last step had {setting}" for setting in self._used),
            ]
            explain(self._what, f"{self._what}.{self._number}.round", self._lines() + places, self._manner.process_set)
        assert view is not None, "explain() raises"
        return view

    def _settle(self, is_at_step: bool, end: Callable[[Iterable[Travel]], None] = wait_for_all) -> bool:
        """One round: afterwards all gradients so far are reduced. Returns whether all ranks are at their step."""
        self._task = _NO_TASK
        self._is_ending = True
        try:
            self._send_due()
            if not self._is_known:
                self._look()
            with self._throughput.waiting():
                self._accord.wait()
                self._ask(is_at_step)
                view = self._answer()
                self._send_rest(view)
                end(self._travels)
            self._refuse_both(view)
            self._state = self._state.replace(bytes([_SENT]), bytes([_REDUCED]))
            self._mark()
            self._travels.clear()
            self._learn(view)
            self._glances.round(view.compares, f"{self._what}.{self._number}.parameters", self._named)
        except PhalanxError:
            # The next pass begins anew.
            self.forget()
            raise
        finally:
            self._is_ending = False
        return view.are_all_at_step

    def _named(self) -> list[tuple[str, _Parameter]]:
        return [(self._names[p], p) for p in self._ps]

    def _refuse_both(self, view: View) -> None:
        i = view.in_both()
        if i is not None:
            name = self._names[self._ps[i]]
            raise MismatchError(
                f"{name} has a sparse gradient on some ranks and a dense one on others: pass sparse_as_dense=True, or "
                "make it sparse on every rank",
                tensor=name,
            )

    def _learn(self, view: View) -> None:
        """Stores the kinds of gradients that all ranks agreed on, and after the first pass their order (REDUCE-4)."""
        sparse = {self._ps[i] for i, has in enumerate(view.sparse) if has} if any(view.sparse) else set()
        dense = {p for p in self._sparse if view.dense[self._members[p].index]}
        is_new = not sparse <= self._sparse or bool(dense)
        self._sparse = (self._sparse | sparse) - dense
        if self._births is not None:
            births = torch.zeros(len(self._ps), dtype=torch.int32)
            if _phalanx.place()[0] == self._manner.process_set.ranks[0]:
                for place, i in enumerate(self._births):
                    births[i] = place + 1
            self._births, is_new = None, True
            _handles.synchronize(self._largest(births, "order"))
            self._order = {self._ps[i]: place for i, place in enumerate(births.tolist()) if place > 0}
        if is_new:
            self._fill()

    # What optimizers and models call.

    def complete(self) -> None:
        """Waits until all gradients are reduced, including those that the program has set itself."""
        self._open.clear()
        if not self._is_known or self._layout_age != _world.age() or self._forms[0] != list(map(_IS_TRAINED, self._ps)):
            self._look()
        while not self.is_complete():
            if self._settle(is_at_step=True):
                break

    def is_complete(self) -> bool:
        """Whether every needed gradient was reduced since the last step. The same on all ranks (REDUCE-2)."""
        if self._travels:
            return False
        state = self._state
        return state.count(_REDUCED) == len(state) or all(state[i] == _REDUCED for i in self._wanted)

    def under_way(self) -> dict[_Parameter, Travel]:
        """What travels now."""
        return {self._ps[i]: travel for travel in self._travels for i in travel.indices}

    def pass_done(self) -> None:
        """The gradients so far were used; the next pass may belong to the same step."""
        self._reset()

    def _mark(self) -> None:
        """Stores which gradients were just reduced, for the check in the step."""
        if self._again:
            return
        reduced = [self._ps[i] for travel in self._travels for i in travel.indices]
        grads = list(map(_GRAD, reduced))
        self._seen.ps += reduced
        self._seen.grads += grads
        self._seen.versions += _versions(grads)

    def look_at_gradients(self) -> None:
        """Counts the step if the program changed gradients after they were reduced: clipped them, or unscaled them.

        A rank whose gradients are reduced only in its step cannot do that and would diverge; the next round reports it.
        """
        self._n_touched += self._seen.is_touched()
        self._seen = _Seen()

    def step_done(self) -> None:
        """The next pass belongs to the next step."""
        self._n_steps += 1
        self._used = self._settings()
        self._reset()

    def leave_out(self) -> None:
        """Discards the gradients so far without a step."""
        if self._travels or self._open:
            # A pass that ended with an exception: ranks may have sent different parts of it. All get all of it, so that
            # names are free again, and nobody keeps it.
            self._open.clear()
            self._glances.suspect()
            for bucket in (bucket for bucket in self._buckets if not bucket.is_sent):
                bucket.release()
            sent = self.under_way()
            kept = {p: p.grad for p in self._ps if p not in sent}
            try:
                for p in kept:
                    p.grad = None
                self._settle(is_at_step=False, end=drain_all)
            finally:
                for p, grad in kept.items():
                    p.grad = grad
        if _REDUCED in self._state:
            self._n_left_out += 1
        self._begin_anew(set())
        self._state = bytearray(len(self._ps))

    def _begin_anew(self, open_tasks: set[int]) -> None:
        """Waits for pending reductions, so that their names are free again, and drops them."""
        travels, asked, state = self._travels, self._asked, self._state.translate(_ANEW)
        self._reset()
        self._open, self._state, self._n_passes = open_tasks, state, len(open_tasks)
        try:
            drain_all(travels)
            if asked is not None:
                _handles.synchronize(asked[0])
        except BaseException:
            # The engine may still write to their memory.
            for bucket in self._buckets:
                bucket.abandon()
            raise

    def forget(self) -> None:
        """Resets without waiting: after a failure or a shutdown."""
        for travel in self._travels:
            travel.forget()
        for bucket in self._buckets:
            bucket.abandon()
        if self._asked is not None:
            _handles.forget(self._asked[0])
        self._open.clear()
        self._reset()

    def _reset(self) -> None:
        #: What becomes of each gradient of this step.
        self._state = bytearray(len(self._ps))
        self._travels = []
        self._due = []
        #: Those that travel, or have travelled, without a bucket: as rows, and dense.
        self._rows, self._loose = set(), set()
        self._seen = _Seen()
        self._n_passes = 0
        #: The pass whose gradients travel as soon as they are there.
        self._task = _NO_TASK
        self._asked = None
        for bucket in self._buckets:
            bucket.reset()
        if self._is_known:
            self._count()

    @contextmanager
    def no_sync(self) -> Any:
        """A context in which gradients are only accumulated; the first pass after it reduces their sum."""
        before, self.is_syncing = self.is_syncing, False
        try:
            yield
        finally:
            self.is_syncing = before


def _forms(ps: Sequence[_Parameter]) -> tuple[list[Any], ...]:
    """Which parameters are trained, their types, and the layouts of those that do not lie in order. Called twice in a step: no Python for
    each parameter."""
    in_order = list(map(torch.Tensor.is_contiguous, ps))
    layouts = [] if all(in_order) else [p.stride() for p, is_so in zip(ps, in_order, strict=True) if not is_so]
    return list(map(_IS_TRAINED, ps)), list(map(_DTYPE, ps)), in_order, layouts


def _versions(grads: Sequence[torch.Tensor | None]) -> list[int]:
    try:
        return list(map(_VERSION, grads))
    except AttributeError:
        # Some parameters have none.
        return [-1 if grad is None else grad._version for grad in grads]


def default_cap() -> int:
    """How many bytes travel together: gradients that are there early shall not wait for late ones."""
    return min(_BUCKET_BYTES, _phalanx.fusion_bytes())
