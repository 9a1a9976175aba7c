"""What a job is told besides its model: Parallax's configuration objects.

Every attribute acts, or is refused with the reason by :func:`parallel_run`; one that does not exist is refused where it is set.

>>> from phalanx import parallax
>>> config = parallax.Config()
>>> config.run_option = "HYBRID"
>>> config.average_sparse = True
>>> config.run_options = "PS"
Traceback (most recent call last):
...
AttributeError: ParallaxConfig has no attribute 'run_options'; did you mean 'run_option'?
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Sequence
from typing import Any

#: How variables are trained; ``None`` chooses.
RUN_OPTIONS = ("PS", "MPI", "HYBRID")
#: Ways in which bytes travel; ``grpc`` is Parallax's name of its default.
PROTOCOLS = ("grpc", "shm", "tcp", "unix")


class _Fields:
    """Attributes with names that are known."""

    _fields: tuple[str, ...] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._fields:
            near = difflib.get_close_matches(name, self._fields, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(self._fields)}"
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; {hint}")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        each = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({each})"


class PSConfig(_Fields):
    """How tables on servers work.

    - ``protocol``: how bytes travel: ``"grpc"`` (what is best here), ``"shm"``, ``"tcp"`` or ``"unix"``.
    - ``replicate_variables``: with ``run_option="PS"``, whether one copy of a dense variable serves all passes of a step.
    - ``local_aggregation``: one of a host's ranks collects what all of them want and give; ``False``: each asks servers by itself.
    - ``boundary_between_workers_and_servers``: a row that a rank touches several times in a step travels once; ``False``: as often.
    - ``boundary_among_servers``: rules run on the server that has the rows, and nothing stands between them: ``False`` changes nothing.
    - ``staleness``: by how many steps workers may be apart; ``None`` is not at all.
    - ``wire_dtype``: ``"float16"`` or ``"bfloat16"`` for rows that travel between hosts.
    """

    _fields = (
        "protocol",
        "replicate_variables",
        "local_aggregation",
        "boundary_among_servers",
        "boundary_between_workers_and_servers",
        "staleness",
        "wire_dtype",
    )

    def __init__(
        self,
        protocol: str = "grpc",
        replicate_variables: bool = True,
        local_aggregation: bool = True,
        boundary_among_servers: bool = True,
        boundary_between_workers_and_servers: bool = True,
        staleness: int | None = None,
        wire_dtype: Any = None,
    ) -> None:
        self.protocol = protocol
        self.replicate_variables = replicate_variables
        self.local_aggregation = local_aggregation
        self.boundary_among_servers = boundary_among_servers
        self.boundary_between_workers_and_servers = boundary_between_workers_and_servers
        self.staleness = staleness
        self.wire_dtype = wire_dtype

    def _check(self) -> None:
        if not isinstance(self.protocol, str) or self.protocol not in PROTOCOLS:
            raise ValueError(f"PSConfig.protocol must be one of {', '.join(PROTOCOLS)}, not {self.protocol!r}")
        for name in self._fields[1:5]:
            _is_bool(f"PSConfig.{name}", getattr(self, name))
        if self.staleness is not None and (isinstance(self.staleness, bool) or not isinstance(self.staleness, int)):
            raise TypeError(f"PSConfig.staleness is a number of steps, -1 for any, or None, not {self.staleness!r}")
        if self.staleness is not None and self.staleness < -1:
            raise ValueError(f"PSConfig.staleness is a number of steps, -1 for any, or None, not {self.staleness}")
        if _wire_name(self.wire_dtype) not in (None, "float16", "bfloat16"):
            raise ValueError(f'PSConfig.wire_dtype must be "float16", "bfloat16" or None, not {self.wire_dtype!r}')


class MPIConfig(_Fields):
    """How allreduce works. Rows of sparse gradients always travel in their own number, so ``use_allgatherv`` changes nothing."""

    _fields = ("use_allgatherv", "mpirun_options")

    def __init__(self, use_allgatherv: bool = False, mpirun_options: str | Sequence[str] = "") -> None:
        self.use_allgatherv = use_allgatherv
        self.mpirun_options = mpirun_options

    def _check(self) -> None:
        _is_bool("MPIConfig.use_allgatherv", self.use_allgatherv)
        given = self.mpirun_options
        if not isinstance(given, (str, list, tuple)) or not all(isinstance(word, str) for word in given):
            raise TypeError(f"MPIConfig.mpirun_options is a text or a list of texts, not {given!r}")
        text = given if isinstance(given, str) else " ".join(given)
        if text.strip():
            raise ValueError(
                f"MPIConfig.mpirun_options={text!r} cannot act: no mpirun is started; set PHALANX_ variables, or start the script with "
                "`phalanx run` or mpirun and its options yourself"
            )


class CommunicationConfig(_Fields):
    """Both of them."""

    _fields = ("ps_config", "mpi_config")

    def __init__(self, ps_config: PSConfig | None = None, mpi_config: MPIConfig | None = None) -> None:
        self.ps_config = PSConfig() if ps_config is None else ps_config
        self.mpi_config = MPIConfig() if mpi_config is None else mpi_config

    def _check(self) -> None:
        _is_a("CommunicationConfig.ps_config", self.ps_config, PSConfig)
        _is_a("CommunicationConfig.mpi_config", self.mpi_config, MPIConfig)
        self.ps_config._check()
        self.mpi_config._check()


class CheckPointConfig(_Fields):
    """Where a training is resumed from and saved to, and how often: after steps, seconds, or both. All checkpoints stay."""

    _fields = ("ckpt_dir", "save_ckpt_steps", "save_ckpt_secs")

    def __init__(
        self,
        ckpt_dir: str | os.PathLike[str] | None = None,
        save_ckpt_steps: int | None = None,
        save_ckpt_secs: float | None = None,
    ) -> None:
        self.ckpt_dir = ckpt_dir
        self.save_ckpt_steps = save_ckpt_steps
        self.save_ckpt_secs = save_ckpt_secs

    def _check(self) -> None:
        if self.ckpt_dir is not None and not isinstance(self.ckpt_dir, (str, os.PathLike)):
            raise TypeError(f"CheckPointConfig.ckpt_dir is a path or None, not {self.ckpt_dir!r}")
        steps, secs = self.save_ckpt_steps, self.save_ckpt_secs
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
            raise ValueError(f"CheckPointConfig.save_ckpt_steps must be a whole number from 1, not {steps!r}")
        is_number = isinstance(secs, (int, float)) and not isinstance(secs, bool)
        if secs is not None and not (is_number and math.isfinite(secs) and secs > 0):
            raise ValueError(f"CheckPointConfig.save_ckpt_secs must be a positive number of seconds, not {secs!r}")
        if self.ckpt_dir is None and (steps is not None or secs is not None):
            raise ValueError("CheckPointConfig.save_ckpt_steps and save_ckpt_secs need ckpt_dir, where it is saved")


class ProfileConfig(_Fields):
    """Which global steps are recorded: a list, or a range with its end left out; by all workers or one. Files are for Perfetto."""

    _fields = ("profile_dir", "profile_steps", "profile_range", "profile_worker")

    def __init__(
        self,
        profile_dir: str | os.PathLike[str] | None = None,
        profile_steps: Sequence[int] | None = None,
        profile_range: Sequence[int] | None = None,
        profile_worker: int | None = None,
    ) -> None:
        self.profile_dir = profile_dir
        self.profile_steps = profile_steps
        self.profile_range = profile_range
        self.profile_worker = profile_worker

    def _check(self) -> None:
        if self.profile_dir is not None and not isinstance(self.profile_dir, (str, os.PathLike)):
            raise TypeError(f"ProfileConfig.profile_dir is a path or None, not {self.profile_dir!r}")
        steps, span = self.profile_steps, self.profile_range
        if steps is not None and span is not None:
            raise ValueError("ProfileConfig has profile_steps and profile_range; give one of them")
        if steps is not None and not (_are_numbers(steps) and len(steps) > 0 and min(steps) > 0):
            raise TypeError(f"ProfileConfig.profile_steps is a list of steps from 1, such as [100, 200], not {steps!r}")
        if span is not None and (not _are_numbers(span) or len(span) != 2 or not span[0] < span[1]):
            raise ValueError(f"ProfileConfig.profile_range is (first, end) with first < end, not {span!r}")
        if (steps is not None or span is not None) and self.profile_dir is None:
            raise ValueError(
                "ProfileConfig.profile_steps and profile_range need profile_dir, where the files are written"
            )
        if self.profile_dir is not None and steps is None and span is None:
            raise ValueError("ProfileConfig.profile_dir needs profile_steps or profile_range: which steps to record")
        worker = self.profile_worker
        if worker is not None and (isinstance(worker, bool) or not isinstance(worker, int) or worker < 0):
            raise ValueError(f"ProfileConfig.profile_worker is the number of a worker from 0, or None, not {worker!r}")
        if worker is not None and self.profile_dir is None:
            raise ValueError("ProfileConfig.profile_worker needs profile_dir and the steps to record")

    def _wants(self, step: int, worker: int) -> bool:
        if self.profile_worker not in (None, worker):
            return False
        if self.profile_range is not None:
            return self.profile_range[0] <= step < self.profile_range[1]
        return step in (self.profile_steps or ())


class ParallaxConfig(_Fields):
    """The whole of it; ``parallax.Config`` is the same.

    - ``run_option``: ``"PS"``, ``"MPI"``, ``"HYBRID"``, or ``None``: what fits the model.
    - ``average_sparse``: rows of sparse gradients are averaged over all workers; otherwise they are summed. Dense ones are averaged.
    - ``sess_config``: for a program, its ``ExecutionStrategy``.
    - ``redirect_path``: a directory for the output of each rank.
    - ``search_partitions``: looks for the number of partitions with which steps are fastest.
    - ``export_graph_path``: a directory for the model as text.
    """

    _fields = (
        "run_option",
        "average_sparse",
        "sess_config",
        "redirect_path",
        "communication_config",
        "ckpt_config",
        "profile_config",
        "search_partitions",
        "export_graph_path",
    )

    def __init__(
        self,
        run_option: str | None = None,
        average_sparse: bool = False,
        sess_config: Any = None,
        redirect_path: str | os.PathLike[str] | None = None,
        communication_config: CommunicationConfig | None = None,
        ckpt_config: CheckPointConfig | None = None,
        profile_config: ProfileConfig | None = None,
        search_partitions: bool = False,
        export_graph_path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.run_option = run_option
        self.average_sparse = average_sparse
        self.sess_config = sess_config
        self.redirect_path = redirect_path
        self.communication_config = CommunicationConfig() if communication_config is None else communication_config
        self.ckpt_config = CheckPointConfig() if ckpt_config is None else ckpt_config
        self.profile_config = ProfileConfig() if profile_config is None else profile_config
        self.search_partitions = search_partitions
        self.export_graph_path = export_graph_path

    @property
    def _ps(self) -> PSConfig:
        return self.communication_config.ps_config

    def _check(self, sync: bool) -> None:
        option = self.run_option
        if isinstance(option, tuple):
            inside = repr(option[0]) if len(option) == 1 else "…"
            raise TypeError(
                f"ParallaxConfig.run_option is a tuple, {option!r}: a comma behind the value makes one; write run_option = {inside}"
            )
        if option is not None and (not isinstance(option, str) or option not in RUN_OPTIONS):
            raise ValueError(f"ParallaxConfig.run_option must be PS, MPI or HYBRID, or None to choose, not {option!r}")
        _is_bool("sync", sync)
        if not sync and option in ("MPI", "HYBRID"):
            raise ValueError(
                f'sync must be True if run_option is MPI or HYBRID, and it is "{option}": an allreduce is of all workers; use '
                'run_option="PS", or sync=True'
            )
        _is_bool("ParallaxConfig.average_sparse", self.average_sparse)
        _is_bool("ParallaxConfig.search_partitions", self.search_partitions)
        for name in ("redirect_path", "export_graph_path"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, (str, os.PathLike)):
                raise TypeError(f"ParallaxConfig.{name} is a path or None, not {value!r}")
        _is_a("ParallaxConfig.communication_config", self.communication_config, CommunicationConfig)
        _is_a("ParallaxConfig.ckpt_config", self.ckpt_config, CheckPointConfig)
        _is_a("ParallaxConfig.profile_config", self.profile_config, ProfileConfig)
        self.communication_config._check()
        self.ckpt_config._check()
        self.profile_config._check()
        self._check_apart(sync)

    def _check_apart(self, sync: bool) -> None:
        """What workers that are not in step cannot do."""
        staleness = self._ps.staleness
        if not sync and self._ps.replicate_variables:
            raise ValueError(
                "replicate_variables is only possible with sync: a copy of a step needs workers in step; sync=False needs "
                "PSConfig(replicate_variables=False)"
            )
        if not sync and staleness is not None:
            raise ValueError(
                "sync=False lets workers be apart by any number of steps; leave PSConfig.staleness out, or use sync=True"
            )
        if staleness is not None and self.run_option == "MPI":
            raise ValueError('PSConfig.staleness is for tables on servers: use run_option="PS" or "HYBRID"')
        if (staleness is not None or not sync) and self.average_sparse:
            raise ValueError("average_sparse=True needs workers in step: without sync every push is applied by itself")
        if (staleness is not None or not sync) and self.ckpt_config.ckpt_dir is not None:
            raise ValueError(
                "CheckPointConfig.ckpt_dir needs workers in step: a checkpoint is of one step, so that they would wait for each other; use "
                "sync=True without PSConfig.staleness"
            )


#: Parallax's other name of it.
Config = ParallaxConfig


def checked(config: Any, sync: bool) -> ParallaxConfig:
    """The configuration, if it makes sense; ``None`` is the defaults."""
    if config is None:
        config = ParallaxConfig()
    _is_a("parallax_config", config, ParallaxConfig)
    found: ParallaxConfig = config
    found._check(sync)
    return found


def _wire_name(wire: Any) -> str | None:
    # torch.float16 calls itself so.
    return None if wire is None else str(wire).removeprefix("torch.")


def _is_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {value!r}")


def _is_a(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} is a {kind.__name__}, not {value!r}")


def _are_numbers(given: Any) -> bool:
    is_list = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    return is_list and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in given)


__all__ = [
    "CheckPointConfig",
    "CommunicationConfig",
    "Config",
    "MPIConfig",
    "PSConfig",
    "ParallaxConfig",
    "ProfileConfig",
]
