"""Programs, and which of them layers are added to.

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
from typing import Any, cast
from weakref import ref

from phalanx import _phalanx
from phalanx.graph import _adding, _lengths, unique_name
from phalanx.graph._printing import Printed
from phalanx.graph._site import caller
from phalanx.graph.errors import ProgramError
from phalanx.graph.lod import lengths_of
from phalanx.graph.variable import Operator, Parameter, Variable

# Beside the graph in what is written of a program.
SEQUENCES = "sequences"


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

    def create_var(
        self,
        name: str | None = None,
        dtype: Any = "float32",
        shape: Sequence[int | None] = (),
        persistable: bool = False,
        **other: Any,
    ) -> Variable:
        """A variable that something is to write: what ``py_func`` gives."""
        if persistable or any(value not in (None, False, 0) for value in other.values()):
            raise ProgramError(
                "create_var: only name, dtype and shape are supported; use layers.create_global_var for a variable in "
                "the scope",
                var=name,
            )
        called = self.program._graph.fresh("tmp") if name is None else name
        dims = [-1 if d is None else int(d) for d in shape]
        return _adding.declare(self.program, called, dtype, dims, "Temp")


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
        # What is shown after each run.
        self._prints: list[Printed] = []
        # Loaders that feed it without being iterated over.
        self._readers: list[Any] = []
        # Variables with sequences, and where their lengths are.
        self._lengths: dict[str, str] = {}
        # Products whose last axis is the time of other sequences, and where the lengths of these are.
        self._across: dict[str, str] = {}
        # Sequences with zeros behind their ends.
        self._blank: set[str] = set()
        # Lengths that must be equal, because layers take their sequences together.
        self._alike: set[tuple[str, str]] = set()
        # Feeds of fixed sizes that an executor does not check.
        self._unchecked: set[str] = set()
        #: Variables and axes whose sizes became numbers in layers (``shape``, ``expand_as``, ``padding="SAME"``).
        self._measured: set[tuple[str, int]] = set()
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
        twin._prints, twin._unchecked = list(self._prints), set(self._unchecked)
        twin._measured = set(self._measured)
        has = {name for name, _ in graph.vars()}
        twin._lengths = {name: of for name, of in self._lengths.items() if {name, of} <= has}
        twin._across = {name: of for name, of in self._across.items() if {name, of} <= has}
        twin._blank = self._blank & has
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
        self._graph.append_to(_adding.written(form, next(iter(form))), *names, caller())

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


__all__ = [
    "Block",
    "Operator",
    "Parameter",
    "Program",
    "Variable",
    "default_main_program",
    "default_startup_program",
    "program_guard",
]
