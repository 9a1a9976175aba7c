"""Programs and their variables.

>>> from phalanx import graph
>>> main, startup = graph.Program(), graph.Program()
>>> with graph.program_guard(main, startup), graph.unique_name.guard():
...     x = graph.data("x", [None, 3])
...     y = graph.layers.fc(x, 2)
>>> y.shape, y.dtype
((-1, 2), 'float32')
>>> [p.name for p in main.all_parameters()]
['fc_0.w_0', 'fc_0.b_0']
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, cast
from weakref import ref

from phalanx import _phalanx
from phalanx.graph import _attributes, _lengths, _operators, _values, unique_name
from phalanx.graph._site import caller
from phalanx.graph.errors import LossError, ProgramError
from phalanx.graph.lod import LEVELS, lengths_of

# Beside the graph in what is written of a program.
SEQUENCES = "sequences"


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
        return converted(self, dtype)

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


class Block:
    """A program with the interface of Paddle's blocks."""

    def __init__(self, program: Program) -> None:
        self.program = program

    @property
    def ops(self) -> list[Operator]:
        """All operations in order."""
        return [Operator(*op) for op in self.program._graph.ops()]

    @property
    def vars(self) -> dict[str, Variable]:
        """All variables by name."""
        return {v.name: v for v in self.program.list_vars()}

    def var(self, name: str) -> Variable:
        """The variable of this name; ``x@GRAD`` is the gradient of ``x``."""
        return self.program.var(name)

    def has_var(self, name: str) -> bool:
        """Whether it exists."""
        return self.program._graph.var(name) is not None

    def all_parameters(self) -> list[Parameter]:
        """All trainable variables."""
        return self.program.all_parameters()


