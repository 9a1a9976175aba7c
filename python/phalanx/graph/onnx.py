"""ONNX models as programs: import, train, and write the trained values back into the file.

``import_model`` takes what ``torch.onnx.export`` has written. The batch stays open: any number of samples can be fed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from phalanx import _phalanx
from phalanx.graph.errors import SavedError
from phalanx.graph.program import Program, Variable, default_startup_program
from phalanx.graph.scope import Scope, global_scope


class Model(NamedTuple):
    """An imported model. Its values are in the scope; no startup program is needed for them."""

    program: Program
    inputs: list[str]
    outputs: list[Variable]
    parameters: list[str]


class _Spec(NamedTuple):
    learn: list[str] | None
    freeze: list[str]
    batch: str | None
    norms: str
    sparse: bool


def import_model(
    path: str | os.PathLike[str] | bytes,
    *,
    learn: Sequence[str] | None = None,
    freeze: Sequence[str] = (),
    batch: str | None = None,
    norms: str = "as_written",
    sparse: bool = False,
    scope: Scope | None = None,
) -> Model:
    """Reads a model, from a file or from bytes, and puts its values into the scope.

    * ``learn``: names of initializers to learn; by default all of floating point that outputs depend on.
    * ``freeze``: names that keep their values; ``*`` stands for anything.
    * ``batch``: the symbol of the batch; by default the first that an input has.
    * ``norms``: what batch norms do that were exported in evaluation mode. ``"as_written"``: they use the statistics of
      the file and learn only scale and shift; ``"learn"``: they follow their batches; ``"strict"``: they are refused.
    * ``sparse``: whether tables learn only the rows that were used.
    """
    content, called = _content(path)
    spec = _Spec(None if learn is None else list(learn), list(freeze), batch, norms, bool(sparse))
    store = (scope or global_scope())._store
    graph, inputs, outputs, parameters = _phalanx.graph_import_onnx(store, content, called, spec)
    program = Program._of(graph)
    default_startup_program()._graph.adopt(graph)
    return Model(program, inputs, [program.var(name) for name in outputs], parameters)


def export_model(
    path: str | os.PathLike[str] | bytes,
    to: str | os.PathLike[str],
    *,
    model: Model | None = None,
    scope: Scope | None = None,
) -> list[str]:
    """Writes the file of a model again, with the values of the scope; returns the names of what was written.

    All else stays as it is in the file. With ``model``, a parameter of it that the file does not have is an error.
    """
    content, called = _content(path)
    made, written = _phalanx.graph_export_onnx((scope or global_scope())._store, content, called)
    missing = sorted(set(model.parameters) - set(written)) if model is not None else []
    if missing:
        raise SavedError(f"{called}: the model was imported with `{missing[0]}`, which this file does not have")
    target = Path(to)
    part = target.with_name(f"{target.name}.part")
    part.write_bytes(made)
    part.replace(target)
    return written


def _content(given: Any) -> tuple[bytes, str]:
    if isinstance(given, bytes):
        return given, "the model"
    try:
        return Path(given).read_bytes(), str(given)
    except OSError as why:
        raise SavedError(f"{given}: {why.strerror or why}") from None


__all__ = ["Model", "export_model", "import_model"]
