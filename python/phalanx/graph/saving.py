"""Saves and loads programs and their variables.

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

A file is written under another name and renamed when it is complete, so a reader sees the old or the new file. Files
have a checksum: a damaged or foreign file is a :class:`SavedError`, and nothing has changed. Paddle's own files cannot
be read.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx import _phalanx
from phalanx.graph._refused import refuse
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
        raise IsADirectoryError(errno.EISDIR, "this is a directory, not a file; name a file", str(path))
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
        text = f"the file does not exist; {writer} writes it"
        if path.parent.is_dir() and any(path.parent.iterdir()):
            text += ". The directory has other files: those that Paddle has written cannot be read"
        raise FileNotFoundError(errno.ENOENT, text, str(path)) from why


@contextmanager
def _of_ours() -> Iterator[None]:
    """A file of another program says whose files can be read."""
    try:
        yield
    except SavedError as why:
        if "first bytes are different" not in str(why):
            raise
        raise SavedError(
            f"{why}; files of Paddle's cannot be read: save it with phalanx.graph, or read an ONNX file with "
            "phalanx.graph.onnx.import_model"
        ) from None


def _program(given: Any) -> Program:
    program = given._program if isinstance(given, CompiledProgram) else given
    program = default_main_program() if program is None else program
    if not isinstance(program, Program):
        raise TypeError(f"main_program must be a Program or a CompiledProgram, not a {type(program).__name__}")
    return program


def _check_executor(executor: Any) -> None:
    if not isinstance(executor, Executor):
        raise TypeError(f"executor must be an Executor, not a {type(executor).__name__}")


def _file(dirname: Any, filename: str | None, default: str) -> Path:
    return Path(os.fspath(dirname)) / (filename or default)


def _save_values(program: Program, path: Path, only_parameters: bool) -> None:
    if not any(kind == "parameter" or (kind == "state" and not only_parameters) for _, kind in program._graph.vars()):
        raise SavedError("the program has no variables to save; pass the program that was trained")
    try:
        content = _phalanx.graph_save_values(global_scope()._store, program._graph, only_parameters)
    except UninitialisedError as why:
        raise explained(why) from None
    _write(path, content)


def _load_values(program: Program, path: Path, only_parameters: bool, writer: str) -> None:
    content = _read(path, writer)
    with _of_ours():
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
        raise SavedError(f"{path}: the file is damaged: its entries about sequences are not valid") from why
    named = [*lengths, *lengths.values(), *(name for pair in alike for name in pair)]
    odd = next((name for name in named if program._graph.var(name) is None), None)
    if odd is not None:
        raise SavedError(
            f"{path}: the file is damaged: it names sequences in `{odd}`, which the program does not have", var=odd
        )
    program._lengths, program._alike = lengths, alike


def _unless(wanted: bool) -> bool | None:
    return None if wanted else False


def save_inference_model(
    dirname: str | os.PathLike[str],
    feeded_var_names: Sequence[str],
    target_vars: Sequence[Variable],
    executor: Executor,
    main_program: Program | CompiledProgram | None = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
    export_for_deployment: bool = True,
    program_only: bool = False,
) -> list[str]:
    """Writes the program that predicts these variables, with its parameters, and returns their names.

    Only the operations that they need are kept, as for testing. ``feeded_var_names`` must be exactly the feeds of these.
    Unlike Paddle's it is one file, ``model_filename`` or ``__model__``, so ``params_filename`` has no effect.
    """
    _check_executor(executor)
    what = "save_inference_model"
    refuse(what, "the file has program and parameters; leave it out", program_only=program_only or None)
    refuse(
        what,
        "use Program.serialize_to_string for the whole program",
        export_for_deployment=_unless(export_for_deployment),
    )
    program = _program(main_program)
    names = [feeded_var_names] if isinstance(feeded_var_names, str) else list(feeded_var_names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"feeded_var_names must be strings, not a {type(name).__name__}")
        found = program._graph.var(name)
        if found is None or found[2] != "feed":
            raise FeedError(f"`{name}` is in feeded_var_names, but the program has no feed of that name", var=name)
    targets = [target_vars] if isinstance(target_vars, Variable) else list(target_vars)
    for target in targets:
        if not isinstance(target, Variable):
            raise TypeError(f"target_vars must be variables, not a {type(target).__name__}")
    if not targets:
        raise FetchError("target_vars is empty; name the variables to predict")
    whole = program._graph.clone_for_test()
    for target in targets:
        if whole.var(target.name) is None:
            raise FetchError(f"`{target.name}` does not exist in the program for testing", var=target.name)
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
    pserver_endpoints: Any = None,
) -> list[Any]:
    """``[program, feed_names, fetch_targets]`` of what :func:`save_inference_model` has written.

    Its parameters are put into the scope. One that the scope has in another shape is a ``StateError``.
    """
    _check_executor(executor)
    refuse("load_inference_model", "all parameters are in the file; leave it out", pserver_endpoints=pserver_endpoints)
    path = _file(dirname, model_filename, MODEL)
    content = _read(path, "save_inference_model")
    with _of_ours():
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
    """Writes all variables of the program in the scope: parameters, statistics, and the optimizer's state.

    Unlike Paddle's it is one file, ``filename`` or ``__values__``. It also has the number of the run, and the seed of
    the scope. For variables that differ between devices, such as statistics that are not synchronized, it has the mean.
    """
    _check_executor(executor)
    _save_values(_program(main_program), _file(dirname, filename, VALUES), False)


def load_persistables(
    executor: Executor,
    dirname: str | os.PathLike[str],
    main_program: Program | CompiledProgram | None = None,
    filename: str | None = None,
) -> None:
    """Reads what :func:`save_persistables` has written; training continues as if it had not been interrupted.

    The file may have more variables than the program. A ``SavedError`` lists all variables that are missing or do not
    fit; then nothing has changed.
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
    """Writes what :func:`save_persistables` writes, to exactly this path."""
    _save_values(_program(program), Path(os.fspath(model_path)), False)


def load(
    program: Program | CompiledProgram, model_path: str | os.PathLike[str], executor: Any = None, var_list: Any = None
) -> None:
    """Reads what :func:`save` has written."""
    refuse("load", "all variables of the program are read; load a program that has only these", var_list=var_list)
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
