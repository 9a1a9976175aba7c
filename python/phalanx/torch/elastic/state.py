"""The state of a training: models, optimizers and samplers have handlers that save them; anything else is pickled."""

from __future__ import annotations

import copy
from typing import Any

import torch

from phalanx import _world
from phalanx.elastic import ObjectState
from phalanx.objects import broadcast_object
from phalanx.torch.elastic.sampler import ElasticSampler
from phalanx.torch.functions import broadcast_optimizer_state, broadcast_parameters


class StateHandler:
    """How one kind of value is saved, restored and made equal on all ranks."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Saves the current value."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restores the saved state."""
        raise NotImplementedError

    def sync(self) -> None:
        """Takes rank 0's value."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Replaces the value; the new one is what will be restored."""
        self.value = value
        self.save()


class _DictHandler(StateHandler):
    """For values with ``state_dict()``."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # A copy: optimizers go on in the very tensors that they load.
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_DictHandler):
    """Models: their parameters and buffers."""

    def sync(self) -> None:
        """Takes rank 0's value."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(_DictHandler):
    """Optimizers: their state and options."""

    def restore(self) -> None:
        """Restores the saved state."""
        super().restore()
        # Gradients may be those of a step that failed halfway.
        self.value.zero_grad()

    def sync(self) -> None:
        """Takes rank 0's value."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(_DictHandler):
    """Samplers and other values with a small ``state_dict()``: their position."""

    def sync(self) -> None:
        """Takes rank 0's value."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), root_rank=0))
        self.save()


_handler_registry: list[tuple[type, type[StateHandler]]] = [
    (ElasticSampler, SamplerStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.nn.Module, ModelStateHandler),
    # As objects they would bring along copies of the optimizer that they belong to.
    (torch.optim.lr_scheduler.LRScheduler, SamplerStateHandler),
    (torch.amp.GradScaler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Which values get which handler; the first match is used."""
    return _handler_registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replaces the list for states that are made later."""
    global _handler_registry
    _handler_registry = registry


def _handler(value: Any) -> StateHandler | None:
    fitting = (handler for kind, handler in _handler_registry if isinstance(value, kind))
    kind = next(fitting, None)
    return None if kind is None else kind(value)


class TorchState(ObjectState):
    """A state whose attributes are a model, an optimizer, and any other objects.

    >>> import torch
    >>> import phalanx.torch as hvd
    >>> hvd.init()
    >>> model = torch.nn.Linear(1, 1)
    >>> state = hvd.elastic.TorchState(model, batch=0)
    >>> before = model.weight.item()
    >>> state.batch = 7
    >>> with torch.no_grad(): _ = model.weight.add_(1)
    >>> state.restore()
    >>> state.batch, model.weight.item() == before
    (0, True)
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        if model is not None:
            kwargs["model"] = model
        if optimizer is not None:
            kwargs["optimizer"] = optimizer
        handlers = {name: _handler(value) for name, value in kwargs.items()}
        self._handlers = {name: handler for name, handler in handlers.items() if handler is not None}
        for name, handler in self._handlers.items():
            super().__setattr__(name, handler.value)
        plain = {name: value for name, value in kwargs.items() if name not in self._handlers}
        super().__init__(broadcast_object, _world.rank, **plain)

    def save(self) -> None:
        """Saves the current state."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Restores the saved state."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Takes rank 0's value."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Lets samplers divide the data among the current ranks."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None:
            handler.set_value(value)
        super().__setattr__(name, value)


__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]
