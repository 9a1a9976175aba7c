"""Event files, as TensorBoard reads them."""

from __future__ import annotations

import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phalanx
from phalanx.summary import FileWriter


def records(path: Path) -> list[bytes]:
    """The data of each record; checksums are checked by the tests in Rust."""
    content, found = path.read_bytes(), []
    while content:
        (length,) = struct.unpack_from("<Q", content)
        found.append(content[12 : 12 + length])
        content = content[16 + length :]
    return found


def test_numbers_are_written(tmp_path: Path) -> None:
    with FileWriter(tmp_path / "logs") as writer:
        assert len(records(writer.path)) == 1
        writer.add_scalar("loss", np.float32(0.5), 7)
        writer.add_summary({"accuracy": 1, "rate": np.array([2.0])}, global_step=8)
        writer.flush()
        (_, one, two) = records(writer.path)
        assert one[9:] == b"\x10\x07\x2a\x0d\x0a\x0b\x0a\x04loss\x15" + struct.pack("<f", 0.5)
        assert b"accuracy\x15" + struct.pack("<f", 1.0) in two and b"rate\x15" + struct.pack("<f", 2.0) in two
        writer.add_histogram("weights", np.ones((2, 2)), 9)
        writer.add_histogram("weights", [1, 2.5], 9)
    assert list((tmp_path / "logs").iterdir()) == [writer.path]
    assert [b"weights" in data for data in records(writer.path)] == [False, False, False, True, True]
    assert phalanx.summary.FileWriter is FileWriter


def test_a_writer_that_ends_flushes(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path)
    path = writer.path
    writer.add_scalar("x", 1.0, 1)
    assert len(records(path)) == 1
    del writer
    assert len(records(path)) == 2


def test_mistakes_are_refused(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path)
    wrong: list[tuple[Any, Any, Any, str]] = [
        ("x", "much", 1, "the value of 'x' must be one number, not 'much'"),
        ("x", "1.0", 1, "must be one number"),
        ("x", np.zeros(2), 1, "must be one number"),
        ("x", 1.0, -1, "global_step must be a whole number from 0, not -1"),
        ("x", 1.0, 1.5, "global_step must be"),
        ("x", 1.0, None, "global_step must be"),
        ("", 1.0, 1, "a tag must be a text"),
        (7, 1.0, 1, "a tag must be a text"),
    ]
    for tag, value, step, why in wrong:
        with pytest.raises(ValueError, match=why):
            writer.add_scalar(tag, value, step)
    with pytest.raises(ValueError, match="the histogram `w` has 1 values that are not finite"):
        writer.add_histogram("w", [1.0, float("nan")], 1)
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match=r"tfevents.* is closed"):
        writer.add_scalar("x", 1.0, 1)
    with pytest.raises(ValueError, match="is closed"):
        writer.flush()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot create an event file in .*file"):
        FileWriter(tmp_path / "file")
    assert len(records(writer.path)) == 1


def test_tensorboard_reads_it(tmp_path: Path) -> None:
    if find_spec("tensorboard") is None:
        pytest.skip("tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-not-found]

    with FileWriter(tmp_path) as writer:
        for step in range(5):
            writer.add_scalar("loss", 1 / (step + 1), step)
        writer.add_histogram("weights", np.linspace(-1, 1, 100), 4)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(s, np.float32(1 / (s + 1))) for s in range(5)]
    (histogram,) = events.Histograms("weights")
    assert (histogram.step, histogram.histogram_value.num, sum(histogram.histogram_value.bucket)) == (4, 100, 100)