class Program:
    """A computation written for one device. ``print`` shows it as text.

    ``random_seed`` is the seed of its random numbers: the initial values of parameters, if this is the startup program;
    dropout and ``uniform_random``, if it is the main one. 0 means the scope's seed.
    """

    def __init__(self) -> None:
        self._graph = _phalanx.GraphProgram()
        # Values that a startup program gives to variables, or whose values it copies.
        self._given: dict[str, Any] = {}
        # Parameters that averages over steps leave out.
        self._unaveraged: set[str] = set()
        # Learning rates that are computed in each run.
        self._rates: set[str] = set()
        # Gradients of parameters by ``fluid.gradients``: each device has a share of them.
        self._shares: list[str] = []
        # How gradients are clipped where an optimizer does not say it.
        self._clip: Any = None
        # Loaders that feed it without being iterated over.
        self._readers: list[Any] = []
        # Variables with sequences, and where their lengths are.
        self._lengths: dict[str, str] = {}
        # Lengths that must be equal, because layers take their sequences together.
        self._alike: set[tuple[str, str]] = set()
        # Variables of the bodies of loops and branches, and whose they are.
        self._inside: dict[str, str] = {}
        # The program that this one is a copy of, and what for.
        self._origin: tuple[ref[Program], str] | None = None
        self.random_seed = 0

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "random_seed" and not name.startswith("_"):
            raise AttributeError(f"{name!r} of a program cannot be set; random_seed can")
        object.__setattr__(self, name, value)

    @classmethod
    def _of(cls, graph: _phalanx.GraphProgram, random_seed: int = 0) -> Program:
        program = cls()
        program._graph = graph
        program.random_seed = random_seed
        program._lengths = {
            name: lengths_of(name) for name, kind in graph.vars() if kind == "feed" and graph.var(lengths_of(name))
        }
        return program

    def __str__(self) -> str:
        return str(self._graph)

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """The program as text: a line for each variable that is not computed, a line for each operation."""
        return str(self)

    def global_block(self) -> Block:
        """The only block of the program."""
        return Block(self)

    @property
    def blocks(self) -> list[Block]:
        """The only block, in a list."""
        return [Block(self)]

    @property
    def num_blocks(self) -> int:
        """1."""
        return 1

    def block(self, index: int) -> Block:
        """The only block, which has the number 0."""
        if index != 0:
            raise ProgramError(f"a program has one block, 0, and no block {index}", got=str(index))
        return Block(self)

    def current_block(self) -> Block:
        """The only block of the program."""
        return Block(self)

    def var(self, name: str) -> Variable:
        """The variable of this name."""
        found = self._graph.var(name)
        return (Parameter if found is not None and found[2] == "parameter" else Variable)(self, name)

    def list_vars(self) -> list[Variable]:
        """All variables, in the order of their declaration."""
        return [self.var(name) for name, _ in self._graph.vars()]

    def all_parameters(self) -> list[Parameter]:
        """All trainable variables."""
        return [cast(Parameter, self.var(name)) for name, kind in self._graph.vars() if kind == "parameter"]

    def clone(self, for_test: bool = False) -> Program:
        """A copy. With ``for_test`` it has no backward part, no updates and no dropout, and uses the learned statistics."""
        twin = self._with(self._graph.clone_for_test() if for_test else self._graph.copy())
        twin._readers, twin._origin = list(self._readers), (ref(self), "test" if for_test else "copy")
        return twin

    def _with(self, graph: _phalanx.GraphProgram) -> Program:
        """The same with other operations. Of lengths it knows those that are still there."""
        twin = Program._of(graph, self.random_seed)
        twin._inside = dict(self._inside)
        twin._unaveraged, twin._shares, twin._rates = set(self._unaveraged), list(self._shares), set(self._rates)
        twin._given, twin._clip = dict(self._given), self._clip
        has = {name for name, _ in graph.vars()}
        twin._lengths = {name: of for name, of in self._lengths.items() if {name, of} <= has}
        twin._alike = {pair for pair in self._alike if has.issuperset(pair)}
        return twin

    def serialize_to_string(self) -> bytes:
        """The program as JSON.

        >>> p = Program()
        >>> str(Program.parse_from_string(p.serialize_to_string())) == str(p)
        True
        """
        written = self._graph.to_json()
        if not self._lengths:
            return written
        known = self._with(self._graph)
        form = json.loads(written)
        form[SEQUENCES] = {"lengths": known._lengths, "alike": sorted(known._alike)}
        return json.dumps(form, separators=(",", ":")).encode()

    @staticmethod
    def parse_from_string(binary_str: bytes) -> Program:
        """Reads what :meth:`serialize_to_string` has written, and verifies it."""
        try:
            program = Program._of(_phalanx.GraphProgram.from_json(binary_str))
        except ValueError as why:
            raise ProgramError(str(why)) from None
        form = json.loads(binary_str)
        # Who has written no lengths has those of feeds, by their names.
        if isinstance(form, dict) and SEQUENCES in form:
            program._lengths, program._alike = _lengths.read(form[SEQUENCES], program._graph.var)
        return program

    def _append_to(self, form: dict[str, Any], inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        """Appends an operation that writes these variables."""
        names = [x.name for x in inputs], [y.name for y in outputs]
        self._graph.append_to(written(form, next(iter(form))), *names, caller())

    def _fresh(self, key: str) -> str:
        """A name for something new that lives in the scope."""
        while True:
            name = unique_name.number(key)
            if self._graph.var(name) is None:
                return name

    def _seed(self) -> int | None:
        """Where the random numbers of its runs come from, if it says so."""
        seed = self.random_seed
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ProgramError(f"random_seed must be a number from 0, got {seed!r}", got=repr(seed))
        return seed or None

    def _prefix(self, layer: str) -> str:
        """A name for the next layer of this kind."""
        while True:
            prefix = unique_name.generate(layer)
            # A program that was read has layers that nobody counted.
            if not any(self._graph.var(f"{prefix}.{part}") for part in ("tmp_0", "w_0", "b_0")):
                return prefix


class _Defaults:
    """The programs that are used where none is named."""

    main = Program()
    startup = Program()


def default_main_program() -> Program:
    """The program that layers are added to."""
    return _Defaults.main


def default_startup_program() -> Program:
    """The program that initializes parameters."""
    return _Defaults.startup


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """A context in which layers are added to these programs."""
    for program in (main_program, startup_program or main_program):
        if not isinstance(program, Program):
            raise TypeError(f"program_guard takes a Program, got {type(program).__name__}")
    before = _Defaults.main, _Defaults.startup
    _Defaults.main = main_program
    if startup_program is not None:
        _Defaults.startup = startup_program
    try:
        yield
    finally:
        _Defaults.main, _Defaults.startup = before


def _program_of(inputs: Sequence[Variable], what: str) -> Program:
    for x in inputs:
        if not isinstance(x, Variable):
            raise TypeError(f"{what} takes variables, got {type(x).__name__}; feed it, or use fill_constant")
        if x.program is not inputs[0].program:
            raise ProgramError(f"{what}: `{inputs[0].name}` and `{x.name}` are of different programs", var=x.name)
        outside(x, what)
    return inputs[0].program if inputs else default_main_program()


def outside(x: Variable, what: str) -> None:
    """Refuses a variable of a finished body, which no other code can use."""
    if x.name in x.program._inside:
        at = "{}:{}".format(*caller())
        text = f"{what} at {at}: `{x.name}` exists only inside the {x.program._inside[x.name]}"
        raise ProgramError(f"{text}; return it from that function, and use the result", var=x.name, site=at)


def append_all(
    kind: str, attrs: Any, inputs: Sequence[Variable], layer: str, name: str | None = None, prefix: str | None = None
) -> list[Variable]:
    """Appends an operation; gives its outputs, called ``name``, or named after ``prefix`` or the layer."""
    program = _program_of(inputs, layer)
    at = caller()
    if name is not None and program._graph.var(name) is not None:
        raise ProgramError(
            f"`{name}` at {at[0]}:{at[1]} is declared twice; give one of them another name",
            var=name,
            site=f"{at[0]}:{at[1]}",
        )
    _lengths.check(kind, attrs, inputs, program._lengths, layer, f"{at[0]}:{at[1]}")
    outputs = name if name is not None else f"{prefix or program._prefix(layer)}.tmp_0"
    made = program._graph.append(written({kind: attrs}, layer), [x.name for x in inputs], outputs, at)
    variables = [Variable(program, output) for output in made]
    if program._lengths:
        for y in variables:
            hand_on(program, _lengths.kept(kind, attrs, inputs, y), y)
    return variables


def hand_on(program: Program, sources: Sequence[_lengths.Shaped], y: Variable) -> None:
    """What is computed from these, row by row, has their lengths. All that have some must have the same."""
    ragged = [x for x in sources if x.name in program._lengths]
    if ragged:
        program._lengths[y.name] = program._lengths[ragged[0].name]
        alike(program, ragged)


def alike(program: Program, ragged: Sequence[_lengths.Shaped]) -> None:
    """The lengths of these sequences must be equal in every feed."""
    names = [program._lengths[x.name] for x in ragged if x.name in program._lengths]
    program._alike.update((names[0], other) for other in names[1:] if other != names[0])


def append(
    kind: str, attrs: Any, inputs: Sequence[Variable], layer: str, name: str | None = None, prefix: str | None = None
) -> Variable:
    """The same where only the first output is of interest."""
    return append_all(kind, attrs, inputs, layer, name, prefix)[0]


def converted(x: Variable, dtype: Any, name: str | None = None) -> Variable:
    """As another type; of the same type, a copy."""
    _program_of([x], "cast")
    if x.dtype == _values.name(_values.code(dtype)):
        return append("Assign", None, [x], "cast", name)
    return append("Cast", {"to": _values.kind(dtype)}, [x], "cast", name)


def written(form: Any, what: str) -> str:
    """As JSON, which has no infinite numbers."""
    try:
        return json.dumps(form, allow_nan=False)
    except ValueError:
        at = "{}:{}".format(*caller())
        raise ProgramError(
            f"{what} at {at} has an infinite number, or NaN, which cannot be written in a program; use a finite one",
            op=what,
            site=at,
        ) from None


def declare(program: Program, name: str, dtype: Any, shape: Sequence[int], kind: Any) -> Variable:
    """Declares a variable in the form in which programs are written down."""
    is_stored = not (kind == "Feed" or kind == "Temp")
    if is_stored:
        _same_begin(name, dtype, shape, kind)
    program._graph.declare(name, _values.code(dtype), list(shape), written(kind, f"`{name}`"), caller())
    if is_stored:
        default_startup_program()._graph.adopt(program._graph)
    return program.var(name)


def _same_begin(name: str, dtype: Any, shape: Sequence[int], kind: Any) -> None:
    """Programs that share a variable, by one startup program, share its type, its shape and its first value."""
    startup = default_startup_program()._graph
    known = startup.var(name)
    if known is None:
        return
    was, wants = (_values.name(known[0]), list(known[1])), (_values.name(_values.code(dtype)), list(shape))
    had, begins = _begin(json.loads(startup.kind(name))), _begin(kind)
    if was == wants and had == begins:
        return
    at = "{}:{}".format(*caller())
    before, now = (f"{was[0]}{was[1]}, {had}", f"{wants[0]}{wants[1]}, {begins}")
    raise ProgramError(
        f"`{name}` at {at} is declared as {now}, but {known[3]} has declared it as {before}; programs that share it "
        "must agree, so give it another name, or declare it in the same way",
        var=name,
        site=at,
        wanted=before,
        got=now,
    )


def _begin(kind: dict[str, Any]) -> Any:
    """How a variable begins, as it is written."""
    ((which, form),) = kind.items()
    return form["init"] if which == "Parameter" else form


def data(
    name: str,
    shape: Sequence[int | None],
    dtype: Any = "float32",
    lod_level: int = 0,
    *,
    max_length: int | None = None,
    stop_gradient: bool = True,
) -> Variable:
    """Declares a variable that is fed in every run; ``None`` or ``-1`` is the batch.

    With ``stop_gradient=False`` its gradient is computed, too, and can be fetched as ``<name>@GRAD``.

    With ``lod_level=1`` it holds sequences of ``max_length`` at most, padded to ``[n, max_length, …]``; its
    ``lengths`` are fed with it.

    >>> with program_guard(Program()):
    ...     data("label", [None, 1], "int64")
    Variable('label', int64[-1, 1])
    """
    if lod_level not in (0, 1):
        raise ProgramError(f"`{name}`, lod_level={lod_level}: {LEVELS}", var=name)
    if lod_level == 0 and max_length is not None:
        raise ProgramError(f"`{name}`: max_length is for sequences; pass lod_level=1, too", var=name)
    dims = [-1 if d is None else int(d) for d in shape]
    if any(d < -1 for d in dims):
        raise ProgramError(
            f"`{name}`: {list(shape)} has a negative dimension; only -1 or None, the batch, is allowed", var=name
        )
    if dims.count(-1) > 1:
        text = f"`{name}`: {list(shape)} has {dims.count(-1)} dimensions that are -1 or None"
        raise ProgramError(
            f"{text}; one batch dimension only: give the others a size, or lod_level=1 for sequences", var=name
        )
    _attributes.check_flow(name, dtype, stop_gradient)
    known = default_main_program()._graph.var(name)
    if known is not None and known[2] == "feed":
        return _again(name, dims, dtype, lod_level, max_length, stop_gradient)
    made = (
        _sequences(name, dims, dtype, max_length)
        if lod_level
        else declare(default_main_program(), name, dtype, dims, "Feed")
    )
    if not stop_gradient:
        made.stop_gradient = False
    return made


def _again(
    name: str, dims: list[int], dtype: Any, lod_level: int, max_length: int | None, stop_gradient: bool
) -> Variable:
    """A feed that is declared a second time in the same way is the same one."""
    known = default_main_program().var(name)
    wants = [-1, max_length, *dims[1:]] if lod_level else dims
    same = (list(known.shape), known.dtype, known.lod_level) == (wants, _values.name(_values.code(dtype)), lod_level)
    if not same or known.stop_gradient != stop_gradient:
        at = "{}:{}".format(*caller())
        raise ProgramError(
            f"`{name}` at {at} is declared twice: {known.site} has declared it as {known!r}; declare it in the same "
            "way, or give one of them another name",
            var=name,
            site=at,
            wanted=repr(known),
            got=f"{_values.name(_values.code(dtype))}{wants}",
        )
    return known


def _sequences(name: str, dims: list[int], dtype: Any, max_length: int | None) -> Variable:
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
        text = f"`{name}`: sequences are padded here, so lod_level=1 needs max_length=…, the length of the longest one"
        raise ProgramError(f"{text}; got {max_length!r}", var=name, got=repr(max_length))
    if not dims or dims[0] != -1 or -1 in dims[1:]:
        raise ProgramError(f"`{name}`: sequences have a shape [None, …] with one batch, not {dims}", var=name)
    main = default_main_program()
    declare(main, name, dtype, [-1, max_length, *dims[1:]], "Feed")
    declare(main, lengths_of(name), "int64", [-1], "Feed")
    main._lengths[name] = lengths_of(name)
    return main.var(name)


def append_backward(
    loss: Variable, parameter_list: Sequence[Any] | None = None, no_grad_set: Sequence[Any] | None = None
) -> list[tuple[Parameter, Variable]]:
    """Appends the gradients of a loss; returns each parameter with its gradient.

    They are those of the parameters in ``parameter_list``, by default all. Gradients stop at the variables in
    ``no_grad_set``. Each loss has its own gradients.
    """
    program = _program_of([loss], "append_backward")
    only, without = chosen(program, parameter_list, no_grad_set)
    before = program._graph.copy()
    try:
        pairs = program._graph.append_backward(loss.name, only, without, caller())
        return paired(loss, pairs, only)
    except BaseException:
        program._graph.restore(before)
        raise


def chosen(
    program: Program, parameter_list: Sequence[Any] | None, no_grad_set: Sequence[Any] | None
) -> tuple[list[str] | None, list[str]]:
    """The names of the parameters that are to be learned, if they were named, and of what gets no gradient."""
    without = [_named(v, "no_grad_set") for v in no_grad_set or ()]
    for name in without:
        program.var(name)
    if parameter_list is None:
        return None, without
    only = list(dict.fromkeys(_named(v, "parameter_list") for v in parameter_list))
    for name in only:
        found = program.var(name)
        if not isinstance(found, Parameter):
            raise ProgramError(f"`{name}` in parameter_list is not a parameter of the program", var=name)
        if found.stop_gradient or name in without:
            text = f"`{name}` in parameter_list gets no gradient: it is not trainable, or stops gradients"
            raise ProgramError(f"{text}, or is in no_grad_set; leave it out of the one or the other", var=name)
    return only, without


def _named(v: Any, what: str) -> str:
    if isinstance(v, (str, Variable)):
        return v if isinstance(v, str) else v.name
    raise TypeError(f"{what} must be a list of variables or names, not of {type(v).__name__}")


def paired(
    loss: Variable, pairs: Sequence[tuple[str, str]], only: list[str] | None
) -> list[tuple[Parameter, Variable]]:
    """Parameters and gradients. A parameter that is named in ``parameter_list`` must have a gradient."""
    missing = sorted(set(only or ()) - {p for p, _ in pairs})
    if missing:
        raise LossError(
            f"`{missing[0]}` is in parameter_list, but `{loss.name}` does not depend on it; leave it out, or minimize "
            "the loss that does",
            var=missing[0],
        )
    return [(cast(Parameter, loss.program.var(p)), loss.program.var(g)) for p, g in pairs]


__all__ = [
    "Block",
    "Operator",
    "Parameter",
    "Program",
    "Variable",
    "append_backward",
    "data",
    "default_main_program",
    "default_startup_program",
    "program_guard",
]
