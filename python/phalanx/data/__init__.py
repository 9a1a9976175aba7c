"""Data for training: which samples a rank gets, and pipelines from files to batches.

:class:`Sampler` divides numbered samples among ranks. :class:`Dataset` reads elements one after the other; ``shard`` it
before anything random, so that ranks get different elements.

>>> numbers = from_list(range(10)).shard(2, 1).map(lambda n: n * n).batch(2)
>>> list(numbers)
[[1, 9], [25, 49], [81]]
"""

from __future__ import annotations

from phalanx.data._arrays import from_idx, from_npy
from phalanx.data._files import TextLineDataset, list_files
from phalanx.data.dataset import Dataset, DatasetIterator, from_list
from phalanx.data.errors import DataError, OutOfRangeError
from phalanx.data.sampler import Sampler

__all__ = [
    "DataError",
    "Dataset",
    "DatasetIterator",
    "OutOfRangeError",
    "Sampler",
    "TextLineDataset",
    "from_idx",
    "from_list",
    "from_npy",
    "list_files",
]
