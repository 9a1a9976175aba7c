"""Whole programs under the launcher: the examples, and the program of Horovod's documents with sessions."""

from __future__ import annotations

import sys
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
    import subprocess

    running = launch(n, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    text, _ = running.communicate(timeout=240)
    assert running.returncode == 0, text
    return str(text)


def test_the_program_of_horovods_documents(tmp_path: Path) -> None:
    script = tmp_path / "seed.py"
    script.write_text(SEED.replace("FOLDER", repr(str(tmp_path / "logs"))))
    text = output([sys.executable, str(script)])
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
