"""Layers: the functions that build programs, with Paddle's names and defaults.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program(), graph.Program()):
...     image = graph.layers.data("image", [1, 28, 28])
...     hidden = graph.layers.conv2d(image, num_filters=6, filter_size=5, act="relu")
...     graph.layers.pool2d(hidden, pool_size=2, pool_stride=2).shape
(-1, 6, 12, 12)
"""

from __future__ import annotations

import difflib
import sys
from typing import NoReturn

from phalanx.graph.layers import device as device
from phalanx.graph.layers.arithmetic import *  # noqa: F403
from phalanx.graph.layers.composed import *  # noqa: F403
from phalanx.graph.layers.control import *  # noqa: F403
from phalanx.graph.layers.functions import *  # noqa: F403
from phalanx.graph.layers.images import *  # noqa: F403
from phalanx.graph.layers.learning_rate import *  # noqa: F403
from phalanx.graph.layers.loss import *  # noqa: F403
from phalanx.graph.layers.network import *  # noqa: F403
from phalanx.graph.layers.readers import *  # noqa: F403
from phalanx.graph.layers.sequence import *  # noqa: F403
from phalanx.graph.layers.shaping import *  # noqa: F403

_IN_PLACE = "variables are not changed in place"
_ARRAYS = f"{_IN_PLACE}; concat or stack what a loop carries, or use lstm layers for sequences"
_REFUSED = {
    "While": f"{_IN_PLACE}: use while_loop(cond, body, loop_vars, maximum_trip_count=…)",
    "StaticRNN": f"{_IN_PLACE}: use dynamic_lstm or dynamic_gru, or while_loop",
    "DynamicRNN": f"{_IN_PLACE}: use dynamic_lstm or dynamic_gru, or while_loop",
    "IfElse": f"{_IN_PLACE}: use cond(pred, true_fn, false_fn), or where(condition, x, y) for single elements",
    "Switch": f"{_IN_PLACE}: use case([(pred, fn), …], default), or piecewise_decay for learning rates",
    "array_write": _ARRAYS,
    "array_read": _ARRAYS,
    "array_length": _ARRAYS,
    "create_array": _ARRAYS,
    "lod_rank_table": "sequences are padded and have lengths beside them; use sequence_mask",
}


# Paddle's modules within ``layers``: their functions are all here.
control_flow = learning_rate_scheduler = metric_op = nn = ops = rnn = sequence_lod = tensor = sys.modules[__name__]


def __getattr__(name: str) -> NoReturn:
    """Says what to write for names of Paddle's that programs here cannot have."""
    remedy = f": {_REFUSED[name]}" if name in _REFUSED else ""
    near = difflib.get_close_matches(name, [n for n in globals() if not n.startswith("_")], n=1, cutoff=0.75)
    if near and not remedy:
        remedy = f"; did you mean {near[0]!r}?"
    raise AttributeError(f"phalanx.graph.layers has no {name!r}{remedy}")
