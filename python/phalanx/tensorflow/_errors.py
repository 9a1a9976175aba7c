"""Errors of collectives that TensorFlow raises: as Phalanx's own exceptions, which are TensorFlow's, too.

An operation can only give TensorFlow a code and a text. Text of ours ends with the number of the failure, by which the
exception is found. TensorFlow makes exceptions in three places, for eager code, functions and sessions; they are wrapped
here, because a program's own calls of functions and sessions do not pass through this package.
"""

from __future__ import annotations

import functools
import re
from collections import OrderedDict
from typing import Any

import tensorflow as tf

from phalanx import _phalanx, exceptions
from phalanx.exceptions import PhalanxError

_NUMBER = re.compile(r" ?\[phalanx failure (p?)([0-9]+)\]")
#: What XLA says of an operation that it does not know.
_COMPILED = re.compile(r"No registered 'Phalanx(\w+)' OpKernel for XLA")
_N_KEPT = 256

_kept: OrderedDict[int, Exception] = OrderedDict()
_n_kept = 0
_classes: dict[tuple[type, type], type] = {}


def not_compiled(kind: str) -> str:
    """The sentence for collectives in a function that XLA shall compile."""
    return f"{kind} cannot be compiled by XLA: write jit_compile=False for the tf.function, or in model.compile()"


def keep(error: Exception) -> str:
    """Text for TensorFlow from which :func:`translated` finds this very error again."""
    global _n_kept
    _n_kept += 1
    _kept[_n_kept] = error
    if len(_kept) > _N_KEPT:
        _kept.popitem(last=False)
    return f"{error} [phalanx failure p{_n_kept}]"


def _found(text: str) -> Exception | None:
    match = _NUMBER.search(text)
    if match is None:
        unsupported = _COMPILED.search(text)
        return None if unsupported is None else exceptions.UnsupportedError(not_compiled(unsupported[1].lower()))
    number = int(match[2])
    return _kept.get(number) if match[1] else _phalanx.native_failure(number)


def translated(error: Exception) -> Exception:
    """The error as one of ours if a collective caused it; otherwise the error itself."""
    if isinstance(error, PhalanxError) or not isinstance(error, tf.errors.OpError):
        return error
    if type(error) in _classes.values():
        # One of ours that is no PhalanxError, such as a ValueError, and is already translated.
        return error
    theirs: Any = error
    ours = _found(str(theirs.message))
    if ours is None:
        return error
    both: Any = _class_of(type(ours), type(error))
    made: Exception = both.__new__(both)
    vars(made).update(vars(error))
    vars(made).update(vars(ours))
    made.args = (str(ours),)
    made.__traceback__ = error.__traceback__
    return made


def _class_of(ours: type, theirs: type) -> type:
    if (ours, theirs) not in _classes:
        names = {"__str__": lambda self: str(self.args[0]), "__reduce__": lambda self: (ours, self.args)}
        _classes[ours, theirs] = type(ours.__name__, (ours, theirs), names)
    return _classes[ours, theirs]


def install() -> None:
    """Wraps TensorFlow's makers of exceptions, once. Without them errors have TensorFlow's classes and our text."""
    try:
        from tensorflow.python.autograph.pyct import error_utils
        from tensorflow.python.client import session
        from tensorflow.python.eager import core
        from tensorflow.python.eager.polymorphic_function import atomic_function

        make, call = core._status_to_exception, session.BaseSession._do_call
        leave = atomic_function.InterpolateRuntimeError.__exit__
        known = error_utils.KNOWN_STRING_CONSTRUCTOR_ERRORS
    except (ImportError, AttributeError):
        return
    if hasattr(make, "_phalanx"):
        return

    @functools.wraps(make)
    def status_to_exception(status: Any) -> Exception:
        return translated(make(status))

    @functools.wraps(leave)
    def exit(self: Any, typ: Any, error: Any, traceback: Any) -> Any:
        done = leave(self, typ, error, traceback)
        ours = translated(error) if isinstance(error, tf.errors.OpError) else error
        if ours is not error:
            raise ours from None
        return done

    @functools.wraps(call)
    def do_call(self: Any, fn: Any, *args: Any) -> Any:
        try:
            return call(self, fn, *args)
        except tf.errors.OpError as error:
            ours = translated(error)
            if ours is error:
                raise
            raise ours from None

    status_to_exception._phalanx = True  # type: ignore[attr-defined]
    core._status_to_exception = status_to_exception
    atomic_function.InterpolateRuntimeError.__exit__ = exit
    session.BaseSession._do_call = do_call
    # What is wrong when a function is traced keeps its class, too.
    error_utils.KNOWN_STRING_CONSTRUCTOR_ERRORS = (*known, *_ours())


def _ours() -> list[type]:
    return [c for c in vars(exceptions).values() if isinstance(c, type) and issubclass(c, PhalanxError)]
