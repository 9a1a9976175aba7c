"""Trainers of static programs: data are divided, rates scaled, uneven shards end, metrics are those of one process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from regression import WEIGHT, check_resumes, check_resumes_elsewhere, error, joint, samples, serial

import phalanx
import phalanx.graph as fluid
from phalanx import data
from phalanx.data import DataError
from phalanx.distributed import NanTensorHook, SessionRunArgs, SessionRunHook, StopAtStepHook
from phalanx.exceptions import MismatchError, PhalanxError, SessionError


@pytest.fixture(params=[1, 2, 3])
def n(request: pytest.FixtureRequest) -> int:
    """How many ranks."""
    return int(request.param)


def layers(dropout: float = 0.0) -> tuple[fluid.Variable, fluid.Variable, fluid.Variable]:
    """The feeds, and what is predicted."""
    x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 1])
    if dropout:
        x = fluid.layers.dropout(x, dropout, dropout_implementation="upscale_in_train")
    begin = fluid.ParamAttr(initializer=fluid.initializer.Constant(WEIGHT))
    return x, y, fluid.layers.fc(x, 1, param_attr=begin, bias_attr=False)


def build() -> tuple[Any, ...]:
    _, y, made = layers()
    loss = fluid.layers.mean(fluid.layers.square(made - y))
    return made, loss, {"twice": loss * 2.0}


def validate() -> tuple[Any, Any]:
    _, y, made = layers()
    return made, {"error": fluid.layers.mean(fluid.layers.square(made - y)), "each": fluid.layers.square(made - y)}


class Rates(SessionRunHook):
    """The rate that each step has used."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def before_run(self, run_context: Any) -> SessionRunArgs:
        return SessionRunArgs("learning_rate")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen.append(float(run_values.results[0]))


ARGS = {"learning_rate": 0.1, "momentum": 0.5}


def made(n_samples: int, **options: Any) -> fluid.Trainer:
    given: dict[str, Any] = {"batch_size": 2, "log_step_size": None, **options}
    return fluid.Trainer(samples(n_samples), build, fluid.optimizer.Momentum, ARGS, **given)


def weight(trainer: fluid.Trainer) -> list[float]:
    found: list[float] = trainer.scope["fc_0.w_0"].ravel().tolist()
    return found


def trained(n_samples: int, options: dict[str, Any]) -> tuple[int, list[float], list[float], dict[str, float]]:
    rates = Rates()
    validation = {"validation_dataset": samples(11), "build_validation_func": validate}
    trainer = made(n_samples, hooks=[rates, *options.pop("hooks", ())], **validation, **options)
    trainer.train_and_validate_to_end(validate_step_size=3)
    assert ARGS == {"learning_rate": 0.1, "momentum": 0.5}, "arguments are never changed"
    return trainer.global_step, weight(trainer), rates.seen, trainer.validation_metrics


@pytest.mark.parametrize("n_samples", [17, 15, 12, 1])
def test_ranks_learn_what_one_process_learns_from_all_samples(n: int, n_samples: int) -> None:
    # TRAIN-1, TRAIN-2, TRAIN-3. In the last step two ranks have 1 and 0, or 2 and 1 samples; one sample leaves others with none.
    ends = run_ranks(n, trained, n_samples, {"num_epochs": 2})
    batches = joint(n_samples, 2 * n, 2)
    wanted = serial(batches, [0.1 * n] * len(batches), 0.5)
    for steps, learned, rates, metrics in ends:
        assert (steps, len(rates)) == (len(batches), len(batches))
        assert learned == ends[0][1] and metrics == ends[0][3], "bit by bit"
        assert learned == pytest.approx(wanted, rel=1e-4)
        assert metrics == pytest.approx(dict.fromkeys(("each", "error"), error(learned, 11)), rel=1e-4)


def thirteen() -> list[int]:
    """7 and 6 batches of one sample: ranks that end apart; how many samples each rank has fed in each step."""
    trainer = made(13, num_epochs=1, batch_size=1)
    fed = []
    run = trainer.session.run
    trainer.session.run = lambda fetch, feed: (fed.append(len(feed["x"])), run(fetch, feed))[1]  # type: ignore[method-assign]
    trainer.train_and_validate_to_end()
    assert not trainer.train_on_batch(), "it is over, and this is no error"
    return fed


