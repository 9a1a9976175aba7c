"""Where parameters live.

>>> from phalanx import graph
>>> scope = graph.Scope()
>>> main, startup = graph.Program(), graph.Program()
>>> with graph.program_guard(main, startup), graph.scope_guard(scope):
...     w = graph.layers.create_parameter([2], name="w", is_bias=True)
...     graph.Executor().run(startup)
[]
>>> scope["w"] = [1.0, 2.0]
>>> scope["w"]
array([1., 2.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from phalanx import _phalanx
from phalanx.graph import _values
from phalanx.graph._values import Array
from phalanx.graph.errors import StateError
from phalanx.graph.places import only_cpu


class ScopeTensor:
    """A variable of a scope, with Paddle's interface."""

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope = scope
        self._name = name

    def get_tensor(self) -> ScopeTensor:
        """Itself."""
        return self

    def set(self, array: Any, place: Any = None) -> None:
        """Sets the value."""
        only_cpu(place)
        self._scope[self._name] = array

    def shape(self) -> list[int]:
        """Its dimensions."""
        return list(self._scope[self._name].shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self._scope[self._name], dtype=dtype)


class Scope:
    """Parameters and states by name; arrays are copied in and out.

    ``seed`` is the seed of all random numbers in its runs, dropout for example.
    """

    def __init__(self, seed: int = 0) -> None:
        self._store = _phalanx.GraphStore(seed)

    def names(self) -> list[str]:
        """The names of all variables in it."""
        return self._store.names()

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __getitem__(self, name: str) -> Array:
        return _values.receive(self._given(name))

    def _given(self, name: str) -> _values.Given:
        given = self._store.get(name)
        if given is None:
            raise StateError(f"the scope has no `{name}`; run the startup program first", var=name)
        return given

    def __setitem__(self, name: str, value: Any) -> None:
        # Its form, not its value: that may be with another rank.
        code, shape = self._store.form(name) or (None, None)
        if isinstance(value, (bool, int, float, list, tuple)):
            if code is None:
                raise StateError(f"the scope has no `{name}`; run the startup program first", var=name)
            value = np.asarray(value, dtype=_values.name(code))
        array = np.asarray(value)
        if array.size == 1 and code is not None and shape is not None:
            array = _values.as_wanted(array, _values.name(code), shape)
        self._store.set(name, _values.lend(array))

    def of_device(self, name: str, device: int) -> Array:
        """The value of one device, for variables that differ between devices: statistics, or parameters that are not reduced."""
        given = self._store.get_copy(name, device)
        if given is None:
            raise StateError(f"device {device} has no `{name}` in this scope", var=name)
        return _values.receive(given)

    def find_var(self, name: str) -> ScopeTensor | None:
        """The variable of this name, or ``None``."""
        return ScopeTensor(self, name) if name in self else None


class _Default:
    scope = Scope()


def global_scope() -> Scope:
    """The default scope."""
    return _Default.scope


@contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """A context in which this is the global scope."""
    if not isinstance(scope, Scope):
        raise TypeError(f"scope_guard takes a Scope, got {type(scope).__name__}")
    before, _Default.scope = _Default.scope, scope
    try:
        yield
    finally:
        _Default.scope = before


__all__ = ["Scope", "ScopeTensor", "global_scope", "scope_guard"]
