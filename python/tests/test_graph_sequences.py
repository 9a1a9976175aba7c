"""Sequences of different lengths: fed ragged, padded inside, split between sequences."""

from __future__ import annotations

import json
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
    # Programs that were copied or read still take ragged feeds.
    for twin in (world.main.clone(), fluid.Program.parse_from_string(world.main.serialize_to_string())):
        assert twin.var("x").lod_level == 1


def test_wrong_declarations(world: World) -> None:
    for given, says in [
        ({"lod_level": 1, "max_length": 0}, "the longest one, from 1; got 0"),
        ({"lod_level": 1, "max_length": "5"}, "the longest one, from 1; got '5'"),
        ({"lod_level": 2, "max_length": 3}, "sequences of sequences are not supported"),
        ({"max_length": 3}, "pass lod_level=1, too"),
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
    assert (x + z).lod_level == 1
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
        ({x: good, z: other}, "sequence 4 of `z` has the length 3, and that of `x` 2", "z"),
        ([{x: good, z: good}, {"x": good, z: other}], "sequence 4 of `z`", "z"),
        ({x: good, "x": good, z: good}, "`x` is fed twice", "x"),
        ({x: good, x.lengths: np.array(LENGTHS)}, "already have lengths", "x@LENGTHS"),
        ({"x": [np.zeros([3, 0], "float32")]}, r"sequence 0 is float32\[3, 0\]", "x"),
        ({"x": [[[1.0, 2.0], [3.0]]]}, "sequence 0 is a list whose parts differ in shape", "x"),
        ({"x": fluid.PerDevice([good, good]), "z": fluid.PerDevice([good, other])}, "sequence 11 of `z`", "z"),
        ({"x": good, "x@LENGTHS": np.array(LENGTHS)}, "already have lengths", "x@LENGTHS"),
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
    with pytest.raises(fluid.FeedError, match="not padded sequences"):
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
    with pytest.raises(fluid.ProgramError, match="choose one of sum, average"):
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
@pytest.mark.parametrize("use_peepholes", [False, True])
def test_recurrent_layers_do_what_their_equations_say(world: World, is_reverse: bool, use_peepholes: bool) -> None:
    x, z = sequences("x", 12), sequences("z", 9)
    given: dict[str, Any] = {} if use_peepholes else {"use_peepholes": False}
    lstm, cells = fluid.layers.dynamic_lstm(x, 12, is_reverse=is_reverse, **given)
    gru = fluid.layers.dynamic_gru(z, 3, is_reverse=is_reverse, origin_mode=use_peepholes)
    begin(world)
    random = np.random.default_rng(5)
    assert world.scope["lstm_0.b_0"].shape == (1, 21 if use_peepholes else 12)
    world.scope["lstm_0.b_0"] = random.standard_normal(world.scope["lstm_0.b_0"].shape).astype("float32")
    world.scope["gru_0.b_0"] = random.standard_normal([1, 9]).astype("float32")
    a, b = ragged(12), ragged(9, seed=2)
    got = fluid.Executor().run(world.main, feed={"x": a, "z": b}, fetch_list=[lstm, cells, gru])
    (w, whole), (u, c) = ([world.scope[f"{layer}_0.{part}_0"] for part in "wb"] for layer in ("lstm", "gru"))
    assert (w.shape, u.shape) == ((3, 12), (3, 9))
    bias, seen = whole[0, :12], whole[0, 12:] if use_peepholes else np.zeros(9)
    (wi, wf, wo), both, new = np.split(seen, 3), u.ravel()[:18].reshape(3, 6), u.ravel()[18:].reshape(3, 3)
    for i, (s, t) in enumerate(zip(a.sequences(), b.sequences(), strict=True)):
        h = cell = state = np.zeros(3)
        order = range(len(s))[::-1] if is_reverse else range(len(s))
        for k in order:
            gate_g, gate_i, gate_f, gate_o = np.split(s[k] + bias + h @ w, 4)
            before = cell
            cell = sigmoid(gate_f + wf * before) * before + sigmoid(gate_i + wi * before) * np.tanh(gate_g)
            h = sigmoid(gate_o + wo * cell) * np.tanh(cell)
            row = t[k] + c[0]
            update, reset = np.split(sigmoid(row[:6] + state @ both), 2)
            candidate = np.tanh(row[6:] + (reset * state) @ new)
            keep, take = (update, 1 - update) if use_peepholes else (1 - update, update)
            state = keep * state + take * candidate
            for value, wanted in zip(got, (h, cell, state), strict=True):
                np.testing.assert_allclose(value[i, k], wanted, rtol=1e-4, atol=1e-5)
    for values, lengths in zip(got, (a, a, b), strict=True):
        assert not any(row[len(s) :].any() for row, s in zip(values, lengths.sequences(), strict=True))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"gate_activation": "gelu"}, "gate_activation='gelu' is not an activation of gates; choose one of sigmoid"),
        ({"bias_attr": False}, "the weights of peepholes are in the bias; pass use_peepholes=False, too"),
    ]
    for arguments, says in wrong:
        with pytest.raises(fluid.ProgramError, match=says):
            fluid.layers.dynamic_lstm(x, 12, **arguments)
    with pytest.raises(fluid.ProgramError, match=r"Take fc\(x, 4 \* width\) before"):
        fluid.layers.dynamic_lstm(x, 16)


