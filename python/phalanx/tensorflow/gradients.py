"""Gradients between their computation and their use: buckets, sparse ones, local ones, several passes for one step.

* GRADS-1: buckets are the same on all ranks, because they follow from the variables alone: their order, types and sizes.
* GRADS-2: making a graph waits for no rank: one rank may make its graph again while others run theirs. There every
  operation carries a note of all gradients, and the engine compares the notes of operations with one name.
* GRADS-3: the operations of a list have names that say nothing of their kind or of the variables, so lists that differ
  meet each other, and all ranks hear both notes. Functions of one name that train two models do so one after the other.

A bucket is one operation, and buckets are made from the last variable to the first, in the order in which gradients
become ready.
"""

from __future__ import annotations

import copy
import hashlib
import math
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from phalanx import _alike, _world
from phalanx._accord import Accord
from phalanx._arguments import checked_op, checked_passes
from phalanx.process_sets import ProcessSet, checked_kind, global_process_set, set_id
from phalanx.reductions import Average, Sum
from phalanx.tensorflow import _ops
from phalanx.tensorflow._names import name_of
from phalanx.tensorflow._ops import CODES, Spec
from phalanx.tensorflow.collectives import _check_devices, compressed, process_set_size_op, sparse
from phalanx.tensorflow.compression import Compression, is_native

#: A bucket is not larger than this, unless one gradient is.
BUCKET_BYTES = 16 << 20

#: Lists of gradients that all ranks are known to have.
_agreed: set[Any] = set()

#: Those that add up gradients of several passes.
_with_passes: weakref.WeakSet[Reducer] = weakref.WeakSet()


