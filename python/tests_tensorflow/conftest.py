"""The tests that need TensorFlow, in an environment of their own: ``cargo xtask test --with tensorflow``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from ranks import end_all


@pytest.fixture(scope="session", autouse=True)
def _ranks() -> Iterator[None]:
    yield
    end_all()