def test_gates_have_any_activation(world: World) -> None:
    x = sequences("x", 4)
    acts = {"gate_activation": "identity", "cell_activation": "relu", "candidate_activation": "sigmoid"}
    hidden, cells = fluid.layers.dynamic_lstm(x, 4, use_peepholes=False, bias_attr=False, param_attr="w", **acts)
    # Gradients flow through cells, too.
    loss = fluid.layers.mean(fluid.layers.sequence_pool(cells, "sum"))
    fluid.optimizer.SGD(1.0).minimize(loss)
    begin(world)
    before, fed = np.array(world.scope["w"]), ragged(4)
    got = fluid.Executor().run(world.main, feed={"x": fed}, fetch_list=[hidden, cells])
    for i, s in enumerate(fed.sequences()):
        h = cell = 0.0
        for k, row in enumerate(s):
            g, gate_i, gate_f, gate_o = row + h * before[0]
            cell = gate_f * cell + gate_i * sigmoid(g)
            h = gate_o * max(cell, 0.0)
            np.testing.assert_allclose([got[0][i, k, 0], got[1][i, k, 0]], [h, cell], rtol=1e-4, atol=1e-5)
    assert np.abs(world.scope["w"] - before).max() > 0


def test_sequences_that_are_all_full_need_no_lengths(world: World) -> None:
    full, x = fluid.data("full", [None, TIME, 8]), sequences(width=8)
    out = []
    for v in (full, x):
        states, _ = fluid.layers.dynamic_lstm(v, 8, param_attr="w", bias_attr="b")
        total = fluid.layers.reduce_sum(states, dim=1) if v is full else None
        pooled = fluid.layers.sequence_pool(states, "sqrt") if total is None else total * TIME**-0.5
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
        with pytest.raises(fluid.ProgramError, match="the padding would count"):
            mean(x)
    # Over features, and of what is no sequence any more, it is what it was.
    fluid.layers.mean(fluid.layers.sequence_pool(fluid.layers.reduce_mean(x, dim=2, keep_dim=True), "sum"))


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (lambda x: fluid.layers.reduce_sum(x, dim=1), 'sequence_pool\\(x, "sum"\\)'),
        (lambda x: fluid.layers.reduce_sum(x), 'sequence_pool\\(x, "sum"\\)'),
        (lambda x: fluid.layers.reduce_sum(x, dim=0), 'sequence_pool\\(x, "sum"\\)'),
        (lambda x: fluid.layers.reduce_max(x, dim=[1, 2]), 'sequence_pool\\(x, "max"\\)'),
        (lambda x: fluid.layers.reduce_min(x, dim=-2), 'sequence_pool\\(x \\* -1.0, "max"\\)'),
        (lambda x: fluid.layers.concat([x, x], axis=1), "before they are fed"),
        (lambda x: fluid.layers.concat([x, x], axis=0), "feed all sequences in one variable"),
        (lambda x: fluid.layers.slice(x, [1], [0], [2]), "sequence_first_step or sequence_last_step"),
        (lambda x: fluid.layers.split(x, [2, 3], dim=1), "sequence_first_step or sequence_last_step"),
        (lambda x: fluid.layers.gather(x, fluid.data("i", [None], "int64")), "gather its rows"),
        (lambda x: fluid.layers.layer_norm(x), "begin_norm_axis=2"),
        (lambda x: fluid.layers.batch_norm(x), "layer_norm"),
        (lambda x: fluid.layers.softmax(fluid.layers.reduce_sum(x, dim=2)), "sequence_softmax"),
        (lambda x: fluid.layers.argmax(fluid.layers.reduce_sum(x, dim=2)), "sequence_pool"),
    ],
)
def test_padding_is_never_taken_for_elements(world: World, layer: Any, says: str) -> None:
    x = sequences()
    with pytest.raises(fluid.ProgramError, match=f"padded sequences, and .*; .*{says}") as caught:
        layer(x)
    assert caught.value.var is not None and "test_graph_sequences.py:" in str(caught.value.site)


