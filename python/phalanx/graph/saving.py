"""Programs and what they have learned, as files.

>>> import numpy as np, tempfile
>>> from phalanx import graph
>>> main, startup, exe = graph.Program(), graph.Program(), graph.Executor(graph.CPUPlace())
>>> with graph.program_guard(main, startup), graph.scope_guard(graph.Scope()):
...     x = graph.data("x", [None, 2])
...     y = graph.layers.fc(x, 1)
...     _ = exe.run(startup)
...     path = tempfile.mkdtemp() + "/model"
...     wanted = exe.run(main, {"x": np.ones([1, 2], "float32")}, [y])[0]
...     names = save_inference_model(path, ["x"], [y], exe, main)
>>> with graph.scope_guard(graph.Scope()):
...     program, feeds, targets = load_inference_model(path, exe)
...     got = exe.run(program, {"x": np.ones([1, 2], "float32")}, targets)[0]
>>> feeds, (got == wanted).item()
(['x'], True)

Files are written beside their place and put there when they are complete, so whoever reads one sees the old or the new
one. They have a checksum: what is damaged, or not ours, is a :class:`SavedError`, and nothing has changed. Paddle's own
files cannot be read.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phalanx import _phalanx
from phalanx.graph.compiler import CompiledProgram
from phalanx.graph.errors import FeedError, FetchError, SavedError, UninitialisedError
from phalanx.graph.executor import Executor
from phalanx.graph.lod import lengths_of
from phalanx.graph.parallel_executor import explained
from phalanx.graph.program import Program, Variable, default_main_program
from phalanx.graph.scope import global_scope

MODEL = "__model__"
VALUES = "__values__"


def _write(path: Path, content: bytes) -> None:
    """The whole file, or the one that was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a file is to be written, but this is a directory", str(path))
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    # The name is on the disk too.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(path: Path, writer: str) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as why:
        text = f"there is nothing to load; {writer} writes it"
        raise FileNotFoundError(errno.ENOENT, text, str(path)) from why


def _program(given: Any) -> Program:
    program = given._program if isinstance(given, CompiledProgram) else given
    program = default_main_program() if program is None else program
    if not isinstance(program, Program):
        raise TypeError(f"main_program is a Program or a CompiledProgram, not a {type(program).__name__}")
    return program


def _check_executor(executor: Any) -> None:
    if not isinstance(executor, Executor):
        raise TypeError(f"executor is an Executor, not a {type(executor).__name__}")


def _file(dirname: Any, filename: str | None, default: str) -> Path:
    return Path(os.fspath(dirname)) / (filename or default)


def _save_values(program: Program, path: Path, only_parameters: bool) -> None:
    if not any(kind == "parameter" or (kind == "state" and not only_parameters) for _, kind in program._graph.vars()):
        raise SavedError("the program has nothing that could be saved; is it the one that you meant?")
    try:
        content = _phalanx.graph_save_values(global_scope()._store, program._graph, only_parameters)
    except UninitialisedError as why:
        raise explained(why) from None
    _write(path, content)


def _load_values(program: Program, path: Path, only_parameters: bool, writer: str) -> None:
    content = _read(path, writer)
    _phalanx.graph_load_values(global_scope()._store, program._graph, only_parameters, content, str(path))


def _notes(program: Program, part: set[str]) -> str:
    """Which variables of this part hold sequences, and which lengths must be equal."""
    lengths = {name: of for name, of in program._lengths.items() if {name, of} <= part}
    return json.dumps({"lengths": lengths, "alike": sorted(pair for pair in program._alike if part.issuperset(pair))})


def _take_notes(program: Program, notes: str, path: Path) -> None:
    try:
        form = json.loads(notes)
        lengths = {str(name): str(of) for name, of in form["lengths"].items()}
        alike = {(str(a), str(b)) for a, b in form["alike"]}
    except (ValueError, TypeError, KeyError, AttributeError) as why:
        raise SavedError(f"{path}: the file is damaged: its notes on sequences make no sense") from why
    named = [*lengths, *lengths.values(), *(name for pair in alike for name in pair)]
    odd = next((name for name in named if program._graph.var(name) is None), None)
    if odd is not None:
        raise SavedError(f"{path}: the file is damaged: it has sequences in `{odd}`, which is not there", var=odd)
    program._lengths, program._alike = lengths, alike


