"""What ``layers.Print`` shows: values of a run, after it has ended."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.graph.errors import ProgramError

if TYPE_CHECKING:
    from phalanx.graph.program import Program


class Printed:
    """One call of ``Print``. It counts how often it has shown something."""

    def __init__(
        self, name: str, site: str, first_n: int, message: str | None, summarize: int, shows: Sequence[str], phase: str
    ) -> None:
        self.name, self.site = name, site
        self.first_n, self.message, self.summarize = first_n, message, summarize
        self.shows, self.phase = tuple(shows), phase
        self.count = 0

    def wanted(self, program: Program) -> list[str]:
        """What has to be fetched in the next run."""
        if self.name in program._inside:
            raise ProgramError(
                f"Print at {self.site}: `{self.name}` exists only inside the {program._inside[self.name]}; return it "
                "from the function there, and Print the result",
                var=self.name,
                site=self.site,
            )
        if 0 <= self.first_n <= self.count:
            return []
        phases = {"forward": [self.name], "backward": [self._gradient], "both": [self.name, self._gradient]}
        # A part of a program may lack it; without a loss there is no gradient.
        return [name for name in phases[self.phase] if program._graph.var(name) is not None]

    @property
    def _gradient(self) -> str:
        return f"{self.name}@GRAD"

    def text(self, name: str, value: Any) -> str:
        """A value as lines.

        >>> shown = Printed("x", "here", -1, "look", 2, ["name", "shape"], "forward")
        >>> print(shown.text("x", np.array([[1, 2, 3]])))
        look
        Variable: x
          - shape: [1, 3]
          - data: [1 2 ...]
        """
        array = np.asarray(value)
        lines = [] if self.message is None else [self.message]
        parts = {"shape": str(list(array.shape)), "type": str(array.dtype)}
        if "name" in self.shows:
            lines.append(f"Variable: {name}")
        lines += [f"  - {key}: {parts[key]}" for key in ("shape", "type") if key in self.shows]
        flat = array.ravel()
        limit = len(flat) if self.summarize < 0 else self.summarize
        more = " ..." if len(flat) > limit else ""
        return "\n".join([*lines, f"  - data: [{' '.join(str(v) for v in flat[:limit])}{more}]"])


def wanted(program: Program) -> list[tuple[Printed, str]]:
    """What is to be shown after the next run, and by whom."""
    return [(one, name) for one in program._prints for name in one.wanted(program)]


def show(prints: Sequence[tuple[Printed, str]], values: Sequence[Any]) -> None:
    """Prints values that were fetched for it."""
    for (one, name), value in zip(prints, values, strict=True):
        print(one.text(name, value), file=sys.stdout, flush=True)
    for one in {id(one): one for one, _ in prints}.values():
        one.count += 1
