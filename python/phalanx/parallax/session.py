"""The session of :func:`parallel_run`: names of what is fetched and fed, one value for each replica."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

#: Fetching this makes a step.
TRAIN_OP = "train_op"
GLOBAL_STEP = "global_step"
_REPLICA = "replica_"


class Trained(Protocol):
    """What a session trains: a model of torch, or a program."""

    @property
    def step(self) -> int:
        """Steps of the whole training so far."""

    def run(self, names: Sequence[str], feeds: list[dict[str, Any]]) -> dict[str, list[Any]]:
        """The values of these names, one for each replica; each replica has its feeds."""

    def call(self, fn: Callable[..., Any], feeds: list[dict[str, Any]]) -> Any:
        """One step, whatever it does."""

    def has_stopped(self) -> bool:
        """Whether no more steps can be made."""

    def explain(self) -> str:
        """Which variable is where, and why."""

    def counters(self) -> dict[str, int]:
        """What has travelled."""

    def close(self) -> None:
        """Ends it in order."""

    def abandon(self, error: BaseException) -> None:
        """Ends it because of an exception."""


class ReplicaNames(Mapping[str, list[str]]):
    """From a name to the names that it has in the replicas of this worker, for the ``run`` of :func:`parallel_run`.

    >>> ReplicaNames(2)["loss"]
    ['replica_0/loss', 'replica_1/loss']
    """

    def __init__(self, n_replicas: int, names: Sequence[str] = ()) -> None:
        self._n, self._names = n_replicas, tuple(names)

    def __getitem__(self, name: Any) -> list[str]:
        plain = _name(name)
        if self._names and plain not in (*self._names, TRAIN_OP, GLOBAL_STEP):
            raise KeyError(f"the program has no variable {plain!r}")
        return [f"{_REPLICA}{i}/{plain}" for i in range(self._n)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names or (TRAIN_OP, GLOBAL_STEP))

    def __len__(self) -> int:
        return len(self._names) or 2

    def __contains__(self, name: object) -> bool:
        try:
            return bool(self[name])
        except (KeyError, TypeError):
            return False


class ParallaxSession:
    """Runs what is trained; :func:`parallel_run` makes it.

    ``run(fetches, feed_dict)``: a name is answered with a list that has one value for each replica of this worker, a list or a dict of
    names with as many of them. A value that is fed is a list of that length, too. A name of one replica, as
    ``tensor_or_op_name_to_replica_names`` has it, stands for one value.

    Names of a model are those of the dict that it returns, or ``"loss"`` for a number; ``"train_op"`` makes a step, without it nothing is
    learned. ``"global_step"`` is the number of steps. A program makes a step in every ``run``. ``fetches`` may also be a function that
    makes one step of its own.
    """

    def __init__(self, trained: Trained, n_replicas: int) -> None:
        self._trained, self._n, self._is_closed = trained, n_replicas, False

    @property
    def global_step(self) -> int:
        """Steps of the whole training so far."""
        return self._trained.step

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """What was fetched, in the form of ``fetches``."""
        if self._is_closed:
            raise RuntimeError("the session is closed: the training has ended; parallel_run() begins another one")
        feeds = self._feeds(feed_dict)
        if callable(fetches) and not hasattr(fetches, "name"):
            return self._trained.call(fetches, feeds)
        names: list[str] = []
        self._collect(fetches, names)
        values = self._trained.run(list(dict.fromkeys(names)), feeds)
        values[GLOBAL_STEP] = [self._trained.step] * self._n
        return self._filled(fetches, values)

    def should_stop(self) -> bool:
        """Whether the training has stopped; the same on all workers after each step."""
        return self._trained.has_stopped()

    def explain(self) -> str:
        """Each variable, where it is trained, and why."""
        return self._trained.explain()

    def counters(self) -> dict[str, int]:
        """Operations of allreduce, and rows and bytes of tables."""
        return self._trained.counters()

    def close(self) -> None:
        """Ends it on all workers; a training that is saved is saved once more. Closing twice does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._trained.close()

    def __enter__(self) -> ParallaxSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._trained.abandon(error)

    def _feeds(self, given: Mapping[Any, Any] | None) -> list[dict[str, Any]]:
        feeds: list[dict[str, Any]] = [{} for _ in range(self._n)]
        if given is None:
            return feeds
        if not isinstance(given, Mapping):
            raise TypeError(f"feed_dict is a dict of names and lists, not a {type(given).__name__}")
        for key, values in given.items():
            replica, name = self._cut(_name(key))
            if replica is not None:
                _fed_once(feeds[replica], name, values)
                continue
            if not isinstance(values, (list, tuple)):
                raise TypeError(
                    f"feed {name!r} is a list with one value for each of the {self._n} replicas of this worker, not a "
                    f"{type(values).__name__}: write [value]"
                )
            if len(values) != self._n:
                raise ValueError(
                    f"feed {name!r} has {len(values)} values, and this worker has {self._n} replicas: one for each"
                )
            for feed, value in zip(feeds, values, strict=True):
                _fed_once(feed, name, value)
        return feeds

    def _cut(self, name: str) -> tuple[int | None, str]:
        head, slash, rest = name.partition("/")
        if not (slash and head.startswith(_REPLICA) and head[len(_REPLICA) :].isdigit()):
            return None, name
        replica = int(head[len(_REPLICA) :])
        if replica >= self._n:
            raise ValueError(f"{name!r} is of replica {replica}, and this worker has {self._n}")
        return replica, rest

    def _collect(self, fetches: Any, names: list[str]) -> None:
        if fetches is None:
            raise TypeError('nothing to fetch: write "train_op", "loss", or a list of names')
        if isinstance(fetches, Mapping):
            fetches = list(fetches.values())
        if isinstance(fetches, (list, tuple)):
            for one in fetches:
                self._collect(one, names)
            return
        names.append(self._cut(_name(fetches))[1])

    def _filled(self, fetches: Any, values: Mapping[str, list[Any]]) -> Any:
        if isinstance(fetches, Mapping):
            return {key: self._filled(one, values) for key, one in fetches.items()}
        if isinstance(fetches, (list, tuple)):
            return [self._filled(one, values) for one in fetches]
        replica, name = self._cut(_name(fetches))
        return values[name] if replica is None else values[name][replica]


def _fed_once(feed: dict[str, Any], name: str, value: Any) -> None:
    if name in feed:
        raise ValueError(f"feed {name!r} is given twice: for all replicas and for one of them")
    feed[name] = value


def _name(given: Any) -> str:
    """A name, or that of a variable."""
    name = given if isinstance(given, str) else getattr(given, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"what is fetched or fed has a name: write that, not a {type(given).__name__}")
    return name


__all__ = ["ParallaxSession", "ReplicaNames"]
