"""Shards a text among the workers: each verse trains one of them, once in an epoch.

phalanx run -np 2 python examples/session_sharding.py
phalanx train -s 1 -w 2 examples/session_sharding.py

It is the recipe "Data sharding" of TensorLayer's page about distribution. Whatever is random comes after the shard.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from verses import TEXT, as_feed, create_graph, to_sample

import phalanx.graph as fluid
from phalanx.data import Dataset, TextLineDataset
from phalanx.distributed import DistributedSession, TaskSpec


def main() -> None:
    parser = argparse.ArgumentParser(description="Shards a text among the workers.")
    parser.add_argument("--files", default=str(TEXT), help="a pattern of names")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="of each worker")
    parser.add_argument("--checkpoints", type=Path, default=Path("session_sharding"))
    args = parser.parse_args()

    task_spec = TaskSpec()
    if task_spec is not None:
        task_spec.create_server()
        if task_spec.is_ps():
            return  # It has served until the workers had ended.
    files_dataset = Dataset.list_files(args.files)
    dataset = TextLineDataset(files_dataset)
    dataset = dataset.map(to_sample, num_threads=4)
    if task_spec is not None:
        dataset = dataset.shard(task_spec.num_workers, task_spec.shard_index)
    dataset = dataset.shuffle(1000)
    dataset = dataset.batch(args.batch_size)
    dataset = dataset.repeat(args.epochs)
    iterator = dataset.make_one_shot_iterator()
    loss, accuracy = create_graph()
    fluid.optimizer.Adam(0.005).minimize(loss)
    if task_spec is not None and task_spec.is_master():
        place = task_spec.device_fn()
        for parameter in fluid.default_main_program().all_parameters():
            place(parameter)
        print(place, flush=True)
    n_verses = 0
    with DistributedSession(task_spec=task_spec, checkpoint_dir=args.checkpoints) as session:
        while not session.should_stop():
            # The end of the data ends the session on all ranks.
            next_element = as_feed(iterator.get_next())
            session.run([loss, accuracy], feed_dict=next_element)
            n_verses += len(next_element["seen"])
    shard, of = (0, 1) if task_spec is None else (task_spec.shard_index, task_spec.num_workers)
    print(f"worker {shard} of {of}: {n_verses} verses in {session.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
