"""Converts torch tensors to memory for the engine, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from phalanx import _phalanx

_NAMES = ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool"]
CODES: dict[torch.dtype, int] = {getattr(torch, name): code for code, name in enumerate(_NAMES) if hasattr(torch, name)}
_increment_version = getattr(torch.autograd.graph, "increment_version", None)


def check(tensor: torch.Tensor) -> None:
    """Refuses what cannot be communicated."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"expected a torch.Tensor, not a {type(tensor).__name__}: torch.as_tensor() makes one")
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"expected a dense tensor, not {tensor.layout}: use sparse_allreduce_async or tensor.to_dense()"
        )
    if tensor.dtype not in CODES:
        raise ValueError(f"tensors of {tensor.dtype} are not supported: convert the tensor with .to() first")
    if tensor.device.type == "meta":
        raise ValueError("a tensor on the meta device has no elements to send: give it memory with to_empty()")


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if its memory is the CPU's and in one piece, else a copy that is."""
    if tensor.device.type == "cpu":
        return tensor.detach().contiguous() if not tensor.is_contiguous() else tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
    return host.copy_(tensor.detach())


def host_like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory of the CPU, in one piece, for a result like this tensor."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")


def lend(tensor: torch.Tensor) -> tuple[int, int, Sequence[int], torch.Tensor]:
    """The memory of a contiguous tensor on the CPU, kept alive by the tensor."""
    return tensor.data_ptr(), CODES[tensor.dtype], tensor.shape, tensor


def device_of(tensor: torch.Tensor) -> int:
    """-1 for the CPU."""
    if tensor.device.type == "cpu":
        return -1
    return tensor.device.index or 0


def back(host: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Copies a result from `host` into `tensor`."""
    if host is not tensor:
        with torch.no_grad():
            tensor.copy_(host)
    elif _increment_version is not None and not tensor.is_inference():
        # Autograd shall notice that the values it may have saved are not these.
        _increment_version(tensor)
    return tensor


def taken(array: _phalanx.Array, device: torch.device) -> torch.Tensor:
    """A result whose memory the engine made."""
    tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(array)
    return tensor.to(device)
