"""Padding of sequences is never counted in silence: layers keep lengths, mask, or refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import World, begin, world

import phalanx.graph as fluid
from phalanx.graph import layers, nets

__all__ = ["world"]

LENGTHS, TIME = [3, 1, 4], 4


def sequences(name: str = "x", width: int = 2, dtype: str = "float32") -> fluid.Variable:
    return layers.data(name, [width], dtype=dtype, lod_level=1, max_length=TIME)


def rows(width: int = 2, seed: int = 0) -> list[Any]:
    random = np.random.default_rng(seed)
    return [random.standard_normal([n, width]).astype("float32") for n in LENGTHS]


def run(feed: Any, *fetched: fluid.Variable) -> list[Any]:
    return fluid.Executor().run(feed=feed, fetch_list=list(fetched))


KEEPING: list[tuple[Callable[[fluid.Variable], fluid.Variable], Callable[[Any], Any]]] = [
    (
        lambda x: layers.where(layers.greater_than(x, layers.zeros_like(x)), x, x * 2.0),
        lambda s: np.where(s > 0, s, 2 * s),
    ),
    (lambda x: layers.elementwise_pow(x * x + 1.0, layers.ones_like(x) * 3.0), lambda s: (s * s + 1) ** 3),
    (
        lambda x: layers.mul(x, layers.fill_constant([2, 3], "float32", 2.0), x_num_col_dims=2),
        lambda s: s @ np.full([2, 3], 2.0),
    ),
    (lambda x: layers.mul(x, layers.fill_constant([2, 3], "float32", 2.0)), lambda s: s @ np.full([2, 3], 2.0)),
    (lambda x: layers.cumsum(x, axis=2), lambda s: np.cumsum(s, 1)),
    (lambda x: layers.cumsum(x, axis=1), lambda s: np.cumsum(s, 0)),
    (lambda x: layers.argsort(x, axis=2)[0], lambda s: np.sort(s, 1)),
    (lambda x: layers.reduce_prod(x, dim=2, keep_dim=True), lambda s: s.prod(1, keepdims=True)),
    (lambda x: layers.squeeze(layers.unsqueeze(x, [2]), [2]), lambda s: s),
    (lambda x: layers.reduce_sum(layers.stack([x, x], axis=2), dim=2), lambda s: 2 * s),
    (lambda x: layers.expand(x, [1, 1, 2]), lambda s: np.tile(s, [1, 2])),
    (lambda x: layers.round(x * 4.0), lambda s: np.round(s * 4)),
]


@pytest.mark.parametrize("n", range(len(KEEPING)))
def test_layers_that_leave_time_alone_keep_lengths(world: World, n: int) -> None:
    layer, way = KEEPING[n]
    y = layer(sequences())
    assert y.lod_level == 1
    (got,) = run({"x": rows()}, layers.sequence_pool(y, "average"))
    np.testing.assert_allclose(got, [way(s).mean(0) for s in rows()], rtol=1e-4, atol=1e-5)


REFUSED: list[tuple[Callable[[fluid.Variable], Any], str]] = [
    (lambda x: layers.unsqueeze(x, [1]), "keep the first two dimensions"),
    (lambda x: layers.stack([x, x]), "keep the first two dimensions"),
    (lambda x: layers.stack([x, x], axis=1), "keep the first two dimensions"),
    (lambda x: layers.expand(x, [1, 2, 1]), "keep the first two dimensions"),
    (lambda x: layers.reshape(x, [-1, 2]), "keep the first two dimensions, or take sequence_pad"),
    (lambda x: layers.reshape(x, [0, TIME * 2]), "keep the first two dimensions"),
    (lambda x: layers.flatten(x), "keep the first two dimensions"),
    (lambda x: layers.flatten(x, 2), "keep the first two dimensions"),
    (lambda x: layers.transpose(x, [1, 0, 2]), "keep the first two axes"),
    (lambda x: layers.transpose(x, [0, 2, 1]), "keep the first two axes"),
    (
        lambda x: layers.scatter(
            x, layers.fill_constant([1], "int64", 0), layers.fill_constant([1, TIME, 2], "float32", 0.0)
        ),
        "sequence_pool first",
    ),
    (lambda x: layers.gather_nd(x, layers.fill_constant([1, 1], "int64", 0)), "sequence_pool first"),
    (lambda x: layers.argmax(x, axis=1), "sequence_pad"),
    (lambda x: layers.argmin(x, axis=1), "sequence_pad"),
    (lambda x: layers.softmax(x, axis=1), "sequence_softmax"),
    (lambda x: layers.log_softmax(x, axis=1), "sequence_softmax"),
    (lambda x: layers.argsort(x, axis=1), "sequence_pad"),
    (lambda x: layers.argsort(layers.reduce_sum(x, dim=2)), "give elements a width"),
    (lambda x: layers.cumsum(x, axis=1, reverse=True), r"sequence_pad\(x, 0.0\)"),
    (lambda x: layers.cumsum(x, axis=0), r"sequence_pad\(x, 0.0\)"),
    (lambda x: layers.reduce_prod(x, dim=1), r"sequence_pad\(x, 1.0\)"),
    (lambda x: layers.reduce_prod(x), r"sequence_pad\(x, 1.0\)"),
    (lambda x: layers.group_norm(x, 2), "begin_norm_axis=2"),
    (lambda x: layers.instance_norm(x), "begin_norm_axis=2"),
    (lambda x: layers.maxout(x, 2), "keep the first two"),
    (lambda x: layers.prelu(x, "channel"), "mode='all'"),
    (lambda x: layers.matmul(x, x, transpose_x=True), r"sequence_pad\(x, 0.0\)"),
    (
        lambda x: layers.matmul(layers.reduce_sum(x, dim=2), layers.fill_constant([TIME, 3], "float32", 1.0)),
        "sequence_pad",
    ),
    (lambda x: layers.softmax(layers.matmul(x, x, transpose_y=True)), "scaled_dot_product_attention"),
    (lambda x: layers.reduce_sum(layers.matmul(x, x, transpose_y=True) * 2.0, dim=2), "scaled_dot_product_attention"),
    (lambda x: layers.reduce_sum(layers.ones_like(x)), "sequence_pool"),
    (lambda x: layers.accuracy(x, layers.data("label", [1], dtype="int64", lod_level=1, max_length=TIME)), "equal"),
    (lambda x: layers.auc(x, layers.data("label", [1], dtype="int64")), "sequence_pool"),
    (lambda x: layers.mean(layers.unsqueeze(x, [3])), "sequence_pool"),
]


@pytest.mark.parametrize("n", range(len(REFUSED)))
def test_layers_that_would_count_padding_say_what_to_write(world: World, n: int) -> None:
    layer, says = REFUSED[n]
    with pytest.raises(fluid.ProgramError, match=f"padded sequences, and .*; .*{says}"):
        layer(sequences())


PLAIN: list[Callable[[fluid.Variable], Any]] = [
    lambda x: layers.sequence_pool(x, "sum"),
    layers.sequence_first_step,
    layers.sequence_last_step,
    layers.sequence_softmax,
    lambda x: layers.sequence_conv(x, 2),
    lambda x: layers.sequence_pad(x, 0.0),
    lambda x: layers.sequence_expand(layers.reduce_sum(x, dim=1), x),
]


@pytest.mark.parametrize("n", range(len(PLAIN)))
def test_sequences_have_lengths(world: World, n: int) -> None:
    with pytest.raises(fluid.ProgramError, match="lod_level=1"):
        PLAIN[n](fluid.data("x", [None, TIME, 1]))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
def test_padding_can_be_made_plain_and_back(world: World, dtype: str) -> None:
    x = sequences(dtype=dtype)
    plain, lengths = layers.sequence_pad(x * 2, 7)
    assert (plain.lod_level, lengths.name, plain.dtype) == (0, "x@LENGTHS", dtype)
    again = layers.sequence_unpad(plain, lengths)
    assert again.lengths is not None and again.lengths.name == lengths.name
    fed = [np.ceil(s).astype(dtype) for s in rows()]
    turned = layers.transpose(plain, [1, 0, 2])
    got, swapped = run({"x": fed}, plain, turned)
    for mine, s in zip(got, fed, strict=True):
        assert np.array_equal(mine[: len(s)], 2 * s) and (mine[len(s) :] == 7).all()
    assert np.array_equal(swapped, got.transpose(1, 0, 2))
    seven = layers.fill_constant([1], dtype, 7)
    assert np.array_equal(run({"x": fed}, layers.sequence_pad(x * 2, seven, TIME)[0])[0], got)
    for wrong, says in [
        (lambda: layers.sequence_pad(x, 0.0, 9), "max_length=9"),
        (lambda: layers.sequence_pad(x, plain), "pad_value is one number"),
        (lambda: layers.sequence_unpad(plain, layers.fill_constant([3], "int64", 1)), "what sequence_pad has given"),
        (lambda: layers.sequence_unpad(turned, lengths), "what sequence_pad has given"),
    ]:
        with pytest.raises(fluid.ProgramError, match=says):
            wrong()


def test_infinite_padding_does_not_spread(world: World) -> None:
    x = sequences()
    # The logarithm of what is behind the ends is infinite.
    plain, _ = layers.sequence_pad(layers.log(layers.abs(x)), 0.0)
    (got,) = run({"x": rows()}, layers.reduce_sum(plain, dim=1))
    np.testing.assert_allclose(got, [np.log(np.abs(s)).sum(0) for s in rows()], rtol=1e-4, atol=1e-4)


def test_products_over_time_leave_padding_out(world: World) -> None:
    x, z = sequences(), sequences("z", 3)
    # With a bias, what is behind the ends is not zero.
    shifted = z + 5.0
    mixed = layers.matmul(layers.matmul(x, x, transpose_y=True), shifted)
    assert mixed.lod_level == 1
    a, b = rows(), rows(3, seed=1)
    (got,) = run({"x": a, "z": b}, mixed)
    for mine, s, t in zip(got, a, b, strict=True):
        np.testing.assert_allclose(mine[: len(s)], s @ s.T @ (t + 5), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("heads", [1, 2])
def test_scaled_attention_leaves_padding_out(world: World, heads: int) -> None:
    x = sequences(width=4)
    shifted = x + 3.0
    out = nets.scaled_dot_product_attention(shifted, shifted, shifted, num_heads=heads)
    assert out.lengths is not None and out.lengths.name == "x@LENGTHS"
    pooled = layers.sequence_pool(out, "average")
    begin(world)
    fed = rows(4)
    got, means = run({"x": fed}, out, pooled)
    # Each alone, without padding: the same parameters, and as many times as there are.
    for i, s in enumerate(fed):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            alone = fluid.data("x", [None, len(s), 4])
            y = nets.scaled_dot_product_attention(alone, alone, alone, num_heads=heads)
            (wanted,) = run({"x": s[None] + 3}, y)
        np.testing.assert_allclose(got[i, : len(s)], wanted[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(means[i], wanted[0].mean(0), rtol=1e-4, atol=1e-5)


def test_products_are_known_in_copies(world: World) -> None:
    x = sequences()
    scores = layers.matmul(x, x, transpose_y=True)
    twin = world.main.clone()
    with fluid.program_guard(twin), pytest.raises(fluid.ProgramError, match="is a product with padded sequences"):
        layers.softmax(twin.var(scores.name))
