"""The reductions, with Horovod's numbers."""

from __future__ import annotations

Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum"]
