"""Native operations for frameworks that other frameworks' headers define: compiled once, on first use, into the user's cache.

Each library is one C++ file of this folder, with its headers. It gets the address of the engine's table from :mod:`phalanx._phalanx`, so
that there is one world in the process.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from phalanx import _phalanx

_HERE = Path(__file__).parent
#: A compiler that takes longer than this is stuck.
_LIMIT_S = 600


class NativeError(RuntimeError):
    """There is no native operation: no compiler, or it did not compile. The message says why."""


def cache_dir() -> Path:
    """Where libraries are kept: ``phalanx/native`` in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "phalanx" / "native"


def library(source: str, what: str, version: str, flags: Sequence[str], build: str = "") -> Path:
    """The compiled library of a file of this folder for this version of a framework, compiled now if it never was.

    One process compiles; the others wait for it. ``build`` tells builds of one version apart.
    """
    texts = [(_HERE / source).read_bytes(), *(header.read_bytes() for header in sorted(_HERE.glob("*.h")))]
    parts = [version.encode(), platform.machine().encode(), build.encode(), " ".join(flags).encode(), *texts]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = cache_dir()
    made = folder / f"{Path(source).stem}-{version}-{key}.so"
    if made.exists():
        return made
    compiler = os.environ.get("CXX", "").strip() or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NativeError("there is no C++ compiler: install g++, or set CXX")
    if shutil.which(compiler.split()[0]) is None:
        raise NativeError(f"CXX={compiler}: there is no such program; set CXX to a C++ compiler, or unset it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                _compile(compiler, source, what, flags, made)
    except OSError as error:
        raise NativeError(f"{folder} cannot be written: {error}") from error
    return made


def _compile(compiler: str, source: str, what: str, flags: Sequence[str], made: Path) -> None:
    print(f"phalanx: compiling its operations for {what}, once, into {made.parent} ...", file=sys.stderr, flush=True)
    handle, unfinished = tempfile.mkstemp(suffix=".so", dir=made.parent)
    os.close(handle)
    # The file before the flags: libraries among them are looked for what the file needs.
    command = [*compiler.split(), "-O1", "-fPIC", "-shared", "-w", f"-I{_HERE}", str(_HERE / source), *flags]
    try:
        done = subprocess.run([*command, "-o", unfinished], capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            raise NativeError(f"{compiler} failed: {lines[0] if lines else done.returncode}")
        os.replace(unfinished, made)
    except subprocess.TimeoutExpired as error:
        raise NativeError(f"{compiler} took longer than {_LIMIT_S} s") from error
    finally:
        Path(unfinished).unlink(missing_ok=True)


def attach(path: Path) -> ctypes.CDLL:
    """Loads a library and gives it the engine of this process."""
    loaded = ctypes.CDLL(str(path))
    address, version = _phalanx.native_table()
    if loaded.phalanx_attach(ctypes.c_void_p(address)) != 0:
        raise NativeError(f"{path} was made for another table than version {version}: remove it")
    return loaded


__all__ = ["NativeError", "attach", "cache_dir", "library"]
