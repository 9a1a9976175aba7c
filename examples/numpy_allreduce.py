"""Numbers of all ranks as one.

phalanx run -np 4 python examples/numpy_allreduce.py
"""

import numpy as np

import phalanx.numpy as pn

pn.init()
mine = np.arange(4.0) * (pn.rank() + 1)
total = pn.allreduce(mine, op=pn.Sum)
everybody = pn.allgather(mine.reshape(1, -1))
assert np.array_equal(total, everybody.sum(axis=0))
if pn.rank() == 0:
    print(f"{pn.size()} ranks, together {total}")
