"""Sessions that train with torch: they resume by themselves and stop on all ranks after the same step.

>>> import torch
>>> import phalanx.torch as hvd
>>> from phalanx.distributed import StopAtStepHook
>>> model = torch.nn.Linear(2, 1)
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> def step(x):
...     optimizer.zero_grad()
...     loss = model(x).square().mean()
...     loss.backward()
...     optimizer.step()
...     return loss
>>> with hvd.Session(model, optimizer, hooks=[StopAtStepHook(num_steps=3)]) as session:
...     while not session.should_stop():
...         loss = session.run(step, torch.ones(4, 2))
>>> session.global_step
3
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, TypeVar

import torch

from phalanx import _phalanx, _world
from phalanx.data.sampler import Sampler
from phalanx.distributed._log import log, tell, warn
from phalanx.distributed._loop import SAVE_SECS, Loop, Options, extra_of, join
from phalanx.distributed.hooks import ProfilerHook, SessionRunArgs, SessionRunHook
from phalanx.exceptions import CheckpointError, PhalanxError, SessionError
from phalanx.torch._resumed import classes, given, misfit, tell_settings, trains_another
from phalanx.torch._state import (
    InPlace,
    filled,
    has_values,
    hollow,
    model_state,
    random_state,
    set_random_state,
    taken_over,
)
from phalanx.torch.distributed import DistributedDataParallel
from phalanx.torch.optimizer import _DistributedOptimizer

#: How long a rank that has ended waits for the others at least, whatever ``stop_grace_period_secs`` is; and one that leaves by an exception
#: waits until the others hear of it, at most.
END_SECS = 20.0

T = TypeVar("T")


class Session(Loop):
    """Trains a model with all ranks; :meth:`run` is one step, whatever it does.

    ``optimizer`` may be torch's or a :class:`DistributedOptimizer`. ``state`` are other objects with ``state_dict()``
    and ``load_state_dict()``: schedulers, a ``phalanx.data.Sampler``, a second optimizer. They consist of tensors,
    numbers, texts, lists, tuples and dicts; nothing is pickled. All of this is the same on all ranks: the session
    begins with what rank 0 has. Random numbers of torch, numpy and Python are each rank's own.

    A checkpoint holds all of it, so resumed training has the bits of training that was not interrupted. Buffers that
    ranks have apart, such as statistics of a ``BatchNorm`` that is not synchronized, are saved as one of the ranks
    has them.

    The other arguments are those of ``phalanx.distributed.DistributedSession``.
    """

    #: All ranks may raise the same, each at its time. Then they keep their world.
    _heard_secs = END_SECS
    #: What a function returns may differ from step to step.
    _has_varied_numbers = True

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any = None,
        state: Sequence[Any] = (),
        *,
        task_spec: Any = None,
        checkpoint_dir: str | PathLike[str] | None = None,
        hooks: Iterable[SessionRunHook] | None = None,
        chief_only_hooks: Iterable[SessionRunHook] | None = None,
        save_checkpoint_secs: float | None = SAVE_SECS,
        save_summaries_steps: int | None = None,
        save_summaries_secs: float | None = None,
        stop_grace_period_secs: float = 120,
        log_step_count_steps: int | None = 100,
        shards: str = "each",
    ) -> None:
        options = Options(
            checkpoint_dir,
            hooks,
            chief_only_hooks,
            save_checkpoint_secs,
            save_summaries_steps,
            save_summaries_secs,
            stop_grace_period_secs,
            log_step_count_steps,
            shards,
        )
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not a {type(model).__name__}")
        if hasattr(state, "state_dict"):
            raise TypeError(f"state takes a list of objects, not a {type(state).__name__}: write [{type(state).__name__.lower()}]")
        self._model = model
        self._leaving: _phalanx.Operation | None = None
        self._others = [("optimizer", optimizer)] if optimizer is not None else []
        self._others += [(f"state.{i}", one) for i, one in enumerate(state)]
        for name, one in self._others:
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                raise TypeError(f"{name} has no state_dict() and load_state_dict(): it is a {type(one).__name__}")
        #: What the program has given its optimizers, before anything is taken over.
        self._settings = given(self._others)
        for hook in (*(options.hooks or ()), *(options.chief_only_hooks or ())):
            if isinstance(hook, ProfilerHook):
                raise TypeError("ProfilerHook records static programs: use torch.profiler")
        options.checked()
        if not join(task_spec):
            self._set_out(options, is_over=True)
            return
        if _world.rank() == 0 and _exchanges_nothing(model, optimizer):
            log(
                "phalanx: neither the optimizer nor the model of this session exchanges gradients, so ranks train apart unless the step "
                "does it: wrap the optimizer with DistributedOptimizer, or the model with DistributedDataParallel"
            )
        if _world.rank() == 0 and trains_another(model, optimizer):
            warn(
                "phalanx: none of the optimizer's parameters belongs to the model of this session, which is saved and does not learn: make "
                "the optimizer of model.parameters()"
            )
        super().__init__(options)

    def run(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """One step: calls ``fn`` and returns its value.

        Hooks see the value under the name ``loss`` if it is one number, and the numbers of a dict under their names.
        """
        if not callable(fn):
            raise TypeError(f"run takes a function that makes one step, not a {type(fn).__name__}")

        def step(extra: list[Any]) -> tuple[T, list[Any], Callable[[], Mapping[str, float]]]:
            result = fn(*args, **kwargs)
            values = _numbers(result) if any(one is not None for one in extra) else {}
            results = [None if one is None else _chosen(one, values) for one in extra]
            return result, results, lambda: values or _numbers(result)

        made: T = self._run(SessionRunArgs(fn, args), step)
        return made

    # What the loop asks for.

    def _forms(self) -> tuple[dict[str, Any], list[tuple[str, torch.Tensor]]]:
        form, tensors = model_state(self._model)
        forms = {"model": form}
        for name, one in self._others:
            forms[name] = hollow(one.state_dict(), name, tensors)
        return forms, tensors

    def _restore(self, resumes: bool) -> int:
        form, tensors = model_state(self._model)
        memory = InPlace(tensors)
        opens = ["optimizer.", "state."]
        if resumes:
            own = random_state(self.rank)
            private = InPlace(own, self.rank)
            found, made = self._core.restore([*memory.lent, *private.lent], opens, None, "exact")
            if found is not None:
                memory.written()
                set_random_state(own)
                extra = extra_of(found)
                if "torch" not in extra:
                    raise CheckpointError(
                        f"the checkpoint {found[1]} has no state of a session with torch: begin with LoadCheckpoint and another "
                        "checkpoint_dir"
                    )
                odd = misfit(self._others, extra["torch"], extra.get("classes", {}))
                if odd is not None:
                    raise CheckpointError(
                        f"the checkpoint {found[1]} {odd}: give the session the same objects again, or begin with LoadCheckpoint and "
                        "another checkpoint_dir"
                    )
                step = tell(found, self.is_chief)
                self._take(extra, form, taken_over(made), dict(tensors), step)
                return step
        if self._core.n_ranks == 1:
            return 0
        forms, every = self._forms()
        lent = InPlace(every).lent if self.is_chief else memory.lent
        about = json.dumps({**_NOTHING, "extra": self._said(forms)}, allow_nan=False)
        told, made = self._core.share(lent, opens, about)
        if not self.is_chief:
            memory.written()
            extra = json.loads(told)["extra"]
            odd = misfit(self._others, extra["torch"], extra["classes"])
            odd = odd or next((f"has no {name}" for name, _ in self._others if name not in extra["torch"]), None)
            if odd is not None:
                raise SessionError(f"rank 0 {odd}, on rank {self.rank}: give the sessions of all ranks the same objects", rank=self.rank)
            self._take(extra, form, taken_over(made), dict(tensors), None)
        return 0

    def _take(
        self,
        extra: Any,
        form: Any,
        made: dict[str, torch.Tensor],
        tensors: dict[str, torch.Tensor],
        step: int | None,
    ) -> None:
        """Gives the objects what a checkpoint of this step, or the chief, says of them, once the model's tensors are there."""
        forms, given_then = extra["torch"], extra.get("given", {})
        if has_values(form) or _is_served(self._model):
            self._model.load_state_dict(filled(forms["model"], tensors))
        for name, one in self._others:
            if name not in forms:
                if self.is_chief:
                    log(f"the checkpoint has no {name}, which begins anew")
                continue
            state = filled(forms[name], made)
            if step is not None and isinstance(one, torch.optim.Optimizer):
                then, own = given_then.get(name), self._settings.get(name)
                if self.is_chief:
                    tell_settings(name, then, own, state, self._settings_now(step) if name == "optimizer" else {})
                if then is not None:
                    # Its values count, so the next start is compared with it, too.
                    self._settings[name] = then
            try:
                one.load_state_dict(state)
            except Exception as why:
                text = f"{name}, a {type(one).__name__}, does not take the state that was saved: {type(why).__name__}: {why}"
                raise CheckpointError(text) from why

    def _settings_now(self, step: int) -> dict[str, Any]:
        """Settings of the optimizer that the program sets in every step: those of this step."""
        return {}

    def _said(self, forms: dict[str, Any]) -> dict[str, Any]:
        return {"torch": forms, "classes": classes(self._others), "given": self._settings}

    def _extra(self) -> dict[str, Any]:
        forms, self._tensors = self._forms()
        sampler = next((one.state_dict() for _, one in self._others if isinstance(one, Sampler)), None)
        each = {f"{name}, a {type(one).__name__}": forms[name] for name, one in self._others}
        return {"sampler": sampler, "extra": self._said(forms), "forms": each}

    def _save(self, about: str) -> None:
        own = random_state(self.rank)
        lent = [*InPlace(self._tensors).lent, *InPlace(own, self.rank).lent]
        self._core.save(lent, about)
        self._tensors = []

    def _load(self, saver: Any, path: str, strict: bool) -> None:
        if saver is not None:
            raise TypeError("a Saver is for static programs: LoadCheckpoint(None, …) loads into the session's model")
        _, tensors = model_state(self._model)
        memory = InPlace(tensors)
        found, _ = self._core.restore(memory.lent, [], path, "subset" if strict else "partial")
        memory.written()
        if _is_served(self._model):
            form, _ = model_state(self._model)
            self._model.load_state_dict(filled(form, dict(tensors)))
        if found is not None and not strict and self.is_chief:
            for left in found[3]:
                log(f"{path}: left as it is: {left}")

    def _leave_step(self, why: str, is_ended: bool) -> Callable[[], bool]:
        # Ranks that have ended, too, come here; those that wait for gradients do not (LOOP-5).
        if self._core.n_ranks == 1:
            return lambda: True
        if self._leaving is not None:
            return self._leaving.poll
        word = json.dumps(None if is_ended else why).encode() + b"\n"
        try:
            self._leaving = _phalanx.submit("allgather", [word], name=f"session.{self._nth}.end")
        except PhalanxError:
            # The world has ended, which others have said.
            if is_ended:
                raise
            return lambda: True
        if is_ended:
            self._wait_for_ends(self._leaving)
        return self._leaving.poll

    def _wait_for_ends(self, leaving: _phalanx.Operation) -> None:
        patience = max(self._grace, END_SECS)
        try:
            arrays, _ = leaving.wait(patience)
        except TimeoutError:
            raise SessionError(
                f"this rank has ended after step {self._step}, and other ranks have not in {patience:g} s: make the same number of "
                "steps on all ranks, call request_stop() before the last one, or raise stop_grace_period_secs"
            ) from None
        for rank, line in enumerate(arrays[0].tobytes().splitlines()):
            why = json.loads(line)
            if why is not None:
                text = f"training stopped at step {self._step}: the program of rank {rank}: {why}"
                raise SessionError(text, rank=rank, cause=why)


