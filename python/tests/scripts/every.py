"""Runs the scripts beside it one after the other, each as if it were started alone; so that torch is imported once."""

import runpy
import sys
from pathlib import Path

for name in ("mnist.py", "imagenet.py", "synthetic.py"):
    script = str(Path(__file__).with_name(name))
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")
