"""``parallel_run``: one script for the process that starts the job, for every worker, and for a process alone."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from phalanx import _phalanx, _world
from phalanx.parallax._log import log
from phalanx.parallax.config import ParallaxConfig, checked
from phalanx.parallax.session import ParallaxSession, ReplicaNames, Trained

#: Set in ranks that parallel_run has started.
_STARTED = "PARALLAX_STARTED"
#: One process is one worker with one replica of the model.
_REPLICAS = 1


def parallel_run(
    single_gpu_graph: Any,
    run: Callable[..., Any] | str | os.PathLike[str] | None = None,
    resource_info: Any = None,
    num_iterations: Any = None,
    sync: bool = True,
    parallax_config: ParallaxConfig | None = None,
) -> Any:
    """Trains a model for one device with all workers.

    ``single_gpu_graph`` is ``(module, optimizer)`` of torch, or a ``Program``. ``run`` is called with the session, ``num_iterations``,
    the names of replicas, the number of workers, this worker's number, and the number of its replicas. Without ``run`` these four are
    returned instead: ``(session, num_workers, worker_id, num_replicas_per_worker)``; ``resource_info`` is then the second argument.

    With ``resource_info``, a file of hosts, a process that no launcher has started begins the job: the same command on all of them; it
    ends with the job's exit code. A rank trains. Without ``resource_info`` the process is a world of one.
    """
    if isinstance(run, (str, os.PathLike)):
        # The later form, by position: graph, resource_info, sync, parallax_config.
        if isinstance(resource_info, bool):
            sync = resource_info
        elif resource_info is not None:
            raise TypeError(f"resource_info is given twice: {os.fspath(run)!r} and {resource_info!r}")
        if isinstance(num_iterations, ParallaxConfig):
            if parallax_config is not None:
                raise TypeError("parallax_config is given twice: by its place and by its name")
            parallax_config = num_iterations
        elif num_iterations is not None:
            raise TypeError("num_iterations is of the form with a run function: give run, or leave num_iterations out")
        run, resource_info, num_iterations = None, run, None
    if run is not None and not callable(run):
        raise TypeError(f"run is a function of six arguments, not a {type(run).__name__}")
    if run is not None:
        _check_arguments(run)
    if resource_info is not None and not isinstance(resource_info, (str, os.PathLike)):
        raise TypeError(
            f"resource_info is the path of a file with one host a line, not a {type(resource_info).__name__}"
        )
    config = checked(parallax_config, sync)
    if run is None and num_iterations is not None:
        raise TypeError("num_iterations is of the form with a run function: give run, or leave num_iterations out")
    if run is not None and (
        isinstance(num_iterations, bool) or not isinstance(num_iterations, int) or num_iterations < 0
    ):
        raise ValueError(f"num_iterations must be a whole number from 0, not {num_iterations!r}")
    task = _phalanx.Task.from_env()
    if task is None and resource_info is not None:
        if _world.is_initialized():
            raise ValueError(
                "resource_info starts the job, and this process is a world already: call parallel_run before phalanx.init(), or leave "
                "resource_info out"
            )
        start(resource_info, config)
    if task is not None and task.is_evaluator:
        raise ValueError("an evaluator does not train: call evaluate_continuously() in it, and not parallel_run()")
    # Before a server joins, too: all ranks must have the same transport.
    _use(config)
    if task is not None and task.is_ps:
        task.serve()
        sys.exit(0)
    _world.init()
    if config.redirect_path is not None and _STARTED not in os.environ and _world.rank() == 0:
        log.warning(
            "redirect_path acts where parallel_run starts the job: give `phalanx run` --output-filename instead"
        )
    _check_world(config)
    trained = _made(single_gpu_graph, config, sync)
    if _world.rank() == 0:
        log.debug("%s", trained.explain())
    session = ParallaxSession(trained, _REPLICAS)
    n_workers, worker = _world.size(), _world.rank()
    if run is None:
        return session, n_workers, worker, _REPLICAS
    with session:
        return run(session, num_iterations, _names(trained), n_workers, worker, _REPLICAS)


def start(resource_info: Any, config: ParallaxConfig) -> NoReturn:
    """Becomes the launcher of this very command on the hosts of a file."""
    path = _checked_file(os.fspath(resource_info))
    words = [sys.executable, "-m", "phalanx", "run", "--resource-info", path, "-x", f"{_STARTED}=1"]
    if config.redirect_path is not None:
        words += ["--output-filename", os.fspath(config.redirect_path)]
    own = list(sys.orig_argv[1:])
    if not own or "ipykernel" in sys.modules:
        raise RuntimeError(
            "parallel_run with resource_info starts this program again on every host, and an interactive one cannot be: "
            "write it into a file, or leave resource_info out"
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [*words, "--", sys.executable, *own])


def _check_arguments(run: Callable[..., Any]) -> None:
    """Before anything is started: a function that cannot be called is a mistake of every worker."""
    try:
        inspect.signature(run).bind(*range(6))
    except TypeError as why:
        raise TypeError(
            "run takes (session, num_iterations, tensor_or_op_name_to_replica_names, num_workers, worker_id, num_replicas_per_worker), and "
            f"{getattr(run, '__name__', 'it')} does not: {why}"
        ) from None
    except ValueError:
        # It does not tell what it takes.
        return


def _checked_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as why:
        raise type(why)(
            why.errno, f"resource_info: {why.strerror}; write one host a line, e.g. localhost", str(path)
        ) from None
    _phalanx.resources(text, str(path))
    return str(path)


def _check_world(config: ParallaxConfig) -> None:
    """What depends on the workers that there are."""
    worker, n = config.profile_config.profile_worker, _world.size()
    if worker is not None and worker >= n:
        raise ValueError(f"ProfileConfig.profile_worker is {worker}, and the workers are 0 to {n - 1}")
    if config.communication_config.mpi_config.use_allgatherv and _world.rank() == 0:
        log.info(
            "MPIConfig.use_allgatherv=True changes nothing: rows of sparse gradients always travel in their own number"
        )


def _use(config: ParallaxConfig) -> None:
    """Settings that count before this process joins the world."""
    protocol = config._ps.protocol
    if protocol == "grpc":
        return
    if _world.is_initialized():
        raise ValueError(f"PSConfig.protocol={protocol!r} acts before init(): leave init() to parallel_run()")
    os.environ["PHALANX_TRANSPORT"] = protocol


def _made(graph: Any, config: ParallaxConfig, sync: bool) -> Trained:
    if isinstance(graph, (tuple, list)):
        if len(graph) != 2:
            raise TypeError(f"single_gpu_graph is (module, optimizer), not a {type(graph).__name__} of {len(graph)}")
        from phalanx.parallax._torch import TorchTrained

        return TorchTrained(graph[0], graph[1], config, sync)
    if _is_module(graph):
        raise TypeError("single_gpu_graph needs the optimizer, too: write (module, optimizer)")
    if type(graph).__module__.startswith("phalanx.graph"):
        from phalanx.graph.compiler import CompiledProgram
        from phalanx.graph.program import Program
        from phalanx.parallax._graph import GraphTrained

        if isinstance(graph, (Program, CompiledProgram)):
            return GraphTrained(graph, config, sync)
    raise TypeError(f"single_gpu_graph is (module, optimizer) of torch or a Program, not a {type(graph).__name__}")


def _is_module(graph: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(graph, torch.nn.Module)


def _names(trained: Trained) -> ReplicaNames:
    return ReplicaNames(_REPLICAS, getattr(trained, "names", ()))


__all__ = ["parallel_run"]
