"""What sessions tell people, in the process of a test or on a rank."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heard(level: int = logging.INFO) -> Iterator[list[str]]:
    """The lines that are told within it, if the program's logging shows this level."""
    lines: list[str] = []
    logger, handler = logging.getLogger("phalanx.session"), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