class Reducer:
    """How one optimizer or tape reduces its gradients."""

    def __init__(
        self,
        *,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
    ) -> None:
        _check_devices(device_dense=device_dense, device_sparse=device_sparse)
        is_native(compression)
        self.op = checked_op(op)
        if gradient_predivide_factor != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor is for op=Average: leave it out, or scale the gradients")
        if not gradient_predivide_factor:
            raise ValueError("gradient_predivide_factor must not be 0")
        if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 0:
            raise ValueError(f"num_groups must be a whole number, 0 or more, not {num_groups!r}")
        if isinstance(groups, bool) or not (groups is None or isinstance(groups, (int, list, tuple))):
            raise ValueError(f"groups must be a number of groups or a list of lists of variables, not {groups!r}")
        if isinstance(groups, int):
            if groups < 1:
                raise ValueError(f"groups must be more than 0, or left out, not {groups}")
            num_groups, groups = groups, None
        if not isinstance(sparse_as_dense, bool):
            raise ValueError(f"sparse_as_dense must be True or False, not {sparse_as_dense!r}")
        checked_kind(process_set)
        self.compression = compression
        self.sparse_as_dense = sparse_as_dense
        self.predivide = float(gradient_predivide_factor)
        self.num_groups = num_groups
        self.groups: list[list[Any]] = [list(group) for group in groups] if groups else []
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.passes = checked_passes(backward_passes_per_step)
        self.average_aggregated = average_aggregated_gradients
        self.local: list[Any] = []
        #: What to write where ranks turn out to have different variables; and names for these, by identity.
        self.remedy = _alike.OF_TAPES
        self.names: dict[Any, str] = {}
        self._note = ""
        if self.passes > 1:
            _with_passes.add(self)
        self._counter: Any = None
        self._sums: dict[Any, Any] = {}

    def again(self) -> Reducer:
        """Another one that does the same, for another optimizer."""
        other = copy.copy(self)
        other.local, other.names, other._counter, other._sums = list(self.local), {}, None, {}
        if other.passes > 1:
            _with_passes.add(other)
        return other

    def named(self, variables: Sequence[Any], names: Sequence[str]) -> None:
        """What errors call these variables."""
        self.names.update((_identity(v), name) for v, name in zip(variables, names, strict=True))

    def is_local(self, variable: Any) -> bool:
        """Whether the gradient of this variable stays on this rank."""
        return any(_identity(variable) == _identity(own) for own in self.local)

    def reduced(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks as one; ``None`` stays ``None``."""
        gradients, variables = list(gradients), list(variables)
        set_id(self.process_set)
        if not self.process_set.included():
            return gradients
        lines = self._agree(gradients, variables)
        with tf.control_dependencies(self._compare(gradients, variables, lines)):
            return self._reduced(gradients, variables)

    def _reduced(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        done = list(gradients)
        dense: list[int] = []
        for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if self.is_local(variable):
                done[i] = self._own(gradient)
            elif isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense:
                done[i] = self._sparse(gradient)
            else:
                done[i] = tf.convert_to_tensor(gradient)
                dense.append(i)
        for bucket in self._buckets(dense, done, variables):
            for i, result in zip(bucket, self._bucket([done[i] for i in bucket]), strict=True):
                done[i] = result
        return done

    def _agree(self, gradients: list[Any], variables: list[Any]) -> tuple[str, ...]:
        """Compares with other ranks which gradients there are, once for each kind of list (GRADS-1, GRADS-2). Returns the list."""
        if len(self.process_set.ranks) == 1:
            return ()
        pairs = enumerate(zip(gradients, variables, strict=True))
        lines = tuple(self._described(i, g, v) for i, (g, v) in pairs if not self.is_local(v))
        self._note = "" if tf.executing_eagerly() else noted(lines)
        if self._note:
            return lines
        key = (_world.age(), set_id(self.process_set), lines)
        if key not in _agreed:
            Accord("gradients", lambda: lines, self.process_set).wait()
            _agreed.add(key)
        return lines

    def _compare(self, gradients: list[Any], variables: list[Any], lines: tuple[str, ...]) -> list[Any]:
        """Compares with other ranks the variables themselves, in the first steps; in a graph, the operations that do."""
        pairs = zip(gradients, variables, strict=True)
        # What a tape watches need not be a variable, and may be other data on each rank.
        shared = [v for g, v in pairs if g is not None and hasattr(v, "assign") and not self.is_local(v)]
        shared = [v for v in shared if tf.as_dtype(v.dtype).base_dtype in CODES]
        if not lines or not shared:
            return []
        which = set_id(self.process_set)

        def words() -> str:
            return _alike.words(self.remedy, [self.names.get(_identity(v)) or str(v.name).partition(":")[0] for v in shared])

        if tf.executing_eagerly():
            name = f"parameters.{_alike.digest(lines)}"
            _alike.compare(name, which, words, shared, lambda: [v.numpy() for v in shared])
            return []
        return [_ops.compare(shared, Spec(name_of("parameters", None), which, note=self._note), words())]

    def _described(self, i: int, gradient: Any, variable: Any) -> str:
        if gradient is None:
            kind = "none"
        elif isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense:
            kind = "sparse"
        else:
            kind = "dense"
        dtype = getattr(gradient, "dtype", None)
        return f"gradient {i} ({kind}) of {_shape(variable)} {dtype.name if dtype is not None else ''}".rstrip()

    def _own(self, gradient: Any) -> Any:
        if not self.scale_local_gradients or self.op != Average:
            return gradient
        n = process_set_size_op(self.process_set)
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / tf.cast(n, gradient.values.dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / tf.cast(n, gradient.dtype)

    def _sparse(self, gradient: Any) -> Any:
        if self.op not in (Average, Sum):
            raise NotImplementedError("sparse gradients have only op=Average and op=Sum: pass sparse_as_dense=True")
        return sparse(gradient, self.op, self._name(), self.process_set, self._note)

    def _name(self) -> str:
        """GRADS-3. In eager code the engine counts."""
        return "" if tf.executing_eagerly() else name_of("gradients", None)

    def _bucket(self, gradients: list[Any]) -> list[Any]:
        name, note = self._name(), self._note
        spec = Spec(name, set_id(self.process_set), True, self.op, 1.0 / self.predivide, self.predivide, note=note)
        # One call of the program's own compressor for each gradient, one operation for all.
        return compressed(gradients, self.compression, spec)

    def _buckets(self, dense: list[int], gradients: list[Any], variables: list[Any]) -> list[list[int]]:
        if self.groups:
            ids = [[_identity(v) for v in group] for group in self.groups]
            first = [next((g for g, group in enumerate(ids) if _identity(variables[i]) in group), None) for i in dense]
            made = [[i for i, g in zip(dense, first, strict=True) if g == number] for number in range(len(ids))]
            return [b for b in made if b] + [[i] for i, g in zip(dense, first, strict=True) if g is None]
        if self.num_groups:
            size, more = divmod(len(dense), self.num_groups)
            ends = [(k + 1) * size + min(k + 1, more) for k in range(self.num_groups)]
            return [dense[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True) if b > a]
        buckets: list[list[int]] = []
        n_bytes, dtype = 0, None
        for i in reversed(dense):
            gradient = gradients[i]
            n = _elements(variables[i].shape) * gradient.dtype.size
            if not buckets or n_bytes + n > BUCKET_BYTES or gradient.dtype != dtype:
                buckets.append([])
                n_bytes, dtype = 0, gradient.dtype
            buckets[-1].append(i)
            n_bytes += n
        return buckets

    # Several passes for one step.

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the variables in which gradients are added up, outside of any function; later for those that are new.

        In a session they are local variables: each rank's own, in no checkpoint.
        """
        if self.passes == 1:
            return
        with tf.init_scope():
            if self._counter is None:
                self._counter = _own_variable(tf.constant(0, tf.int32), "phalanx_passes")
            for variable in variables:
                if _identity(variable) not in self._sums:
                    zeros = tf.zeros(variable.shape, variable.dtype)
                    self._sums[_identity(variable)] = _own_variable(zeros, "phalanx_sum")

    def local_variables(self) -> list[Any]:
        """The variables in which gradients are added up."""
        return [] if self._counter is None else [self._counter, *self._sums.values()]

    def stepped(self, gradients: Sequence[Any], variables: Sequence[Any], apply: Any) -> Any:
        """Calls ``apply`` with the reduced gradients: now, or at the last of several passes."""
        gradients, variables = list(gradients), list(variables)
        if self.passes == 1:
            return apply(self.reduced(gradients, variables))
        self.build(variables)
        added = []
        for gradient, variable in zip(gradients, variables, strict=True):
            if gradient is not None:
                added.append(self._sums[_identity(variable)].assign_add(tf.convert_to_tensor(gradient)))
        with tf.control_dependencies([a for a in added if tf.is_tensor(a) or hasattr(a, "op")] if not tf.executing_eagerly() else []):
            passed = self._counter.assign_add(1)

        def step() -> Any:
            sums = [
                None if g is None else self._sums[_identity(v)].read_value()
                for g, v in zip(gradients, variables, strict=True)
            ]
            if self.average_aggregated:
                sums = [None if s is None else s / tf.cast(self.passes, s.dtype) for s in sums]
            done = apply(self.reduced(sums, variables))
            with tf.control_dependencies([done] if isinstance(done, (tf.Operation, tf.Tensor)) else []):
                cleared = [s.assign(tf.zeros(s.shape, s.dtype)) for s in self._sums.values()]
                cleared.append(self._counter.assign(0))
            if tf.executing_eagerly():
                return True
            with tf.control_dependencies([c.op if hasattr(c, "op") else c for c in cleared]):
                return tf.constant(True)

        if tf.executing_eagerly():
            return step() if int(self._counter.numpy()) >= self.passes else False
        with tf.control_dependencies([passed] if passed is not None else []):
            is_last = tf.greater_equal(self._counter.read_value(), self.passes)
        return tf.cond(is_last, step, lambda: tf.constant(False))


def noted(lines: Sequence[str]) -> str:
    """A list of gradients in few words: how many there are, which are not dense, and a digest of all that is known of them."""
    kinds: dict[str, list[str]] = {"none": [], "sparse": []}
    for i, line in enumerate(lines):
        for kind, numbers in kinds.items():
            if f"({kind})" in line:
                numbers.append(str(i))
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]
    words = [f"{len(lines)} gradients"]
    for kind, numbers in kinds.items():
        if numbers:
            more = ", ..." if len(numbers) > 8 else ""
            words.append(f"{kind}: {', '.join(numbers[:8])}{more}")
    return f"{'; '.join(words)} (list {digest})"


