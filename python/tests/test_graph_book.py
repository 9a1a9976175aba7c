"""The models of Paddle's book, in its names, against twins in PyTorch: on two replicas and on two ranks."""

from __future__ import annotations

import numpy as np
import pytest
from book import BUILDS, train, twin
from ranks import run_ranks

pytest.importorskip("torch", reason="PyTorch is what losses are compared with")


@pytest.mark.parametrize("chapter", BUILDS)
def test_a_chapter_learns_as_its_twin(chapter: str) -> None:
    alone = train(chapter, 2)
    losses = twin(chapter, alone["first"])
    np.testing.assert_allclose(alone["losses"], losses, rtol=2e-4, atol=1e-5)
    assert alone["losses"][-1] < alone["losses"][0]
    together = run_ranks(2, train, chapter, 1)
    both = np.mean([each["losses"] for each in together], axis=0)
    np.testing.assert_allclose(both, losses, rtol=2e-4, atol=1e-5)
