"""What a torch session says of a training that it goes on with: settings, classes and objects that differ."""

from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from heard import heard
from ranks import run_ranks
from test_session_graph import Model

import phalanx.torch as hvd
from phalanx.data import DataError, Sampler
from phalanx.distributed import CheckpointSaverHook, StopAtStepHook
from phalanx.exceptions import CheckpointError, SessionError
from phalanx.torch import session as torch_session
from phalanx.torch._resumed import tell_settings


def stepped(model: torch.nn.Module, optimizer: Any) -> Any:
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def trained(folder: Path, last: int, make: Any, *state: Any, sets: float | None = None) -> tuple[str, Any]:
    """What is said; and the optimizer."""
    model = torch.nn.Linear(3, 1)
    optimizer = make(model.parameters())
    others = [one(optimizer) if callable(one) else one for one in state]
    options: dict[str, Any] = {"log_step_count_steps": None, "hooks": [StopAtStepHook(last_step=last)]}
    with heard() as lines, hvd.Session(model, optimizer, others, checkpoint_dir=folder, **options) as session:
        while not session.should_stop():
            session.run(stepped(model, optimizer))
            for one in others:
                if isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau):
                    one.step(1.0)
                elif hasattr(one, "get_last_lr"):
                    one.step()
            if sets is not None:
                optimizer.param_groups[0]["lr"] = sets
    return "\n".join(lines), optimizer


def adam(rate: float, **options: Any) -> Any:
    return lambda parameters: torch.optim.Adam(parameters, lr=rate, **options)


def test_settings_that_differ_are_told_with_the_value_that_counts(tmp_path: Path) -> None:
    trained(tmp_path, 2, adam(0.1))
    said, optimizer = trained(tmp_path, 3, adam(0.5, weight_decay=0.25))
    lines = [line for line in said.splitlines() if line.startswith("optimizer:")]
    assert sorted(line.split(";")[0] for line in lines) == [
        "optimizer: lr was 0.1 when it was saved and is 0.5 now",
        "optimizer: weight_decay was 0 when it was saved and is 0.25 now",
    ]
    assert all("the saved value counts: to change it, set param_groups after the session has begun" in line for line in lines)
    assert optimizer.param_groups[0]["lr"] == 0.1 and optimizer.param_groups[0]["weight_decay"] == 0
    said, _ = trained(tmp_path, 4, adam(0.1))
    assert "optimizer:" not in said, said


def test_a_rate_that_a_scheduler_has_changed_is_not_another_setting(tmp_path: Path) -> None:
    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    trained(tmp_path, 2, adam(0.5), schedule)
    said, optimizer = trained(tmp_path, 3, adam(0.5), schedule)
    assert "optimizer:" not in said and optimizer.param_groups[0]["lr"] == 0.0625, said
    said, _ = trained(tmp_path, 4, adam(0.25), schedule)
    assert said.count("optimizer: lr was 0.5 when it was saved and is 0.25 now") == 1, said


def plateau(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)


def one_cycle(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=20)


def cyclic(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=0.1, max_lr=1.0, step_size_up=4)


def momentum(rate: float) -> Any:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9)


@pytest.mark.parametrize(("make", "schedule"), [(adam, plateau), (adam, one_cycle), (momentum, one_cycle), (momentum, cyclic)])
def test_what_schedulers_change_is_not_another_setting(tmp_path: Path, make: Any, schedule: Any) -> None:
    _, optimizer = trained(tmp_path, 3, make(0.1), schedule)
    changed = dict(optimizer.param_groups[0])
    said, optimizer = trained(tmp_path, 3, make(0.1), schedule)
    assert "optimizer:" not in said, said
    assert all(optimizer.param_groups[0][key] == changed[key] for key in changed if key != "params")
    said, _ = trained(tmp_path, 4, make(0.1), schedule)
    assert "optimizer:" not in said, said


def test_a_rate_that_the_program_sets_is_not_another_setting(tmp_path: Path) -> None:
    trained(tmp_path, 2, adam(0.1), sets=0.01)
    said, optimizer = trained(tmp_path, 3, adam(0.1), sets=0.01)
    assert "optimizer:" not in said and optimizer.param_groups[0]["lr"] == 0.01, said
    said, _ = trained(tmp_path, 4, adam(0.5), sets=0.5)
    assert said.count("optimizer: lr was 0.1 when it was saved and is 0.5 now") == 1, said
    said, _ = trained(tmp_path, 5, adam(0.5))
    assert "optimizer:" not in said, "as it was told, param_groups were set"


def test_settings_that_cannot_be_compared_do_not_keep_a_session_from_going_on(tmp_path: Path) -> None:
    def odd(parameters: Any) -> Any:
        made = torch.optim.SGD(parameters, lr=torch.tensor(0.1), weight_decay=0.0)
        made.param_groups[0].update(nan=float("nan"), inner=[{"x": (1, torch.tensor([0.1, 0.2]))}], big=10**400, rates=np.ones(3).tolist())
        return made

    trained(tmp_path, 2, odd)
    said, _ = trained(tmp_path, 3, odd)
    assert "optimizer:" not in said and "cannot be compared" not in said, said
    with heard() as lines:
        tell_settings("optimizer", [{"lr": "1"}], [{"lr": "2"}], {"param_groups": 3}, {})
    assert len(lines) == 1 and "settings of optimizer cannot be compared with the saved ones: TypeError" in lines[0], lines


