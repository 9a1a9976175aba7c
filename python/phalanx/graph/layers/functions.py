"""What looks into a run: values that are printed.

>>> import numpy as np
>>> from phalanx import graph
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

from phalanx.graph._adding import append
from phalanx.graph._printing import Printed
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


__all__ = ["Print"]
