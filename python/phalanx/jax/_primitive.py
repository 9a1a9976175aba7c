"""The collective as a primitive of JAX: one ordered call of a native function, or of Python without a compiler.

Ordered effects give all calls of a process one order, inside of compiled functions and between them. So ranks that run the
same program meet without names.
"""

from __future__ import annotations

import functools
import inspect
import struct
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np

from phalanx import _alike, _phalanx, native
from phalanx.exceptions import UnsupportedError
from phalanx.jax import _dispatch, _order
from phalanx.reductions import Adasum

KINDS = {"allreduce": 0, "allgather": 1, "broadcast": 2, "alltoall": 3, "reducescatter": 4, "barrier": 5, "compare": 6}
#: Element types as the engine numbers them.
CODES = {
    name: code
    for code, name in enumerate(
        ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool"]
    )
}


@dataclass(frozen=True)
class Spec:
    """What a call is told beside its arrays."""

    kind: str
    process_set: int = 0
    op: int = 1
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    name: str = ""
    #: Of a comparison: what to write, and the names of the parameters; and under what calls are counted.
    words: str = ""
    key: str = ""


_bound: Any = None
_why_not: str | None = None


def use_native(wanted: bool) -> None:
    """Whether collectives are native calls, which is the default, or calls of Python. For functions compiled later."""
    global _bound, _why_not
    _bound, _why_not = None, None if wanted else "use_native(False) was called"


def is_native() -> bool:
    """Whether collectives are native calls. The first call compiles them if nobody has on this machine."""
    return _native() is not None


def _native() -> Any:
    global _bound, _why_not
    if _bound is None and _why_not is None:
        try:
            _bound = _made()
        except (native.NativeError, ImportError, AttributeError, OSError) as error:
            _why_not = str(error)
            warnings.warn(
                f"collectives are calls of Python, not native ones ({error}): each one is about a millisecond slower",
                RuntimeWarning,
                stacklevel=6,
            )
    return _bound


@functools.cache
def _made() -> Any:
    """The primitive, with its native function. There is one, so that all calls have one order."""
    # The interface for primitives with ordered effects has no public name yet.
    from jax._src import effects
    from jax._src.interpreters import mlir
    from jax.extend.core import Primitive
    from jax.interpreters import batching
    from jaxlib.mlir import ir

    version = jax.__version__
    path = native.library("jax_ops.cc", f"JAX {version}", f"jax{version}", ["-std=c++17", f"-I{jax.ffi.include_dir()}"])
    library = native.attach(path)
    jax.ffi.register_ffi_target("phalanx_collective", jax.ffi.pycapsule(library.phalanx_collective), platform="cpu")

    class Ordered(effects.Effect):  # type: ignore[misc]
        __str__ = lambda self: "Phalanx"  # noqa: E731

    effect = Ordered()
    for allowed in (
        effects.ordered_effects,
        effects.lowerable_effects,
        effects.control_flow_allowed_effects,
        effects.custom_derivatives_allowed_effects,
        effects.remat_allowed_effects,
    ):
        allowed.add_type(Ordered)
    _order.pass_on(effect)
    _dispatch.shorten(effect)
    primitive = Primitive("phalanx")
    primitive.multiple_results = True

    def evaluate(*avals: Any, spec: Spec) -> Any:
        shapes = result_shapes(spec, [(a.shape, a.dtype) for a in avals])
        return [jax.core.ShapedArray(s, d) for s, d in shapes], {effect}

    primitive.def_effectful_abstract_eval(evaluate)

    def lower(ctx: Any, *operands: Any, spec: Spec) -> Any:
        token = ctx.tokens_in.get(effect)
        numbers = {
            "kind": KINDS[spec.kind],
            "op": spec.op,
            "grouped": int(len(operands) > 1),
            "process_set": spec.process_set,
            "root": spec.root,
            "prescale": _bits(spec.prescale),
            "postscale": _bits(spec.postscale),
        }
        attributes = {k: mlir.i64_attr(v) for k, v in numbers.items()}
        attributes["tensor_name"] = ir.StringAttr.get(spec.name)
        attributes["words"] = ir.StringAttr.get(spec.words)
        attributes["key"] = ir.StringAttr.get(spec.key)
        types = [_type_of(mlir, ctx, a) for a in ctx.avals_out]

        def row_major(avals: Any) -> list[list[int]]:
            return [list(reversed(range(a.ndim))) for a in avals]

        call = mlir.custom_call(
            "phalanx_collective",
            result_types=[mlir.token_type(), *types] if hasattr(mlir, "token_type") else [token.type, *types],
            operands=[token, *operands],
            backend_config=attributes,
            has_side_effect=True,
            api_version=4,
            operand_layouts=[[], *row_major(ctx.avals_in)],
            result_layouts=[[], *row_major(ctx.avals_out)],
        )
        after, *results = call.results
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({effect: after})))
        return results

    mlir.register_lowering(primitive, lower, platform="cpu")

    def batch(arrays: Any, dims: Any, *, spec: Spec) -> Any:
        to = _batch_dimension(spec)
        moved = [a if d is None else _moved(spec, a, d, to) for a, d in zip(arrays, dims, strict=True)]
        results = primitive.bind(*moved, spec=spec)
        return results, [None if d is None else to for d in dims][: len(results)]

    batching.primitive_batchers[primitive] = batch

    def run(*arrays: Any, spec: Spec) -> Any:
        try:
            return _jitted(spec)(*arrays)
        except jax.errors.JaxRuntimeError as error:
            _order.forget()
            found = _order.translated(error)
            if found is None:
                raise
            raise found from error

    def _jitted(spec: Spec) -> Any:
        if spec not in compiled:
            compiled[spec] = jax.jit(lambda *arrays: primitive.bind(*arrays, spec=spec))
        return compiled[spec]

    compiled: dict[Spec, Any] = {}
    primitive.def_impl(run)
    return primitive


