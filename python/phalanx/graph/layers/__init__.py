"""Layers: the functions that build programs, with Paddle's names and defaults.

>>> from phalanx import graph
>>> with graph.program_guard(graph.Program(), graph.Program()):
...     image = graph.layers.data("image", [1, 28, 28])
...     hidden = graph.layers.conv2d(image, num_filters=6, filter_size=5, act="relu")
...     graph.layers.pool2d(hidden, pool_size=2, pool_stride=2).shape
(-1, 6, 12, 12)
"""

from __future__ import annotations

from phalanx.graph.layers.arithmetic import *  # noqa: F403
from phalanx.graph.layers.control import *  # noqa: F403
from phalanx.graph.layers.learning_rate import *  # noqa: F403
from phalanx.graph.layers.loss import *  # noqa: F403
from phalanx.graph.layers.network import *  # noqa: F403
from phalanx.graph.layers.readers import *  # noqa: F403
from phalanx.graph.layers.sequence import *  # noqa: F403
from phalanx.graph.layers.shaping import *  # noqa: F403
