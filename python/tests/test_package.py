"""The package itself: its stubs, its documentation, its command."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from ranks import launch, run_ranks

import phalanx
import phalanx.numpy as pn
from phalanx import _phalanx
from phalanx.timeline import start_timeline, stop_timeline

PACKAGE = Path(phalanx.__file__).parent


def test_stubs_name_what_the_module_has() -> None:
    tree = ast.parse((PACKAGE / "_phalanx.pyi").read_text())
    stubs = {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    real = {name: value for name, value in vars(_phalanx).items() if not name.startswith("_")}
    assert stubs.keys() == real.keys()
    for name, node in stubs.items():
        if isinstance(node, ast.FunctionDef):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            assert [a.arg for a in arguments] == list(inspect.signature(real[name]).parameters), name
        else:
            methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
            public = {m for m in vars(real[name]) if not m.startswith("_")}
            assert public <= methods, name
            assert all(hasattr(real[name], m) for m in methods), name


MODULES = sorted(m.name for m in pkgutil.walk_packages([str(PACKAGE)], "phalanx.") if not m.name.endswith("__main__"))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    for framework in ("jax", "keras", "tensorflow", "torch"):
        if name.startswith(f"phalanx.{framework}") and find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
    assert doctest.testmod(importlib.import_module(name)).failed == 0
    phalanx.shutdown()


def test_import_of_the_package_needs_neither_numpy_nor_torch() -> None:
    code = "import sys, phalanx; assert not {'numpy', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("example", "needs", "says"),
    [
        ("ddl_digits.py --steps 60", "numpy", "unseen digits are right"),
        ("numpy_allreduce.py", "numpy", "2 ranks, together [0. 3. 6. 9.]"),
        ("torch_mnist.py", "torch", "accuracy 9"),
        ("torch_synthetic_benchmark.py --model mlp --rounds 1 --steps 1 --warmup 1", "torch", "samples/s in all"),
        ("torch_sparse_embedding.py --steps 5 --words 500", "torch", "perplexity "),
        ("parallax_words.py --steps 5 --words 500", "torch", "perplexity "),
        ("graph_lenet.py --epochs 1", "numpy", "unseen digits"),
    ],
)
def test_examples(example: str, needs: str, says: str, tmp_path: Path) -> None:
    if find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    script, *arguments = example.split()
    command = [sys.executable, str(Path(__file__).parents[2] / "examples" / script), *arguments]
    run = launch(2, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
    output, _ = run.communicate(timeout=300)
    assert (run.returncode, says in output) == (0, True), output


def test_two_ranks_train_what_one_process_trains(tmp_path: Path) -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    script = str(Path(__file__).parents[2] / "examples" / "torch_mnist.py")
    command = [sys.executable, script, "--double", "--epochs", "1"]
    saved = str(tmp_path / "one.pt")
    subprocess.run([*command, "--save", saved], check=True, timeout=300, stdout=subprocess.DEVNULL)
    run = launch(2, [*command, "--expect", saved], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output, _ = run.communicate(timeout=300)
    assert (run.returncode, "the largest difference" in output) == (0, True), output


def test_the_reference_says_what_the_docstrings_say() -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    tool = Path(__file__).parents[1] / "tools" / "api_reference.py"
    checked = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stderr


def test_the_command_says_what_it_can() -> None:
    command = [sys.executable, "-m", "phalanx"]
    run = subprocess.run([*command, "--help"], check=True, capture_output=True, text=True, timeout=60)
    assert "run" in run.stdout
    wrong = subprocess.run([*command, "run", "--no-such-flag"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2
    exits = subprocess.run(
        [*command, "run", "-np", "2", "--", sys.executable, "-c", "raise SystemExit(7)"],
        capture_output=True,
        timeout=60,
    )
    assert exits.returncode == 7


def timeline(path: str) -> list[dict[str, object]]:
    start_timeline(path, mark_cycles=True)
    pn.allreduce(np.ones(3), name="traced")
    stop_timeline()
    file = Path(path)
    if pn.rank():
        file = file.with_name(f"{file.stem}.rank{pn.rank()}{file.suffix}")
    return json.loads(file.read_text())


def test_timelines(tmp_path: Path) -> None:
    for events in run_ranks(2, timeline, str(tmp_path / "t.json")):
        assert "allreduce.traced" in json.dumps(events)


def test_timeline_needs_an_engine() -> None:
    phalanx.shutdown()
    with pytest.raises(ValueError, match="has not joined a world"):
        start_timeline("nowhere.json")