def _batch_dimension(spec: Spec) -> int:
    """Where the batch of ``jax.vmap`` is when one call is made of many: rows stay the first dimension."""
    if spec.op == Adasum:
        raise UnsupportedError("op=Adasum depends on whole arrays, so jax.vmap cannot map it: call it outside of jax.vmap")
    return 0 if spec.kind in ("allreduce", "broadcast", "compare") else 1


def _moved(spec: Spec, array: Any, dim: int, to: int) -> Any:
    if array.ndim <= to:
        raise ValueError(_rowless(spec))
    return jnp.moveaxis(array, dim, to)


def _rowless(spec: Spec) -> str:
    return f"{spec.kind} takes rows, but the array has no dimension: add one with jax.numpy.expand_dims"


def _type_of(mlir: Any, ctx: Any, aval: Any) -> Any:
    """The type of a value; versions of JAX ask for it with or without the context."""
    takes = list(inspect.signature(mlir.aval_to_ir_type).parameters)
    return mlir.aval_to_ir_type(aval) if len(takes) == 1 else mlir.aval_to_ir_type(ctx.module_context, aval)


def _bits(number: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def result_shapes(spec: Spec, given: Sequence[tuple[tuple[int, ...], Any]]) -> list[tuple[tuple[int, ...], Any]]:
    """Shapes and types of the results; they are known before any rank has run."""
    if spec.kind in ("allreduce", "broadcast"):
        return [(tuple(s), d) for s, d in given]
    if spec.kind == "compare":
        return []
    ranks = dict(_phalanx.process_sets())[spec.process_set]
    n, me = len(ranks), ranks.index(_phalanx.place()[0])
    results = []
    for shape, dtype in given:
        if not shape:
            raise ValueError(_rowless(spec))
        rows = shape[0]
        if spec.kind == "allgather":
            rows *= n
        elif spec.kind == "reducescatter":
            rows = rows // n + (1 if me < rows % n else 0)
        elif rows % n:
            raise UnsupportedError(f"alltoall sends as many rows to each rank: {rows} rows cannot be divided by {n} ranks")
        results.append(((rows, *shape[1:]), dtype))
    return results


def compare(tree: Any, process_set: int, name: str, variables: Sequence[Any] = (), remedy: str = _alike.OF_JAX) -> None:
    """Ranks compare these parameters, in the first calls for this name and these shapes, or for these variables."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    # Trees of modules also hold functions and settings.
    arrays = [(path, leaf) for path, leaf in found if getattr(getattr(leaf, "dtype", None), "name", "") in CODES]
    pairs = [(jax.tree_util.keystr(path).strip(".") or "parameter", jax.lax.stop_gradient(leaf)) for path, leaf in arrays]
    n_ranks = len(dict(_phalanx.process_sets())[process_set])
    if not pairs or n_ranks == 1:
        return
    which = _alike.digest(tuple(f"{leaf.dtype.name} {leaf.shape}" for _, leaf in pairs))
    words = _alike.words(remedy, [label for label, _ in pairs])
    full = f"parameters.{name}.{which}"
    spec = Spec("compare", process_set, name=full, words=words, key=_alike.key_of(full, variables))
    if _native() is not None:
        bind(spec, [leaf for _, leaf in pairs])
        return

    def run(*given: Any) -> tuple[()]:
        turn = _phalanx.alike_turn(process_set, spec.key)
        if turn:
            _alike.compare_now(full, process_set, words, lambda: given, turn)
        return ()

    # Ranks with a compiler and ranks without one take part alike.
    jax.experimental.io_callback(run, (), *[leaf for _, leaf in pairs], ordered=True)


def bind(spec: Spec, arrays: Sequence[Any]) -> list[Any]:
    """Calls the collective, now or in the function that is being traced."""
    for array in arrays:
        if array.dtype.name not in CODES:
            raise UnsupportedError(f"arrays of {array.dtype.name} are not supported: convert them with .astype() first")
    primitive = _native()
    if primitive is not None:
        return list(primitive.bind(*arrays, spec=spec))
    shapes = [jax.ShapeDtypeStruct(s, d) for s, d in result_shapes(spec, [(a.shape, a.dtype) for a in arrays])]

    def run(*given: Any) -> Any:
        return tuple(_run(spec, [np.asarray(a, order="C") for a in given]))

    try:
        return list(jax.experimental.io_callback(run, tuple(shapes), *arrays, ordered=True))
    except ValueError as error:
        if "vmap" not in str(error):
            raise
        raise UnsupportedError(f"jax.vmap can map {spec.kind} only as a native call: see is_native()") from error


def _run(spec: Spec, arrays: list[Any]) -> list[Any]:
    def lent(array: Any) -> Any:
        return array.ctypes.data, CODES[array.dtype.name], array.shape, array

    keeps_shape = spec.kind in ("allreduce", "broadcast")
    outputs = [np.empty_like(a) for a in arrays]
    made, _ = _phalanx.submit(
        spec.kind,
        [lent(a) for a in arrays],
        outputs=[lent(a) for a in outputs] if keeps_shape else None,
        name=spec.name or None,
        op=spec.op,
        prescale=spec.prescale,
        postscale=spec.postscale,
        root=spec.root,
        process_set=spec.process_set,
        grouped=len(arrays) > 1,
    ).wait()
    if keeps_shape:
        return outputs
    pairs = zip(made, arrays, strict=True)
    return [np.frombuffer(m.tobytes(), a.dtype).reshape(m.shape) for m, a in pairs]