def test_seven_and_six_batches() -> None:
    # TRAIN-2
    assert run_ranks(2, thirteen) == [[1] * 7, [1] * 6 + [0]]


def empty() -> tuple[int, dict[str, float]]:
    nothing = data.from_list([])
    validation = {"validation_dataset": nothing, "build_validation_func": validate}
    for epochs in (None, 3):
        trainer = fluid.Trainer(
            nothing, build, fluid.optimizer.SGD, {"learning_rate": 1.0}, num_epochs=epochs, **validation
        )  # type: ignore[arg-type]
        trainer.train_and_validate_to_end()
    return trainer.global_step, trainer.validation_metrics


def test_data_sets_without_samples_end_at_once(n: int) -> None:
    assert run_ranks(n, empty) == [(0, {})] * n


def test_rates_follow_the_number_of_ranks(n: int) -> None:
    for scaling, factor in ((True, n), ("sqrt", n**0.5), (False, 1)):
        for steps, _, rates, _ in run_ranks(n, trained, 12, {"num_epochs": 1, "scaling_learning_rate": scaling}):
            assert rates == pytest.approx([0.1 * factor] * steps)


def warmed() -> tuple[list[float], list[float]]:
    hook, said = Rates(), []
    trainer = made(24, num_epochs=1, warmup_steps=2, hooks=[hook])
    with trainer.session:
        for _ in range(4):
            said.append(trainer.learning_rate)
            assert trainer.train_on_batch()
    return said, hook.seen


def test_warm_up_rises_to_the_scaled_rate(n: int) -> None:
    for said, seen in run_ranks(n, warmed):
        assert said == pytest.approx([0.1, (0.1 + 0.1 * n) / 2, 0.1 * n, 0.1 * n])
        assert seen == pytest.approx(said)


def test_iterations_are_divided_among_ranks(n: int) -> None:
    assert {end[0] for end in run_ranks(n, trained, 40, {"num_epochs": None, "max_iteration": 4 * n})} == {4}


def resumed(folder: str, last: int, epochs: int, scaling: bool) -> tuple[int, int, list[float]]:
    options = {"checkpoint_dir": folder, "num_epochs": epochs, "scaling_learning_rate": scaling}
    trainer = made(23, **options, hooks=[StopAtStepHook(last_step=last)], shuffle_buffer=8 if scaling else None)
    begun = trainer.global_step
    trainer.train_and_validate_to_end()
    return begun, trainer.global_step, weight(trainer)


def test_a_trainer_goes_on_where_the_last_one_ended(n: int, tmp_path: Path) -> None:
    check_resumes(n, resumed, tmp_path)


def test_another_number_of_ranks_goes_on_with_the_next_sample(tmp_path: Path) -> None:
    # TRAIN-1
    check_resumes_elsewhere(resumed, tmp_path, momentum=0.5)


class Losses(SessionRunHook):
    def __init__(self, loss: Callable[[], str]) -> None:
        self.loss, self.seen = loss, []  # type: tuple[Callable[[], str], list[float]]

    def before_run(self, run_context: Any) -> SessionRunArgs:
        return SessionRunArgs(self.loss())

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen.append(run_values.values[self.loss()])


def watched() -> list[float]:
    trainer: fluid.Trainer
    losses = Losses(lambda: trainer._loss.name)
    trainer = made(1, num_epochs=2, hooks=[losses, NanTensorHook("mean_0.tmp_0")])
    trainer.train_and_validate_to_end()
    return losses.seen


def test_hooks_of_ranks_without_samples_see_the_numbers_of_the_others() -> None:
    first, *others = run_ranks(3, watched)
    assert len(first) == 2 and first[0] > 0
    assert others == [first, first]


