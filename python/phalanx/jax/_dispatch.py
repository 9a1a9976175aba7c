"""Repeated calls of compiled functions with collectives, without most of what JAX does in Python for each.

JAX starts a function with an ordered effect from Python: it looks for the compiled function, places the arguments and makes
tokens, even if everything is as it was before. This takes longer than a small collective. So a call that is like an earlier
one goes directly to what that one has compiled. The token is passed on as ever: the order of calls does not change.

This needs names of JAX that are not public. Where one of them is absent or different, nothing changes.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from dataclasses import dataclass
from typing import Any

#: Calls of one function that differ in shardings or settings, of which the next one is looked for.
_MOST = 8
#: Parameters that the compiled function depends on. The function itself is the key.
_SETTINGS = (
    "in_shardings",
    "out_shardings",
    "in_layouts",
    "out_layouts",
    "donated_invars",
    "ctx_mesh",
    "keep_unused",
    "inline",
    "compiler_options_kvs",
)


@dataclass(slots=True)
class _Known:
    """A call that was made before."""

    settings: tuple[Any, ...]
    context: Any
    #: Of each argument: type, sharding, and whether it may not move.
    given: list[tuple[Any, Any, bool]]
    #: Which of them the compiled function takes: it has none that it does not use.
    used: list[int]
    device: Any
    execute: Any
    handlers: Any
    compiled: Any
    profiler: Any
    const_args: Any


def shorten(effect: Any) -> None:
    """Calls of functions with this effect and no other take the short way from now on."""
    try:
        from jax._src import config, core, dispatch, pjit, tree_util
        from jax._src.array import ArrayImpl
        from jax._src.interpreters import pxla

        whole = pjit._run_python_pjit
        if list(inspect.signature(whole).parameters) != ["p", "args_flat", "fun", "args", "kwargs"]:
            return
        context, tokens, token = config.trace_context, dispatch.runtime_tokens, core.Token
        is_clean, is_special, unflatten = core.trace_state_clean, dispatch.needs_check_special, tree_util.tree_unflatten
        replicated, executable = pxla.ExecuteReplicated, pxla.MeshExecutable
        is_off, is_profiled, is_checked = config.no_execution, config.enable_pgle, config.debug_key_reuse
    except (ImportError, AttributeError):
        return

    calls: weakref.WeakKeyDictionary[Any, list[_Known]] = weakref.WeakKeyDictionary()
    # Why no call takes the short way any more: this JAX is built in another way.
    strange: list[Exception] = []

    def is_usual() -> bool:
        return is_clean() and not (is_off.value or is_profiled.value or is_checked.value or is_special())

    def learn(p: Any, args: Any, made: Any) -> None:
        """Notes a call that went the whole way, if there is nothing special about it."""
        if len(made) != 8 or not isinstance(made[5], executable):
            return
        compiled, profiler, const_args = made[5:]
        call = compiled.unsafe_call
        is_plain = (
            isinstance(call, replicated)
            and list(call.ordered_effects) == [effect]
            and not (call.has_unordered_effects or call.has_host_callbacks or call.mut or profiler or const_args or p.consts)
            and all(layout is None for layout in compiled._dispatch_in_layouts)
            and len(call._local_devices) == 1
            and all(type(x) is ArrayImpl and x.sharding.device_set == set(call._local_devices) for x in args)
        )
        if not is_plain:
            return
        given = [(x.aval, x.sharding, x._committed) for x in args]
        settings = tuple(p.params[name] for name in _SETTINGS)
        execute, handlers = call.xla_executable.execute_sharded, call.out_handler.handlers
        device = call._local_devices[0]
        known = calls.setdefault(p.params["jaxpr"], [])
        used = sorted(call.kept_var_idx)
        known.insert(0, _Known(settings, context(), given, used, device, execute, handlers, compiled, profiler, const_args))
        del known[_MOST:]

    def found(p: Any, args: Any) -> _Known | None:
        if not is_usual():
            return None
        known = calls.get(p.params["jaxpr"])
        if not known:
            return None
        params, now = p.params, context()
        settings = tuple([params[name] for name in _SETTINGS])
        for call in known:
            if call.settings == settings and call.context == now and len(call.given) == len(args):
                for x, (aval, sharding, committed) in zip(args, call.given, strict=True):
                    if type(x) is not ArrayImpl or x._committed is not committed:
                        break
                    if x.sharding != sharding or x.aval != aval:
                        break
                else:
                    return call
        return None

    @functools.wraps(whole)
    def run(p: Any, args_flat: Any, fun: Any, args: Any, kwargs: Any) -> Any:
        try:
            call = None if strange else found(p, args_flat)
        except _STRANGE as why:
            strange.append(why)
            call = None
        last = tokens.current_tokens.get(effect) if call is not None else None
        if call is None or not isinstance(last, token) or last._buf.devices() != {call.device}:
            made = whole(p, args_flat, fun, args, kwargs)
            try:
                if call is None and not strange and effect in p.params["jaxpr"].effects and is_usual():
                    learn(p, made[3], made)
            except _STRANGE as why:
                strange.append(why)
            return made
        taken = [args_flat[i] for i in call.used]
        for x in taken:
            x._check_if_deleted()
        results = call.execute([last._buf, *taken])
        ((after,),) = results.consume_with_handlers(_AS_IS, strict=False)
        tokens.current_tokens[effect] = token(after)
        out = results.consume_with_handlers(call.handlers)
        outs = unflatten(p.out_tree, out)
        return outs, out, p.out_tree, args_flat, p.params["jaxpr"], call.compiled, call.profiler, call.const_args

    pjit._run_python_pjit = run


_STRANGE = (AttributeError, KeyError, TypeError, ValueError, IndexError)
_AS_IS = [lambda buffers: buffers]

__all__ = ["shorten"]
