"""The tests that need JAX, in an environment of their own: ``cargo xtask test --with jax``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
# Before Keras and JAX are imported, here and on the ranks.
os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_ENABLE_X64"] = "1"

from ranks import end_all


@pytest.fixture(scope="session", autouse=True)
def _ranks() -> Iterator[None]:
    yield
    end_all()
