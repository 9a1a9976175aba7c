"""What looks into a run: Python functions as operations, and values that are printed.

>>> import numpy as np
>>> from phalanx import graph
>>> with graph.program_guard(graph.Program(), graph.Program()):
...     x = graph.data("x", [None, 2])
...     out = graph.default_main_program().current_block().create_var(name="out", dtype="float32", shape=[-1, 2])
...     y = graph.layers.py_func(np.sinh, x, out)
...     graph.Executor().run(feed={"x": np.zeros([1, 2], "float32")}, fetch_list=[y])
[array([[0., 0.]], dtype=float32)]
>>> with graph.program_guard(graph.Program(), graph.Program()):
...     x = graph.data("x", [None, 2])
...     y = graph.layers.Print(graph.layers.scale(x, 2.0), message="twice", print_tensor_name=False)
...     out = graph.Executor().run(feed={"x": np.ones([1, 2], "float32")}, fetch_list=[y])
twice
  - shape: [1, 2]
  - type: float32
  - data: [2.0 2.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from phalanx.graph import _values
from phalanx.graph._adding import append, declare, program_of
from phalanx.graph._printing import Printed
from phalanx.graph._site import caller
from phalanx.graph._values import Array, Given
from phalanx.graph.errors import ProgramError
from phalanx.graph.program import Variable

_PHASES = ("forward", "backward", "both")


def Print(
    input: Variable,
    first_n: int = -1,
    message: str | None = None,
    summarize: int = 20,
    print_tensor_name: bool = True,
    print_tensor_type: bool = True,
    print_tensor_shape: bool = True,
    print_tensor_lod: bool = True,
    print_phase: str = "both",
) -> Variable:
    """The same value, which is printed when a run has ended: in ``first_n`` runs, ``summarize`` elements of it.

    ``print_phase`` says whether the value, its gradient or both are shown. On several devices the values of all are put
    together. Sequences are shown with their padding.
    """
    out = append("Assign", None, [input], "print")
    if print_phase not in _PHASES:
        raise ProgramError(f"Print: print_phase={print_phase!r}; choose one of {', '.join(_PHASES)}", op="Print")
    flags = {"name": print_tensor_name, "type": print_tensor_type, "shape": print_tensor_shape}
    shows = [key for key, is_on in flags.items() if is_on]
    form = Printed(out.name, out.site, int(first_n), message, int(summarize), shows, print_phase)
    out.program._prints.append(form)
    return out


def py_func(
    func: Callable[..., Any],
    x: Variable | Sequence[Variable] | None,
    out: Variable | Sequence[Variable] | None,
    backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Variable | Sequence[Variable] | None = None,
) -> Any:
    """Calls a Python function with arrays in every run; what it returns becomes ``out``, which ``create_var`` declares.

    ``backward_func`` takes the inputs, the outputs and the gradients of the outputs, but not what is skipped. It returns
    the gradient of each input, or None for zeros. Devices call the functions at the same time, each with its samples.
    """
    op = "py_func"
    inputs, outputs = _listed(x, "x"), _listed(out, "out")
    skipped = _listed(skip_vars_in_backward_input, "skip_vars_in_backward_input")
    for what, function in (("func", func), ("backward_func", backward_func)):
        if not callable(function) and not (function is None and what == "backward_func"):
            raise TypeError(f"{op}: {what} is a {type(function).__name__}, not a function")
    program = program_of([*inputs, *outputs], op)
    for v in inputs:
        if v.lengths is not None and not any(v.lengths.name == other.name for other in inputs):
            raise ProgramError(
                f"{op}: {v!r} holds padded sequences, and the function cannot know where they end; pass its lengths, "
                "too: x=[v, v.lengths]",
                op=op,
                var=v.name,
            )
    for v in skipped:
        if not any(v.name == other.name for other in (*inputs, *outputs)):
            raise ProgramError(f"{op}: `{v.name}` is skipped, but is neither in x nor in out", op=op, var=v.name)
    if skipped and backward_func is None:
        raise ProgramError(f"{op}: skip_vars_in_backward_input without backward_func", op=op)
    title = f"{op} `{getattr(func, '__name__', type(func).__name__)}`"
    # A function that only looks gives nothing; the operation gives a number that is not used.
    made = outputs or [declare(program, program._graph.fresh("py_func.tmp"), "float32", [], "Temp")]
    backward = None
    if backward_func is not None:
        without = {v.name for v in skipped}
        takes, sees = ([v.name not in without for v in group] for group in (inputs, outputs))
        is_real = [v.dtype in ("float32", "float64") for v in inputs]
        backward = (takes, sees, _Backward(backward_func, is_real))
    call = _Call(func) if outputs else _Look(func)
    program._graph.append_function(title, [v.name for v in inputs], [v.name for v in made], call, backward, caller())
    return out


def _listed(given: Any, what: str) -> list[Variable]:
    if given is None:
        return []
    if isinstance(given, Variable):
        return [given]
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    for v in listed:
        if not isinstance(v, Variable):
            raise TypeError(f"py_func: {what} takes variables, got {type(v).__name__}")
    return listed


class _Call:
    """Calls a function with arrays, and gives the bytes of what it returns."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func

    def __call__(self, given: Sequence[Given], wanted: Sequence[tuple[int, list[int]]]) -> list[bytes]:
        made = _several(self.func(*(_values.receive(each) for each in given)))
        if len(made) != len(wanted):
            raise ValueError(f"it returned {len(made)} values, but out has {len(wanted)}")
        return [_bytes(i, value, form) for i, (value, form) in enumerate(zip(made, wanted, strict=True))]


class _Look(_Call):
    """The same for a function that only looks."""

    def __call__(self, given: Sequence[Given], wanted: Sequence[tuple[int, list[int]]]) -> list[bytes]:
        self.func(*(_values.receive(each) for each in given))
        return [_zeros(form).tobytes() for form in wanted]


class _Backward(_Call):
    """The same for gradients, of which only those of real numbers are wanted."""

    def __init__(self, func: Callable[..., Any], is_real: Sequence[bool]) -> None:
        super().__init__(func)
        self.is_real = is_real

    def __call__(self, given: Sequence[Given], wanted: Sequence[tuple[int, list[int]]]) -> list[bytes]:
        made = _several(self.func(*(_values.receive(each) for each in given)))
        if len(made) != len(self.is_real):
            raise ValueError(f"it returned {len(made)} gradients, but x has {len(self.is_real)}; return None for zeros")
        real = [value for value, is_real in zip(made, self.is_real, strict=True) if is_real]
        pairs = enumerate(zip(real, wanted, strict=True))
        return [_zeros(form).tobytes() if value is None else _bytes(i, value, form) for i, (value, form) in pairs]


def _several(made: Any) -> list[Any]:
    return list(made) if isinstance(made, (list, tuple)) else [made]


def _zeros(form: tuple[int, list[int]]) -> Array:
    return np.zeros(form[1], _values.name(form[0]))


def _bytes(i: int, value: Any, form: tuple[int, list[int]]) -> bytes:
    """An array as it is wanted: of this shape, of a type that holds its numbers."""
    array, (code, dims) = np.asarray(value), form
    dtype = np.dtype(_values.name(code))
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise TypeError(f"value {i} is {array.dtype}, not {dtype}")
    if array.shape != tuple(dims) and not (array.size == 1 and int(np.prod(dims)) == 1):
        raise ValueError(f"value {i} has the shape {list(array.shape)}, not {dims}")
    return array.astype(dtype, copy=False).tobytes()


__all__ = ["Print", "py_func"]
