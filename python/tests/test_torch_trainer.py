"""Trainers: data are divided, rates scaled, uneven shards end, metrics are those of one process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from heard import heard
from ranks import run_ranks
from regression import WEIGHT, check_resumes, check_resumes_elsewhere, joint, samples, serial

import phalanx.torch as hvd
from phalanx import data
from phalanx.data import DataError
from phalanx.distributed import NanTensorHook, StopAtStepHook
from phalanx.exceptions import MismatchError, PhalanxError, SessionError


def build() -> tuple[torch.nn.Module, Any]:
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.constant_(model.weight, WEIGHT)

    def loss(batch: Any) -> Any:
        x, y = batch
        error = (model(torch.as_tensor(x)).squeeze(1) - torch.as_tensor(y)) ** 2
        return error.mean(), {"worst": error.max()}

    return model, loss


def weight(trainer: hvd.Trainer) -> list[float]:
    found: list[float] = trainer.training_network.weight.flatten().tolist()  # type: ignore[operator, union-attr]
    return found


def trained(n: int, options: dict[str, Any]) -> tuple[int, list[float], dict[str, float], list[float]]:
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
    return trainer.global_step, seen, trainer.validation_metrics, weight(trainer)


@pytest.mark.parametrize("samples_of_all", [17, 15, 12, 1])
def test_uneven_shards_end_together(n: int, samples_of_all: int) -> None:
    """In the last step two ranks have 1 and 0, or 2 and 1 samples; one sample leaves the others with none."""
    ends = run_ranks(n, trained, samples_of_all, {"num_epochs": 2})
    batches = joint(samples_of_all, 2 * n, 2)
    assert {end[0] for end in ends} == {len(batches)}
    assert all(metrics == ends[0][2] for _, _, metrics, _ in ends)
    learned = serial(batches, [0.1 * n] * len(batches), 0.5)
    assert ends[0][3] == pytest.approx(learned, rel=1e-4), "what one process learns from all samples"


def test_rates_follow_the_number_of_ranks(n: int) -> None:
    for scaling, factor in ((True, n), ("sqrt", n**0.5), (False, 1)):
        for steps, rates, *_ in run_ranks(n, trained, 12, {"num_epochs": 1, "scaling_learning_rate": scaling}):
            assert rates == pytest.approx([0.1 * factor] * steps)


def test_warm_up_rises_to_the_scaled_rate(n: int) -> None:
    for _, rates, *_ in run_ranks(n, trained, 24, {"num_epochs": 1, "warmup_steps": 2}):
        assert rates[:3] == pytest.approx([0.1, (0.1 + 0.1 * n) / 2, 0.1 * n])


def test_iterations_are_divided_among_ranks(n: int) -> None:
    assert {end[0] for end in run_ranks(n, trained, 40, {"num_epochs": None, "max_iteration": 4 * n})} == {4}


def resumed(folder: str, last: int, epochs: int, scaling: bool) -> tuple[int, int, list[float]]:
    trainer = hvd.Trainer(
        samples(23), build, torch.optim.SGD, {"lr": 0.1}, 2, checkpoint_dir=folder, log_step_size=None, num_epochs=epochs,
        hooks=[StopAtStepHook(last_step=last)], scaling_learning_rate=scaling, shuffle_buffer=8 if scaling else None,
    )  # fmt: skip
    begun = trainer.global_step
    trainer.train_and_validate_to_end()
    return begun, trainer.global_step, weight(trainer)


def test_a_trainer_goes_on_where_the_last_one_ended(n: int, tmp_path: Path) -> None:
    check_resumes(n, resumed, tmp_path)


def test_another_number_of_ranks_goes_on_with_the_next_sample(tmp_path: Path) -> None:
    # TRAIN-1
    check_resumes_elsewhere(resumed, tmp_path, momentum=0.0)


def watched() -> int:
    """One sample, which rank 0 has; hooks of the other ranks see its loss."""
    trainer = hvd.Trainer(samples(1), build, torch.optim.SGD, {"lr": 0.1}, num_epochs=2, hooks=[NanTensorHook()])
    trainer.train_and_validate_to_end()
    return trainer.global_step


def test_ranks_without_samples_need_no_hooks_of_their_own() -> None:
    assert run_ranks(3, watched) == [2, 2, 2]


def bad_data() -> str:
    """The second sample, which rank 1 has, cannot be read."""

    def checked(pair: Any) -> Any:
        if isinstance(pair, str):
            raise KeyError("no pair")
        return pair

    mixed = data.Dataset([*samples(1), "no pair", *samples(4)]).map(checked)
    trainer = hvd.Trainer(mixed, build, torch.optim.SGD, {"lr": 0.1}, 1, log_step_size=None)
    try:
        trainer.train_and_validate_to_end()
    except (PhalanxError, DataError) as why:
        return f"{type(why).__name__}: {why}"
    return "nothing"


def test_data_that_cannot_be_read_end_all_ranks() -> None:
    assert all("no pair" in said for said in run_ranks(2, bad_data))


def bad_validation() -> str:
    def validate(batch: Any) -> Any:
        return {"half": 0.5} if hvd.rank() == 0 else [0.5]

    trainer = hvd.Trainer(
        samples(4), build, torch.optim.SGD, {"lr": 0.1}, 1, log_step_size=None,
        validation_dataset=samples(4), build_validation_func=validate,
    )  # fmt: skip
    try:
        trainer.train_and_validate_to_end()
    except (SessionError, TypeError) as why:
        return f"{type(why).__name__}: {why}"
    return "nothing"


def test_a_validation_that_fails_is_told_to_all_ranks() -> None:
    other, own = run_ranks(2, bad_validation)
    assert own == "TypeError: validation must give numbers by name, not a list"
    assert other == f"SessionError: validation failed on rank 1: {own}"


def refused() -> list[str]:
    texts = []
    for options in (
        {"scaling_learning_rate": "cubic"},
        {"validation_dataset": samples(3)},
        {"optimizer_args": {}},
        {"training_dataset": [1, 2]},
        {"warmup_steps": -1},
        {"max_iteration": 0},
        {"batch_size": 0},
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
    for text, word in zip(
        texts, ["sqrt", "or neither", "lr", "from_list", "warmup_steps", "max_iteration", "batch_size"], strict=True
    ):
        assert word in text


def made(given: Any = None, **options: Any) -> hvd.Trainer:
    args = {"batch_size": 2, "log_step_size": None, **options}
    return hvd.Trainer(samples(12) if given is None else given, build, torch.optim.SGD, {"lr": 0.1}, **args)


def begun(kind: str) -> str:
    """With arguments that rank 1 alone has."""
    odd = hvd.rank() == 1
    whole = {"validation_dataset": samples(4), "build_validation_func": lambda batch: {"half": 0.5}}
    cases: dict[str, Callable[[], Any]] = {
        "epochs": lambda: made(num_epochs=5 if odd else 3),
        "iterations": lambda: made(max_iteration=8 if odd else 4),
        "validation": lambda: made(**({} if odd else whole)),
        "seed": lambda: made(shuffle_buffer=4, shuffle_seed=int(odd)),
        "steps": lambda: made(**whole).train_and_validate_to_end(2 if odd else 3),
        "sharded": lambda: made(samples(12).shard(hvd.size(), hvd.rank()).map(lambda pair: pair)),
        "few": lambda: made(max_iteration=1),
        "few on one": lambda: made(max_iteration=1 if odd else 4),
    }
    try:
        cases[kind]()
    except (PhalanxError, ValueError) as why:
        ranks = why.ranks if isinstance(why, MismatchError) else ""
        return f"{type(why).__name__} {ranks}: {why}"
    raise AssertionError("it began")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("epochs", "MismatchError (0, 1): num_epochs is 3 on rank 0 and 5 on rank 1: give the trainers of all ranks the same arguments"),
        ("iterations", "MismatchError (0, 1): max_iteration is 4 on rank 0 and 8 on rank 1"),
        ("validation", "MismatchError (0, 1): validation_dataset is 'a data set' on rank 0 and None on rank 1"),
        ("seed", "MismatchError (0, 1): shuffle_seed is 0 on rank 0 and 1 on rank 1"),
        ("steps", "MismatchError (0, 1): validate_step_size is 3 on rank 0 and 2 on rank 1"),
        ("sharded", "ValueError : training_dataset is sharded already (training_dataset.shard(2, 0) on rank 0, "),
        ("few", "ValueError : max_iteration is 1, and a step of 2 ranks takes 2 batches, one of each: give it a number from 2"),
    ],
)
def test_arguments_that_ranks_have_not_alike_are_refused_on_all(kind: str, says: str) -> None:
    first, second = run_ranks(2, begun, kind, fresh=True, deadline_s=60)
    assert first == second and first.startswith(says), (first, second)


def test_an_argument_that_one_rank_alone_refuses_is_told_to_all() -> None:
    other, own = run_ranks(2, begun, "few on one", fresh=True, deadline_s=60)
    assert own.startswith("ValueError : max_iteration is 1") and other.startswith(
        "SessionError : building the trainer failed on rank 1: ValueError: max_iteration is 1"
    )


def divided() -> tuple[int, int]:
    """Every rank has the same part of the data, which the trainer divides; and five batches make two steps of two ranks."""
    trainer = made(samples(12).shard(3, 0), num_epochs=2)
    trainer.train_and_validate_to_end()
    few = made(max_iteration=5)
    few.train_and_validate_to_end()
    return trainer.global_step, few.global_step


def test_a_part_that_all_ranks_have_is_divided_and_iterations_are_batches_of_all_ranks() -> None:
    assert run_ranks(2, divided) == [(2, 2), (2, 2)]


def test_a_data_set_that_has_become_smaller_is_told(tmp_path: Path) -> None:
    hvd.init()
    made(checkpoint_dir=tmp_path, hooks=[StopAtStepHook(last_step=5)], num_epochs=1).train_and_validate_to_end()
    with heard() as lines:
        trainer = made(samples(7), checkpoint_dir=tmp_path, num_epochs=1)
        trainer.train_and_validate_to_end()
    assert trainer.global_step == 5 and trainer.session.stopped is not None
    said = "the training was saved after sample 10 of epoch 0, and training_dataset has 7 samples now: this epoch has no more"
    assert "\n".join(lines).count(said) == 1, lines
    assert trainer.session.stopped.by == "the data", trainer.session.stopped
    with heard() as lines:
        made(samples(10), checkpoint_dir=tmp_path, num_epochs=1).train_and_validate_to_end()
    assert "samples now" not in "".join(lines), "the position is its end"


def test_a_rate_that_differs_is_told_and_counts(tmp_path: Path) -> None:
    hvd.init()
    options: dict[str, Any] = {"checkpoint_dir": tmp_path, "warmup_steps": 4, "num_epochs": 1}
    made(**options, hooks=[StopAtStepHook(last_step=2)]).train_and_validate_to_end()
    text = "lr was 0.1 in the last step, and the trainer's arguments and number of ranks make it 0.3, which counts"
    for rate, says in ((0.1, ""), (0.3, text)):
        with heard() as lines:
            trainer = hvd.Trainer(samples(12), build, torch.optim.SGD, {"lr": rate}, 2, log_step_size=None, **options)
            trainer.close()
        told = "".join(lines)
        assert says in told and ("lr was" in told) == bool(says), lines
        assert trainer.learning_rate == rate


def begun_twice(folder: str) -> list[str]:
    """Saved before the first step, in which the rate is that of one rank."""
    for _ in range(2):
        with heard() as lines:
            trainer = made(checkpoint_dir=folder, warmup_steps=4)
            trainer.session.save()
            trainer.close()
    assert hvd.rank() != 0 or any("goes on after step 0" in line for line in lines), lines
    return [line for line in lines if "lr" in line]


def test_a_rate_that_was_saved_before_the_first_step_does_not_differ(tmp_path: Path) -> None:
    assert run_ranks(2, begun_twice, str(tmp_path)) == [[], []]


FORGOTTEN = """
import sys
sys.path.insert(0, sys.argv[1])
from test_torch_trainer import made

def train(trainer):
    while trainer.global_step < 3:
        trainer.train_on_batch()
    return trainer

if sys.argv[3] == "with":
    with made(checkpoint_dir=sys.argv[2]) as trainer:
        train(trainer)
elif sys.argv[3] == "close":
    train(made(checkpoint_dir=sys.argv[2])).close()
else:
    trainer = train(made(checkpoint_dir=sys.argv[2]))
"""


@pytest.mark.parametrize(("how", "saved"), [("with", [3]), ("close", [3]), ("forget", [])])
def test_a_trainer_is_closed_or_says_that_it_was_not(tmp_path: Path, how: str, saved: list[int]) -> None:
    words = [sys.executable, "-c", FORGOTTEN, str(Path(__file__).parent), str(tmp_path), how]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done
    assert [int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*")] == saved, done.stderr
    said = f"the session that saves to {tmp_path} was not closed, so steps 1 to 3 are not saved: use `with`, or call close()"
    assert (said in done.stderr) == (how == "forget"), done.stderr
