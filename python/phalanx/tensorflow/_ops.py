"""Collectives as operations of TensorFlow: native and asynchronous, or, without a compiler, calls of Python.

Both run in eager code, in functions and in sessions, and raise the same errors. A call of Python keeps one of
TensorFlow's threads until all ranks have come, so a session with fewer threads than operations may wait forever.
"""

from __future__ import annotations

import importlib
import struct
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx import _alike, _phalanx, native
from phalanx.exceptions import PhalanxError, UnsupportedError
from phalanx.tensorflow import _errors

#: Element types as the engine numbers them.
CODES = {
    t: code
    for code, t in enumerate(
        [
            tf.uint8,
            tf.int8,
            tf.uint16,
            tf.int16,
            tf.int32,
            tf.int64,
            tf.float16,
            tf.bfloat16,
            tf.float32,
            tf.float64,
            tf.bool,
        ]
    )
}
_NUMPY_CODES = {np.dtype(t.as_numpy_dtype): code for t, code in CODES.items()}


@dataclass(frozen=True)
class Spec:
    """What an operation is told beside its tensors."""

    name: str = ""
    process_set: int = 0
    grouped: bool = False
    op: int = 1
    prescale: float = 1.0
    postscale: float = 1.0
    wire: int = -1
    root: int = 0
    #: What the operation is a part of; ranks compare it.
    note: str = ""

    def but(self, **changes: Any) -> Spec:
        """The same with these changes."""
        return replace(self, **changes)


_module: Any = None
_why_not: str | None = None


def use_native(wanted: bool) -> None:
    """Whether collectives are native operations, which is the default, or calls of Python. For the next ones."""
    global _module, _why_not
    _module, _why_not = None, None if wanted else "use_native(False) was called"


def is_native() -> bool:
    """Whether collectives are native operations. The first call compiles them if nobody has on this machine."""
    return _native() is not None


def _native() -> Any:
    global _module, _why_not
    if _module is None and _why_not is None:
        try:
            flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
            version = tf.__version__
            path = native.library("tensorflow_ops.cc", f"TensorFlow {version}", f"tf{version}", flags, _framework())
            module = tf.load_op_library(str(path))
            native.attach(path)
            _module = module
        except (native.NativeError, tf.errors.NotFoundError, OSError) as error:
            _module, _why_not = None, str(error)
            warnings.warn(
                f"collectives are calls of Python, not native operations ({error}): each one is about a millisecond slower, "
                "and a v1 session needs as many inter-op threads as it has collectives",
                RuntimeWarning,
                stacklevel=5,
            )
    return _module


def _framework() -> str:
    """Which build of TensorFlow this is: packages of one version differ."""
    found = sorted(Path(tf.sysconfig.get_lib()).glob("libtensorflow_framework.so*"))
    return " ".join(f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in found)


def collective(kind: str, tensors: Sequence[Any], spec: Spec, splits: Any = None) -> list[Any]:
    """Runs a collective, or makes its node in the graph that is being made."""
    tensors = list(tensors)
    for tensor in tensors:
        if tensor.dtype not in CODES:
            text = f"tensors of {tensor.dtype.name} are not supported: convert them with tf.cast() first"
            raise UnsupportedError(f"{kind}: {text}")
    if tf.executing_eagerly():
        _phalanx.place()
    else:
        _refuse_compiled(kind)
    module = _native()
    if module is None:
        return _by_python(kind, tensors, spec, splits)
    attributes = {
        "reduce_op": spec.op,
        "grouped": spec.grouped,
        "process_set": spec.process_set,
        "root": spec.root,
        "wire": spec.wire,
        "prescale": _bits(spec.prescale),
        "postscale": _bits(spec.postscale),
        "awaited": tf.executing_eagerly(),
        "tensor_name": spec.name,
        "note": spec.note,
    }
    try:
        with tf.device("/cpu:0"):
            if kind == "alltoall":
                return list(module.phalanx_alltoall(tensors[0], tf.cast(splits, tf.int64), **attributes))
            if kind == "barrier":
                return [module.phalanx_barrier(**attributes)]
            if kind == "broadcast":
                return [module.phalanx_broadcast(tensors[0], **attributes)]
            return list(getattr(module, f"phalanx_{kind}")(tensors, **attributes))
    except tf.errors.OpError as error:
        ours = _errors.translated(error)
        if ours is error:
            raise
        raise ours from None


def compare(variables: Sequence[Any], spec: Spec, words: str) -> Any:
    """The operation of a graph in which ranks compare their variables, in the first runs; it reads nothing in later ones."""
    module, key = _native(), _alike.key_of(spec.name, variables)
    with tf.device("/cpu:0"):
        if module is None:
            return _compare_by_python(variables, spec, words, key)
        # One list is all of one kind: a graph's variables of the old kind have no handle.
        handles = [v.handle for v in variables if hasattr(v, "handle")]
        values = [tf.convert_to_tensor(v) for v in variables if not hasattr(v, "handle")]
        told = {"process_set": spec.process_set, "tensor_name": spec.name, "note": spec.note, "words": words, "key": key}
        return module.phalanx_compare(handles=handles, values=values, **told)