def save_inference_model(
    dirname: str | os.PathLike[str],
    feeded_var_names: Sequence[str],
    target_vars: Sequence[Variable],
    executor: Executor,
    main_program: Program | CompiledProgram | None = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
) -> list[str]:
    """Writes what predicts these variables, with its parameters, and gives their names.

    Of the program only what they need is kept, as for a test. ``feeded_var_names`` must be exactly what that is fed.
    Unlike Paddle's it is one file, ``model_filename`` or ``__model__``, so ``params_filename`` changes nothing.
    """
    _check_executor(executor)
    program = _program(main_program)
    names = [feeded_var_names] if isinstance(feeded_var_names, str) else list(feeded_var_names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"feeded_var_names are strings, not a {type(name).__name__}")
        found = program._graph.var(name)
        if found is None or found[2] != "feed":
            raise FeedError(f"`{name}` is in feeded_var_names, but the program has no such feed", var=name)
    targets = [target_vars] if isinstance(target_vars, Variable) else list(target_vars)
    for target in targets:
        if not isinstance(target, Variable):
            raise TypeError(f"target_vars are variables, not a {type(target).__name__}")
    if not targets:
        raise FetchError("target_vars is empty; a model gives something")
    whole = program._graph.clone_for_test()
    for target in targets:
        if whole.var(target.name) is None:
            raise FetchError(f"`{target.name}` is not there in the program for tests", var=target.name)
    part = {name for name, _ in whole.pruned([target.name for target in targets]).vars()}
    # Lengths are fed together with their sequences.
    fed = [*names, *(lengths_of(name) for name in names if lengths_of(name) in part)]
    notes = _notes(program, part)
    try:
        content = _phalanx.graph_save(global_scope()._store, program._graph, fed, [t.name for t in targets], notes)
    except UninitialisedError as why:
        raise explained(why) from None
    _write(_file(dirname, model_filename, MODEL), content)
    return [target.name for target in targets]


def load_inference_model(
    dirname: str | os.PathLike[str],
    executor: Executor,
    model_filename: str | None = None,
    params_filename: str | None = None,
) -> list[Any]:
    """``[program, feed_names, fetch_targets]`` of what :func:`save_inference_model` has written.

    Its parameters are put into the scope. One that the scope has in another shape is a ``StateError``.
    """
    _check_executor(executor)
    path = _file(dirname, model_filename, MODEL)
    content = _read(path, "save_inference_model")
    graph, feeds, fetches, notes = _phalanx.graph_load(global_scope()._store, content, str(path))
    program = Program._of(graph)
    _take_notes(program, notes, path)
    lengths = set(program._lengths.values())
    return [program, [name for name in feeds if name not in lengths], [program.var(name) for name in fetches]]


def save_persistables(
    executor: Executor,
    dirname: str | os.PathLike[str],
    main_program: Program | CompiledProgram | None = None,
    filename: str | None = None,
) -> None:
    """Writes all that the program has in the scope: parameters, statistics, and what the optimizer keeps.

    Unlike Paddle's it is one file, ``filename`` or ``__values__``. It also has the number of the run, and the seed of
    the scope. Of what each device has for itself, like statistics that are not synchronized, the mean is written.
    """
    _check_executor(executor)
    _save_values(_program(main_program), _file(dirname, filename, VALUES), False)


def load_persistables(
    executor: Executor,
    dirname: str | os.PathLike[str],
    main_program: Program | CompiledProgram | None = None,
    filename: str | None = None,
) -> None:
    """Reads what :func:`save_persistables` has written; training goes on as if it had never stopped.

    The file may have more than the program wants. What is missing or does not fit is named all at once in a
    ``SavedError``, and nothing has changed.
    """
    _check_executor(executor)
    _load_values(_program(main_program), _file(dirname, filename, VALUES), False, "save_persistables")


def save_params(
    executor: Executor,
    dirname: str | os.PathLike[str],
    main_program: Program | CompiledProgram | None = None,
    filename: str | None = None,
) -> None:
    """Writes parameters only, into one file, ``filename`` or ``__values__``."""
    _check_executor(executor)
    _save_values(_program(main_program), _file(dirname, filename, VALUES), True)


def load_params(
    executor: Executor,
    dirname: str | os.PathLike[str],
    main_program: Program | CompiledProgram | None = None,
    filename: str | None = None,
) -> None:
    """Reads parameters only, from what :func:`save_params` or :func:`save_persistables` has written."""
    _check_executor(executor)
    _load_values(_program(main_program), _file(dirname, filename, VALUES), True, "save_params")


def save(program: Program | CompiledProgram, model_path: str | os.PathLike[str]) -> None:
    """Writes what :func:`save_persistables` does into this very file, with no suffix added."""
    _save_values(_program(program), Path(os.fspath(model_path)), False)


def load(program: Program | CompiledProgram, model_path: str | os.PathLike[str], executor: Any = None) -> None:
    """Reads what :func:`save` has written."""
    if executor is not None:
        _check_executor(executor)
    _load_values(_program(program), Path(os.fspath(model_path)), False, "save")


__all__ = [
    "load",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "save",
    "save_inference_model",
    "save_params",
    "save_persistables",
]
