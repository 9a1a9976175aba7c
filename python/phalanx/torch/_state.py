"""The state of a training with torch as tensors and plain values, which a checkpoint holds without pickling.

>>> import torch
>>> tensors: list[tuple[str, torch.Tensor]] = []
>>> form = hollow({0: {"step": torch.ones(1), "betas": (0.5, 0.9)}}, "optimizer", tensors)
>>> form
{'$dict': [[0, {'step': {'$tensor': 'optimizer.0.step'}, 'betas': {'$tuple': [0.5, 0.9]}}]]}
>>> filled(form, dict(tensors))
{0: {'step': tensor([1.]), 'betas': (0.5, 0.9)}}
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Sequence
from typing import Any

import torch

from phalanx import _phalanx
from phalanx.distributed import _plain
from phalanx.distributed._plain import filled as filled
from phalanx.torch._memory import CODES, back, lend, on_host

_PYTHON = struct.Struct("<625I?d")
_NUMPY = struct.Struct("<624IiQd")


def hollow(value: Any, name: str, tensors: list[tuple[str, torch.Tensor]]) -> Any:
    """The value as JSON, with names instead of tensors, which are appended to the list."""

    def named(value: Any, name: str) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        if value.dtype not in CODES or value.layout is not torch.strided:
            raise TypeError(f"{name} cannot be saved: it is a tensor of {value.dtype}, {value.layout}")
        tensors.append((name, value.detach()))
        return {"$tensor": name}

    return _plain.hollow(value, name, named, f"tensors, {_plain.PLAIN}")


def has_values(form: Any) -> bool:
    """Whether there is anything but tensors in it."""
    if isinstance(form, dict):
        return "$tensor" not in form and any(has_values(one) for one in form.values())
    return True


class InPlace:
    """Tensors as a checkpoint reads and writes them: their own memory if that is possible, else a copy."""

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]], owner: int | None = None) -> None:
        self._all = [(name, tensor, on_host(tensor)) for name, tensor in named]
        self.lent: list[_phalanx.NamedTensor] = [(name, lend(host), owner) for name, _, host in self._all]

    def written(self) -> None:
        """What was written becomes visible: copies are copied back, and autograd notices it."""
        for _, tensor, host in self._all:
            if host is not tensor and host.data_ptr() != tensor.data_ptr():
                with torch.no_grad():
                    tensor.copy_(host)
            else:
                back(tensor, tensor)


def random_state(rank: int) -> list[tuple[str, torch.Tensor]]:
    """This rank's random numbers: torch's, Python's, and numpy's if it is used."""
    _, words, gauss = random.getstate()
    python = _PYTHON.pack(*words, gauss is not None, gauss or 0.0)
    made = [("torch", torch.get_rng_state()), ("python", _bytes(python))]
    if torch.cuda.is_available():
        made.append(("cuda", torch.cuda.get_rng_state()))
    if "numpy" in sys.modules:
        kind, keys, at, has_gauss, cached = sys.modules["numpy"].random.get_state()
        if kind == "MT19937":
            made.append(("numpy", _bytes(_NUMPY.pack(*keys.tolist(), at, has_gauss, cached))))
    return [(f"random.{rank}.{name}", tensor) for name, tensor in made]


def set_random_state(named: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Sets what :func:`random_state` has given."""
    for name, tensor in named:
        kind = name.rsplit(".", 1)[1]
        if kind == "torch":
            torch.set_rng_state(tensor)
        elif kind == "cuda":
            torch.cuda.set_rng_state(tensor)
        elif kind == "python":
            *words, has_gauss, gauss = _PYTHON.unpack(bytes(tensor.tolist()))
            random.setstate((3, tuple(words), gauss if has_gauss else None))
        else:
            *keys, at, has_numpy, cached = _NUMPY.unpack(bytes(tensor.tolist()))
            sys.modules["numpy"].random.set_state(("MT19937", keys, at, has_numpy, cached))


def _bytes(packed: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


def taken_over(made: Sequence[tuple[str, _phalanx.Array]]) -> dict[str, torch.Tensor]:
    """Tensors of torch's own memory."""
    return {name: torch.utils.dlpack.from_dlpack(array).clone() for name, array in made}


def model_state(model: Any) -> tuple[Any, list[tuple[str, torch.Tensor]]]:
    """The form of a model's state, and its tensors, which share the model's memory."""
    tensors: list[tuple[str, torch.Tensor]] = []
    return hollow(model.state_dict(), "model", tensors), tensors


def load_model(found: _phalanx.CheckpointFile, model: Any, strictness: str) -> list[str]:
    """Loads a checkpoint's parameters into a model; with "partial", the names of what was left."""
    _, tensors = model_state(model)
    memory = InPlace(tensors)
    left, _ = found.load(memory.lent, [], strictness)
    memory.written()
    return [] if strictness == "subset" else left
