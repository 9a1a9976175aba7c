"""Collectives of TensorFlow's tensors, in eager code, functions and sessions; all of them can be differentiated, twice, too."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from phalanx import _phalanx, _world
from phalanx._arguments import checked_member, checked_op, checked_root, checked_splits
from phalanx.exceptions import UnsupportedError
from phalanx.process_sets import ProcessSet, global_process_set, set_id
from phalanx.reductions import Average, Sum
from phalanx.tensorflow._names import name_of
from phalanx.tensorflow._ops import CODES, Spec, collective, could_record, place
from phalanx.tensorflow.compression import Compression, is_native


def chosen_op(op: int | None, average: bool | None) -> int:
    """The reduction, from the new argument or the old one."""
    if op is not None:
        if average is not None:
            raise ValueError("average and op are the same argument: pass op alone, such as op=Sum")
        return checked_op(op)
    if average is not None and not isinstance(average, bool):
        raise ValueError(f"average must be True or False, not {average!r}: pass op=, and a name as name=")
    if average is not None:
        warnings.warn("average is deprecated: pass op=Average or op=Sum", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    return Average


def _check_devices(**devices: str) -> None:
    for name, device in devices.items():
        if device and "CPU" not in device.upper():
            raise UnsupportedError(f"{name}={device!r}: tensors are reduced on the CPU; leave {name} out")


def _tensor(kind: str, value: Any) -> Any:
    """The value as a dense tensor."""
    others = {tf.SparseTensor: "tf.sparse.to_dense(x)", tf.RaggedTensor: "x.to_tensor()"}
    for other, words in others.items():
        if isinstance(value, other):
            raise UnsupportedError(f"{kind} takes dense tensors, not a {other.__name__}: convert it with {words}")
    return tf.convert_to_tensor(value)


def _differentiable(run: Any, back: Any, tensors: Sequence[Any]) -> list[Any]:
    """Runs it; a tape gets what ``back`` makes of the gradients."""
    if not could_record():
        return list(run(list(tensors)))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def apply(*inputs: Any) -> Any:
        outputs = list(run([tf.convert_to_tensor(x) for x in inputs]))

        def grad(*upstream: Any) -> Any:
            # Those of lookups in the result are IndexedSlices.
            return back([tf.convert_to_tensor(g) for g in upstream], outputs)

        return outputs, grad

    result = apply(*tensors)
    return list(result) if isinstance(result, (list, tuple)) else [result]


def reduce(tensors: Sequence[Any], spec: Spec) -> list[Any]:
    """Allreduce of one tensor or a group; the gradient is reduced in the same way."""

    def back(grads: list[Any], _outputs: list[Any]) -> list[Any]:
        if spec.op not in (Average, Sum):
            raise UnsupportedError("only allreduce with op=Average or op=Sum can be differentiated")
        return reduce(grads, spec.but(name=_again("allreduce", spec)))

    return _differentiable(lambda xs: collective("allreduce", xs, spec), back, tensors)


def _again(kind: str, spec: Spec) -> str:
    """The name of the operation for its gradient."""
    return name_of(kind, None) if not spec.name or not tf.executing_eagerly() else f"{spec.name}.gradient"


def _reduction(name: str, op: int, prescale: float, postscale: float, process_set: ProcessSet, grouped: bool) -> Spec:
    factors = {"prescale_factor": prescale, "postscale_factor": postscale}
    for which, factor in factors.items():
        if isinstance(factor, bool) or not isinstance(factor, (int, float)):
            raise ValueError(f"{which} must be a number, not {factor!r}")
    return Spec(name, checked_member(process_set), grouped, op, float(prescale), float(postscale))


def compressed(tensors: Sequence[Any], compression: Any, spec: Spec) -> list[Any]:
    """Allreduce with compression: of the engine's, or of the program's own."""
    if not is_native(compression):
        pairs = [compression.compress(t) for t in tensors]
        results = reduce([t for t, _ in pairs], spec)
        return [compression.decompress(t, c) for t, (_, c) in zip(results, pairs, strict=True)]
    if compression.wire is not None and all(t.dtype in (tf.float32, tf.float64) for t in tensors):
        spec = spec.but(wire=CODES[compression.wire])
    return reduce(tensors, spec)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces the tensors of all ranks. ``IndexedSlices`` are gathered: every rank gets the slices of all of them."""
    _check_devices(device_dense=device_dense, device_sparse=device_sparse)
    op = chosen_op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        if op not in (Average, Sum):
            raise NotImplementedError("IndexedSlices have only op=Average and op=Sum: convert them with tf.convert_to_tensor()")
        if prescale_factor != 1.0 or postscale_factor != 1.0:
            raise NotImplementedError("IndexedSlices are not scaled: scale their values, or convert them to a tensor")
        full = name_of("allgather", name, grouped=True, ignore_name_scope=ignore_name_scope)
        return sparse(tensor, op, full, process_set)
    tensor = _tensor("allreduce", tensor)
    full = name_of("allreduce", name, ignore_name_scope=ignore_name_scope)
    spec = _reduction(full, op, prescale_factor, postscale_factor, process_set, False)
    return compressed([tensor], compression, spec)[0]