def bad_data(kind: str) -> tuple[str, int]:
    """The second sample, which rank 1 has, cannot be used."""
    good = list(samples(6))
    bad = {"map": "no pair", "shape": (np.zeros(4, "float32"), 1.0), "parts": (good[0][0],)}[kind]

    def checked(sample: Any) -> Any:
        if isinstance(sample, str):
            raise KeyError("no pair")
        return sample

    mixed = data.Dataset([good[0], bad, *good[1:]]).map(checked)
    trainer = fluid.Trainer(mixed, build, fluid.optimizer.SGD, {"learning_rate": 0.1}, 1, log_step_size=None)
    try:
        trainer.train_and_validate_to_end()
    except (PhalanxError, DataError, fluid.GraphError) as why:
        return f"{type(why).__name__}: {why}", trainer.global_step
    return "nothing", trainer.global_step


@pytest.mark.parametrize(
    ("kind", "says"),
    [("shape", "FeedError: `x` wants float32[3]"), ("parts", "FeedError: samples of training_dataset have 1 parts")],
)
def test_a_batch_that_cannot_be_used_is_told_to_all_ranks(kind: str, says: str) -> None:
    (other, first), (own, second) = run_ranks(2, bad_data, kind)
    assert own.startswith(says) and (first, second) == (0, 0)
    assert other.startswith(f"SessionError: reading a batch failed on rank 1: {says}"), other


def test_data_that_cannot_be_read_end_all_ranks() -> None:
    for said, steps in run_ranks(2, bad_data, "map"):
        assert "no pair" in said and steps == 0


def bad_validation() -> str:
    wrong = data.from_list([*samples(1), (np.zeros(3, "float32"), "seven")])
    validation = {"validation_dataset": wrong, "build_validation_func": validate}
    trainer = made(4, num_epochs=1, **validation)
    try:
        trainer.train_and_validate_to_end()
    except (SessionError, fluid.GraphError) as why:
        return f"{type(why).__name__}: {why}"
    return "nothing"


def test_a_validation_that_fails_is_told_to_all_ranks() -> None:
    other, own = run_ranks(2, bad_validation)
    assert own.startswith("FeedError: `y`") and other.startswith("SessionError: validation failed on rank 1: FeedError")


