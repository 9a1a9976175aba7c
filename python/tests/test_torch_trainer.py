"""Trainers: data are divided, rates scaled, uneven shards end, metrics are those of one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks

import phalanx.torch as hvd
from phalanx import data


def samples(n: int) -> data.Dataset[Any]:
    x = np.arange(n * 3, dtype=np.float32).reshape(n, 3) / (n * 3)
    return data.from_list([(row, row.sum() * 2) for row in x])


def build() -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(3)
    model = torch.nn.Linear(3, 1)

    def loss(batch: Any) -> Any:
        x, y = batch
        error = (model(torch.as_tensor(x)).squeeze(1) - torch.as_tensor(y)) ** 2
        return error.mean(), {"worst": error.max()}

    return model, loss


def trained(n: int, options: dict[str, Any]) -> tuple[int, list[float], dict[str, float]]:
    seen: list[float] = []
    args = {"lr": 0.1, "momentum": 0.5}
    validation: dict[str, Any] = {}
    trainer: hvd.Trainer

    def validate(batch: Any) -> dict[str, Any]:
        x, y = batch
        error = (trainer.training_network(torch.as_tensor(x)).squeeze(1) - torch.as_tensor(y)).abs()
        return {"error": error.mean()}

    validation = {"validation_dataset": samples(11), "build_validation_func": validate}
    trainer = hvd.Trainer(
        samples(n), build, torch.optim.SGD, args, batch_size=2, log_step_size=None, **validation, **options
    )
    step = trainer._optimizer.step
    trainer._optimizer.step = lambda *a: (seen.append(trainer._optimizer.param_groups[0]["lr"]), step(*a))[1]
    trainer.train_and_validate_to_end(validate_step_size=3)
    assert args == {"lr": 0.1, "momentum": 0.5}, "arguments are never changed"
    assert trainer.training_network.training
    whole = [validate((np.stack([x]), np.array([y])))["error"].item() for x, y in samples(11)]
    assert trainer.validation_metrics["error"] == pytest.approx(np.mean(whole), rel=1e-5), "the value of one process"
    hvd.check_equal(trainer._optimizer)
    return trainer.global_step, seen, trainer.validation_metrics


@pytest.mark.parametrize("samples_of_all", [13, 12, 1])
def test_uneven_shards_end_together(n: int, samples_of_all: int) -> None:
    """7 and 6 samples with two ranks; one sample leaves the others with none."""
    ends = run_ranks(n, trained, samples_of_all, {"num_epochs": 2})
    longest = -(-samples_of_all // n)
    assert {steps for steps, _, _ in ends} == {2 * -(-longest // 2)}
    assert all(metrics == ends[0][2] for _, _, metrics in ends)


def test_rates_follow_the_number_of_ranks(n: int) -> None:
    for scaling, factor in ((True, n), ("sqrt", n**0.5), (False, 1)):
        for steps, rates, _ in run_ranks(n, trained, 12, {"num_epochs": 1, "scaling_learning_rate": scaling}):
            assert rates == pytest.approx([0.1 * factor] * steps)


def test_warm_up_rises_to_the_scaled_rate(n: int) -> None:
    for _, rates, _ in run_ranks(n, trained, 24, {"num_epochs": 1, "warmup_steps": 2}):
        assert rates[:3] == pytest.approx([0.1, (0.1 + 0.1 * n) / 2, 0.1 * n])


def test_iterations_are_divided_among_ranks(n: int) -> None:
    assert {steps for steps, _, _ in run_ranks(n, trained, 40, {"num_epochs": None, "max_iteration": 4 * n})} == {4}


def resumed(folder: str, last: int) -> tuple[int, int, list[float]]:
    trainer = hvd.Trainer(
        samples(24), build, torch.optim.SGD, {"lr": 0.1}, 2, checkpoint_dir=folder, log_step_size=None,
        max_iteration=last * hvd.size(), shuffle_buffer=8,
    )  # fmt: skip
    begun = trainer.global_step
    trainer.train_and_validate_to_end()
    return begun, trainer.global_step, trainer.training_network.weight.flatten().tolist()  # type: ignore[union-attr]


def test_a_trainer_goes_on_where_the_last_one_ended(n: int, tmp_path: Any) -> None:
    whole = run_ranks(n, resumed, str(tmp_path / "whole"), 9)
    run_ranks(n, resumed, str(tmp_path / "parts"), 4)
    parts = run_ranks(n, resumed, str(tmp_path / "parts"), 9)
    assert [one[:2] for one in parts] == [(4, 9)] * n
    assert [one[2] for one in parts] == [one[2] for one in whole]


def refused() -> list[str]:
    texts = []
    for options in (
        {"scaling_learning_rate": "cubic"},
        {"validation_dataset": samples(3)},
        {"optimizer_args": {}},
        {"training_dataset": [1, 2]},
        {"warmup_steps": -1},
    ):
        given: dict[str, Any] = {
            "training_dataset": samples(4),
            "build_training_func": build,
            "optimizer": torch.optim.SGD,
            "optimizer_args": {"lr": 1.0},
            **options,
        }
        with pytest.raises((ValueError, TypeError)) as why:
            hvd.Trainer(**given)
        texts.append(str(why.value))
    trainer = hvd.Trainer(samples(4), build, torch.optim.SGD, {"lr": 1.0}, log_step_size=None)
    with pytest.raises(AttributeError, match="validation is not set up"):
        trainer.validation_metrics  # noqa: B018
    trainer.session.close()
    return texts


def test_what_cannot_act_is_refused() -> None:
    texts = run_ranks(1, refused)[0]
    for text, word in zip(texts, ["sqrt", "or neither", "lr", "from_list", "warmup_steps"], strict=True):
        assert word in text
