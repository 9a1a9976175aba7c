"""Logs on the master only, and computes there what is logged.

phalanx run -np 2 python examples/session_logging.py

It is the recipe "Logging" of TensorLayer's page about distribution. LoggingTensorHook does the same in one line.
"""

from __future__ import annotations

import argparse
import logging

from verses import TEXT, as_feed, create_graph, to_sample

import phalanx.graph as fluid
from phalanx.data import TextLineDataset
from phalanx.distributed import DistributedSession, StopAtStepHook, TaskSpec, TaskSpecDef


def main() -> None:
    parser = argparse.ArgumentParser(description="Logs on the master only.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--log-steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=64, help="of each worker")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    # Without a launcher, one process is the whole cluster.
    task_spec = TaskSpec() or TaskSpecDef()
    task_spec.create_server()
    dataset = TextLineDataset(TEXT).map(to_sample).shard(task_spec.num_workers, task_spec.shard_index)
    iterator = dataset.shuffle(1000).batch(args.batch_size).repeat().make_one_shot_iterator()
    loss, accuracy = create_graph()
    fluid.optimizer.Adam(0.005).minimize(loss)
    tensors, tensors_with_log_info = [], [loss, accuracy]
    hooks = [StopAtStepHook(last_step=args.steps)]
    with DistributedSession(task_spec=task_spec, hooks=hooks, log_step_count_steps=None) as session:
        while not session.should_stop():
            feed_dict = as_feed(iterator.get_next())
            should_log = task_spec.is_master() and (session.global_step + 1) % args.log_steps == 0
            if should_log:
                results = session.run(tensors_with_log_info, feed_dict=feed_dict)
                mean, right = (float(result.mean()) for result in results)
                logging.info(
                    "step %d: loss %.3f, %.0f%% of the letters guessed", session.global_step, mean, 100 * right
                )
            else:
                results = session.run(tensors, feed_dict=feed_dict)


if __name__ == "__main__":
    main()
