"""Keras 3 on torch: ranks end with the parameters of one; states, loss scales, saved models."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ranks import run_ranks

# Before Keras is imported, here and on the ranks.
os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("torch")
keras = pytest.importorskip("keras")
keras_backends = pytest.importorskip("keras_backends")


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_fit(kind: str) -> None:
    assert keras.backend.backend() == "torch"
    keras_backends.assert_alike(run_ranks(2, keras_backends.fit, kind), keras_backends.fitted(kind, 1, 0))


def test_fit_of_four() -> None:
    keras_backends.assert_alike(run_ranks(4, keras_backends.fit, "sgd"), keras_backends.fitted("sgd", 1, 0))


def test_states_loss_scales_and_saved_models(tmp_path: Path) -> None:
    run_ranks(2, keras_backends.rest, str(tmp_path))
