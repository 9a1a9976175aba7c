"""Small functions of ``fluid`` around programs.

>>> with name_scope("encoder"), device_guard("cpu"):
...     in_dygraph_mode()
False
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from phalanx.graph._adding import program_of
from phalanx.graph._attributes import once
from phalanx.graph._flags import get_flags, set_flags
from phalanx.graph.backward import append_backward
from phalanx.graph.errors import ProgramError, StrategyError
from phalanx.graph.program import (
    Block,
    Operator,
    Parameter,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    program_guard,
)


@contextmanager
def name_scope(prefix: str | None = None) -> Iterator[None]:
    """A context for readers of a script. As in Paddle it changes no name of a variable."""
    if prefix is not None and not isinstance(prefix, str):
        raise TypeError(f"name_scope takes a str, got {type(prefix).__name__}")
    yield


@contextmanager
def device_guard(device: str | None = None) -> Iterator[None]:
    """A context whose operations run on a device, which must be the CPU."""
    if device not in (None, "cpu"):
        raise StrategyError(f"device_guard({device!r}): only 'cpu' is supported", var="device", got=device)
    yield


def in_dygraph_mode() -> bool:
    """False: programs are static."""
    return False


def gradients(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Variable | Sequence[Variable | None] | None = None,
    no_grad_set: Any = None,
) -> list[Variable | None]:
    """The gradients of targets with respect to any variables; ``None`` for one that no target depends on.

    They are those of the samples of each device. Those of parameters are for an executor with one device, or for
    ``apply_gradients``, which takes their mean over devices.

    >>> import phalanx.graph as fluid
    >>> with fluid.program_guard(fluid.Program()):
    ...     x = fluid.data("x", [None, 2])
    ...     fluid.gradients(fluid.layers.square(x), x)[0].shape
    (-1, 2)
    """
    from phalanx.graph import layers
    from phalanx.graph._site import caller

    wanted = [inputs] if isinstance(inputs, Variable) else list(inputs)
    of = [targets] if isinstance(targets, Variable) else list(targets)
    program = program_of([*of, *wanted], "gradients")
    given: list[Any] = [target_gradients] if isinstance(target_gradients, Variable) else list(target_gradients or [])
    if given and len(given) != len(of):
        raise ProgramError(f"gradients: {len(of)} targets have {len(given)} target_gradients; one for each, or none")
    without = [v if isinstance(v, str) else v.name for v in no_grad_set or ()]
    names = list(dict.fromkeys(v.name for v in wanted))
    before = program._graph.copy()
    try:
        with program_guard(program):
            weighted = [
                layers.reduce_sum(t if i >= len(given) or given[i] is None else t * given[i]) for i, t in enumerate(of)
            ]
            total = weighted[0] if len(weighted) == 1 else layers.sums(weighted)
        found = dict(program._graph.append_backward(total.name, names, without, caller()))
        made = {
            name: program.var(g) if _is_shared(program, name) else _unweighted(program, total, program.var(g))
            for name, g in found.items()
        }
    except BaseException:
        program._graph.restore(before)
        raise
    program._shares += [g for name, g in found.items() if _is_shared(program, name)]
    return [made.get(v.name) for v in wanted]


def _is_shared(program: Program, name: str) -> bool:
    return isinstance(program.var(name), Parameter)


def _unweighted(program: Program, total: Variable, grad: Variable) -> Variable:
    """Without the weight of a device's samples in the loss, with which gradients begin."""
    from phalanx.graph import layers

    weight = next(op.outputs[0] for op in program.global_block().ops if op.role == "Loss" and op.inputs == [total.name])
    with program_guard(program):
        least = layers.fill_constant([], grad.dtype, 1e-30)
        return grad / layers.elementwise_max(program.var(weight), least)


def memory_optimize(
    input_program: Program,
    skip_opt_set: Any = None,
    print_log: bool = False,
    level: int = 0,
    skip_grads: bool = True,
) -> None:
    """Has no effect: memory is planned for every program (``BuildStrategy.memory_optimize``)."""
    if not isinstance(input_program, Program):
        raise TypeError(f"memory_optimize takes a Program, got {type(input_program).__name__}")
    once("memory_optimize has no effect: memory is planned for every program")


def release_memory(input_program: Program, skip_opt_set: Any = None) -> None:
    """Has no effect: memory is planned for every program."""
    memory_optimize(input_program)


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Accepts every version: the names are those of Paddle 1.8."""


__all__ = [
    "Block",
    "Operator",
    "Parameter",
    "Program",
    "Variable",
    "append_backward",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "get_flags",
    "gradients",
    "in_dygraph_mode",
    "memory_optimize",
    "name_scope",
    "program_guard",
    "release_memory",
    "require_version",
    "set_flags",
]
