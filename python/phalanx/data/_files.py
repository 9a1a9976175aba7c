"""Names of files, and lines of text files."""

from __future__ import annotations

import glob
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from os import PathLike
from typing import IO, Any

from phalanx.data import _steps
from phalanx.data.dataset import Dataset, Pass, from_list
from phalanx.data.errors import DataError

FileName = str | PathLike[str]


def list_files(pattern: FileName | Iterable[FileName]) -> Dataset[str]:
    """The files that match a pattern, or one of several, sorted by name: in the same order on all ranks.

    ``*``, ``?``, ``[..]`` and ``**`` are as in :mod:`glob`. A pattern without a file is a :class:`FileNotFoundError`.
    """
    patterns = [pattern] if isinstance(pattern, (str, PathLike)) else list(pattern)
    if not patterns:
        raise ValueError("list_files needs a pattern, not an empty list")
    found: set[str] = set()
    for one in [os.fspath(pattern) for pattern in patterns]:
        # A name with brackets may be meant as it is.
        matching = [one] if os.path.isfile(one) else glob.glob(one, recursive=True)
        files = [path for path in matching if os.path.isfile(path)]
        if not files:
            raise FileNotFoundError(f"no file matches {one!r}")
        found.update(files)
    return from_list(sorted(found))


class TextLineDataset(Dataset[str]):
    """The lines of text files, without their ends (``\\n``, ``\\r\\n`` or ``\\r``).

    ``files`` is one name, a list of names, or a data set of names. Files are UTF-8; files whose names end with ``.gz`` are
    unpacked. Errors name the file, and the line if it is not text.
    """

    def __init__(self, files: FileName | Iterable[FileName] | Dataset[Any]) -> None:
        if isinstance(files, Dataset):
            names = files
        else:
            given = [files] if isinstance(files, (str, PathLike)) else list(files)
            if not given:
                raise ValueError("TextLineDataset needs the name of a file, not an empty list")
            names = from_list(given)
        self._make = lambda at: _lines_of(names, at)
        self._n_shuffles = names._n_shuffles
        self._is_unseeded = names._is_unseeded
        self._shards = names._shards


def _lines_of(names: Dataset[Any], at: Pass) -> Iterator[str]:
    with _steps.closed_after(names._make(at)) as each:
        for name in each:
            if not isinstance(name, (str, PathLike)):
                raise DataError(f"TextLineDataset needs names of files, not {name!r}")
            yield from lines(os.fspath(name))


def lines(name: str) -> Iterator[str]:
    """The lines of one file."""
    try:
        with _opened(name) as file:
            for i, line in enumerate(file, 1):
                text = line.removesuffix("\n")
                if not text.isascii():
                    _check(text, name, i)
                yield text
    except (EOFError, zlib.error, gzip.BadGzipFile) as why:
        raise DataError(f"{name} is damaged: {why}") from why


def _opened(name: str) -> IO[str]:
    # Bytes that are not text become surrogates, so that the line that has them can be named.
    if name.endswith(".gz"):
        return gzip.open(name, "rt", encoding="utf-8", errors="surrogateescape")
    return open(name, encoding="utf-8", errors="surrogateescape")


def _check(text: str, name: str, line: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as why:
        raise DataError(f"{name}, line {line}: is not UTF-8") from why


__all__ = ["TextLineDataset", "list_files"]