def test_what_leaves_time_alone_keeps_the_lengths(world: World) -> None:
    x = sequences()
    layers = fluid.layers
    for y in (
        layers.reduce_sum(x, dim=2),
        layers.concat([x, x], axis=2),
        layers.slice(x, [1, 2], [0, 1], [TIME, 2]),
        layers.layer_norm(x, begin_norm_axis=2),
        layers.softmax(x),
        layers.argmax(x),
        layers.transpose(layers.reshape(x, [0, 0, 1, 2]), [0, 1, 3, 2]),
        layers.expand_to(layers.reduce_sum(x, dim=2, keep_dim=True), [-1, TIME, 4]),
    ):
        assert y.lengths is not None and y.lengths.name == "x@LENGTHS", y
    # Times of one feature, and features of one time, are no sequences.
    wide = sequences("wide", TIME)
    for layer in (
        lambda: layers.transpose(wide, [0, 2, 1]),
        lambda: layers.matmul(wide, wide, transpose_x=True),
    ):
        with pytest.raises(fluid.ProgramError, match="holds padded sequences"):
            layer()


@pytest.mark.parametrize("kind", ["sum", "average", "sqrt", "max", "first", "last"])
def test_a_pool_is_no_sequence_even_if_it_is_as_wide_as_time(world: World, kind: str) -> None:
    x, z = sequences("x", TIME), sequences("z", TIME)
    pools = [fluid.layers.sequence_pool(v, kind) for v in (x, z)]
    assert [v.lod_level for v in pools] == [0, 0]
    both = pools[0] + pools[1]
    loss = fluid.layers.mean(fluid.layers.fc(both, 3))
    begin(world)
    short = fluid.create_lod_tensor(np.ones([len(LENGTHS), TIME], "float32"), [[1] * len(LENGTHS)])
    feed = {"x": ragged(TIME), "z": short}
    got, first, _ = fluid.Executor().run(world.main, feed=feed, fetch_list=[both, pools[0], loss])
    np.testing.assert_allclose(got, first + 1, rtol=1e-6)


def test_sequences_attend_to_others_of_other_lengths(world: World) -> None:
    a = fluid.layers.data("a", [2], lod_level=1, max_length=3)
    b = fluid.layers.data("b", [2], lod_level=1, max_length=5)
    scores = fluid.layers.matmul(a, b, transpose_y=True)
    mixed = fluid.layers.matmul(scores, b)
    assert scores.lengths is not None and mixed.lengths is not None
    assert (scores.shape, scores.lengths.name, mixed.lengths.name) == ((-1, 3, 5), "a@LENGTHS", "a@LENGTHS")
    random = np.random.default_rng(3)
    left, right = ([random.standard_normal([n, 2]).astype("float32") for n in given] for given in ([3, 1], [2, 5]))
    (got,) = fluid.Executor().run(world.main, feed={"a": left, "b": right}, fetch_list=[mixed])
    for mine, u, v in zip(got, left, right, strict=True):
        np.testing.assert_allclose(mine[: len(u)], u @ v.T @ v, rtol=1e-5, atol=1e-6)


