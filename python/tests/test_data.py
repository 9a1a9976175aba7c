"""Data sets: files, methods, positions."""

from __future__ import annotations

import gzip
import random
import re
import struct
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.data import (
    DataError,
    Dataset,
    OutOfRangeError,
    TextLineDataset,
    from_idx,
    from_list,
    from_npy,
    list_files,
)

DATA = Path(__file__).parents[2] / "data"


def test_the_recipe_for_shards(tmp_path: Path) -> None:
    """As TensorLayer's page has it, with other imports and without its session."""
    with gzip.open(DATA / "kjv.txt.gz", "rt") as file:
        verses = [line.rstrip("\n").lower() for line in islice(file, 4000)]
    n_verses = len(verses)
    for part in range(2):
        with gzip.open(tmp_path / f"kjv{part}.txt.gz", "wt") as file:
            file.writelines(f"{verse.upper()}\n" for verse in verses[2000 * part :][:2000])
    num_workers, num_epochs, batch_size, buffer_size = 3, 2, 64, 1000
    seen: list[str] = []
    for shard_index in range(num_workers):
        files_dataset = Dataset.list_files(str(tmp_path / "kjv*.gz"))
        dataset: Dataset[Any] = TextLineDataset(files_dataset)
        dataset = dataset.map(lambda line: line.lower(), num_threads=4)
        dataset = dataset.shard(num_workers, shard_index)
        dataset = dataset.shuffle(buffer_size)
        dataset = dataset.batch(batch_size)
        dataset = dataset.repeat(num_epochs)
        iterator = dataset.make_one_shot_iterator()
        epochs = [0] * num_epochs
        n_mine = len(range(shard_index, n_verses, num_workers))
        n_batches = -(-n_mine // batch_size)
        for i in range(num_epochs * n_batches):
            batch = iterator.get_next()
            epochs[i // n_batches] += len(batch)
            if i < n_batches:
                seen += batch
        assert epochs == [n_mine] * num_epochs
        with pytest.raises(OutOfRangeError, match=f"all {num_epochs * n_batches} elements"):
            iterator.get_next()
    assert seen != verses and sorted(seen) == sorted(verses)


def test_a_whole_text() -> None:
    parts = [list(TextLineDataset(DATA / "kjv.txt.gz").shard(2, i)) for i in range(2)]
    assert (len(parts[0]), len(parts[1])) == (15551, 15551) and all(parts[0][:100])


def test_the_page_has_programs_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(programs) == 6
    for file in DATA.glob("t10k*"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("in the beginning\n" * 100)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for program in programs:
        exec(program, names)
    assert names["state"]["epoch"] == 1 and len(list((tmp_path / "logs").iterdir())) == 1


def test_files_are_sorted_and_none_is_an_error(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c[1].txt", "sub/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    names = [str(tmp_path / name) for name in ("a.txt", "b.txt", "c[1].txt", "sub/d.txt")]
    assert list(list_files(tmp_path / "*.txt")) == names[:3]
    assert list(list_files([tmp_path / "**/d.txt", tmp_path / "b.txt", tmp_path / "?.txt"])) == [names[i] for i in (0, 1, 3)]
    assert list(list_files(tmp_path / "c[1].txt")) == [names[2]]
    with pytest.raises(FileNotFoundError, match="no file matches .*nothing"):
        list_files([names[0], "nothing*"])
    with pytest.raises(FileNotFoundError, match="no file matches"):
        list_files(tmp_path)
    with pytest.raises(ValueError, match="needs a pattern"):
        list_files([])


def test_lines_end_in_any_way(tmp_path: Path) -> None:
    text = "one\ntwo\r\n\rthree \u00fc\u2028x\n\nlast"
    plain, packed, empty = tmp_path / "a.txt", tmp_path / "b.txt.gz", tmp_path / "c.txt"
    plain.write_bytes(text.encode())
    packed.write_bytes(gzip.compress(text.encode()))
    empty.write_bytes(b"")
    lines = ["one", "two", "", "three \u00fc\u2028x", "", "last"]
    assert list(TextLineDataset(plain)) == lines
    assert list(TextLineDataset([packed, empty, str(plain)])) == 2 * lines
    with pytest.raises(ValueError, match="not an empty list"):
        TextLineDataset([])


def test_files_that_are_wrong_are_named(tmp_path: Path) -> None:
    good = gzip.compress(random.Random(1).randbytes(9000).hex().encode())
    wrong = {"cut.gz": good[:-9], "flip.gz": good[:60] + b"\xff" * 9 + good[69:], "not.gz": b"text\n"}
    for name, content in wrong.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name} is damaged: "):
            list(TextLineDataset(tmp_path / name))
    (tmp_path / "latin.txt").write_bytes(b"good\n" * 5000 + "\u00fc\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin.txt, line 5001: is not UTF-8"):
        list(TextLineDataset(tmp_path / "latin.txt"))
    with pytest.raises(FileNotFoundError, match=r"missing.txt"):
        list(TextLineDataset("missing.txt"))
    with pytest.raises(DataError, match="needs names of files, not 7"):
        list(TextLineDataset(from_list([7])))


def test_digits() -> None:
    digits = from_idx(DATA / "t10k-images-idx3-ubyte.gz", DATA / "t10k-labels-idx1-ubyte.gz")
    images, labels = next(iter(digits.batch(1000)))
    assert (images.shape, images.dtype, labels.shape, labels.dtype) == ((1000, 28, 28), np.uint8, (1000,), np.uint8)
    assert set(labels.tolist()) == set(range(10))
    image, _ = next(iter(digits))
    image[:] = 7
    assert (next(iter(digits))[0] == images[0]).all(), "elements are copies"


@pytest.mark.parametrize(("code", "kind"), [(8, "u1"), (9, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")])
def test_idx_files_of_all_types(code: int, kind: str, tmp_path: Path) -> None:
    values = np.arange(6).reshape(3, 2).astype(kind)
    head = struct.pack(">BBBBII", 0, 0, code, 2, 3, 2)
    (tmp_path / "x").write_bytes(head + values.astype(f">{kind}").tobytes())
    (read,) = list(from_idx(tmp_path / "x").batch(10))
    assert read.dtype == np.dtype(kind) and (read == values).all()


def test_idx_files_that_are_wrong_are_named(tmp_path: Path) -> None:
    def refused(content: bytes, why: str) -> None:
        (tmp_path / "x.idx").write_bytes(content)
        with pytest.raises(DataError, match=f"x.idx {why}"):
            from_idx(tmp_path / "x.idx")

    good = struct.pack(">BBBBI", 0, 0, 8, 1, 3) + b"abc"
    for cut in range(4):
        refused(good[:cut], "is not an IDX file")
    for cut in range(4, 8):
        refused(good[:cut], "is damaged: it ends within its 1 dimensions")
    refused(good[:-1], r"is damaged: dimensions \[3\] need 11 bytes, it has 10")
    refused(good + b"d", r"is damaged: dimensions \[3\] need 11 bytes, it has 12")
    refused(b"\1" + good[1:], "is not an IDX file: it begins with 01 00 08 01")
    refused(good[:2] + b"\x0a" + good[3:], "is not an IDX file")
    refused(good[:3] + b"\0" + good[4:], "is not an IDX file")
    refused(struct.pack(">BBBB255I", 0, 0, 8, 255, *[2**32 - 1] * 255), "is damaged")
    (tmp_path / "x.idx").write_bytes(good)
    (tmp_path / "y.idx").write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, 2) + b"ab")
    with pytest.raises(DataError, match=r"x.idx has 3 elements, but .*y.idx has 2 labels"):
        from_idx(tmp_path / "x.idx", tmp_path / "y.idx")
    with pytest.raises(DataError, match=r"t10k-images.* has 3 dimensions, labels have one"):
        from_idx(tmp_path / "x.idx", DATA / "t10k-images-idx3-ubyte.gz")
    with pytest.raises(FileNotFoundError):
        from_idx(tmp_path / "no.idx")


def test_arrays_of_numpy(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(12.0).reshape(4, 3))
    rows = list(from_npy(tmp_path / "a.npy"))
    assert [row.tolist() for row in rows] == np.arange(12.0).reshape(4, 3).tolist()
    rows[0][:] = 0
    np.save(tmp_path / "b.npy", np.arange(3))
    assert [type(n) for n in from_npy(tmp_path / "b.npy")] == [np.int64] * 3
    np.save(tmp_path / "one.npy", np.array(3))
    np.savez(tmp_path / "many.npz", a=np.arange(3))
    (tmp_path / "text.npy").write_text("text")
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name, why in [
        ("one.npy", "holds one number"),
        ("many.npz", "holds several arrays"),
        ("text.npy", "is not an array"),
        ("object.npy", "is not an array"),
    ]:
        with pytest.raises(DataError, match=f"{name} {why}"):
            from_npy(tmp_path / name)


def test_sources() -> None:
    assert list(Dataset((1, 2))) == [1, 2]
    assert list(Dataset(lambda: iter([1, 2])).repeat(2)) == [1, 2, 1, 2]
    numbers = [1]
    fixed = from_list(numbers)
    numbers.append(2)
    assert list(fixed) == [1]
    with pytest.raises(ValueError, match="list_iterator can be read only once: give a list, or a function"):
        Dataset(iter([1]))
    wrong: Any = 7
    with pytest.raises(TypeError, match="needs a list or a function"):
        Dataset(wrong)


def test_shards_are_disjoint_and_complete() -> None:
    parts = [list(from_list(range(10)).shard(3, i)) for i in range(3)]
    assert parts == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    assert list(from_list(range(2)).shard(3, 2)) == []
    for num, index in [(3, 3), (1, 1), (0, 0), (2, -1), (True, 0), (2, 0.0)]:
        with pytest.raises(ValueError, match="num|index"):
            from_list(range(3)).shard(num, index)  # type: ignore[arg-type]


def test_shuffling_before_shards_needs_a_seed(tmp_path: Path) -> None:
    numbers = from_list(range(100))
    for shuffled in (
        numbers.shuffle(10),
        numbers.shuffle(10).map(str).batch(2).repeat(2).prefetch(1),
        numbers.shuffle(10).shuffle(10, seed=1),
        TextLineDataset(from_list([tmp_path]).shuffle(2)),
    ):
        with pytest.raises(ValueError, match=r"write shard\(..\).shuffle\(buffer_size\), or shuffle\(buffer_size, seed=..\)"):
            shuffled.shard(2, 0)
    parts = [list(numbers.shuffle(50, seed=3).shard(2, i).shuffle(5)) for i in range(2)]
    assert sorted(parts[0] + parts[1]) == list(range(100))


def test_shuffling() -> None:
    numbers = from_list(range(1000))
    order = list(numbers.shuffle(100, seed=5))
    assert order != list(range(1000)) and sorted(order) == list(range(1000))
    assert all(n < i + 100 for i, n in enumerate(order)), "from the next 100 only"
    assert order == list(numbers.shuffle(100, seed=5)), "the same on all ranks"
    assert order != list(numbers.shuffle(100, seed=6))
    assert order[:5] == [63, 46, 77, 86, 90], "as in every version: saved positions rely on it"
    assert list(numbers.shuffle(1)) == list(range(1000))
    assert list(numbers.shuffle(100)) != list(numbers.shuffle(100))
    whole = list(from_list(range(5)).shuffle(100, seed=1))
    assert sorted(whole) == list(range(5))
    twice = list(numbers.shuffle(100, seed=5).repeat(2))
    assert twice[:1000] == order and twice[1000:] != order and sorted(twice[1000:]) == list(range(1000))
    assert twice[1000:] == list(numbers.shuffle(100, seed=5).iterator(epoch=1))
    assert list(numbers.shuffle(100, seed=5).repeat(2).iterator(epoch=1))[:1000] == list(
        numbers.shuffle(100, seed=5).iterator(epoch=2)
    )


def test_batches() -> None:
    assert list(from_list("abcde").batch(2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(from_list("abcde").batch(2, drop_remainder=True)) == [["a", "b"], ["c", "d"]]
    pairs = [{"x": np.full(2, i, "f4"), "n": (i, np.int64(i))} for i in range(3)]
    (first, _) = from_list(pairs).batch(2)
    assert first["x"].tolist() == [[0, 0], [1, 1]] and first["x"].dtype == np.float32
    assert first["n"][0] == [0, 1] and first["n"][1].tolist() == [0, 1]
    for wrong, why in [
        ([np.zeros(2), np.zeros(3)], r"batch 0: the first element is float64\[2\], element 1 of the batch is float64\[3\]"),
        ([np.zeros(2), np.zeros(2, "f4")], "float32"),
        ([np.zeros(2), 3], "element 1 of the batch is int"),
        ([(1, 2), (1,)], "a tuple of 2 parts, others are not"),
        ([{"a": 1}, {"b": 1}], r"a dict with the keys \['a'\], others are not"),
    ]:
        with pytest.raises(DataError, match=why):
            list(from_list(wrong).batch(2))


def test_repeating() -> None:
    numbers = from_list([1, 2])
    assert list(numbers.repeat(0)) == []
    assert list(numbers.repeat(3)) == [1, 2] * 3
    for forever in (numbers.repeat(), numbers.repeat(-1)):
        assert list(islice(forever, 5)) == [1, 2, 1, 2, 1]
    assert list(from_list([]).repeat(3)) == []
    with pytest.raises(DataError, match="there are no elements to repeat"):
        next(iter(from_list([1]).shard(2, 1).repeat()))


@pytest.mark.parametrize(
    "call",
    [
        lambda d: d.batch(0),
        lambda d: d.batch(1.5),
        lambda d: d.batch(True),
        lambda d: d.shuffle(0),
        lambda d: d.shuffle(3, seed="a"),
        lambda d: d.repeat(-2),
        lambda d: d.prefetch(0),
        lambda d: d.prefetch(None),
        lambda d: d.map(str, num_threads=0),
        lambda d: d.iterator(epoch=-1),
    ],
)
def test_numbers_that_are_wrong_are_refused_at_once(call: Any) -> None:
    with pytest.raises(ValueError, match="must be a whole number"):
        call(from_list([1]))


def test_a_position_is_saved_and_continued() -> None:
    dataset = from_list(range(20)).shuffle(8).map(str, num_threads=2).batch(3).repeat(3).prefetch(2)
    elements = dataset.iterator()
    first = [next(elements) for _ in range(9)]
    state = elements.state_dict()
    assert (state["epoch"], state["elements"]) == (0, 9) and all(type(v) is int for v in state.values())
    rest = list(elements)
    again = dataset.iterator()
    again.load_state_dict(state)
    assert list(again) == rest and len(first + rest) == 21
    assert elements.state_dict()["elements"] == 21
    ended = dataset.iterator()
    ended.load_state_dict(elements.state_dict())
    assert list(ended) == []


def test_positions_that_do_not_fit_are_refused() -> None:
    dataset = from_list(range(3))
    elements = dataset.iterator()
    state = elements.state_dict()
    with pytest.raises(DataError, match="behind element 4, but there are only 3"):
        dataset.iterator().load_state_dict({**state, "elements": 4})
    with pytest.raises(ValueError, match="epoch, elements and salt, not epoch"):
        dataset.iterator().load_state_dict({"epoch": 1})
    with pytest.raises(ValueError, match="elements must be a whole number from 0"):
        dataset.iterator().load_state_dict({**state, "elements": -1})
    next(elements)
    with pytest.raises(ValueError, match="before the first element"):
        elements.load_state_dict(state)
