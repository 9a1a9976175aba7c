"""A whole training in one object, after TensorLayer's ``Trainer``: data are divided among ranks, the learning rate follows their number,
checkpoints are kept, and metrics cover all samples of all ranks.

>>> import torch
>>> import phalanx.torch as hvd
>>> from phalanx import data
>>> def build():
...     model = torch.nn.Linear(2, 1)
...     return model, lambda batch: (model(torch.as_tensor(batch).float()) ** 2).mean()
>>> samples = data.from_list([[1.0, 2.0]] * 24)
>>> trainer = hvd.Trainer(samples, build, torch.optim.SGD, {"lr": 0.1}, batch_size=4, num_epochs=2, log_step_size=None)
>>> trainer.train_and_validate_to_end()
>>> trainer.global_step
12
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from phalanx.distributed._training import Recipe, Training
from phalanx.torch.optimizer import DistributedOptimizer
from phalanx.torch.session import Session
from phalanx.torch.session import _numbers as numbers_of


class Trainer(Training):
    """Trains a model with all ranks until the data end or ``max_iteration`` is reached.

    ``training_dataset`` is a ``phalanx.data.Dataset`` of samples; every rank reads its shard in batches of ``batch_size``, for
    ``num_epochs`` epochs. ``build_training_func()`` returns the model and a function that computes the mean loss of a batch, or the loss
    and a dict of numbers for hooks. ``optimizer`` is a class of ``torch.optim``, made with ``optimizer_args``, which are not changed.

    ``scaling_learning_rate``: ``True`` multiplies the rate by the number of ranks, ``"sqrt"`` by its root, ``False`` leaves it.
    ``warmup_steps``: the rate rises from that of one rank to the scaled one. ``max_iteration`` counts batches of all ranks together:
    a step of n ranks takes n of them, so training ends after ``max_iteration // n`` steps; a number below n is refused. ``log_step_size``:
    how often rank 0 prints its loss; ``None``: never.

    A step learns the mean over the samples of all ranks. Ranks whose shard is shorter take part without samples until the last one has
    ended. ``validation_dataset`` and ``build_validation_func(batch)``, which returns means of a batch by name, give
    :attr:`validation_metrics`: means over all samples of all ranks.

    With ``shuffle_buffer`` each sample is chosen among the next ones of the whole data set, as ``Dataset.shuffle`` does. A training that
    is resumed from ``checkpoint_dir`` goes on with the next sample, also with another number of ranks.

    All ranks give the same arguments. :meth:`train_and_validate_to_end` trains and saves; who calls :meth:`train_on_batch` writes ``with
    trainer:`` around it, or calls :meth:`close` at the end.
    """

    _rate_key = "lr"
    session: Session
    training_network: torch.nn.Module

    def _build(self, recipe: Recipe) -> Any:
        self.training_network, self._loss = recipe.training()
        self._evaluate_batch = recipe.validation
        args = {**recipe.optimizer_args, "lr": self._rates.scaled(self._size)}
        made = recipe.optimizer(self.training_network.parameters(), **args)
        self._optimizer = DistributedOptimizer(made, self.training_network.named_parameters())
        return ["loss"]

    def _begun(self, **options: Any) -> Session:
        return _TrainerSession(self, [self._batches], **options)

    def _step(self, batch: Any, counts: list[int]) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate
        self.session.run(self._learn, batch, counts)

    def _learn(self, batch: Any, counts: list[int]) -> Mapping[str, Any]:
        self._optimizer.zero_grad()
        numbers: dict[str, Any] = {}
        if batch is not None:
            result = self._loss(batch)
            loss, numbers = result if isinstance(result, tuple) else (result, {})
            # The optimizer averages over ranks; samples are to count alike.
            share = counts[self._rank] * self._size / sum(counts)
            (loss if share == 1.0 else loss * share).backward()
            numbers = {"loss": loss, **numbers}
        self._optimizer.step()
        return numbers if all(counts) else self._numbers_of_step(numbers_of(numbers), counts)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        was_training = self.training_network.training
        self.training_network.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.training_network.train(was_training)

    def _evaluate(self, batch: Any) -> Mapping[str, Any]:
        assert self._evaluate_batch is not None, "there is a validation"
        numbers: Mapping[str, Any] = self._evaluate_batch(batch)
        return numbers


class _TrainerSession(Session):
    """A session whose learning rate is set by the trainer."""

    def __init__(self, trainer: Trainer, state: list[Any], **options: Any) -> None:
        self._trainer = trainer
        super().__init__(trainer.training_network, trainer._optimizer, state, **options)

    def _settings_now(self, step: int) -> dict[str, Any]:
        # Before the first step the optimizer has the rate that it was made with.
        trainer = self._trainer
        return {"lr": trainer._rate_of(step) if step > 0 else trainer._rates.scaled(trainer._size)}


__all__ = ["Trainer"]
