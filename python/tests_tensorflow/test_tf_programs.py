"""Whole programs under the launcher: the examples, and the program of Horovod's documents with sessions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import launch

ROOT = Path(__file__).parents[2]

#: Horovod's program for sessions: only the import and what it leaves open, the model, are filled in.
SEED = """
import tensorflow.compat.v1 as tf
import horovod.tensorflow as hvd
tf.disable_eager_execution()

hvd.init()

config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())

w = tf.get_variable('w', initializer=tf.random_normal([3, 1], seed=hvd.rank()))
x = tf.random_normal([8, 3])
loss = tf.reduce_mean((x @ w - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
opt = tf.train.AdagradOptimizer(0.2 * hvd.size())

opt = hvd.DistributedOptimizer(opt)

hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=60)]

train_op = opt.minimize(loss, global_step=tf.train.get_or_create_global_step())

checkpoint_dir = FOLDER if hvd.rank() == 0 else None

with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, config=config, hooks=hooks) as mon_sess:
  while not mon_sess.should_stop():
    mon_sess.run(train_op)
    last = mon_sess.run(w) if not mon_sess.should_stop() else last
print('learned', last.round(1).ravel().tolist())
"""


def output(command: list[str], n: int = 2) -> str:
    running = launch(n, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    text, _ = running.communicate(timeout=240)
    assert running.returncode == 0, text
    return str(text)


def by_horovodrun(command: list[str]) -> str:
    words = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", *command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, timeout=240)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("start", [output, by_horovodrun])
def test_the_program_of_horovods_documents(tmp_path: Path, start: Callable[[list[str]], str]) -> None:
    script = tmp_path / "seed.py"
    script.write_text(SEED.replace("FOLDER", repr(str(tmp_path / "logs"))))
    text = start([sys.executable, str(script)])
    lines = [line.split("learned")[1] for line in text.splitlines() if "learned" in line]
    assert len(lines) == 2 and lines[0] == lines[1], text
    assert list((tmp_path / "logs").glob("model.ckpt-60*"))


@pytest.mark.parametrize(
    "words", [["tensorflow_mnist.py", "--steps", "200"], ["keras_mnist.py", "--images", "4000", "--epochs", "2"]]
)
def test_examples(words: list[str]) -> None:
    text = output([sys.executable, str(ROOT / "examples" / words[0]), *words[1:]])
    accuracy = float(text.split("accuracy ")[-1].split()[0])
    assert accuracy > 0.75, text


#: The Keras of old, whose compile() puts a loss scale around optimizers, too.
LEGACY = """
import numpy as np, tensorflow as tf
import horovod.tensorflow.keras as hvd
hvd.init()
keras = tf.keras
assert 'tf_keras' in keras.Model.__module__
keras.mixed_precision.set_global_policy('mixed_float16')
x, y = np.ones((8, 6), 'float32'), np.ones((8, 1), 'float32')

def compiled(optimizer):
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(optimizer), 'mse')
    return model

try:
    compiled(keras.optimizers.SGD(0.01)).fit(x, y, 4, verbose=0)
except ValueError as error:
    print('refused' if 'DistributedOptimizer(LossScaleOptimizer' in str(error) else error)
model = compiled(keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.01)))
start = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
# One rank's gradients overflow: both skip that step.
model.fit(x * (1e6 if hvd.rank() == 1 else 1.0), y, 4, verbose=0, callbacks=start)
model.fit(x * (hvd.rank() + 1), y, 4, verbose=0)
weights = hvd.allgather_object([v.numpy().tobytes() for v in model.trainable_variables])
print('alike' if weights[0] == weights[1] else 'different')
rate = 0.01 * hvd.size()
callbacks = [
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=1, steps_per_epoch=2, momentum_correction=False),
    hvd.callbacks.LearningRateScheduleCallback(rate, 0.5, start_epoch=1),
]
history = model.fit(x * (hvd.rank() + 1), y, 4, epochs=2, verbose=0, callbacks=callbacks).history
print('scheduled' if np.allclose(history['lr'], [rate, rate / 2]) else history)
print('averaged' if len(set(hvd.allgather_object(history['loss'][1]))) == 1 else history)
"""


def test_loss_scales_of_the_old_keras(tmp_path: Path) -> None:
    pytest.importorskip("tf_keras")
    script = tmp_path / "legacy.py"
    script.write_text(LEGACY)
    text = output(["env", "TF_USE_LEGACY_KERAS=1", sys.executable, str(script)])
    for word in ("refused", "alike", "scheduled", "averaged"):
        assert text.count(word) == 2, text
