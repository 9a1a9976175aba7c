"""Gradients of collectives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from phalanx import _phalanx
from phalanx._options import Options
from phalanx.exceptions import UnsupportedError
from phalanx.reductions import Average, Sum
from phalanx.torch import _submit
from phalanx.torch._handles import synchronize


def is_wanted(*tensors: torch.Tensor) -> bool:
    """Whether autograd will compute the gradient."""
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def refuse_in_place(tensors: Iterable[torch.Tensor], leaves: bool = True) -> None:
    """Refuses tensors that require grad: autograd does not see a change in place and would compute wrong gradients."""
    for tensor in tensors:
        if is_wanted(tensor) and (leaves or not tensor.is_leaf):
            raise ValueError(
                "a tensor that requires grad cannot be changed in place, because autograd does not see it: use the form without "
                "the final underscore, which can be differentiated, or tensor.detach(), or call it in torch.no_grad()"
            )


def _list(result: torch.Tensor | list[torch.Tensor]) -> list[torch.Tensor]:
    return result if isinstance(result, list) else [result]


class Reduce(torch.autograd.Function):
    """The gradient is reduced as the tensors were."""

    @staticmethod
    def forward(ctx: Any, options: Options, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.options = options
        return tuple(_list(synchronize(_submit.reduce(tensors, options, in_place=False))))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if ctx.options.op not in (Average, Sum):
            raise UnsupportedError(
                "only sums and averages over ranks can be differentiated: use op=Sum or op=Average, or detach the tensor"
            )
        contiguous = [g.contiguous() for g in gradients]
        return None, *_list(synchronize(_submit.reduce(contiguous, ctx.options.of("grad"), in_place=False)))


class Gather(torch.autograd.Function):
    """The gradient is averaged, and each rank takes the rows that were its own."""

    @staticmethod
    def forward(ctx: Any, options: Options, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.options, ctx.rows = options, [t.shape[0] if t.dim() else 0 for t in tensors]
        return tuple(_list(synchronize(_submit.gather(tensors, options))))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        options: Options = ctx.options.of("grad")
        own = [torch.tensor([rows]) for rows in ctx.rows]
        rows_of_all = _list(synchronize(_submit.gather(own, options)))
        contiguous = [g.contiguous() for g in gradients]
        reduced = _list(synchronize(_submit.reduce(contiguous, options.but(op=Average), in_place=False)))
        me = options.process_set.ranks.index(_phalanx.place()[0])
        slices = [
            gradient.narrow(0, int(rows[:me].sum()), int(rows[me]))
            for gradient, rows in zip(reduced, rows_of_all, strict=True)
        ]
        return None, *slices


class Broadcast(torch.autograd.Function):
    """The gradient is averaged for the root; the others' inputs had no influence."""

    @staticmethod
    def forward(ctx: Any, options: Options, root_rank: int, tensor: torch.Tensor) -> torch.Tensor:
        ctx.options, ctx.root = options, root_rank
        result: torch.Tensor = synchronize(_submit.broadcast(tensor, root_rank, options, in_place=False))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        options = ctx.options.of("grad").but(op=Average)
        reduced = synchronize(_submit.reduce([gradient.contiguous()], options, in_place=False))
        return None, None, reduced if _phalanx.place()[0] == ctx.root else reduced * 0


class Alltoall(torch.autograd.Function):
    """The gradient goes back the way the rows came."""

    @staticmethod
    def forward(
        ctx: Any, options: Options, splits: Any, tensor: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.options = options
        output, received = synchronize(_submit.alltoall(tensor, splits, options))
        ctx.received, ctx.rows = received.cpu(), tensor.shape[0]
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _received: Any) -> Any:
        back, _ = synchronize(_submit.alltoall(gradient.contiguous(), ctx.received, ctx.options.of("grad")))
        if back.shape[0] < ctx.rows:
            # Rows that nobody was sent.
            back = torch.cat([back, back.new_zeros(ctx.rows - back.shape[0], *back.shape[1:])])
        return None, None, back


class Scatter(torch.autograd.Function):
    """The gradient of every share is gathered, as large as the reduction made it."""

    @staticmethod
    def forward(ctx: Any, options: Options, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.options = options
        return tuple(_list(synchronize(_submit.scatter(tensors, options))))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        options: Options = ctx.options
        n_ranks = len(options.process_set.ranks) if options.op == Sum else 1
        factor = n_ranks * options.prescale * options.postscale
        scaled = [(g * factor).contiguous() for g in gradients]
        plain = Options(options.name, options.process_set, options.grouped).of("grad")
        return None, *_list(synchronize(_submit.gather(scaled, plain)))
