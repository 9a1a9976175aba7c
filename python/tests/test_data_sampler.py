"""Which samples ranks get, and how they continue in the middle of an epoch."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import chain, islice
from typing import Any

import pytest
from ranks import run_ranks

import phalanx
from phalanx.data import DataError, Sampler


def world(n: int, size: int, **options: Any) -> list[Sampler]:
    return [Sampler(n, world=size, rank=rank, **options) for rank in range(size)]


def test_ends() -> None:
    pad, drop, uneven = (
        [list(s) for s in world(10, 4, ends=ends, seed=3)] for ends in ("pad", "drop", "uneven")
    )
    assert [len(s) for s in pad] == [3, 3, 3, 3] and set().union(*pad) == set(range(10))
    assert [len(s) for s in drop] == [2, 2, 2, 2] and len(set().union(*drop)) == 8
    assert [len(s) for s in uneven] == [3, 3, 2, 2] and sorted(chain(*uneven)) == list(range(10))
    assert [len(s) for s in world(10, 4, ends="uneven")] == [3, 3, 2, 2]


def test_epochs_and_seeds_have_their_own_order() -> None:
    sampler = Sampler(50, world=1, rank=0)
    first = list(sampler)
    assert list(sampler) == first and sorted(first) == list(range(50))
    sampler.set_epoch(1)
    second = list(sampler)
    assert second != first and sorted(second) == list(range(50))
    assert list(Sampler(50, world=1, rank=0, seed=1)) not in (first, second)
    # As every version on every machine: saved positions rely on it.
    assert list(Sampler(7, world=1, rank=0, seed=42)) == [6, 3, 5, 4, 0, 2, 1]


def test_from_four_ranks_to_two_in_the_middle_of_an_epoch() -> None:
    four = world(30, 4, seed=9)
    for sampler in four:
        sampler.set_epoch(2)
    parts = [iter(sampler) for sampler in four]
    seen = [sample for part in parts for sample in islice(part, 3)]
    states = [sampler.state_dict() for sampler in four]
    assert states == [{"n": 30, "seed": 9, "epoch": 2, "consumed": 12}] * 4
    two = world(30, 2, seed=9)
    for sampler in two:
        sampler.load_state_dict(states[0])
        sampler.set_epoch(2)
        assert len(sampler) == 9
    seen += list(two[0]) + list(two[1])
    assert sorted(seen) == list(range(30))
    assert two[0].state_dict()["consumed"] == 30 and len(two[0]) == 15
    assert two[0].state_dict()["consumed"] == 30, "asking for the length changes nothing"
    assert len(list(two[0])) == 15, "without set_epoch the whole epoch comes again"


def test_set_epoch_keeps_a_loaded_position_only_in_its_epoch() -> None:
    sampler = Sampler(10, world=1, rank=0)
    state = {"n": 10, "seed": 0, "epoch": 4, "consumed": 6}
    sampler.load_state_dict(state)
    assert (sampler.epoch, len(sampler), sampler.state_dict()) == (4, 4, state)
    sampler.set_epoch(5)
    assert len(sampler) == 10 and sampler.state_dict()["consumed"] == 0
    sampler.load_state_dict({**state, "consumed": 10})
    assert list(sampler) == []
    sampler.set_epoch(5)
    assert len(list(sampler)) == 10


def test_recorded_samples_count_instead_of_those_that_were_read_ahead() -> None:
    sampler = Sampler(40, world=2, rank=1)
    samples = iter(sampler)
    list(islice(samples, 15))
    sampler.record(4)
    sampler.record(4)
    assert sampler.state_dict()["consumed"] == 16
    list(samples)
    assert sampler.state_dict()["consumed"] == 16
    list(sampler)
    assert sampler.state_dict()["consumed"] == 40


def test_an_iterator_that_was_taken_before_a_position_is_loaded_goes_on_from_there() -> None:
    saved = Sampler(20, world=1, rank=0)
    order = list(saved)
    state = {**saved.state_dict(), "consumed": 7}
    sampler = Sampler(20, world=1, rank=0)
    samples = iter(sampler)
    sampler.load_state_dict(state)
    assert sampler.state_dict() == state and len(samples) == 13  # type: ignore[arg-type]
    assert next(samples) == order[7]
    assert sampler.state_dict()["consumed"] == 8
    # One that has given samples would give some of them twice.
    sampler.load_state_dict({**state, "consumed": 3})
    with pytest.raises(DataError, match=r"call iter\(sampler\) after the session has begun"):
        next(samples)
    assert len(list(sampler)) == 17
    # The position that it has is no other one; one that has ended stays at its end.
    samples = iter(sampler)
    taken = [next(samples) for _ in range(4)]
    sampler.load_state_dict(sampler.state_dict())
    taken += list(samples)
    sampler.load_state_dict(state)
    assert len(set(taken)) == len(taken) and next(samples, None) is None


def test_mistakes_are_refused() -> None:
    for wrong, why in [
        ({"n": -1}, "n must be a whole number from 0"),
        ({"n": 2.0}, "n must be a whole number"),
        ({"seed": None}, "seed must be"),
        ({"world": 2}, "world and rank belong together"),
        ({"rank": 0}, "world and rank belong together"),
        ({"world": 2, "rank": 2}, "rank 2 is not in a world of 2 ranks"),
        ({"world": 0, "rank": 0}, "not in a world of 0 ranks"),
        ({"ends": "wrap"}, 'ends must be "pad", "drop" or "uneven", not "wrap"'),
        ({"ends": None}, "ends must be"),
    ]:
        options: Any = {"n": 5, **wrong}
        with pytest.raises(ValueError, match=why):
            Sampler(**options)
    sampler = Sampler(5, world=1, rank=0)
    state = sampler.state_dict()
    for change, why in [
        ({"n": 6}, "position is of 6 samples, the sampler has 5"),
        ({"seed": 1}, "is of seed 1, the sampler has seed 0"),
        ({"consumed": 6}, "behind the last of 5 samples"),
        ({"epoch": -1}, "epoch must be"),
        ({"more": 1}, "n, seed, epoch, consumed, not n"),
    ]:
        with pytest.raises(ValueError, match=why):
            sampler.load_state_dict({**state, **change})
    assert sampler.state_dict() == state
    with pytest.raises(ValueError, match="epoch must be"):
        sampler.set_epoch(-1)
    with pytest.raises(ValueError, match="count must be"):
        sampler.record(-1)
    phalanx.shutdown()
    with pytest.raises(ValueError, match="has not joined a world"):
        iter(Sampler(5))


def shares(n: int) -> list[int]:
    return list(Sampler(n, seed=4))


def test_ranks_of_a_world_share_the_samples(n: int) -> None:
    parts = run_ranks(n, shares, 20)
    assert sorted(chain(*parts)) == list(range(20))


def test_torch_takes_it_as_a_sampler() -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    from torch.utils.data import DataLoader

    sampler = Sampler(21, world=2, rank=0, seed=1)
    loader: Any = DataLoader(range(100, 121), batch_size=4, sampler=sampler)  # type: ignore[arg-type]
    assert len(loader) == 3
    batches = iter(loader)
    first = next(batches).tolist()
    state = sampler.state_dict()
    assert state["consumed"] == 8
    rest = [batch.tolist() for batch in batches]
    sampler.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == rest
    assert [n - 100 for n in first] == list(islice(Sampler(21, world=2, rank=0, seed=1), 4))
