"""Runs a function on several ranks, from a script or a notebook."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from phalanx.exceptions import FailureError, PhalanxError


class RankFailedError(PhalanxError):
    """The function raised an exception on a rank, or the rank died in it; see ``rank`` and ``traceback``."""

    def __init__(self, message: str, *, rank: int, traceback: str) -> None:
        super().__init__(message, rank=rank)
        self.traceback = traceback

    def __reduce__(self) -> tuple[Any, ...]:
        named: dict[str, Any] = {"rank": self.rank, "traceback": self.traceback}
        return partial(type(self), **named), self.args


def run(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    np: int = 2,
    launcher_args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    executable: str | os.PathLike[str] | None = None,
) -> list[Any]:
    """Runs ``fn(*args, **kwargs)`` on ``np`` ranks and returns the results in rank order.

    The function is sent with cloudpickle, so it may be defined in a notebook; it calls ``init()`` itself.
    ``launcher_args`` are arguments for ``phalanx run``, e.g. ``["--hosts", "a:2,b:2"]``; all hosts must share the
    temporary directory. ``executable`` is the Python for the ranks; the default is this one. An exception on a rank is
    raised here as :class:`RankFailedError` with that rank's traceback. So is the death of a rank, with the error of
    another rank.

    >>> import phalanx
    >>> phalanx.run(lambda x: x * 2, (21,), np=1)
    [42]
    """
    import cloudpickle

    if isinstance(np, bool) or not isinstance(np, int) or np < 1:
        raise ValueError(f"phalanx.run: np must be a whole number of ranks from 1, not {np!r}")
    with tempfile.TemporaryDirectory(prefix="phalanx-run-") as folder:
        Path(folder, "call").write_bytes(cloudpickle.dumps((fn, args, dict(kwargs or {}))))
        # What this process imports from beside its script, ranks shall find; another Python has packages of its own.
        paths = [] if executable else [os.path.abspath(path) for path in sys.path]
        Path(folder, "paths").write_text(json.dumps(paths))
        words = [
            sys.executable,
            "-m",
            "phalanx",
            "run",
            "-np",
            str(np),
            "--verdict",
            f"{folder}/verdict",
            *launcher_args,
        ]
        main = "import sys; from phalanx._function import _main; sys.exit(_main(sys.argv[1]))"
        words += ["--", os.fspath(executable or sys.executable), "-c", main, folder]
        # Ranks of another world must not be taken for those of this one.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_RANK", "PHALANX_SIZE"))}
        try:
            done = subprocess.run(words, env={**inherited, **(env or {})}, timeout=timeout_s, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired as late:
            raise TimeoutError(f"phalanx.run: {np} ranks did not finish in {timeout_s} s") from late
        return _collect(Path(folder), np, done.returncode)


@dataclass
class Failure:
    """What a rank reports about its own failure."""

    message: str
    traceback: str
    #: It only heard of somebody else's failure.
    is_echo: bool
    #: Whose it was, and how, as far as it knows.
    rank: int | None
    cause: str | None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Of the exception that is being handled."""
        is_echo = isinstance(error, FailureError)
        whose = (error.rank, error.cause) if isinstance(error, FailureError) else (None, None)
        return cls(f"{type(error).__name__}: {error}", traceback.format_exc(), is_echo, *whose)

    def blamed_on(self, rank: int) -> RankFailedError:
        """The error for the caller of the function, with this rank."""
        return RankFailedError(f"rank {rank}: {self.message}\n\n{self.traceback}", rank=rank, traceback=self.traceback)


def _collect(folder: Path, np: int, code: int) -> list[Any]:
    """All results, or the first failure: a rank that failed because of another one is not the first."""
    results: dict[int, Any] = {}
    failures: dict[int, Failure] = {}
    for rank in range(np):
        path = folder / f"result.{rank}"
        if path.exists():
            is_good, value = pickle.loads(path.read_bytes())
            (results if is_good else failures)[rank] = value
    silent = [rank for rank in range(np) if rank not in results and rank not in failures]
    verdict = json.loads((folder / "verdict").read_text()) if (folder / "verdict").exists() else {}
    own = [rank for rank, failure in failures.items() if not failure.is_echo]
    if own:
        rank = verdict["rank"] if verdict.get("rank") in own else own[0]
        raise failures[rank].blamed_on(rank)
    if failures or silent:
        dead = _dead(failures, silent, verdict)
        if dead is not None:
            _mourn(dead, failures, verdict)
    if failures:
        raise failures[min(failures)].blamed_on(min(failures))
    if silent or code != 0:
        why = f"the launcher ended with code {code}; its stderr says why"
        raise PhalanxError(f"phalanx.run: no results from ranks {silent}: {why}", ranks=silent)
    return [results[rank] for rank in range(np)]


def _dead(failures: dict[int, Failure], silent: list[int], verdict: dict[str, int]) -> int | None:
    """The rank that ended without a report: according to the other ranks, then to the launcher."""
    named = [failure.rank for failure in failures.values() if failure.rank in silent]
    if named:
        return named[0]
    if verdict.get("rank") in silent:
        return verdict["rank"]
    return silent[0] if len(silent) == 1 else None


def _mourn(rank: int, failures: dict[int, Failure], verdict: dict[str, int]) -> NoReturn:
    """Raises an error with how the rank ended and what the first of the other ranks reports about it."""
    said = next((failure for failure in failures.values() if failure.rank == rank), None)
    if verdict.get("rank") == rank and "signal" in verdict:
        how = f"its process was killed by {_signal_name(verdict['signal'])}"
    elif verdict.get("rank") == rank and "code" in verdict:
        how = f"its process ended with code {verdict['code']}"
    else:
        how = (said.cause if said else None) or "its process ended before the function returned"
    text = said.traceback if said else ""
    raise RankFailedError(f"rank {rank} died: {how}\n\n{text}".rstrip(), rank=rank, traceback=text)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # Real-time signals have no names.
        return f"signal {number}"


def _main(folder: str) -> int:
    """One rank: calls the function and writes its result or exception to a file."""
    rank = int(os.environ.get("PHALANX_RANK", "0"))
    sys.path += [path for path in json.loads(Path(folder, "paths").read_text()) if path not in sys.path]
    code = 0
    try:
        fn, args, kwargs = pickle.loads(Path(folder, "call").read_bytes())
        answer: tuple[bool, Any] = (True, fn(*args, **kwargs))
        text = _dumps(answer)
    except BaseException as error:
        code = 1
        text = _dumps((False, Failure.of(error)))
    written = Path(folder, f".result.{rank}")
    written.write_bytes(text)
    written.rename(Path(folder, f"result.{rank}"))
    return code


def _dumps(value: Any) -> bytes:
    import cloudpickle

    return bytes(cloudpickle.dumps(value))


__all__ = ["Failure", "RankFailedError", "run"]
