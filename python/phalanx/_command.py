"""The ``phalanx`` command as a console script: the launcher is compiled into the package."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """Runs the launcher with the arguments of this process."""
    from phalanx._phalanx import run_command

    # Python's handler would only remember the signal; the launcher has its own.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = run_command(_itself(), sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _itself() -> Path:
    """The path of this command, to start it again on this host and, by default, on other hosts."""
    script = Path(sys.argv[0])
    if script.suffix != ".py" and os.access(script, os.X_OK):
        return script.absolute()
    beside = Path(sys.executable).with_name("phalanx")
    if os.access(beside, os.X_OK):
        return beside
    return Path(shutil.which("phalanx") or beside)