def forget_passes(session: Any = None) -> None:
    """Drops the gradients of passes whose step was not reached: they belong to values that are no more."""
    for reducer in list(_with_passes):
        own = reducer.local_variables()
        if session is None:
            for variable in own:
                if hasattr(variable, "numpy"):
                    variable.assign(tf.zeros(variable.shape, variable.dtype))
        else:
            # Variables of eager code have no graph.
            session.run([v.initializer for v in own if getattr(v, "graph", None) is session.graph])


def _own_variable(value: Any, name: str) -> Any:
    if tf.executing_eagerly():
        return tf.Variable(value, trainable=False, name=name)
    v1 = tf.compat.v1
    return v1.Variable(value, trainable=False, name=name, use_resource=True, collections=[v1.GraphKeys.LOCAL_VARIABLES])


def _elements(shape: Any) -> int:
    known = tf.TensorShape(shape)
    return math.prod(known.as_list()) if known.is_fully_defined() else 0


def _identity(variable: Any) -> Any:
    inner = getattr(variable, "value", None)
    if inner is not None and not callable(inner):
        # A variable of Keras 3, which has one of TensorFlow.
        variable = inner
    ref = getattr(variable, "ref", None)
    return ref() if callable(ref) else id(variable)


def _shape(variable: Any) -> str:
    """What a tape watches need not be a variable; how much of its shape is known may change from trace to trace."""
    return str(list(variable.shape)) if hasattr(variable, "assign") else "a tensor"


__all__ = ["Reducer", "forget_passes"]
