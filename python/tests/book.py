"""Six small models in Paddle's names, each with a twin in PyTorch and data that is made here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import phalanx
import phalanx.graph as fluid

layers, nets = fluid.layers, fluid.nets
SAMPLES, STEPS = 8, 5
WORDS, WIDTH, TIME, TAGS = 30, 6, 5, 4


def _sequences(random: np.random.Generator, limit: int, lengths: Any) -> list[Any]:
    return [random.integers(limit, size=[n, 1]) for n in lengths]


def _line() -> Any:
    x, y = layers.data("x", shape=[13]), layers.data("y", shape=[1])
    return layers.mean(layers.square_error_cost(input=layers.fc(x, 1, param_attr="w", bias_attr="b"), label=y))


def _digits() -> Any:
    image, label = layers.data("image", [1, 14, 14]), layers.data("label", [1], dtype="int64")
    first = nets.simple_img_conv_pool(
        image, filter_size=3, num_filters=4, pool_size=2, pool_stride=2, act="relu", param_attr="c1", bias_attr="d1"
    )
    second = nets.simple_img_conv_pool(
        first, filter_size=3, num_filters=5, pool_size=2, pool_stride=2, act="relu", param_attr="c2", bias_attr="d2"
    )
    prediction = layers.fc(second, size=10, act="softmax", param_attr="w", bias_attr="b")
    return layers.mean(layers.cross_entropy(input=prediction, label=label))


def _words() -> Any:
    given = [layers.data(f"word{i}", [1], dtype="int64") for i in range(4)]
    rows = [layers.embedding(w, [WORDS, WIDTH], is_sparse=True, param_attr="shared") for w in given]
    hidden = layers.fc(layers.concat(rows, axis=1), 8, act="sigmoid", param_attr="w1", bias_attr="b1")
    prediction = layers.fc(hidden, WORDS, act="softmax", param_attr="w2", bias_attr="b2")
    following = layers.data("following", [1], dtype="int64")
    return layers.mean(layers.cross_entropy(input=prediction, label=following))


def _sentiment() -> Any:
    words = layers.data("words", [1], dtype="int64", lod_level=1, max_length=TIME)
    label = layers.data("label", [1], dtype="int64")
    rows = layers.embedding(words, [WORDS, WIDTH], param_attr="table")
    both = [
        nets.sequence_conv_pool(rows, 4, n, param_attr=f"c{n}", bias_attr=f"d{n}", act="tanh", pool_type="sqrt")
        for n in (3, 4)
    ]
    prediction = layers.fc(both, 2, act="softmax", param_attr=None, bias_attr="b", name="out")
    return layers.mean(layers.cross_entropy(input=prediction, label=label))


def _roles() -> Any:
    feeds = [layers.data(n, [1], dtype="int64", lod_level=1, max_length=TIME) for n in ("word", "mark", "tag")]
    word, mark, tag = feeds
    a = layers.embedding(word, [WORDS, WIDTH], param_attr="words")
    b = layers.embedding(mark, [2, WIDTH], param_attr="marks")
    mixed = [layers.fc(v, 4 * 3, param_attr=f"m{i}", bias_attr=f"n{i}", act="tanh") for i, v in enumerate((a, b))]
    hidden, _ = layers.dynamic_lstm(
        layers.sums(mixed),
        4 * 3,
        param_attr="lstm",
        bias_attr=fluid.ParamAttr(name="lstm_b", initializer=fluid.initializer.Normal(0.0, 0.5)),
    )
    scores = layers.fc(hidden, TAGS, param_attr="score", bias_attr="score_b")
    return layers.mean(layers.linear_chain_crf(scores, tag, param_attr=fluid.ParamAttr(name="crfw")))


def _recommender() -> Any:
    user, age = layers.data("user", [1], dtype="int64"), layers.data("age", [1], dtype="int64")
    movie, title = (
        layers.data("movie", [1], dtype="int64"),
        layers.data("title", [1], dtype="int64", lod_level=1, max_length=TIME),
    )
    score = layers.data("score", [1])
    rows = [layers.embedding(v, [WORDS, WIDTH], param_attr=n) for v, n in ((user, "users"), (age, "ages"))]
    person = layers.fc(layers.concat(rows, axis=1), 6, act="tanh", param_attr="p", bias_attr="pb")
    seen = layers.sequence_pool(layers.embedding(title, [WORDS, WIDTH], param_attr="titles"), "sum")
    film = layers.concat([layers.embedding(movie, [WORDS, WIDTH], param_attr="movies"), seen], axis=1)
    film = layers.fc(film, 6, act="tanh", param_attr="f", bias_attr="fb")
    guess = layers.scale(layers.cos_sim(X=person, Y=film), scale=5.0)
    return layers.mean(layers.square_error_cost(input=guess, label=score))


def _ids(random: np.random.Generator, limit: int) -> Any:
    return random.integers(limit, size=[SAMPLES, 1])


def _word_batch(random: np.random.Generator) -> dict[str, Any]:
    names = ["word0", "word1", "word2", "word3", "following"]
    return {name: _ids(random, WORDS) for name in names}


def _role_batch(random: np.random.Generator) -> dict[str, Any]:
    lengths = random.integers(1, TIME + 1, size=SAMPLES)
    limits = {"word": WORDS, "mark": 2, "tag": TAGS}
    return {name: _sequences(random, limit, lengths) for name, limit in limits.items()}


def _twins() -> dict[str, Callable[[Any, Any, dict[str, Any]], Any]]:
    """Losses of PyTorch's, from parameters by name and a batch."""
    import torch

    F = torch.nn.functional

    def nll(scores: Any, label: Any) -> Any:
        return F.cross_entropy(scores, label.ravel())

    def line(p: Any, t: Any, b: Any) -> Any:
        return ((b["x"] @ p["w"] + p["b"] - b["y"]) ** 2).mean()

    def digits(p: Any, t: Any, b: Any) -> Any:
        x = F.max_pool2d(F.relu(F.conv2d(b["image"], p["c1"], p["d1"])), 2)
        x = F.max_pool2d(F.relu(F.conv2d(x, p["c2"], p["d2"])), 2)
        return nll(x.flatten(1) @ p["w"] + p["b"], b["label"])

    def words(p: Any, t: Any, b: Any) -> Any:
        rows = torch.cat([p["shared"][b[f"word{i}"].ravel()] for i in range(4)], 1)
        return nll(torch.sigmoid(rows @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"], b["following"])

    def sentiment(p: Any, t: Any, b: Any) -> Any:
        scores = []
        for ids in b["words"]:
            rows, parts = p["table"][ids.ravel()], []
            for n in (3, 4):
                first = n // 2
                padded = F.pad(rows, (0, 0, first, n - 1 - first))
                windows = torch.stack([padded[i : i + n].reshape(-1) for i in range(len(rows))])
                parts.append(torch.tanh(windows @ p[f"c{n}"] + p[f"d{n}"]).sum(0) / len(rows) ** 0.5)
            scores.append(parts[0] @ p["out.w_0"] + parts[1] @ p["out.w_1"] + p["b"])
        return nll(torch.stack(scores), b["label"])

    def roles(p: Any, t: Any, b: Any) -> Any:
        losses = []
        for word, mark, tag in zip(b["word"], b["mark"], b["tag"], strict=True):
            x = torch.tanh(p["words"][word.ravel()] @ p["m0"] + p["n0"])
            x = x + torch.tanh(p["marks"][mark.ravel()] @ p["m1"] + p["n1"])
            h = c = torch.zeros(3)
            bias, (seen_i, seen_f, seen_o) = p["lstm_b"][0, :12], p["lstm_b"][0, 12:].chunk(3)
            scores = []
            for row in x:
                g, i, f, o = (row + h @ p["lstm"] + bias).chunk(4)
                c = torch.sigmoid(f + seen_f * c) * c + torch.sigmoid(i + seen_i * c) * torch.tanh(g)
                h = torch.sigmoid(o + seen_o * c) * torch.tanh(c)
                scores.append(h @ p["score"] + p["score_b"])
            start, end, between, tags = p["crfw"][0], p["crfw"][1], p["crfw"][2:], tag.ravel()
            whole = start + scores[0]
            right = start[tags[0]] + scores[0][tags[0]]
            for k in range(1, len(scores)):
                whole = torch.logsumexp(whole[:, None] + between, 0) + scores[k]
                right = right + between[tags[k - 1], tags[k]] + scores[k][tags[k]]
            losses.append(torch.logsumexp(whole + end, 0) - right - end[tags[-1]])
        return torch.stack(losses).mean()

    def recommender(p: Any, t: Any, b: Any) -> Any:
        person = torch.cat([p["users"][b["user"].ravel()], p["ages"][b["age"].ravel()]], 1)
        seen = torch.stack([p["titles"][ids.ravel()].sum(0) for ids in b["title"]])
        film = torch.cat([p["movies"][b["movie"].ravel()], seen], 1)
        person, film = torch.tanh(person @ p["p"] + p["pb"]), torch.tanh(film @ p["f"] + p["fb"])
        return ((5.0 * F.cosine_similarity(person, film, 1).unsqueeze(1) - b["score"]) ** 2).mean()

    return {
        "fit a line": line,
        "digits": digits,
        "word2vec": words,
        "sentiment": sentiment,
        "semantic roles": roles,
        "recommender": recommender,
    }


def _reals(random: np.random.Generator, *shape: int) -> Any:
    return random.standard_normal([SAMPLES, *shape]).astype("float32")


BUILDS: dict[str, tuple[Callable[[], Any], Callable[[np.random.Generator], dict[str, Any]], float]] = {
    "fit a line": (_line, lambda r: {"x": _reals(r, 13), "y": _reals(r, 1)}, 0.05),
    "digits": (_digits, lambda r: {"image": _reals(r, 1, 14, 14), "label": _ids(r, 10)}, 0.1),
    "word2vec": (_words, _word_batch, 0.5),
    "sentiment": (
        _sentiment,
        lambda r: {
            "words": _sequences(r, WORDS, r.integers(1, TIME + 1, size=SAMPLES)),
            "label": _ids(r, 2),
        },
        0.3,
    ),
    "semantic roles": (_roles, _role_batch, 0.1),
    "recommender": (
        _recommender,
        lambda r: {
            **{name: _ids(r, WORDS) for name in ("user", "age", "movie")},
            "title": _sequences(r, WORDS, r.integers(1, TIME + 1, size=SAMPLES)),
            "score": r.uniform(1, 5, [SAMPLES, 1]).astype("float32"),
        },
        0.05,
    ),
}


def batches(name: str) -> list[dict[str, Any]]:
    """What every step learns from: the same few samples, so that losses fall."""
    random = np.random.default_rng(len(name))
    return [BUILDS[name][1](random)] * STEPS


def train(name: str, devices: int) -> dict[str, Any]:
    """Trains on this rank's share of each batch; first parameters, and the loss of each step on it."""
    rank, size = (phalanx.rank(), phalanx.size()) if phalanx.is_initialized() else (0, 1)
    build, _, rate = BUILDS[name]
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope(seed=11)
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(scope):
        loss = build()
        fluid.optimizer.SGD(learning_rate=rate).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        first = {p.name: np.array(scope[p.name]) for p in main.all_parameters()}
        compiled = fluid.CompiledProgram(main).with_data_parallel(loss.name, places=fluid.cpu_places(devices))
        losses = []
        for whole in batches(name):
            part = slice(rank * SAMPLES // size, (rank + 1) * SAMPLES // size)
            share = {key: value[part] for key, value in whole.items()}
            losses.append(float(np.mean(exe.run(compiled, share, [loss])[0])))
    return {"first": first, "losses": losses}


def twin(name: str, first: dict[str, Any]) -> list[float]:
    """The losses of PyTorch's twin, from the same first parameters."""
    import torch

    p = {key: torch.nn.Parameter(torch.tensor(value)) for key, value in first.items()}
    optimizer = torch.optim.SGD(list(p.values()), lr=BUILDS[name][2])
    losses = []
    for whole in batches(name):
        given = {k: [torch.tensor(s) for s in v] if isinstance(v, list) else torch.tensor(v) for k, v in whole.items()}
        optimizer.zero_grad()
        loss = _twins()[name](p, torch, given)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
