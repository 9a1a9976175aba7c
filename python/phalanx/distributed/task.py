"""Which task of a cluster this process is: worker, parameter server, master or evaluator."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from phalanx import _phalanx, _world


class DeviceFn:
    """Places variables on the parameter servers, one after the other; without servers they stay on the worker.

    >>> from phalanx.distributed import TaskSpecDef
    >>> place = TaskSpecDef("worker", ps_hosts="p:1,q:1", worker_hosts="w:1").device_fn()
    >>> place("w1"), place("b1"), place("w2")
    ('/job:ps/task:0', '/job:ps/task:1', '/job:ps/task:0')
    >>> print(place)
    w1 -> /job:ps/task:0
    b1 -> /job:ps/task:1
    w2 -> /job:ps/task:0
    """

    def __init__(self, task: _phalanx.Task) -> None:
        self._rotation = task.rotation()

    def __call__(self, variable: Any) -> str:
        """The device of a variable: a name, or an object that has one."""
        return self._rotation.place(variable if isinstance(variable, str) else str(variable.name))

    def __str__(self) -> str:
        return str(self._rotation)


class TaskSpecDef:
    """One task of a cluster.

    Hosts are lists of ``host:port`` or text with commas. A master counts as a worker and is the first of them. Without
    ``ps_hosts`` the workers reduce gradients among themselves; without any hosts the task is alone.

    >>> from phalanx.distributed import TaskSpecDef
    >>> spec = TaskSpecDef("worker", 0, ps_hosts="p:1", worker_hosts=["a:1", "b:1"], master="m:1")
    >>> spec.num_ps, spec.num_workers, spec.shard_index, spec.is_master()
    (1, 3, 1, False)
    """

    #: A parameter server serves once; a session of it does not do so again.
    _has_served = False

    def __init__(
        self,
        task_type: str = "master",
        index: int | str = 0,
        trial: Any = None,
        ps_hosts: str | Sequence[str] | None = None,
        worker_hosts: str | Sequence[str] | None = None,
        master: str | Sequence[str] | None = None,
        *,
        type: str | None = None,  # TensorLayer's name
    ) -> None:
        masters = _hosts(master)
        if len(masters) > 1:
            raise ValueError(f"master: a cluster has one master, not {len(masters)}")
        number = int(index) if isinstance(index, str) else operator.index(index)
        if not 0 <= number < 1 << 16:
            raise ValueError(f"index: {index!r} is not the number of a task; write 0 or more")
        kind = task_type if type is None else type
        self._task = _phalanx.Task(kind, number, _hosts(ps_hosts), _hosts(worker_hosts), *masters)
        self._trial = trial
        self._device_fn: DeviceFn | None = None

    @classmethod
    def _of(cls, task: _phalanx.Task, trial: Any) -> TaskSpecDef:
        spec = cls.__new__(cls)
        spec._task, spec._trial, spec._device_fn = task, trial, None
        return spec

    @property
    def type(self) -> str:
        """``master``, ``worker``, ``ps`` or ``evaluator``."""
        return self._task.task_type

    @property
    def index(self) -> int:
        """The number of the task among those of its type."""
        return self._task.index

    @property
    def trial(self) -> Any:
        """Which attempt of a search over settings this is, if it is one."""
        return self._trial

    @property
    def ps_hosts(self) -> list[str]:
        """The addresses of the parameter servers; ``rank:N`` where a launcher told numbers only."""
        return self._task.ps_hosts

    @property
    def worker_hosts(self) -> list[str]:
        """The addresses of the workers, without the master's; ``rank:N`` where a launcher told numbers only."""
        return self._task.worker_hosts

    @property
    def master(self) -> str | None:
        """The address of the master, if there is one."""
        return self._task.master

    @property
    def num_ps(self) -> int:
        """The number of parameter servers."""
        return self._task.numbers[0]

    @property
    def num_workers(self) -> int:
        """The number of workers, with the master."""
        return self._task.numbers[1]

    @property
    def shard_index(self) -> int:
        """Which part of the data is this worker's, from 0 to ``num_workers - 1``."""
        return self._task.numbers[2]

    def is_ps(self) -> bool:
        """Whether it is a parameter server."""
        return self._task.is_ps

    def is_worker(self) -> bool:
        """Whether it is of type ``worker``; a master is not."""
        return self._task.is_worker

    def is_master(self) -> bool:
        """Whether it does what only one must do: the master, or without one the first worker."""
        return self._task.is_master

    def is_evaluator(self) -> bool:
        """Whether it evaluates what the others have saved."""
        return self._task.is_evaluator

    def use_last_worker_as_evaluator(self) -> TaskSpecDef:
        """The same cluster without its last worker, which becomes the evaluator. All processes must call it.

        >>> from phalanx.distributed import TaskSpecDef
        >>> spec = TaskSpecDef("worker", 2, worker_hosts="a:1,b:1,c:1").use_last_worker_as_evaluator()
        >>> spec.num_workers, spec.is_evaluator()
        (2, True)
        """
        return TaskSpecDef._of(self._task.without_last_worker(), self._trial)

    def user_last_worker_as_evaluator(self) -> TaskSpecDef:
        """As :meth:`use_last_worker_as_evaluator`; TensorLayer's first name of it."""
        return self.use_last_worker_as_evaluator()

    def device_fn(self) -> DeviceFn:
        """The placement of variables on the parameter servers, the same object at every call."""
        if self._device_fn is None:
            self._device_fn = DeviceFn(self._task)
        return self._device_fn

    def create_server(self) -> None:
        """Joins the world of the cluster: a worker and a master as :func:`phalanx.init` does. A parameter server serves,
        and returns when all workers have left; the loss of a worker is a ``RankLostError``. An evaluator joins nothing.

        >>> from phalanx.distributed import TaskSpecDef
        >>> TaskSpecDef().create_server()
        """
        if self.is_ps():
            self._task.serve()
            self._has_served = True
        elif not self.is_evaluator():
            _world.join_as(self._task)

    def target(self) -> str | None:
        """The address where the world meets, after joining it; ``None`` for a task that is alone or has no address."""
        if not self.is_ps():
            self.create_server()
        return self._task.target

    def __repr__(self) -> str:
        return f"<TaskSpecDef {self._task}>"


def TaskSpec() -> TaskSpecDef | None:  # TensorLayer's name
    """The task that the environment describes: ``phalanx run`` or ``phalanx train``, ``TF_CONFIG``, ``JOB_NAME`` with
    ``TASK_INDEX``, or another launcher. ``None`` where nothing is set.

    >>> from phalanx.distributed import TaskSpec
    >>> TaskSpec() is None
    True
    """
    task = _phalanx.Task.from_env()
    return None if task is None else TaskSpecDef._of(task, task.trial)


def create_task_spec_def() -> TaskSpecDef | None:
    """As :func:`TaskSpec`.

    >>> from phalanx.distributed import create_task_spec_def
    >>> create_task_spec_def() is None
    True
    """
    return TaskSpec()


def _hosts(given: str | Sequence[str] | None) -> list[str]:
    parts = given.split(",") if isinstance(given, str) else list(given or ())
    return [host for host in ("".join(part.split()) for part in parts) if host]