_NOTHING = {"step": 0, "epoch": 0, "seed": 0, "run": 0, "world": 0}


def _is_served(model: torch.nn.Module) -> bool:
    """Whether servers have values of this model: those must be told what was read."""
    return hasattr(model, "_phalanx_served")


def _exchanges_nothing(model: torch.nn.Module, optimizer: Any) -> bool:
    """Whether several ranks would train with torch's own optimizer and a model that is not wrapped."""
    is_plain = isinstance(optimizer, torch.optim.Optimizer) and not isinstance(optimizer, _DistributedOptimizer)
    wraps = any(isinstance(module, DistributedDataParallel) for module in model.modules())
    has_some = is_plain and any(group["params"] for group in optimizer.param_groups)
    return _world.size() > 1 and has_some and not wraps


def _numbers(result: Any) -> dict[str, float]:
    each = result if isinstance(result, Mapping) else {"loss": result}
    found = {str(name): _number(value) for name, value in each.items()}
    return {name: value for name, value in found.items() if value is not None}


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        return None
    return float(value) if getattr(value, "size", 1) == 1 else None


def _chosen(names: Any, values: Mapping[str, float]) -> Any:
    if isinstance(names, Mapping):
        return {key: values.get(str(name)) for key, name in names.items()}
    if isinstance(names, (list, tuple)):
        return [values.get(str(name)) for name in names]
    return values.get(str(names))


__all__ = ["Session"]
