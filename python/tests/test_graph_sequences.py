"""Sequences of different lengths: fed ragged, padded inside, split between sequences."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from graphs import World, begin, world

import phalanx.graph as fluid

__all__ = ["world"]

LENGTHS = [3, 0, 5, 1, 2, 4, 5]
TIME = 5


def ragged(width: int = 2, seed: int = 0) -> fluid.LoDTensor:
    rows = np.random.default_rng(seed).standard_normal([sum(LENGTHS), width]).astype("float32")
    return fluid.create_lod_tensor(rows, [LENGTHS], fluid.CPUPlace())


def sequences(name: str = "x", width: int = 2) -> fluid.Variable:
    return fluid.layers.data(name, [width], lod_level=1, max_length=TIME)


def test_a_sequence_is_declared_with_its_lengths(world: World) -> None:
    x = sequences()
    assert (x.shape, x.lod_level) == ((-1, TIME, 2), 1)
    assert x.lengths is not None and (x.lengths.name, x.lengths.dtype, x.lengths.shape) == ("x@LENGTHS", "int64", (-1,))
    y = fluid.layers.tanh(fluid.layers.fc(x, 3))
    assert (y.shape, y.lengths.name) == ((-1, TIME, 3), "x@LENGTHS")
    assert fluid.layers.sequence_pool(y, "sum").lod_level == 0
    assert fluid.layers.transpose(x, [0, 2, 1]).lod_level == 0
    # Programs that were copied or read still take ragged feeds.
    for twin in (world.main.clone(), fluid.Program.parse_from_string(world.main.serialize_to_string())):
        assert twin.var("x").lod_level == 1


def test_wrong_declarations(world: World) -> None:
    for given, says in [
        ({"lod_level": 1}, "lod_level=1 needs max_length"),
        ({"lod_level": 1, "max_length": 0}, "needs max_length.*got 0"),
        ({"lod_level": 2, "max_length": 3}, "sequences of sequences are not supported"),
        ({"max_length": 3}, "say lod_level=1 too"),
        ({"lod_level": 1, "max_length": 3, "append_batch_size": False}, "one batch"),
    ]:
        with pytest.raises(fluid.ProgramError, match=says):
            fluid.layers.data("x", [2], **given)
    for given in (
        (np.zeros(3), [[1, 1]]),
        (np.zeros(3), [[1, 2], [1, 1, 1]]),
        ([[1, 2]], [[1]]),
        (np.zeros(1), [[2, -1]]),
    ):
        with pytest.raises(fluid.FeedError):
            fluid.create_lod_tensor(*given)
    words = fluid.create_lod_tensor([[1, 2, 3], [4]], [[3, 1]])
    assert words.shape() == [4, 1]
    drawn = fluid.create_random_int_lodtensor([[30, 10]], [2], fluid.CPUPlace(), low=3, high=4)
    assert [part.shape for part in drawn.sequences()] == [(30, 2), (10, 2)]
    assert set(np.asarray(drawn).ravel().tolist()) == {3, 4}


def test_ragged_feeds_are_padded_and_split_between_sequences(world: World) -> None:
    x = sequences()
    y = x * 2.0
    fed = ragged()
    parts = fed.sequences()
    for devices in (1, 2, 3, 7, 9):
        exe = fluid.ParallelExecutor(main_program=world.main, devices=devices)
        got, lengths = exe.run([y, x.lengths], feed={"x": fed})
        assert got.shape == (len(LENGTHS), TIME, 2)
        assert lengths.tolist() == LENGTHS
        for mine, part in zip(fluid.unpad(got, lengths), parts, strict=True):
            assert np.array_equal(mine, part * 2)
        # A list of arrays is the same, and so is what was padded before.
        assert np.array_equal(exe.run([y], feed={"x": parts})[0], got)
        assert np.array_equal(exe.run([y], feed={"x": got / 2, "x@LENGTHS": lengths})[0], got)
    (each,) = fluid.ParallelExecutor(main_program=world.main, devices=2).run(
        [y], feed=[{"x": parts[:3]}, {"x": parts[3:]}], return_merged=False
    )
    assert [len(part) for part in each] == [3, 4]
    assert np.array_equal(fluid.Executor().run(world.main, feed={x: fed}, fetch_list=[y])[0], np.concatenate(each))


def test_wrong_ragged_feeds_name_the_sequence(world: World) -> None:
    x, z, plain = sequences(), sequences("z"), fluid.data("plain", [None, 2])
    fluid.layers.reduce_sum(x + z)
    long = np.zeros([TIME + 1, 2], "float32")
    good, other = ragged(), fluid.create_lod_tensor(np.zeros([20, 2], "float32"), [[3, 0, 5, 1, 3, 3, 5]])
    exe = fluid.ParallelExecutor(main_program=world.main, devices=2)
    flat = np.zeros([7, 2], "float32")
    for feed, says, var in [
        (
            {"x": [long[:2], long]},
            r"sequence 1 has the length 6, but max_length is 5 .*test_graph_sequences.py:\d+",
            "x",
        ),
        ({"x": [np.zeros([2, 3])]}, r"wants sequences of float32\[2\].*sequence 0 is float64\[2, 3\]", "x"),
        ({"x": [["a", "b"]]}, "sequence 0 is <U1", "x"),
        ({"x": good, "z": other}, "sequence 4 of `z` has the length 3, and that of `x` 2", "z"),
        ({"x": fluid.PerDevice([good, good]), "z": fluid.PerDevice([good, other])}, "sequence 11 of `z`", "z"),
        ({"x": good, "x@LENGTHS": np.array(LENGTHS)}, "have lengths already", "x@LENGTHS"),
        ({"plain": good}, "was not declared with lod_level=1", "plain"),
        (
            {"x": np.zeros([7, TIME, 2], "float32"), "z": good, "plain": flat},
            "`x@LENGTHS` is not fed.*feed `x` as a list of sequences",
            "x@LENGTHS",
        ),
        ({"x": good, "z": fluid.LoDTensor(flat[:1], [1]), "plain": flat}, "7 samples and `z` with 1", "z"),
    ]:
        with pytest.raises(fluid.FeedError, match=says) as caught:
            exe.run([x], feed=feed)
        assert caught.value.var == var
    with pytest.raises(fluid.FeedError, match="no padded sequences"):
        fluid.unpad(np.zeros([2, 3]), [1, 4])
    assert plain.lod_level == 0


@pytest.mark.parametrize("devices", [1, 3])
def test_pools_see_what_is_before_the_ends(world: World, devices: int) -> None:
    x = sequences()
    kinds = ["sum", "average", "sqrt", "max", "first", "last"]
    pools = [fluid.layers.sequence_pool(x, kind) for kind in kinds]
    pools += [fluid.layers.sequence_first_step(x), fluid.layers.sequence_last_step(x)]
    fed = ragged()
    empty = np.zeros(2, "float32")
    ways = [
        lambda s: s.sum(0),
        lambda s: s.mean(0),
        lambda s: s.sum(0) / np.sqrt(len(s)),
        lambda s: s.max(0),
        lambda s: s[0],
        lambda s: s[-1],
        lambda s: s[0],
        lambda s: s[-1],
    ]
    got = fluid.ParallelExecutor(main_program=world.main, devices=devices).run(pools, feed={"x": fed})
    for pooled, way in zip(got, ways, strict=True):
        wanted = np.stack([way(s) if len(s) else empty for s in fed.sequences()])
        np.testing.assert_allclose(pooled, wanted, rtol=1e-6, atol=1e-6)
    with pytest.raises(fluid.ProgramError, match="there are sum, average"):
        fluid.layers.sequence_pool(x, "median")


def test_softmax_expand_mask_and_attention(world: World) -> None:
    x, scores = sequences(width=4), sequences("scores", 1)
    soft = fluid.layers.sequence_softmax(scores)
    wide = fluid.layers.sequence_expand(fluid.layers.sequence_pool(x, "max"), x)
    mask = fluid.layers.sequence_mask(x)
    seen = fluid.layers.attention(x, 2)
    assert [v.lod_level for v in (soft, wide, seen)] == [1, 1, 1]
    begin(world)
    fed = ragged(4)
    weights = ragged(1, seed=1)
    feed = {"x": fed, "scores": weights}
    exe = fluid.Executor()
    got, expanded, ones, first = exe.run(world.main, feed=feed, fetch_list=[soft, wide, mask, seen])
    assert ones.sum(1).tolist() == LENGTHS
    for i, (s, w) in enumerate(zip(fed.sequences(), weights.sequences(), strict=True)):
        n = len(s)
        wanted = np.exp(w) / np.exp(w).sum() if n else w
        np.testing.assert_allclose(got[i, :n], wanted, rtol=1e-5)
        assert not got[i, n:].any() and not expanded[i, n:].any()
        assert n == 0 or np.array_equal(expanded[i, :n], np.repeat(s.max(0)[None], n, 0))
    # What lies behind the ends is not attended to.
    padded = np.full([len(LENGTHS), TIME, 4], 1e4, "float32")
    for i, s in enumerate(fed.sequences()):
        padded[i, : len(s)] = s
    dirty = {"x": padded, "x@LENGTHS": np.array(LENGTHS), "scores": weights}
    (again,) = exe.run(world.main, feed=dirty, fetch_list=[seen])
    for a, b in zip(fluid.unpad(first, LENGTHS), fluid.unpad(again, LENGTHS), strict=True):
        assert np.array_equal(a, b)


def sigmoid(v: Any) -> Any:
    return 1 / (1 + np.exp(-v))


@pytest.mark.parametrize("is_reverse", [False, True])
def test_recurrent_layers_do_what_their_equations_say(world: World, is_reverse: bool) -> None:
    x, z = sequences("x", 12), sequences("z", 9)
    lstm, cells = fluid.layers.dynamic_lstm(x, 12, is_reverse=is_reverse)
    gru = fluid.layers.dynamic_gru(z, 3, is_reverse=is_reverse)
    begin(world)
    random = np.random.default_rng(5)
    world.scope["lstm_0.b_0"] = random.standard_normal(12).astype("float32")
    world.scope["gru_0.b_0"] = random.standard_normal(9).astype("float32")
    a, b = ragged(12), ragged(9, seed=2)
    got = fluid.Executor().run(world.main, feed={"x": a, "z": b}, fetch_list=[lstm, cells, gru])
    (w, bias), (u, c) = ([world.scope[f"{layer}_0.{part}_0"] for part in "wb"] for layer in ("lstm", "gru"))
    for i, (s, t) in enumerate(zip(a.sequences(), b.sequences(), strict=True)):
        h = cell = state = np.zeros(3)
        order = range(len(s))[::-1] if is_reverse else range(len(s))
        for k in order:
            gate_i, gate_f, gate_g, gate_o = np.split(s[k] + bias + w @ h, 4)
            cell = sigmoid(gate_f) * cell + sigmoid(gate_i) * np.tanh(gate_g)
            h = sigmoid(gate_o) * np.tanh(cell)
            (xr, xz, xn), (hr, hz, hn) = np.split(t[k], 3), np.split(u @ state + c, 3)
            update = sigmoid(xz + hz)
            state = (1 - update) * np.tanh(xn + sigmoid(xr + hr) * hn) + update * state
            for value, wanted in zip(got, (h, cell, state), strict=True):
                np.testing.assert_allclose(value[i, k], wanted, rtol=1e-4, atol=1e-5)
    for given, says in [
        ({"use_peepholes": True}, "use_peepholes=True is not supported"),
        ({"gate_activation": "relu"}, "relu"),
    ]:
        with pytest.raises(fluid.ProgramError, match=says):
            fluid.layers.dynamic_lstm(x, 12, **given)
    with pytest.raises(fluid.ProgramError, match=r"Take fc\(x, 4 \* width\) before"):
        fluid.layers.dynamic_lstm(x, 16)


def test_sequences_that_are_all_full_need_no_lengths(world: World) -> None:
    full, x = fluid.data("full", [None, TIME, 8]), sequences(width=8)
    out = []
    for v in (full, x):
        states, _ = fluid.layers.dynamic_lstm(v, 8, param_attr="w", bias_attr="b")
        pooled = fluid.layers.sequence_pool(states, "sqrt")
        out.append(
            fluid.layers.dynamic_gru(fluid.layers.fc(states, 6, 2, param_attr="u"), 2, param_attr="g", bias_attr=False)
        )
        out.append(pooled)
    begin(world)
    rows = np.random.default_rng(0).standard_normal([4, TIME, 8]).astype("float32")
    a, b, c, d = fluid.Executor().run(world.main, feed={"full": rows, "x": list(rows)}, fetch_list=out)
    assert np.array_equal(a, c)
    np.testing.assert_allclose(b, d, rtol=1e-6)


def test_means_over_padding_are_refused(world: World) -> None:
    x = sequences()
    for mean in (fluid.layers.mean, fluid.layers.reduce_mean, lambda v: fluid.layers.reduce_mean(v, dim=1)):
        with pytest.raises(fluid.ProgramError, match="what lies behind their ends would count"):
            mean(x)
    # Over features, and of what is no sequence any more, it is what it was.
    fluid.layers.mean(fluid.layers.sequence_pool(fluid.layers.reduce_mean(x, dim=2, keep_dim=True), "sum"))


WORDS, MARKS, TAGS = 30, 2, 4
FEEDS = ["word", "before", "after", "mark", "target"]


def tagger(*, is_sparse: bool) -> tuple[fluid.Variable, fluid.Variable]:
    """A small db-LSTM: words share one table, LSTMs run forth and back, a chain decides on tags."""
    layers = fluid.layers
    ids = [layers.data(name, [1], dtype="int64", lod_level=1, max_length=TIME) for name in FEEDS]
    table = fluid.ParamAttr(name="emb", learning_rate=2.0)
    rows = [layers.embedding(word, [WORDS, 6], is_sparse=is_sparse, param_attr=table) for word in ids[:3]]
    rows.append(layers.embedding(ids[3], [MARKS, 3], is_sparse=is_sparse, param_attr="vemb"))
    mix = layers.sums([layers.fc(row, 8, act="tanh") for row in rows])
    lstm, _ = layers.dynamic_lstm(layers.fc(mix, 16), 16)
    back, _ = layers.dynamic_lstm(layers.fc([mix, lstm], 16), 16, is_reverse=True)
    scores = layers.fc([lstm, back], TAGS)
    cost = layers.linear_chain_crf(scores, ids[4], param_attr=fluid.ParamAttr(name="crfw"))
    path = layers.crf_decoding(scores, param_attr=fluid.ParamAttr(name="crfw"))
    return layers.mean(cost), path


def tagged(step: int) -> dict[str, fluid.LoDTensor]:
    dice = np.random.default_rng(step)
    sizes = [WORDS, WORDS, WORDS, MARKS, TAGS]
    lengths = [int(n) for n in dice.permutation(LENGTHS)]
    rows = {name: dice.integers(n, size=[sum(lengths), 1]) for name, n in zip(FEEDS, sizes, strict=True)}
    return {name: fluid.create_lod_tensor(value, [lengths]) for name, value in rows.items()}


def trained(
    devices: int, *, is_sparse: bool = False, reduce: str = "AllReduce"
) -> tuple[list[float], dict[str, Any], Any]:
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=1)
    startup.random_seed = 4
    with fluid.program_guard(main, startup), fluid.scope_guard(scope):
        loss, path = tagger(is_sparse=is_sparse)
        fluid.optimizer.SGD(fluid.layers.exponential_decay(0.1, 3, 0.5, staircase=True)).minimize(loss)
        fluid.Executor().run(startup)
        build = fluid.BuildStrategy()
        build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy[reduce]
        build.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.BySamples
        exe = fluid.ParallelExecutor(loss_name=loss.name, main_program=main, build_strategy=build, devices=devices)
        losses = []
        for step in range(6):
            mean, tags = exe.run([fluid.Fetch(loss, "mean"), path], feed=tagged(step))
            losses.append(mean.item())
        return losses, {p.name: scope[p.name] for p in main.all_parameters()}, tags


def test_a_tagger_learns_the_same_however_it_is_run() -> None:
    alone = trained(1)
    three, sparse, reduced = trained(3), trained(3, is_sparse=True), trained(3, reduce="Reduce")
    assert {"emb", "vemb", "crfw"} <= alone[1].keys()
    assert alone[0][-1] != alone[0][0]
    for name, value in three[1].items():
        # Sequences are split between devices, never within.
        np.testing.assert_allclose(value, alone[1][name], rtol=1e-4, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(value, sparse[1][name], rtol=1e-5, atol=1e-7, err_msg=name)
        assert value.tobytes() == reduced[1][name].tobytes(), name
    assert three[0] == reduced[0]
    np.testing.assert_allclose(three[0], alone[0], rtol=1e-5)
    np.testing.assert_allclose(three[0], sparse[0], rtol=1e-5)
    lengths = tagged(5)["word"].recursive_sequence_lengths()[0]
    assert alone[2].shape == (len(LENGTHS), TIME)
    assert np.array_equal(alone[2], three[2])
    assert all(not row[n:].any() for row, n in zip(alone[2], lengths, strict=True))


def score(x: Any, w: Any, path: tuple[int, ...]) -> float:
    """Of one tagging, with the weights of beginning, end and going on."""
    own = sum(x[t, tag] for t, tag in enumerate(path))
    return w[0, path[0]] + w[1, path[-1]] + own + sum(w[2 + a, b] for a, b in pairwise(path))


def test_decoding_says_which_tags_are_right(world: World) -> None:
    scores = sequences("scores", 3)
    label = fluid.layers.data("label", [1], dtype="int64", lod_level=1, max_length=TIME)
    cost = fluid.layers.linear_chain_crf(scores, label, param_attr="w")
    path = fluid.layers.crf_decoding(scores, "w")
    right = fluid.layers.crf_decoding(scores, "w", label=label)
    with pytest.raises(fluid.ProgramError, match="`nobody` is no parameter"):
        fluid.layers.crf_decoding(scores, "nobody")
    begin(world)
    tags = fluid.create_lod_tensor(np.zeros([sum(LENGTHS), 1], "int64"), [LENGTHS])
    exe = fluid.Executor()
    feed = {"scores": ragged(3), "label": tags}
    best, hits, costs = exe.run(world.main, feed=feed, fetch_list=[path, right, cost])
    w = world.scope["w"]
    for x, tagged, unlikely in zip(ragged(3).sequences(), best, costs, strict=True):
        if not len(x):
            assert unlikely == 0
            continue
        scores_of = {p: score(x, w, p) for p in product(range(3), repeat=len(x))}
        assert tuple(tagged[: len(x)]) == max(scores_of, key=scores_of.__getitem__)
        wanted = np.log(sum(np.exp(s) for s in scores_of.values())) - scores_of[(0,) * len(x)]
        np.testing.assert_allclose(unlikely, wanted, rtol=1e-4)
    before = np.arange(TIME) < np.array(LENGTHS)[:, None]
    assert np.array_equal(hits, (best == 0) & before)
    assert 0 < hits.sum() < sum(LENGTHS)


def test_loaders_give_ragged_batches(world: World) -> None:
    word = fluid.layers.data("word", [1], dtype="int64", lod_level=1, max_length=TIME)
    label = fluid.layers.data("label", [1], dtype="int64")
    total = fluid.layers.sequence_pool(fluid.layers.cast(word, "float32"), "sum")
    samples = [(list(range(n)), n) for n in LENGTHS]
    for devices in (1, 3):
        exe = fluid.ParallelExecutor(main_program=world.main, devices=devices)
        loader = fluid.io.DataLoader.from_generator([word, label], capacity=4, drop_last=False)
        loader.set_sample_generator(lambda: iter(samples), 2, False, fluid.cpu_places(devices))
        got = np.concatenate([exe.run([total], feed=data)[0] for data in loader()])
        assert got.ravel().tolist() == [n * (n - 1) / 2 for n in LENGTHS]
    still = fluid.io.DataLoader.from_generator([word, label], capacity=4, drop_last=False, iterable=False)
    still.set_batch_generator(lambda: ([tagged(i)["word"], np.zeros([7, 1], "int64")] for i in range(4)))
    still.start()
    assert [len(exe.run([total])[0]) for _ in range(2)] == [21, 7]
    long = fluid.io.DataLoader.from_generator([word, label], capacity=4)
    long.set_sample_generator(lambda: iter([([0] * 9, 1)]), 1)
    with pytest.raises(fluid.FeedError, match="`word`: sequence 0 has the length 9, but max_length is 5"):
        next(long())