def sparse(slices: Any, op: int, full_name: str, process_set: ProcessSet, note: str = "") -> Any:
    """The slices of all ranks; for an average, divided by the number of ranks, in the same type."""
    spec = Spec(full_name, checked_member(process_set), grouped=True, note=note)
    values, indices = gather([slices.values, slices.indices], spec)
    if op == Average:
        # Whole numbers are rounded towards zero, as those of tensors are.
        n = process_set_size_op(process_set)
        values = tf.cast(values / tf.cast(n, values.dtype), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces several tensors as one operation: all of them, or none."""
    _check_devices(device_dense=device_dense, device_sparse=device_sparse)
    op = chosen_op(op, average)
    if not tensors:
        return []
    if any(isinstance(t, tf.IndexedSlices) for t in tensors):
        raise NotImplementedError("a group has tensors only: reduce IndexedSlices with allreduce()")
    full = name_of("allreduce", name, grouped=True, ignore_name_scope=ignore_name_scope)
    spec = _reduction(full, op, prescale_factor, postscale_factor, process_set, True)
    return compressed([_tensor("grouped_allreduce", t) for t in tensors], compression, spec)


def gather(tensors: Sequence[Any], spec: Spec) -> list[Any]:
    """Allgather of one tensor or a group; the gradient is this rank's part of the average."""
    tensors = [_tensor("allgather", t) for t in tensors]
    for tensor in tensors:
        _check_rows("allgather", tensor)

    def back(grads: list[Any], _outputs: list[Any]) -> list[Any]:
        reduced = reduce(grads, spec.but(name=_again("allreduce", spec), op=Average))
        rows = tf.stack([tf.shape(t, tf.int64)[0] for t in tensors])
        counted = collective("allgather", [rows[tf.newaxis]], Spec(_again("allgather", spec), spec.process_set))[0]
        before = tf.reduce_sum(counted[: _set_rank(spec.process_set)], axis=0)
        return [g[before[i] : before[i] + rows[i]] for i, g in enumerate(reduced)]

    return _differentiable(lambda xs: collective("allgather", xs, spec), back, tensors)


def _check_rows(kind: str, tensor: Any) -> None:
    if tensor.shape.rank == 0:
        raise ValueError(f"{kind} takes rows, but the tensor has no dimension: add one with tf.expand_dims(tensor, 0)")


def _set_rank(id: int) -> int:
    me = _phalanx.place()[0]
    return dict(_phalanx.process_sets())[id].index(me)


def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """Concatenates the rows of all ranks in rank order; ranks may have different numbers of rows."""
    full = name_of("allgather", name, ignore_name_scope=ignore_name_scope)
    return gather([tensor], Spec(full, checked_member(process_set)))[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gathers several tensors as one operation: all of them, or none."""
    if not tensors:
        return []
    full = name_of("allgather", name, grouped=True, ignore_name_scope=ignore_name_scope)
    return gather(tensors, Spec(full, checked_member(process_set), grouped=True))


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the tensor of ``root_rank``, a rank of the world, on every rank."""
    root = checked_root(root_rank, process_set)
    full = name_of("broadcast", name, ignore_name_scope=ignore_name_scope)
    return _of_root(tensor, Spec(full, checked_member(process_set), root=root))


def _of_root(tensor: Any, spec: Spec) -> Any:
    """Broadcast; the gradient goes to the root."""

    def back(grads: list[Any], _outputs: list[Any]) -> list[Any]:
        reduced = reduce(grads, spec.but(name=_again("allreduce", spec), op=Average))
        # A choice that is differentiated on all ranks: each of them takes part in the gradient of this gradient.
        is_root = tf.constant(_phalanx.place()[0] == spec.root)
        return [tf.where(is_root, g, tf.zeros_like(g)) for g in reduced]

    return _differentiable(lambda xs: collective("broadcast", xs, spec), back, [_tensor("broadcast", tensor)])[0]


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gives the variables of ``root_rank`` to every rank, in place; returns the variables."""
    return assigned_from_root(listed_variables(variables), root_rank, name, process_set)


def listed_variables(variables: Any) -> list[Any]:
    """The variables as a list."""
    if not isinstance(variables, Iterable) or isinstance(variables, (str, Mapping)) or hasattr(variables, "assign"):
        raise ValueError(f"pass a list of variables, such as model.variables, not a {type(variables).__name__}")
    found = list(variables)
    for variable in found:
        if not hasattr(variable, "assign"):
            raise ValueError(f"a {type(variable).__name__} cannot be assigned to: pass variables, or use broadcast()")
    return found


def assigned_from_root(
    variables: list[Any], root_rank: int, name: str | None, process_set: ProcessSet, note: str = ""
) -> list[Any]:
    """As :func:`broadcast_`; ranks compare the note."""
    root = checked_root(root_rank, process_set)
    values = []
    for i, variable in enumerate(variables):
        full = name_of("broadcast", None if name is None else f"{name}.{i}")
        values.append(_of_root(_value(variable), Spec(full, checked_member(process_set), root=root, note=note)))
    return [_assigned(v, value) for v, value in zip(variables, values, strict=True)]


def _value(variable: Any) -> Any:
    inner = getattr(variable, "value", variable)
    return tf.convert_to_tensor(inner() if callable(inner) else inner)


def _assigned(variable: Any, value: Any) -> Any:
    done = variable.assign(value)
    return variable if tf.executing_eagerly() or done is None else done


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends ``splits[r]`` rows to each rank r; returns the received rows, and with ``splits`` how many came from each."""
    tensor = _tensor("alltoall", tensor)
    _check_rows("alltoall", tensor)
    full = name_of("alltoall", name, ignore_name_scope=ignore_name_scope)
    if splits is not None and not tf.is_tensor(splits):
        splits = checked_splits(splits)
    rows = tf.constant([], tf.int64) if splits is None else tf.cast(splits, tf.int64)
    result, received = _sent(tensor, rows, Spec(full, checked_member(process_set)))
    return result if splits is None else (result, tf.cast(received, tf.int32))


def _sent(tensor: Any, rows: Any, spec: Spec) -> tuple[Any, Any]:
    """Alltoall; the gradient goes back to where the rows came from."""
    kept: list[Any] = []

    def run(xs: list[Any]) -> list[Any]:
        results = collective("alltoall", xs, spec, rows)
        kept[:] = [tf.stop_gradient(results[1])]
        return results[:1]

    def back(grads: list[Any], _outputs: list[Any]) -> list[Any]:
        returned, _ = _sent(grads[0], kept[0], spec.but(name=_again("alltoall", spec)))
        # Rows that were sent to nobody have no gradient.
        n = tf.shape(tensor)[0] - tf.shape(returned)[0]
        none = tf.zeros(tf.concat([[n], tf.shape(returned)[1:]], 0), returned.dtype)
        return [tf.concat([returned, none], 0)]

    return _differentiable(run, back, [tensor])[0], kept[0]


def scatter(tensors: Sequence[Any], spec: Spec) -> list[Any]:
    """Reducescatter of one tensor or a group; the gradient is gathered again."""
    tensors = [_tensor("reducescatter", t) for t in tensors]
    for tensor in tensors:
        _check_rows("reducescatter", tensor)

    def back(grads: list[Any], _outputs: list[Any]) -> list[Any]:
        factor = spec.prescale * spec.postscale
        if spec.op == Sum:
            factor *= len(dict(_phalanx.process_sets())[spec.process_set])
        scaled = grads if factor == 1.0 else [g * tf.cast(factor, g.dtype) for g in grads]
        plain = Spec(_again("allgather", spec), spec.process_set, spec.grouped)
        return gather(scaled, plain)

    return _differentiable(lambda xs: collective("reducescatter", xs, spec), back, tensors)


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces the rows and returns to each rank its share of them."""
    _check_devices(device_dense=device_dense)
    full = name_of("reducescatter", name, ignore_name_scope=ignore_name_scope)
    spec = _reduction(full, checked_op(op), prescale_factor, postscale_factor, process_set, False)
    return _scattered([tensor], compression, spec)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduces and scatters several tensors as one operation: all of them, or none."""
    _check_devices(device_dense=device_dense)
    if not tensors:
        return []
    full = name_of("reducescatter", name, grouped=True, ignore_name_scope=ignore_name_scope)
    spec = _reduction(full, checked_op(op), prescale_factor, postscale_factor, process_set, True)
    return _scattered(tensors, compression, spec)


def _scattered(tensors: Sequence[Any], compression: Any, spec: Spec) -> list[Any]:
    is_native(compression)
    pairs = [compression.compress(_tensor("reducescatter", t)) for t in tensors]
    results = scatter([t for t, _ in pairs], spec)
    return [compression.decompress(t, c) for t, (_, c) in zip(results, pairs, strict=True)]


def join() -> int:
    """Declares that this rank has no more data, and waits until all ranks have; returns the rank that was last.

    Until then this rank takes part in the others' allreduces with zeros.
    """
    return _world.join()


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> None:
    """Waits until every rank of the set has called it. In a graph, an operation that does so."""
    if tf.executing_eagerly():
        _phalanx.submit("barrier", [], process_set=checked_member(process_set), awaited=True).wait()
        return None
    done: None = collective("barrier", [], Spec(name_of("barrier", name), checked_member(process_set)))[0]
    return done


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The number of ranks, as a tensor that is read when it runs."""
    if process_set_id:
        return _of_set(lambda ranks: len(ranks), process_set_id, name or "size")
    return place(1, name or "size")


def rank_op(name: str | None = None) -> Any:
    """This rank, as a tensor that is read when it runs."""
    return place(0, name or "rank")


def local_size_op(name: str | None = None) -> Any:
    """The number of ranks on this host, as a tensor that is read when it runs."""
    return place(3, name or "local_size")


def local_rank_op(name: str | None = None) -> Any:
    """This rank among those of its host, as a tensor that is read when it runs."""
    return place(2, name or "local_rank")


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this rank is in the process set, else 0, as a tensor that is read when it runs."""
    return _of_set(lambda ranks: int(_phalanx.place()[0] in ranks), process_set_id, name or "included")


def process_set_size_op(process_set: ProcessSet) -> Any:
    """The number of ranks of a set."""
    return size_op(set_id(process_set))


def _of_set(answer: Any, id: int, name: str) -> Any:
    import numpy as np

    def ask() -> Any:
        ranks = dict(_phalanx.process_sets()).get(id)
        if ranks is None:
            raise ValueError(f"process set {id} does not exist: register it with add_process_set()")
        return np.int32(answer(ranks))

    if tf.executing_eagerly():
        return tf.constant(ask())
    found = tf.numpy_function(ask, [], tf.int32, name=name, stateful=True)
    found.set_shape([])
    return found


__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]

# Python as it stands: AutoGraph would rewrite it, and hide the classes of its errors.
for _name in __all__:
    globals()[_name] = tf.autograph.experimental.do_not_convert(globals()[_name])
