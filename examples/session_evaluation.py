"""The last worker evaluates every checkpoint of the others, while they train.

phalanx run -np 3 python examples/session_evaluation.py
mpirun -np 3 python examples/session_evaluation.py
torchrun --nproc-per-node 3 examples/session_evaluation.py

It is the recipe "Continuous evaluation" of TensorLayer's page about distribution. The evaluator ends when the training has ended and all of
its checkpoints are evaluated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from verses import TEXT, as_feed, create_graph, to_sample

import phalanx.graph as fluid
from phalanx.data import TextLineDataset, from_list
from phalanx.distributed import (
    CheckpointSaverHook,
    DistributedSession,
    EvaluatedCheckpoint,
    Saver,
    StopAtStepHook,
    TaskSpec,
    TaskSpecDef,
    evaluate_continuously,
)
from phalanx.summary import FileWriter

#: Of the end of the text; nothing is trained with them.
N_UNSEEN = 2000


class Evaluator:
    """Guesses letters of the unseen verses with each checkpoint, and writes summaries at its step."""

    def __init__(self, checkpoints_path: Path, output_path: Path, max_time_secs: float | None = None) -> None:
        self.checkpoints_path = checkpoints_path
        self.summary_writer = FileWriter(output_path)
        self.max_time_secs = max_time_secs
        # All of them: an evaluator does not shard.
        verses = list(TextLineDataset(TEXT))[-N_UNSEEN:]
        self.dataset = from_list(verses).map(to_sample).batch(500)

    def _create_graph(self) -> None:
        self.tensors = create_graph()
        self.program = fluid.default_main_program()
        self.saver = Saver(self.program, var_list=self.program.all_parameters())
        self.executor = fluid.Executor(fluid.CPUPlace())

    def evaluate(self, checkpoint: EvaluatedCheckpoint) -> None:
        """One pass over the unseen verses."""
        self.saver.restore(None, checkpoint.path)
        results = [self.executor.run(self.program, as_feed(batch), list(self.tensors)) for batch in self.dataset]
        loss, accuracy = np.mean(results, axis=0).ravel().tolist()
        self.summary_writer.add_summary({"loss": loss, "accuracy": accuracy}, checkpoint.step)
        self.summary_writer.flush()
        print(f"step {checkpoint.step}: loss {loss:.3f}, {accuracy:.1%} of {N_UNSEEN} letters guessed", flush=True)

    def run_evaluation(self, task_spec: TaskSpecDef) -> None:
        """Evaluates until the training has ended."""
        self._create_graph()
        evaluate_continuously(
            self.checkpoints_path,
            self.evaluate,
            newest_only=False,
            max_time_secs=self.max_time_secs,
            task_spec=task_spec,
        )
        self.summary_writer.close()


def train(task_spec: TaskSpecDef, steps: int, save_steps: int, checkpoints: Path) -> None:
    """The normal training."""
    verses = list(TextLineDataset(TEXT))[:-N_UNSEEN]
    dataset = from_list(verses).map(to_sample).shard(task_spec.num_workers, task_spec.shard_index)
    iterator = dataset.shuffle(1000).batch(64).repeat().make_one_shot_iterator()
    loss, _ = create_graph()
    fluid.optimizer.Adam(0.005).minimize(loss)
    # All checkpoints stay, so that an evaluator that is slower than the training misses none.
    keep = max(1, -(-steps // save_steps))
    hooks = [StopAtStepHook(last_step=steps), CheckpointSaverHook(checkpoints, save_steps=save_steps, keep=keep)]
    with DistributedSession(task_spec=task_spec, checkpoint_dir=checkpoints, hooks=hooks) as session:
        while not session.should_stop():
            session.run([], feed_dict=as_feed(iterator.get_next()))


def main() -> None:
    parser = argparse.ArgumentParser(description="The last worker evaluates what the others save.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--save-steps", type=int, default=100, help="from one checkpoint to the next")
    parser.add_argument("--checkpoints", type=Path, default=Path("session_evaluation"))
    parser.add_argument("--output", type=Path, default=Path("session_evaluation/evaluation"))
    parser.add_argument("--max-time-secs", type=float, help="of the evaluator")
    args = parser.parse_args()

    task_spec = TaskSpec()
    if task_spec is None:
        parser.error("start it with a launcher, as several workers: phalanx run -np 3 python session_evaluation.py")
    task_spec = task_spec.user_last_worker_as_evaluator()
    if task_spec.is_evaluator():
        Evaluator(args.checkpoints, args.output, args.max_time_secs).run_evaluation(task_spec)
    else:
        task_spec.create_server()
        train(task_spec, args.steps, args.save_steps, args.checkpoints)


if __name__ == "__main__":
    main()
