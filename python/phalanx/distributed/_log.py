"""Lines for people, of sessions and evaluators."""

from __future__ import annotations

import json
import logging
import sys

from phalanx import _phalanx

LOGGER = logging.getLogger("phalanx.session")


def log(line: str) -> None:
    """A line for people: to the program's logging if it has set it up, else to the standard error output."""
    if LOGGER.hasHandlers():
        LOGGER.info(line)
    else:
        print(line, file=sys.stderr, flush=True)


def warn(line: str) -> None:
    """The same for what a person has to know, also if the program's logging shows warnings only."""
    if LOGGER.hasHandlers():
        LOGGER.warning(line)
    else:
        print(line, file=sys.stderr, flush=True)


def tell(found: _phalanx.RestoredFrom, is_chief: bool) -> int:
    """Prints where a training goes on; the steps that it has."""
    about, where, skipped, _ = found
    step = json.loads(about)["step"]
    if is_chief:
        for one in skipped:
            log(f"a checkpoint is not whole and was skipped: {one}")
        log(f"training goes on after step {step}, from {where}")
    return int(step)


__all__ = ["log", "tell", "warn"]
