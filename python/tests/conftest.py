"""Ends the ranks that tests have used together."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ranks import end_all

HAS_TORCH = find_spec("torch") is not None
if not HAS_TORCH:
    collect_ignore = [
        "test_bad_input.py",
        "test_elastic.py",
        "test_errors.py",
        "test_horovod.py",
        "test_horovod_names.py",
        "test_horovod_scripts.py",
        "test_process_sets.py",
        "test_signatures.py",
        "test_torch_collectives.py",
        "test_torch_doors.py",
        "test_torch_drift.py",
        "test_torch_optimizer.py",
    ]


def pytest_report_header() -> str | None:
    """Says what is left out."""
    return None if HAS_TORCH else "torch is not installed: the tests of phalanx.torch are left out"


@pytest.fixture(scope="session", autouse=True)
def _ranks() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture(params=[2, 4])
def n(request: pytest.FixtureRequest) -> int:
    """How many ranks."""
    return int(request.param)
