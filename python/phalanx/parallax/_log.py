"""Parallax's logger."""

from __future__ import annotations

import logging
import os
import sys

#: ``PARALLAX``; its level is the number in ``PARALLAX_LOG_LEVEL``, or INFO.
log = logging.getLogger("PARALLAX")


def _set_up() -> None:
    given = os.environ.get("PARALLAX_LOG_LEVEL", "").strip()
    log.setLevel(int(given) if given.isdigit() else logging.INFO)
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("PARALLAX %(levelname)s: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
    if given and not given.isdigit():
        log.warning("PARALLAX_LOG_LEVEL=%s is not a number such as 10, 20 or 30; it is INFO (20)", given)


_set_up()

__all__ = ["log"]
