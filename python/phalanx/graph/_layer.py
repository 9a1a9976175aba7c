"""Adds layers to a program, under Paddle's names.

The compiled module expands a layer into a draft: parameters and operations in order. What a layer consists of and how
its parameters begin is decided there; names, shared parameters and lengths of sequences are decided here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx import _phalanx
from phalanx.graph import _lengths
from phalanx.graph._adding import append_all, declare, written
from phalanx.graph._operators import check_compared, check_real
from phalanx.graph._site import caller
from phalanx.graph.param_attr import ParamAttr, parameter
from phalanx.graph.program import Program, Variable, default_main_program, program_guard

# What Paddle calls parameters that the draft calls otherwise.
_SUFFIXES = {"scale": "w", "shift": "b", "var": "variance", "w_hh": "w", "b_hh": "b"}


class Layer:
    """One call of a layer: where it is added, and what its parameters and outputs are called."""

    def __init__(self, kind: str, x: Variable, name: str | None) -> None:
        if not isinstance(x, Variable):
            raise TypeError(f"{kind} takes a variable, got {type(x).__name__}")
        self.kind = kind
        self.name = name
        # What is called ``name`` may come after the layer.
        self.output = name
        self.program = x.program
        self.prefix = name or x.program._prefix(kind)
        self.dtype = x.dtype

    def expand(
        self, form: Any, inputs: Sequence[Variable], given: Mapping[str, Any] | None = None, op: str | None = None
    ) -> list[Variable]:
        """Adds the layer; gives its outputs. ``given`` has a ParamAttr, or a name, for slots of the draft.

        Errors call the layer ``op``.
        """
        adding = _Adding(self.kind, self.name, self.prefix, self.program, self.dtype, given or {})
        adding.output = self.output
        adding.knows_ends = _knows_ends(form)
        return adding.all(_draft(op or self.kind, form, inputs), inputs)


def expand(op: str, form: Any, inputs: Sequence[Variable], name: str | None = None) -> Variable:
    """Adds a layer without parameters whose operations are layers by themselves."""
    drafted = _draft(op, form, inputs)
    program = inputs[0].program if inputs else default_main_program()
    adding = _Adding(op, name, "", program, "", {})
    adding.knows_ends = _knows_ends(form)
    return adding.all(drafted, inputs)[0]


def _knows_ends(form: Any) -> bool:
    """Whether a layer was given the lengths of its sequences."""
    which, fields = _only(form)
    return which == "SequenceSoftmax" or bool(fields.get("ragged"))


def _draft(op: str, form: Any, inputs: Sequence[Variable]) -> Any:
    for x in inputs:
        if not isinstance(x, Variable):
            raise TypeError(f"{op} takes variables, got {type(x).__name__}; feed it, or use fill_constant")
    given = [(x.name, repr(x), x._form[0], list(x.shape)) for x in inputs]
    return json.loads(_phalanx.graph_draft(op, written(form, op), given))


class _Adding:
    """Turns the items of one draft into variables and operations."""

    def __init__(
        self, kind: str, name: str | None, prefix: str, program: Program, dtype: str, given: Mapping[str, Any]
    ) -> None:
        self.kind, self.name, self.prefix = kind, name, prefix
        self.output = name
        self.knows_ends = False
        self.program, self.dtype, self.given = program, dtype, given
        self.made: list[list[Variable]] = []
        # The layers within this one that have their names already.
        self.parts: dict[int, str] = {}

    def all(self, drafted: Any, inputs: Sequence[Variable]) -> list[Variable]:
        last = self._item_of(drafted["outputs"][0])
        last_naming = _only(drafted["items"][last])[1].get("naming")
        # Constants have no input that tells their program.
        with program_guard(self.program):
            for number, item in enumerate(drafted["items"]):
                which, form = _only(item)
                naming, is_last = form.get("naming", "Layer"), number == last
                kind, prefix = self._named(naming, drafted["parts"], naming == last_naming)
                if which == "Parameter":
                    self.made.append([self._parameter(form, prefix or "")])
                elif which == "State":
                    self.made.append([self._state(form)])
                else:
                    taken = [self._value(value, inputs) for value in form["inputs"]]
                    add = self._write if which == "Write" else self._append
                    self.made.append(add(form, taken, kind, prefix, self.output if is_last else None))
        return [self._value(value, inputs) for value in drafted["outputs"]]

    @staticmethod
    def _item_of(value: Any) -> int:
        return int(value["Made"][0])

    def _value(self, value: Any, inputs: Sequence[Variable]) -> Variable:
        which, at = _only(value)
        return inputs[int(at)] if which == "Input" else self.made[int(at[0])][int(at[1])]

    def _named(self, naming: Any, parts: Sequence[str], is_last: bool) -> tuple[str, str | None]:
        """Of which layer something is, and what its name begins with, if the layer has more than that."""
        if naming == "Layer":
            return self.kind, self.prefix
        which, at = _only(naming)
        if which == "Alone":
            return str(at), None
        if at not in self.parts:
            self.parts[at] = self.name if is_last and self.name else self.program._prefix(parts[at])
        return parts[at], self.parts[at]

    def _parameter(self, form: Any, prefix: str) -> Variable:
        slot = form["slot"]
        suffix, given = _SUFFIXES.get(slot, slot), self.given.get(slot)
        # A layer of this name in another program has parameters of its own.
        called = self.program._fresh(f"{prefix}.{suffix}") if ParamAttr._of(given).name is None else ""
        return parameter(self.program, given, called, self.dtype, _sizes(form["shape"]), form["begin"])

    def _state(self, form: Any) -> Variable:
        slot = form["slot"]
        given, called = self.given.get(slot), f"{self.prefix}.{_SUFFIXES.get(slot, slot)}"
        if given is not None and self.program._graph.var(given) is not None:
            return self.program.var(given)
        called = given or (self.program._fresh(called) if self.name else called)
        return declare(self.program, called, self.dtype, _sizes(form["shape"]), {"State": form["begin"]})

    def _append(
        self, form: Any, inputs: list[Variable], kind: str, prefix: str | None, name: str | None
    ) -> list[Variable]:
        which, attrs = _only(form["kind"])
        if which == "Compare":
            check_compared(kind, *inputs)
        elif kind == "scale" or kind.startswith("elementwise_"):
            check_real(kind, *inputs)
        return append_all(which, attrs, inputs, kind, name, prefix, knows_ends=self.knows_ends)

    def _write(
        self, form: Any, inputs: list[Variable], kind: str, prefix: str | None, name: str | None
    ) -> list[Variable]:
        which, attrs = _only(form["kind"])
        _lengths.check(which, attrs, inputs, self.program, kind, "{}:{}".format(*caller()))
        outputs = [self._written(output, name) for output in form["outputs"]]
        self.program._append_to(form["kind"], inputs, outputs)
        return outputs

    def _written(self, output: Any, name: str | None) -> Variable:
        which, form = _only(output)
        if which == "Stored":
            return self._value(form, [])
        slot = form["slot"]
        called = f"{self.prefix}.{slot}" if slot is not None else name or f"{self.prefix}.tmp_0"
        called = self.program._graph.fresh(called)
        return declare(self.program, called, self.dtype, _sizes(form["shape"]), "Temp")


def _only(form: Any) -> tuple[str, Any]:
    """What something is, and its fields."""
    ((which, fields),) = form.items()
    return which, fields


def _sizes(shape: Sequence[Mapping[str, int]]) -> list[int]:
    """A shape as layers write it."""
    return [-d["Batch"] if "Batch" in d else d["Fixed"] for d in shape]
