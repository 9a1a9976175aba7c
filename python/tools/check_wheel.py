"""Tries out the installed package: ``check_wheel.py numpy`` or ``check_wheel.py torch``, with the Python it is installed for.

Imports it, then starts itself as a world of two under the ``phalanx`` that stands beside that Python.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path


def with_numpy() -> None:
    """One rank that has numpy only."""
    import numpy

    import phalanx.numpy as pn

    pn.init()
    total = pn.allreduce(numpy.full(3, pn.rank() + 1.0), op=pn.Sum)
    assert pn.size() == 2 and total.tolist() == [3.0, 3.0, 3.0], (pn.size(), total)
    assert "torch" not in sys.modules


def with_torch() -> None:
    """One rank with torch, by Horovod's names."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    total = hvd.allreduce(torch.full((3,), hvd.rank() + 1.0), op=hvd.Sum)
    assert hvd.size() == 2 and total.tolist() == [3.0, 3.0, 3.0], (hvd.size(), total)


RANKS = {"numpy": with_numpy, "torch": with_torch}


def main(what: str) -> None:
    import phalanx

    assert phalanx.__version__ == version("phalanx"), (phalanx.__version__, version("phalanx"))
    assert version("phalanx-horovod") == version("phalanx")
    command = [Path(sys.executable).with_name("phalanx"), "run", "-np", "2", "--timeout", "60"]
    subprocess.run([*command, sys.executable, __file__, "rank", what], check=True, timeout=120)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        RANKS[sys.argv[2]]()
    else:
        main(sys.argv[1])