class AskedAt(SessionRunHook):
    """The system asks the process to end in the middle of this step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_context.step == self.step:
            signal.raise_signal(signal.SIGTERM)


def validated(folder: str, asked_at: int) -> list[int]:
    """The steps after which a training of 6 steps validates, every second one and at the end."""
    options = {"validation_dataset": samples(4), "build_validation_func": validate, "hooks": [AskedAt(asked_at)]}
    trainer = made(12, num_epochs=1, checkpoint_dir=folder, **options)
    steps: list[int] = []
    plain = trainer.validate

    def counted() -> dict[str, float]:
        steps.append(trainer.global_step)
        return plain()

    trainer.validate = counted  # type: ignore[method-assign]
    trainer.train_and_validate_to_end(validate_step_size=2)
    return steps


def test_a_step_is_validated_once_and_not_when_the_process_is_to_end(tmp_path: Path) -> None:
    def steps(folder: str, asked_at: int) -> Any:
        # In a process of its own: one that was asked to end stays asked.
        return run_ranks(1, validated, str(tmp_path / folder), asked_at, fresh=True)[0]

    assert steps("whole", 0) == [2, 4, 6]
    assert steps("asked", 4) == [2]
    assert steps("asked", 0) == [6], "it goes on after step 4"


def test_a_checkpoint_says_the_epoch(tmp_path: Path) -> None:
    made(12, num_epochs=3, checkpoint_dir=tmp_path).train_and_validate_to_end()
    assert json.loads((tmp_path / "checkpoint-18" / "manifest.json").read_text())["epoch"] == 2


def twice() -> tuple[list[float], list[float], float, bool]:
    args = {"learning_rate": 0.1}
    ends = []
    for _ in range(2):
        trainer = fluid.Trainer(samples(8), build, fluid.optimizer.SGD, args, 2, num_epochs=2, log_step_size=None)
        trainer.train_and_validate_to_end()
        ends.append(weight(trainer))
    return ends[0], ends[1], trainer.learning_rate, "fc_0.w_0" in fluid.global_scope()


def test_a_second_trainer_with_the_same_arguments_begins_anew(n: int) -> None:
    for first, second, rate, is_global in run_ranks(n, twice):
        assert first == second and first != [WEIGHT] * 3 and not is_global
        assert rate == pytest.approx(0.1 * n)


def with_words() -> tuple[int, dict[str, float]]:
    """Sequences of different lengths, as dicts; a rank without a batch feeds none."""

    def classify() -> tuple[Any, Any]:
        words = fluid.data("words", [None, 1], "int64", lod_level=1, max_length=4)
        label = fluid.data("label", [None, 1], "int64")
        rows = fluid.layers.embedding(words, [9, 4])
        scores = fluid.layers.fc(fluid.layers.sequence_pool(rows, "sum"), 2)
        return scores, fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, label))

    sentences = [{"words": [[i % 9]] * (1 + i % 3), "label": i % 2} for i in range(5)]
    trainer = fluid.Trainer(
        data.from_list(sentences), classify, fluid.optimizer.Adam, {"learning_rate": 0.05}, 1, log_step_size=None,
        num_epochs=8, validation_dataset=data.from_list(sentences), build_validation_func=classify,
    )  # fmt: skip
    before = dict(trainer.validation_metrics)
    trainer.train_and_validate_to_end()
    assert list(trainer.validation_metrics.values()) < list(before.values())
    return trainer.global_step, trainer.validation_metrics


def test_sequences_and_dicts(n: int) -> None:
    ends = run_ranks(n, with_words)
    assert ends == [ends[0]] * n and ends[0][0] == 8 * -(-5 // n)


def without_dropout() -> tuple[float, float]:
    def measured() -> tuple[Any, Any]:
        _, y, out = layers(dropout=0.5)
        return out, {"error": fluid.layers.mean(fluid.layers.square(out - y))}

    validation = {"validation_dataset": samples(11), "build_validation_func": measured}
    trainer = made(4, num_epochs=1, **validation)
    return trainer.validation_metrics["error"], error(weight(trainer), 11)


def test_validation_has_no_dropout() -> None:
    found, wanted = run_ranks(1, without_dropout)[0]
    assert found == pytest.approx(wanted, rel=1e-5)


def other_layers() -> tuple[Any, Any]:
    x = fluid.data("x", [None, 3])
    return x, {"mean": fluid.layers.mean(fluid.layers.fc(fluid.layers.fc(x, 4), 1))}


def whole_shape() -> tuple[Any, Any]:
    return None, [layers()[0]]


def no_batch() -> tuple[Any, Any]:
    x = fluid.data("x", [2, 3])
    made = fluid.layers.fc(x, 1)
    return made, fluid.layers.mean(made)


def no_feeds() -> tuple[Any, Any]:
    w = fluid.layers.create_parameter([2], name="w", is_bias=True)
    return w, fluid.layers.mean(w)


#: What is given, and a part of what is said.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"scaling_learning_rate": "cubic"}, 'True, "sqrt" or False'),
    ({"scaling_learning_rate": 1}, 'True, "sqrt" or False'),
    ({"validation_dataset": samples(3)}, "or neither"),
    ({"build_validation_func": validate}, "or neither"),
    ({"optimizer_args": {}}, "has no learning_rate"),
    ({"optimizer_args": {"learning_rate": fluid.layers.noam_decay(4, 4)}}, "must be a number"),
    ({"optimizer_args": {"learning_rate": float("nan")}}, "must be a number"),
    ({"optimizer_args": {"learning_rate": 0.1, "momentun": 0.9}}, "momentun"),
    ({"training_dataset": [1, 2]}, "from_list"),
    ({"training_dataset": samples(4).shuffle(2)}, "shuffle"),
    (
        {"validation_dataset": [1], "build_validation_func": validate},
        "validation_dataset must be a phalanx.data.Dataset",
    ),
    ({"validation_dataset": samples(3), "build_validation_func": other_layers}, "same layers in the same order"),
    ({"validation_dataset": samples(3), "build_validation_func": whole_shape}, "one number for a batch"),
    ({"build_training_func": no_batch}, "declare it as None"),
    ({"build_training_func": no_feeds}, "declares no feeds"),
    ({"build_training_func": lambda: None}, "must return the network, the loss"),
    ({"build_training_func": lambda x, y: None}, "declare the feeds inside of it"),
    ({"build_training_func": 3}, "build_training_func must be a function"),
    ({"batch_size": 0}, "batch_size"),
    ({"prefetch_size": 0}, "prefetch_size"),
    ({"warmup_steps": -1}, "warmup_steps"),
    ({"num_epochs": 0}, "num_epochs"),
    ({"max_iteration": 0}, "max_iteration"),
    ({"log_step_size": 0}, ""),
    ({"save_checkpoint_secs": -1.0, "checkpoint_dir": "nowhere"}, ""),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_cannot_act_is_refused(case: int) -> None:
    options, says = REFUSED[case]
    given: dict[str, Any] = {
        "training_dataset": samples(4),
        "build_training_func": build,
        "optimizer": fluid.optimizer.SGD,
        "optimizer_args": {"learning_rate": 1.0},
        **options,
    }
    with pytest.raises((ValueError, TypeError, fluid.GraphError)) as why:
        fluid.Trainer(**given)
    assert says in str(why.value)
    phalanx.shutdown()


def test_without_a_validation_set_there_are_no_metrics() -> None:
    trainer = made(4, num_epochs=1)
    with pytest.raises(AttributeError, match="validation is not set up"):
        trainer.validation_metrics  # noqa: B018
    with pytest.raises(ValueError, match="validate_step_size"):
        trainer.train_and_validate_to_end(validate_step_size=0)
    trainer.train_and_validate_to_end()
    assert trainer.global_step == 2 and trainer.training_network.shape == (-1, 1)
    phalanx.shutdown()


def test_rank_0_prints_what_it_is_to_print(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "phalanx.session"):
        made(8, num_epochs=1, log_step_size=2, prefetch_size=2).train_and_validate_to_end()
    lines = [line for line in caplog.messages if "loss" in line and "twice" in line]
    assert len(lines) == 2, caplog.messages
    phalanx.shutdown()


def begun(kind: str) -> str:
    """With arguments that ranks have apart."""
    odd = phalanx.rank()
    try:
        if kind == "sharded":
            fluid.Trainer(
                samples(8).shard(2, odd), build, fluid.optimizer.SGD, {"learning_rate": 0.1}, 2, log_step_size=None
            )
        else:
            made(8, num_epochs=2 + odd)
    except (MismatchError, ValueError) as why:
        return f"{type(why).__name__}: {why}"
    raise AssertionError("it began")


def test_arguments_that_ranks_have_not_alike_are_refused_on_all() -> None:
    for kind, says in (
        (
            "epochs",
            "MismatchError: num_epochs is 2 on rank 0 and 3 on rank 1: give the trainers of all ranks the same arguments",
        ),
        ("sharded", "ValueError: training_dataset is sharded already (training_dataset.shard(2, 0) on rank 0, "),
    ):
        first, second = run_ranks(2, begun, kind, fresh=True, deadline_s=60)
        assert first == second and first.startswith(says), (first, second)


def test_four_workers_need_about_a_quarter_of_the_steps_of_one() -> None:
    example = Path(__file__).parents[2] / "examples" / "scaling_digits.py"
    run = subprocess.run([sys.executable, str(example), "--seeds", "1"], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    rows = [line.strip("| ").split(" | ") for line in run.stdout.splitlines()[3:]]
    one, four, unscaled = rows
    assert (one[0], four[0], unscaled[0]) == ("1", "4", "4"), run.stdout
    assert 0.15 < float(four[4]) < 0.4, run.stdout
    assert unscaled[3] == "not reached" or int(unscaled[3]) > 2 * int(four[3]), run.stdout
    assert abs(float(one[6].strip("%")) - float(four[6].strip("%"))) < 2, run.stdout
