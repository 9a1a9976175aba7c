"""How the oracles write down tensors, and what a function of some of them gives."""

from collections.abc import Callable

import torch


def rounded(*shape: int) -> torch.Tensor:
    """Few digits, so that the file is small and exact."""
    return (torch.round(torch.randn(shape) * 1000) / 1000).requires_grad_()


def listed(named: dict[str, torch.Tensor]) -> dict[str, object]:
    """Shapes and elements."""
    return {k: {"dims": list(v.shape), "data": v.detach().flatten().tolist()} for k, v in named.items()}


def case(
    start: dict[str, torch.Tensor], run: Callable[[], torch.Tensor], *, with_zeros: bool = False
) -> dict[str, object]:
    """What is computed, and gradients of its elements weighed 0.1, 0.2, and so on.

    What it does not depend on has zeros, or nothing.
    """
    out = run()
    weights = torch.arange(1, out.numel() + 1).reshape(out.shape) / 10
    (out * weights).sum().backward()
    zeros = {k: torch.zeros_like(v) for k, v in start.items() if with_zeros}
    grads = {**zeros, **{k: v.grad for k, v in start.items() if v.grad is not None}}
    return {"start": listed(start), "out": listed({"out": out})["out"], "grads": listed(grads)}