@pytest.mark.parametrize("other", [torch.optim.AdamW, torch.optim.SGD])
def test_another_class_of_optimizer_is_refused_with_both_names(tmp_path: Path, other: Any) -> None:
    trained(tmp_path, 2, adam(0.1))
    with pytest.raises(CheckpointError, match=f"has optimizer as a Adam, and this session has a {other.__name__}: give the"):
        trained(tmp_path, 3, lambda parameters: other(parameters, lr=0.1))
    assert trained(tmp_path, 3, adam(0.1))[1].param_groups[0]["lr"] == 0.1


def test_checkpoints_without_names_of_classes_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_session.Session, "_said", lambda self, forms: {"torch": forms})
    trained(tmp_path, 2, adam(0.1))
    monkeypatch.undo()
    said, _ = trained(tmp_path, 3, adam(0.5))
    assert "goes on after step 2" in said and "optimizer:" not in said, "what was given then is not known"


def test_objects_that_were_saved_and_are_not_given_again_are_named(tmp_path: Path) -> None:
    trained(tmp_path, 2, adam(0.1), Sampler(8), Sampler(9))
    with pytest.raises(CheckpointError, match="has the state of state.1, a Sampler, which this session does not have"):
        trained(tmp_path, 3, adam(0.1), Sampler(8))
    with pytest.raises(CheckpointError, match="has the state of optimizer, a Adam, which this session does not have"):
        hvd.Session(torch.nn.Linear(3, 1), state=[Sampler(8), Sampler(9)], checkpoint_dir=tmp_path)
    with pytest.raises(CheckpointError, match="state.0, a Sampler, does not take the state that was saved: ValueError: "):
        trained(tmp_path, 3, adam(0.1), Sampler(10), Sampler(9))
    said, _ = trained(tmp_path, 3, adam(0.1), Sampler(8), Sampler(9), Sampler(10))
    assert "the checkpoint has no state.2, which begins anew" in said


def unlike() -> str:
    try:
        hvd.Session(torch.nn.Linear(1, 1), state=[Sampler(8)] * (1 + hvd.rank()), log_step_count_steps=None)
    except SessionError as why:
        return str(why)
    raise AssertionError("it began")


def test_ranks_with_different_objects_are_told_which_rank_it_is() -> None:
    first, second = run_ranks(2, unlike)
    text = "rank 0 has no state.1, on rank 1: give the sessions of all ranks the same objects"
    assert second == text and first.endswith(f"the program of rank 1: SessionError: {text}"), (first, second)


def resumed(folder: Path, last: int, first: str) -> list[int]:
    """With an iterator that is taken before the session, or after it."""
    model, sampler, seen = torch.nn.Linear(1, 1), Sampler(12, seed=3), []
    samples = iter(sampler) if first == "iterator" else None
    hooks = [StopAtStepHook(last_step=last), CheckpointSaverHook(folder, save_steps=1)]
    with hvd.Session(model, state=[sampler], checkpoint_dir=folder, hooks=hooks, log_step_count_steps=None) as session:
        samples = samples or iter(sampler)
        while not session.should_stop():
            seen += session.run(lambda: list(islice(samples, 2)))
    return seen


@pytest.mark.parametrize("first", ["iterator", "session"])
def test_no_sample_comes_twice_whatever_was_made_first(tmp_path: Path, first: str) -> None:
    seen = [*resumed(tmp_path, 2, first), *resumed(tmp_path, 5, first), *resumed(tmp_path, 6, first)]
    assert sorted(seen) == list(range(12)), seen


def test_an_iterator_that_has_given_samples_before_the_session_is_refused(tmp_path: Path) -> None:
    resumed(tmp_path, 2, "session")
    model, sampler = torch.nn.Linear(1, 1), Sampler(12, seed=3)
    samples = iter(sampler)
    next(samples)
    with hvd.Session(model, state=[sampler], checkpoint_dir=tmp_path, log_step_count_steps=None):
        with pytest.raises(DataError, match=r"call iter\(sampler\) after the session has begun"):
            next(samples)
        assert len(list(sampler)) == 8


def looked_at_first() -> list[int]:
    """All ranks look at a sample before the session begins, and rank 1 takes over what rank 0 has."""
    sampler = Sampler(12, seed=3)
    samples = iter(sampler)
    seen = [next(samples)]
    with hvd.Session(torch.nn.Linear(1, 1), state=[sampler], log_step_count_steps=None):
        return seen + list(samples)


def test_ranks_that_have_taken_the_same_samples_go_on() -> None:
    first, second = run_ranks(2, looked_at_first)
    assert sorted(first + second) == list(range(12))


def test_a_model_that_the_optimizer_does_not_train_is_told() -> None:
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    said = []
    for trains in (other, model):
        with heard(logging.WARNING) as lines:
            hvd.Session(model, torch.optim.SGD(trains.parameters(), lr=0.1), log_step_count_steps=None).close()
        said.append("".join(lines))
    assert "none of the optimizer's parameters belongs to the model of this session" in said[0]
    assert "make the optimizer of model.parameters()" in said[0] and said[1] == "", said


def test_one_object_in_place_of_a_list_is_refused() -> None:
    model = torch.nn.Linear(2, 1)
    sampler = Sampler(10)
    with pytest.raises(TypeError, match=r"state takes a list of objects, not a Sampler: write \[sampler\]"):
        hvd.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), sampler)  # type: ignore[arg-type]
    assert sampler.state_dict()["consumed"] == 0
    with pytest.raises(TypeError, match="Scaffold.state takes a list of objects, not a Sampler"):
        made = Model()
        made.scaffold.state = sampler  # type: ignore[assignment]
        made.session()