def test_programs_that_were_read_know_where_sequences_end(world: World) -> None:
    x, z = sequences(), sequences("z")
    both = fluid.layers.tanh(x + z)
    seen = fluid.layers.attention(both, 1)
    written = world.main.serialize_to_string()
    read = fluid.Program.parse_from_string(written)
    assert read.serialize_to_string() == written
    good, other = ragged(), fluid.create_lod_tensor(np.zeros([20, 2], "float32"), [[3, 0, 5, 1, 3, 3, 5]])
    begin(world)
    with fluid.unique_name.guard(), fluid.program_guard(read, world.startup):
        with pytest.raises(fluid.ProgramError, match="the padding would count"):
            fluid.layers.mean(read.var(seen.name))
        pooled = fluid.layers.sequence_pool(read.var(both.name), "average")
    (got,) = fluid.Executor().run(read, feed={"x": good, "z": good}, fetch_list=[pooled])
    wanted = [np.tanh(2 * s).mean(0) if len(s) else np.zeros(2) for s in good.sequences()]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    for use_prune in (False, True):
        with pytest.raises(fluid.FeedError, match="sequence 4 of `z` has the length 3"):
            fluid.Executor().run(read, feed={"x": good, "z": other}, fetch_list=[pooled], use_prune=use_prune)
    # A part that needs no lengths still takes sequences.
    fluid.Executor().run(read, feed={"x": good, "z": good}, fetch_list=[both.name], use_prune=True)
    form = json.loads(written)
    for wrong in (
        None,
        1,
        [],
        {},
        {"lengths": [1], "alike": []},
        {"lengths": {"x": "nobody"}, "alike": []},
        {"lengths": {"x": "z"}, "alike": []},
        {"lengths": {"nobody": "x@LENGTHS"}, "alike": []},
        {"lengths": {"x": ["x@LENGTHS"]}, "alike": []},
        {"lengths": {}, "alike": [["x@LENGTHS"]]},
        {"lengths": {}, "alike": [["x@LENGTHS", "x"]]},
    ):
        with pytest.raises(fluid.ProgramError, match="this is not a program"):
            fluid.Program.parse_from_string(json.dumps({**form, "sequences": wrong}).encode())
    # One that was written without them knows those of its feeds.
    del form["sequences"]
    bare = fluid.Program.parse_from_string(json.dumps(form).encode())
    assert [bare.var(name).lod_level for name in ("x", "z", both.name)] == [1, 1, 0]


def test_loops_and_branches_keep_lengths(world: World) -> None:
    x, layers = sequences(), fluid.layers
    zero, three = (layers.fill_constant([1], "int64", n) for n in (0, 3))

    def body(i: fluid.Variable, v: fluid.Variable) -> list[fluid.Variable]:
        assert v.lod_level == 1
        return [layers.increment(i, in_place=False), v * 2.0]

    _, out = layers.while_loop(lambda i, v: layers.less_than(i, three), body, [zero, x], maximum_trip_count=3)
    either = layers.cond(layers.less_than(zero, three), lambda: out * 1.0, lambda: x * 1.0)
    assert isinstance(either, fluid.Variable) and (out.lod_level, either.lod_level) == (1, 1)
    pooled = layers.sequence_pool(either, "sum")
    (got,) = fluid.Executor().run(world.main, feed={"x": ragged()}, fetch_list=[pooled])
    np.testing.assert_allclose(got, [8 * s.sum(0) for s in ragged().sequences()], rtol=1e-5, atol=1e-6)


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
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
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
    with pytest.raises(fluid.ProgramError, match="`nobody` is not a parameter"):
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
    odd = fluid.layers.data("odd", [1], dtype="int32", lod_level=1, max_length=TIME)
    for given, says in [([1, 2**40 + 5], "1099511627781, which int32 cannot hold"), ([1.7], r"float64\[1\]")]:
        with pytest.raises(fluid.FeedError, match=f"`odd` wants sequences of int32.*{says}"):
            fluid.DataFeeder([odd]).feed([(given,)])
    long = fluid.io.DataLoader.from_generator([word, label], capacity=4)
    long.set_sample_generator(lambda: iter([([0] * 9, 1)]), 1)
    with pytest.raises(fluid.FeedError, match="`word`: sequence 0 has the length 9, but max_length is 5"):
        next(long())
