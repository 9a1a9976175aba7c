"""Numbers for TensorBoard, as event files.

Only one rank should write, or each rank to a folder of its own. TensorBoard is not needed to write them.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as logdir, FileWriter(logdir) as writer:
...     writer.add_scalar("loss", 0.5, global_step=1)
...     writer.path.name.split(".")[:3]
['events', 'out', 'tfevents']
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

from phalanx import _phalanx


class FileWriter:
    """Writes numbers to a new event file in ``logdir``, which is created if it does not exist.

    Events are buffered. :meth:`flush`, :meth:`close`, the end of a ``with`` block and the end of the writer flush them; so
    does an event that comes ten seconds after the last flush. Errors are an :class:`OSError` that names the file.
    """

    def __init__(self, logdir: str | PathLike[str]) -> None:
        self._file = _phalanx.EventFile(logdir)

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def add_scalar(self, tag: str, value: Any, global_step: int) -> None:
        """Adds one number, which the file holds as a float of 32 bits: a float, or an array or a tensor with one element."""
        self.add_summary({tag: value}, global_step)

    def add_summary(self, summary: Mapping[str, Any], global_step: int) -> None:
        """Adds several numbers of one step, by their tags."""
        step = _step(global_step)
        self._file.scalars(step, [(_tag(tag), _number(tag, value)) for tag, value in summary.items()])

    def add_histogram(self, tag: str, values: Any, global_step: int) -> None:
        """Adds how many values are of which size; values that are not finite are refused."""
        step, tag = _step(global_step), _tag(tag)
        numbers: Iterable[Any] = values.reshape(-1).tolist() if hasattr(values, "reshape") else values
        self._file.histogram(step, tag, [_number(tag, value) for value in numbers])

    def flush(self) -> None:
        """Gives all events to the system, so that TensorBoard sees them."""
        self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _step(step: Any) -> int:
    is_whole = not isinstance(step, bool) and hasattr(step, "__index__")
    if not is_whole or not 0 <= operator.index(step) < 1 << 63:
        raise ValueError(f"global_step must be a whole number from 0, not {step!r}")
    return operator.index(step)


def _tag(tag: Any) -> str:
    if not isinstance(tag, str) or not tag:
        raise ValueError(f"a tag must be a text that is not empty, not {tag!r}")
    return tag


def _number(tag: str, value: Any) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError("a text is not a number")
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError) as why:
        raise ValueError(f"the value of {tag!r} must be one number, not {value!r}") from why


__all__ = ["FileWriter"]
