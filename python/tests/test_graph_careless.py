"""Habits of scripts written for Paddle that are easy to overlook: rates that are fetched, calls in another order, names of modules."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from graphs import World, batch, begin, classifier, world

import phalanx.graph as fluid

layers = fluid.layers
__all__ = ["world"]


def test_a_rate_that_follows_a_schedule_is_fetched_like_a_variable(world: World) -> None:
    _, loss = classifier()
    rate = layers.exponential_decay(0.5, decay_steps=2, decay_rate=0.25)
    with pytest.raises(fluid.FetchError, match="no optimizer has taken this learning rate yet; call minimize"):
        fluid.Executor().run(feed=batch(4), fetch_list=[rate])
    optimizer = fluid.optimizer.SGD(rate)
    optimizer.minimize(loss)
    begin(world)
    alone = fluid.Executor()
    both = fluid.ParallelExecutor(loss_name=loss.name, main_program=world.main, devices=2)
    runs: list[Any] = [
        lambda fetch: alone.run(feed=batch(4), fetch_list=fetch),
        lambda fetch: both.run(fetch, feed=batch(4)),
    ]
    for step in range(4):
        by_object, by_name, by_variable, first = runs[step % 2](
            [rate, rate.name, optimizer._global_learning_rate(), fluid.Fetch(rate, "first")]
        )
        assert by_object == by_name == by_variable == first == pytest.approx(0.5 * 0.25 ** (step / 2), rel=1e-6)


def test_a_rate_of_several_optimizers_is_fetched_by_name(world: World) -> None:
    x = fluid.data("x", [None, 2])
    rate = layers.piecewise_decay([1], [0.5, 0.25])
    for name in ("d", "g"):
        loss = layers.mean(layers.fc(x, 1, param_attr=f"w_{name}", bias_attr=False))
        fluid.optimizer.SGD(rate, name=name).minimize(loss)
    begin(world)
    run = fluid.Executor().run
    with pytest.raises(fluid.FetchError, match="several optimizers.*learning_rate_d, learning_rate_g"):
        run(feed={"x": np.ones([1, 2], "float32")}, fetch_list=[rate])
    got = run(feed={"x": np.ones([1, 2], "float32")}, fetch_list=["learning_rate_d", "learning_rate_g"])
    assert [value.item() for value in got] == [0.5, 0.5]


def test_attributes_of_a_rate_act_or_say_that_they_do_not(world: World) -> None:
    rate: Any = layers.noam_decay(16, 4)
    with pytest.raises(AttributeError):
        rate.stop_gradient = True
    with pytest.raises(TypeError, match="persistable"):
        rate.persistable = "yes"
    assert rate.persistable is False


def test_a_clip_behind_minimize_says_that_it_is_too_late(world: World) -> None:
    _, loss = classifier()
    clip = fluid.clip.GradientClipByGlobalNorm(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fluid.clip.set_gradient_clip(clip)
    fluid.optimizer.SGD(0.1).minimize(loss)
    with pytest.warns(UserWarning, match="minimize was called before.*call set_gradient_clip first"):
        fluid.clip.set_gradient_clip(clip)


def test_a_program_into_which_nothing_was_written_is_named(world: World) -> None:
    _, loss = classifier()
    begin(world)
    with pytest.raises(fluid.FetchError, match="nothing was written into this program: run the one that layers"):
        fluid.Executor().run(fluid.Program(), fetch_list=[loss])


def test_an_average_without_update_says_what_to_call(world: World) -> None:
    _, loss = classifier()
    fluid.optimizer.SGD(0.1).minimize(loss)
    average = fluid.optimizer.ExponentialMovingAverage(0.9)
    begin(world)
    with (
        pytest.raises(fluid.ProgramError, match=r"no parameters: call its update\(\) after minimize"),
        average.apply(fluid.Executor()),
    ):
        pass


def test_functions_are_found_by_the_modules_that_paddle_has_them_in(world: World) -> None:
    for module, name in [
        ("nn", "fc"),
        ("tensor", "fill_constant"),
        ("ops", "sigmoid"),
        ("learning_rate_scheduler", "noam_decay"),
        ("control_flow", "less_than"),
        ("sequence_lod", "sequence_pool"),
        ("metric_op", "accuracy"),
        ("loss", "cross_entropy"),
        ("rnn", "dynamic_lstm"),
    ]:
        assert getattr(getattr(layers, module), name) is getattr(layers, name), module


def test_names_with_a_slip_are_guessed(world: World) -> None:
    with pytest.raises(AttributeError, match="has no 'conv2'; did you mean 'conv2d'"):
        _ = layers.conv2
    with pytest.raises(AttributeError, match="no attribute 'optimizers'; did you mean 'optimizer'"):
        _ = fluid.optimizers
    # What is refused has its remedy, not a guess.
    with pytest.raises(AttributeError, match="'While': variables are not changed in place") as refused:
        _ = layers.While
    assert "did you mean" not in str(refused.value)
