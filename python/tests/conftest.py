"""Ends the ranks that tests have used together."""

from __future__ import annotations

import ast
import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ranks import end_all

# Keras decides when it is imported first, whichever test that is; this environment has torch and no TensorFlow.
os.environ.setdefault("KERAS_BACKEND", "torch")

HAS_TORCH = find_spec("torch") is not None
NEED_TORCH = {
    "test_bad_input.py",
    "test_elastic.py",
    "test_engines_bits.py",
    "test_errors.py",
    "test_horovod.py",
    "test_horovod_names.py",
    "test_horovod_scripts.py",
    "test_process_sets.py",
    "test_session_left.py",
    "test_session_resumed.py",
    "test_session_torch.py",
    "test_signatures.py",
    "test_torch_collectives.py",
    "test_torch_doors.py",
    "test_torch_drift_buckets.py",
    "test_torch_drift_check.py",
    "test_torch_drift_clipping.py",
    "test_torch_drift_gradients.py",
    "test_torch_drift_parameters.py",
    "test_torch_drift_passes.py",
    "test_torch_drift_programs.py",
    "test_torch_optimizer.py",
    "test_torch_trainer.py",
}


def pytest_configure() -> None:
    """Lets Ctrl-C reach tests and what they start: the processes in which pytest-xdist runs them ignore it."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class LeftOut(pytest.File):
    """A file that cannot be imported without torch: each of its tests is skipped, so that the last line counts them."""

    def collect(self) -> Iterator[pytest.Item]:
        functions = [n for n in ast.parse(self.path.read_text()).body if isinstance(n, ast.FunctionDef)]
        for function in functions:
            if function.name.startswith("test_"):
                yield Skipped.from_parent(self, name=function.name)


class Skipped(pytest.Item):
    def runtest(self) -> None:
        pytest.skip("torch is not installed")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Leaves out what needs torch where there is none."""
    if HAS_TORCH or module_path.name not in NEED_TORCH:
        return None
    return LeftOut.from_parent(parent, path=module_path)


@pytest.fixture(scope="session", autouse=True)
def _ranks() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture(params=[2, 4])
def n(request: pytest.FixtureRequest) -> int:
    """How many ranks."""
    return int(request.param)
