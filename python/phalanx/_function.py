"""A function on several ranks, from a script or a notebook."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.exceptions import PhalanxError


class RankFailedError(PhalanxError):
    """The function raised on a rank; ``rank`` and ``traceback`` say where."""

    def __init__(self, message: str, *, rank: int, traceback: str) -> None:
        super().__init__(message, rank=rank)
        self.traceback = traceback


def run(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    np: int = 2,
    launcher_args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> list[Any]:
    """Runs ``fn(*args, **kwargs)`` on ``np`` ranks and gives the results in rank order.

    The function travels by cloudpickle, so it may stand in a notebook; it calls ``init()`` itself. ``launcher_args`` are
    words for ``phalanx run``, e.g. ``["--hosts", "a:2,b:2"]``; all hosts must see the same temporary folder. An exception on
    a rank is raised here as :class:`RankFailedError` with that rank's traceback.

    >>> import phalanx
    >>> phalanx.run(lambda x: x * 2, (21,), np=1)
    [42]
    """
    import cloudpickle

    with tempfile.TemporaryDirectory(prefix="phalanx-run-") as folder:
        Path(folder, "call").write_bytes(cloudpickle.dumps((fn, args, dict(kwargs or {}))))
        words = [sys.executable, "-m", "phalanx", "run", "-np", str(np), *launcher_args, "--"]
        main = "import sys; from phalanx._function import _main; sys.exit(_main(sys.argv[1]))"
        words += [sys.executable, "-c", main, folder]
        # Ranks of another world must not be taken for those of this one.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PHALANX_RANK", "PHALANX_SIZE"))}
        try:
            done = subprocess.run(words, env={**inherited, **(env or {})}, timeout=timeout_s, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired as late:
            raise TimeoutError(f"phalanx.run: {np} ranks did not finish in {timeout_s} s") from late
        return _collect(Path(folder), np, done.returncode)


def _collect(folder: Path, np: int, code: int) -> list[Any]:
    """All results, or the first failure: a rank that failed because of another one is named after it."""
    answers: dict[int, tuple[bool, Any]] = {}
    for rank in range(np):
        path = folder / f"result.{rank}"
        if path.exists():
            answers[rank] = pickle.loads(path.read_bytes())
    failed = [(rank, value) for rank, (is_good, value) in sorted(answers.items()) if not is_good]
    if failed:
        # Ranks whose failure is somebody else's come last.
        rank, (message, text, _) = min(failed, key=lambda f: (f[1][2], f[0]))
        raise RankFailedError(f"rank {rank}: {message}\n\n{text}", rank=rank, traceback=text)
    missing = [rank for rank in range(np) if rank not in answers]
    if missing or code != 0:
        raise PhalanxError(f"phalanx.run: the job ended with code {code}; no results from ranks {missing}", ranks=missing)
    return [answers[rank][1] for rank in range(np)]


def _main(folder: str) -> int:
    """One rank: calls the function and leaves what it gave, or raised."""
    from phalanx.exceptions import FailureError

    rank = int(os.environ.get("PHALANX_RANK", "0"))
    fn, args, kwargs = pickle.loads(Path(folder, "call").read_bytes())
    code = 0
    try:
        answer: tuple[bool, Any] = (True, fn(*args, **kwargs))
        text = _dumps(answer)
    except BaseException as error:
        code = 1
        message = f"{type(error).__name__}: {error}"
        text = _dumps((False, (message, traceback.format_exc(), isinstance(error, FailureError))))
    written = Path(folder, f".result.{rank}")
    written.write_bytes(text)
    written.rename(Path(folder, f"result.{rank}"))
    return code


def _dumps(value: Any) -> bytes:
    import cloudpickle

    return bytes(cloudpickle.dumps(value))


__all__ = ["RankFailedError", "run"]
