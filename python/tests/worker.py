"""One rank of a test: runs the functions it is told to, one after the other, until nobody tells it any more."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import traceback
from functools import reduce
from multiprocessing.connection import Client
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import phalanx

_modules: dict[str, ModuleType] = {}


def _module(path: str) -> ModuleType:
    if path not in _modules:
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[Path(path).stem] = module
        spec.loader.exec_module(module)
        _modules[path] = module
    return _modules[path]


def _run(path: str, name: str, args: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        function = reduce(getattr, name.split("."), _module(path))
        phalanx.init()
        try:
            return True, function(*args)
        finally:
            phalanx.shutdown()
    except BaseException:
        return False, traceback.format_exc()


def main() -> None:
    connection = Client(sys.argv[1], "AF_UNIX")
    connection.send(int(os.environ["PHALANX_RANK"]))
    while True:
        try:
            order = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        # Not send(): torch would send its tensors as shared memory of this process.
        connection.send_bytes(pickle.dumps(_run(*order)))


main()