def _compare_by_python(variables: Sequence[Any], spec: Spec, words: str, key: str) -> Any:
    def turn() -> Any:
        return np.int64(_phalanx.alike_turn(spec.process_set, key))

    def run(turn: Any, *arrays: Any) -> Any:
        try:
            _alike.compare_now(spec.name, spec.process_set, words, lambda: arrays, int(turn), spec.note)
        except (PhalanxError, ValueError) as error:
            raise RuntimeError(_errors.keep(error)) from error
        return np.bool_(True)

    number = tf.numpy_function(turn, [], tf.int64, stateful=True)
    number.set_shape([])
    values = [tf.convert_to_tensor(v) for v in variables]
    now = lambda: tf.numpy_function(run, [number, *values], tf.bool, stateful=True)  # noqa: E731
    return tf.cond(number > 0, now, lambda: tf.constant(False))


def _bits(number: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def _by_python(kind: str, tensors: list[Any], spec: Spec, splits: Any) -> list[Any]:
    types = [t.dtype for t in tensors]
    if tf.executing_eagerly():
        given = [t.numpy() for t in tensors]
        rows = None if splits is None else np.asarray(splits, np.int64)
        made = _run(kind, given, spec, rows)
        return [tf.constant(array) for array in made]

    def run(*arrays: Any) -> list[Any]:
        rows = arrays[-1] if splits is not None else None
        try:
            return _run(kind, list(arrays[: len(types)]), spec, rows)
        except (PhalanxError, ValueError) as error:
            # TensorFlow keeps only the class and the text; of the classes it knows this one means failure.
            raise RuntimeError(_errors.keep(error)) from error

    inputs = [*tensors, tf.cast(splits, tf.int64)] if splits is not None else tensors
    outputs = [*types, tf.int64] if kind == "alltoall" else types
    results = list(tf.numpy_function(run, inputs, outputs, stateful=True)) if outputs else []
    if kind == "barrier":
        return [tf.numpy_function(lambda: (run(), np.int32(0))[1], [], tf.int32, stateful=True)]
    for result, tensor in zip(results, tensors, strict=False):
        shape = tensor.shape
        if kind not in ("allreduce", "broadcast") and shape.rank:
            shape = tf.TensorShape([None]).concatenate(shape[1:])
        result.set_shape(shape)
    return results


def _run(kind: str, arrays: list[Any], spec: Spec, splits: Any) -> list[Any]:
    arrays = [np.asarray(a, order="C") for a in arrays]
    outputs = [np.empty_like(a) for a in arrays] if kind in ("allreduce", "broadcast") else None
    made, received = _phalanx.submit(
        kind,
        [_lent(a) for a in arrays],
        outputs=None if outputs is None else [_lent(a) for a in outputs],
        name=spec.name or None,
        op=spec.op,
        prescale=spec.prescale,
        postscale=spec.postscale,
        root=spec.root,
        process_set=spec.process_set,
        wire=None if spec.wire < 0 else spec.wire,
        splits=None if splits is None or not len(splits) else [int(n) for n in splits],
        grouped=spec.grouped,
        note=spec.note or None,
    ).wait()
    if outputs is not None:
        return outputs
    results = [np.array(m) if m.dtype != 7 else _bfloats(m) for m in made]
    return [*results, np.asarray(received, np.int64)] if kind == "alltoall" else results


def _bfloats(array: _phalanx.Array) -> Any:
    return np.frombuffer(array.tobytes(), tf.bfloat16.as_numpy_dtype).reshape(array.shape)


def _lent(array: Any) -> tuple[int, int, tuple[int, ...], Any]:
    return array.ctypes.data, _NUMPY_CODES[array.dtype], array.shape, array


def _refuse_compiled(kind: str) -> None:
    """XLA cannot compile collectives. TensorFlow would say so at the first call, in other words."""
    frame = sys._getframe(2)
    while frame is not None:
        # The method of tf.function's object that traces.
        if frame.f_code.co_name in ("_initialize", "_call"):
            owner = frame.f_locals.get("self")
            if getattr(owner, "_jit_compile", None):
                raise UnsupportedError(_errors.not_compiled(kind))
        frame = frame.f_back  # type: ignore[assignment]


def place(index: int, name: str) -> Any:
    """A number of this rank's place as a tensor that is read when it runs."""
    if tf.executing_eagerly():
        return tf.constant(_phalanx.place()[index], tf.int32)
    found = tf.numpy_function(lambda: np.int32(_phalanx.place()[index]), [], tf.int32, name=name, stateful=True)
    found.set_shape([])
    return found


def could_record() -> bool:
    """Whether somebody may ask for gradients; if that cannot be told, yes."""
    if not tf.executing_eagerly():
        return True
    try:
        record = importlib.import_module("tensorflow.python.eager.record")
        return bool(record.could_possibly_record())
    except (ImportError, AttributeError):
        return True
