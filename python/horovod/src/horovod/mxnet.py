"""Not supported: importing it is an error."""

from __future__ import annotations

raise ImportError(
    "horovod.mxnet: PyTorch, TensorFlow and Keras are supported; docs/from-horovod.md of Phalanx lists what is missing"
)
