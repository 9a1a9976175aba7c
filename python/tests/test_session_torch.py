"""Sessions that train with torch."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from contextlib import redirect_stderr
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks

import phalanx.torch as hvd
from phalanx import graph
from phalanx.data import Sampler
from phalanx.distributed import (
    CheckpointSaverHook,
    LoadCheckpoint,
    NanTensorHook,
    ProfilerHook,
    SessionRunHook,
    StopAtStepHook,
    evaluate_continuously,
)
from phalanx.exceptions import CheckpointError, PhalanxError, SessionError
from phalanx.torch import session as torch_session


class Training:
    """A model with dropout and tied weights, Adam, a scheduler and a sampler."""

    def __init__(self, n: int = 40, width: int = 8, frozen: bool = False) -> None:
        torch.manual_seed(7 + hvd.rank())
        random.seed(hvd.rank())
        np.random.seed(hvd.rank())
        self.x = torch.randn(n, 4, generator=torch.Generator().manual_seed(1))
        self.y = self.x.sum(1, keepdim=True)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Dropout(0.25), torch.nn.Linear(width, 1)
        )
        if frozen:
            self.model[0].requires_grad_(False)
        learns = [p for p in self.model.parameters() if p.requires_grad]
        adam = torch.optim.Adam([{"params": learns[:1]}, {"params": learns[1:], "lr": 0.02}], lr=0.05)
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        self.optimizer = hvd.DistributedOptimizer(adam, named)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [3, 6], gamma=0.5)
        self.sampler = Sampler(n, seed=5)
        self.seen: list[int] = []

    def session(self, folder: str | None = None, **options: Any) -> hvd.Session:
        given = {"log_step_count_steps": None, **options}
        return hvd.Session(self.model, self.optimizer, [self.scheduler, self.sampler], checkpoint_dir=folder, **given)

    def step(self, indices: list[int]) -> torch.Tensor:
        self.optimizer.zero_grad()
        # All three kinds of random numbers matter.
        noise = torch.tensor(random.random() + np.random.rand()) * 0.1
        loss = (self.model(self.x[indices]) - self.y[indices] + noise).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.seen += indices
        return loss

    def bits(self) -> list[bytes]:
        tensors = [*self.model.state_dict().values()]
        for state in self.optimizer.state_dict()["state"].values():
            tensors += [value for _, value in sorted(state.items())]
        return [tensor.detach().numpy().tobytes() for tensor in tensors]


def train(
    folder: str | None, last: int, dies_at: int = 0, batch: int = 2, save_steps: int = 2, shards: str = "each"
) -> tuple[int, list[bytes], list[int], float]:
    made = Training()
    hooks: list[SessionRunHook] = [StopAtStepHook(last_step=last)]
    if folder is not None:
        hooks.append(CheckpointSaverHook(folder, save_steps=save_steps))
    with made.session(folder, hooks=hooks, shards=shards) as session:
        began = session.global_step
        while not session.should_stop():
            indices = iter(made.sampler)
            while not session.should_stop() and (part := list(islice(indices, batch))):
                if dies_at and session.global_step == dies_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                session.run(made.step, part)
            if not session.should_stop():
                made.sampler.set_epoch(made.sampler.epoch + 1)
    return began, made.bits(), made.seen, random.random() + np.random.rand() + torch.rand(1).item()


def test_killed_and_resumed_training_has_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    # SESS-2, RESTORE-2: also of the optimizer, the scheduler and everything random.
    whole = run_ranks(2, train, None, 13)
    assert whole[0][1] == whole[1][1] and whole[0][3] != whole[1][3]
    assert run_ranks(2, train, str(tmp_path), 13, 7, fresh=True) == [None, None]
    resumed = run_ranks(2, train, str(tmp_path), 13)
    for one, again in zip(whole, resumed, strict=True):
        assert again[0] in (4, 6) and one[1] == again[1] and one[3] == again[3]
        assert one[2][-len(again[2]) :] == again[2]


def test_from_four_ranks_to_two_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    four = run_ranks(4, train, str(tmp_path), 3)
    two = run_ranks(2, train, str(tmp_path), 7)
    assert [each[0] for each in two] == [3, 3]
    first, second = [s for each in four for s in each[2]], [s for each in two for s in each[2]]
    assert sorted(first + second) == list(range(40))


def train_apart(folder: str, last: int, dies_at: int = 0) -> tuple[int, list[bytes], list[int], float]:
    """With a directory of each rank's own, of which only rank 0's is used."""
    return train(f"{folder}/{hvd.rank()}", last, dies_at, shards="rank0")


@pytest.mark.parametrize("n", [2, 3])
def test_only_rank_0_needs_the_directory(tmp_path: Path, n: int) -> None:
    # SENT-1, SESS-2: also what ranks have alone.
    whole = run_ranks(n, train, None, 13)
    assert run_ranks(n, train_apart, str(tmp_path), 13, 7, fresh=True) == [None] * n
    saved = max((tmp_path / "0").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    assert len(list(saved.glob("shard-*.safetensors"))) == n
    resumed = run_ranks(n, train_apart, str(tmp_path), 13)
    for one, again in zip(whole, resumed, strict=True):
        assert again[0] in (4, 6) and one[1] == again[1] and one[3] == again[3]
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def apart_or_not(folder: str, kind: str) -> str:
    model = torch.nn.Linear(2, 1)
    rank = hvd.rank()
    own = None if (kind, rank) == ("none", 1) else f"{folder}/{rank}"
    shards = "each" if kind != "mixed" or rank == 0 else "rank0"
    options: dict[str, Any] = {"log_step_count_steps": None, "shards": shards}
    try:
        with hvd.Session(model, checkpoint_dir=own, **options) as session:
            while not session.should_stop():
                session.save()
                session.run(lambda: None)
    except (SessionError, CheckpointError) as why:
        return f"{type(why).__name__} of rank {why.rank}: {why}"
    raise AssertionError("it ended")


def test_directories_and_options_that_differ_are_refused(tmp_path: Path) -> None:
    # WRITE-2, WRITE-3
    for kind, says in (
        ("apart", 'is not visible here: .* or let rank 0 write all shards \\(shards="rank0"\\)'),
        ("mixed", "of rank 1: ranks do not save alike: shards of each rank on rank 0, shards sent to rank 0 on rank 1"),
        ("none", "of rank 1: ranks do not save alike: .*without a directory for checkpoints on rank 1"),
    ):
        first, second = run_ranks(2, apart_or_not, str(tmp_path / kind), kind)
        assert first == second and re.search(says, first), first
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match="shards must be .each. or .rank0., not .rank1."):
        hvd.Session(model, checkpoint_dir=tmp_path, shards="rank1")
    with pytest.raises(ValueError, match="shards needs checkpoint_dir"):
        hvd.Session(model, shards="rank0")


def taken_over() -> tuple[list[bytes], float]:
    made = Training()
    if hvd.rank() == 1:
        made.optimizer.param_groups[0]["lr"] = 123.0
    with made.session():
        return made.bits(), made.optimizer.param_groups[0]["lr"]


def test_ranks_begin_with_what_rank_0_has() -> None:
    # SESS-1
    first, second = run_ranks(2, taken_over)
    assert first == second and first[1] == 0.05


def nan_or_raise(kind: str) -> str:
    made = Training()

    class Raises(SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            if kind == "raise" and (hvd.rank(), run_context.step) == (1, 2):
                raise ValueError(f"loss was {run_values.values['loss'] > 0}")

    def step() -> dict[str, Any]:
        loss = made.step([0, 1])
        is_odd = kind == "nan" and (hvd.rank(), session.global_step) == (1, 1)
        return {"loss": torch.tensor(float("nan")) if is_odd else loss, "other": 3, "text": "x"}

    try:
        with made.session(hooks=[NanTensorHook("loss"), Raises()]) as session:
            while not session.should_stop():
                session.run(step)
    except (SessionError, ValueError) as why:
        return f"{type(why).__name__} {session.global_step}: {why}"
    raise AssertionError("it ended")


def test_hooks_stop_all_ranks() -> None:
    text = "SessionError 2: training stopped at step 2: {} of rank 1: {}"
    nan = text.format("NanTensorHook", "loss is NaN at step 2")
    assert run_ranks(2, nan_or_raise, "nan") == [nan, nan]
    told = [text.format("Raises", "ValueError: loss was True"), "ValueError 2: loss was True"]
    assert run_ranks(2, nan_or_raise, "raise") == told


def one_sided() -> str:
    made = Training()
    torch_session.END_SECS = 1.0
    try:
        with made.session(stop_grace_period_secs=0) as session:
            for _ in range(4 if hvd.rank() == 0 else 2):
                session.run(made.step, [0, 1])
            raise EOFError("no more batches")
    except PhalanxError as why:
        return f"{type(why).__name__} {session.global_step}: {why}"
    raise AssertionError("it ended")


def test_a_rank_that_ends_before_the_others_does_not_wait_for_ever() -> None:
    other, own = run_ranks(2, one_sided, fresh=True, deadline_s=60)
    assert own.startswith("SessionError 2: this rank has ended after step 2, and other ranks have not in 1 s"), own
    assert "make the same number of steps" in own and " 2: " in other, (own, other)


def together(raises: bool) -> int:
    made = Training()
    with made.session() as session:
        for _ in range(3):
            session.run(made.step, [0, 1])
        if raises:
            raise EOFError("no more batches")
    return session.global_step


def test_ranks_that_end_together_end_well() -> None:
    assert run_ranks(2, together, False) == run_ranks(2, together, True) == [3, 3]


def failing_at_the_end() -> str:
    made = Training()
    try:
        with made.session() as session:
            for _ in range(2):
                session.run(made.step, [0, 1])
            if hvd.rank() == 1:
                raise ArithmeticError("after the last step")
    except (ArithmeticError, SessionError) as why:
        return f"{type(why).__name__}: {why}"
    raise AssertionError("it ended")


def test_ranks_that_have_ended_are_told_of_one_that_failed() -> None:
    own = "ArithmeticError: after the last step"
    for _ in range(2):
        told = run_ranks(2, failing_at_the_end)
        assert told == [f"SessionError: training stopped at step 2: the program of rank 1: {own}", own]
    assert run_ranks(2, together, False) == [3, 3]


def test_checkpoints_of_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hvd.init()
    train(str(tmp_path), 2, save_steps=1)
    made = Training()
    with pytest.raises(CheckpointError, match="has checkpoints of another training"):
        made.session(hooks=[CheckpointSaverHook(tmp_path, save_steps=1)])
    # As if another program had written it: a manifest that was changed is not whole.
    monkeypatch.setattr(torch_session, "extra_of", lambda found: {})
    with pytest.raises(CheckpointError, match="checkpoint-2 has no state of a session with torch"):
        made.session(str(tmp_path))


def diverging(folder: str) -> str:
    made = Training()
    try:
        with made.session(folder) as session:
            made.scheduler.last_epoch += hvd.rank()
            session.save()
            session.run(made.step, [0, 1])
    except SessionError as why:
        return f"{why.rank} {why}"
    raise AssertionError("it was saved")


def test_states_that_differ_among_ranks_are_not_saved(tmp_path: Path) -> None:
    # LOOP-4
    first, second = run_ranks(2, diverging, str(tmp_path))
    assert first == second, (first, second)
    assert first.startswith("1 state.0, a MultiStepLR, has not the same state on rank 1 as on rank 0"), first
    assert not list(tmp_path.glob("checkpoint-*"))


def loaded(folder: str, width: int, strict: bool) -> list[bytes] | str:
    made = Training(width=width, frozen=True)
    try:
        with made.session(hooks=[LoadCheckpoint(None, folder, strict=strict), StopAtStepHook(num_steps=0)]):
            return [tensor.numpy().tobytes() for tensor in made.model.state_dict().values()]
    except CheckpointError as why:
        return str(why)


def test_load_checkpoint(tmp_path: Path) -> None:
    wanted = run_ranks(2, train, str(tmp_path), 2)[0][1]
    first, second = run_ranks(2, loaded, str(tmp_path), 8, True)
    assert first == second == wanted[:4]
    for told in run_ranks(2, loaded, str(tmp_path), 6, True):
        for part in ("model.0.weight", "[6, 4]", "[8, 4]", "model.0.bias", "model.3.weight"):
            assert part in told, told
    first, second = run_ranks(2, loaded, str(tmp_path), 6, False)
    assert first == second and first[3] == wanted[3] and len(first[0]) == 6 * 4 * 4


def test_what_a_checkpoint_holds_is_plain(tmp_path: Path) -> None:
    hvd.init()
    train(str(tmp_path), 3, save_steps=1)
    folder = tmp_path / "checkpoint-3"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["sampler"] == {"n": 40, "seed": 5, "epoch": 0, "consumed": 6}
    names = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    assert {"model.0.weight", "optimizer.state.0.exp_avg", "random.0.torch", "random.0.numpy"} <= set(names)
    assert names["random.0.python"]["owner"] == 0
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".safetensors"]


class Odd:
    def state_dict(self) -> dict[str, Any]:
        return {"inner": [1, {"deep": object()}]}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("it was never saved")


def test_states_that_are_not_plain_are_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    session = hvd.Session(model, state=[Odd()], checkpoint_dir=tmp_path, log_step_count_steps=None)
    session.save()
    with pytest.raises(TypeError, match="state.0.inner.1.deep cannot be saved: it is a object"), session:
        session.run(lambda: None)
    with pytest.raises(TypeError, match="state.0 has no state_dict"):
        hvd.Session(model, state=[3])
    with pytest.raises(TypeError, match="use torch.profiler"):
        hvd.Session(model, hooks=[ProfilerHook(steps=3)])
    with pytest.raises(TypeError, match="torch.nn.Module"):
        hvd.Session(3)  # type: ignore[arg-type]


def test_frozen_layers_and_an_evaluator(tmp_path: Path) -> None:
    hvd.init()
    made = Training(frozen=True)
    hooks = [StopAtStepHook(num_steps=5), CheckpointSaverHook(tmp_path, save_steps=1)]
    wanted = {}
    with made.session(str(tmp_path), hooks=hooks) as session:
        while not session.should_stop():
            session.run(made.step, [0, 1, 2])
            wanted[session.global_step] = made.model[3].bias.item()
    model = Training(frozen=True).model

    def measure(checkpoint: Any) -> dict[str, float]:
        assert checkpoint.load(model) == []
        return {"bias": model[3].bias.item()}

    results = evaluate_continuously(tmp_path, measure, newest_only=False, output_path=tmp_path / "logs")
    assert results == [(step, {"bias": bias}) for step, bias in wanted.items()]
    assert evaluate_continuously(tmp_path, lambda found: found.step) == [(5, 5)]
    assert len(list((tmp_path / "logs").iterdir())) == 1


def test_the_page_has_programs_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sessions.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(programs) == 5
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with graph.program_guard(graph.Program(), graph.Program()), graph.scope_guard(graph.Scope()):
        for program in programs:
            exec(program, names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "evaluation", "torch-checkpoints"]


def unwrapped() -> list[str]:
    said = []
    for wrap in (False, True):
        model = torch.nn.Linear(2, 1)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        if wrap:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        with redirect_stderr(StringIO()) as heard:
            hvd.Session(model, optimizer, log_step_count_steps=None).close()
        said.append(heard.getvalue())
    return said


def test_a_session_whose_ranks_would_train_apart_says_so() -> None:
    first, second = run_ranks(2, unwrapped)
    assert "ranks train apart unless the step does it" in first[0]
    assert [first[1], *second] == ["", "", ""]
