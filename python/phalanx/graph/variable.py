"""Variables of programs. Arithmetic with them adds operations.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program()):
...     x = graph.data("x", [None, 3])
...     y = 2.0 * x + 1.0
>>> y.shape, y.dtype
((-1, 3), 'float32')
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from phalanx.graph import _adding, _attributes, _operators, _values
from phalanx.graph.errors import ProgramError

if TYPE_CHECKING:
    from phalanx.graph.program import Block, Program


class Operator(NamedTuple):
    """An operation of a program, read-only."""

    type: str
    kind: str
    role: str
    inputs: list[str]
    outputs: list[str]
    site: str


class Variable:
    """A variable of a program. Arithmetic with it adds operations to the program."""

    def __init__(self, program: Program, name: str) -> None:
        self.program = program
        self.name = name
        found = program._graph.var(name)
        if found is None:
            raise ProgramError(f"no variable `{name}` in the program", var=name)
        self._form = found

    @property
    def dtype(self) -> str:
        """The element type, as numpy names it."""
        return _values.name(self._form[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions; ``-1`` is the batch, ``-k`` stands for k times the batch."""
        return tuple(self._form[1])

    @property
    def persistable(self) -> bool:
        """Whether it lives in the scope. Setting it has no effect: any variable can be fetched."""
        return self._form[2] in ("parameter", "state")

    @persistable.setter
    def persistable(self, persistable: bool) -> None:
        _attributes.set_persistable(self, persistable)

    @property
    def is_data(self) -> bool:
        """Whether it is fed."""
        return self._form[2] == "feed"

    @property
    def lod_level(self) -> int:
        """1 if it holds sequences of different lengths, padded: ``[n, time, …]``."""
        return int(self.name in self.program._lengths)

    @property
    def lengths(self) -> Variable | None:
        """The lengths of its sequences, if it holds any."""
        found = self.program._lengths.get(self.name)
        return None if found is None else self.program.var(found)

    @property
    def site(self) -> str:
        """``file:line`` where it was declared."""
        return self._form[3]

    @property
    def block(self) -> Block:
        """The program as a block, as in Paddle."""
        return self.program.global_block()

    def astype(self, dtype: Any) -> Variable:
        """Converted to another element type."""
        return _adding.converted(self, dtype)

    @property
    def stop_gradient(self) -> bool:
        """Whether gradients stop here. Set it before ``minimize``; the default is True for feeds."""
        return _attributes.stops(self)

    @stop_gradient.setter
    def stop_gradient(self, stops: bool) -> None:
        _attributes.set_stops(self, stops)

    def __setattr__(self, name: str, value: Any) -> None:
        _attributes.check(self, name)
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, {self.dtype}{list(self.shape)})"

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """The variable as text."""
        return repr(self)

    def __bool__(self) -> NoReturn:
        _operators.no_truth(self)

    # Numpy's numbers leave operators to us.
    __array_ufunc__ = None
    # What can be indexed would be iterated over, too.
    __iter__ = None
    __contains__ = None
    __hash__ = object.__hash__

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        _operators.no_array(self)

    def __eq__(self, other: object) -> bool:
        # Lists and sets of variables need to know whether two are the same.
        if isinstance(other, _operators.NUMBERS):
            _operators.no_equality(self)
        return self is other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Variable | float) -> Variable:
        return _operators.compare("Less", self, other)

    def __le__(self, other: Variable | float) -> Variable:
        return _operators.compare("LessEqual", self, other)

    def __gt__(self, other: Variable | float) -> Variable:
        return _operators.compare("Greater", self, other)

    def __ge__(self, other: Variable | float) -> Variable:
        return _operators.compare("GreaterEqual", self, other)

    def __getitem__(self, key: Any) -> Variable:
        return _operators.item(self, key)

    def __add__(self, other: Variable | float) -> Variable:
        return _operators.arith("Add", self, other)

    def __radd__(self, other: float) -> Variable:
        return _operators.arith("Add", self, other)

    def __sub__(self, other: Variable | float) -> Variable:
        return _operators.arith("Sub", self, other)

    def __rsub__(self, other: float) -> Variable:
        if self.dtype in _operators.WHOLE:
            return self * -1 + other
        return _operators.scaled(self, -1.0, _operators.number(other, "elementwise_sub"))

    def __mul__(self, other: Variable | float) -> Variable:
        return _operators.arith("Mul", self, other)

    def __rmul__(self, other: float) -> Variable:
        return _operators.arith("Mul", self, other)

    def __truediv__(self, other: Variable | float) -> Variable:
        return _operators.arith("Div", self, other)

    def __rtruediv__(self, other: float) -> Variable:
        return _operators.divided(self, other)

    def __pow__(self, other: Variable | float) -> Variable:
        return _operators.power(self, other)

    def __rpow__(self, other: float) -> Variable:
        return _operators.powered(self, other)

    def __mod__(self, other: Variable | float) -> Variable:
        return _operators.remainder(self, other)

    def __floordiv__(self, other: Variable | float) -> Variable:
        return _operators.floor_quotient(self, other)

    def __matmul__(self, other: Variable) -> Variable:
        return _operators.product(self, other)

    def __rmatmul__(self, other: Any) -> Variable:
        return _operators.product(other, self)

    def __neg__(self) -> Variable:
        return self * -1 if self.dtype in _operators.WHOLE else _operators.scaled(self, -1.0, 0.0)


class Parameter(Variable):
    """A trainable variable."""

    @property
    def trainable(self) -> bool:
        """Whether optimizers learn it. Set it before ``minimize``."""
        return _attributes.trainable(self)

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        _attributes.set_trainable(self, trainable)


__all__ = ["Operator", "Parameter", "Variable"]
