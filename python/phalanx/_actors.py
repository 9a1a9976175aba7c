"""The ranks of a job as actors of a Ray cluster: where they go, how they start, whose failure counts, how they end."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx import _foreign
from phalanx._actor import RankActor, Whereabouts
from phalanx._function import Failure, RankFailedError
from phalanx.exceptions import InitializationError

#: What Ray knows, and what each means for a worker.
PLACEMENTS = {
    "PACK": "on as few nodes as possible",
    "SPREAD": "on as many nodes as possible",
    "STRICT_PACK": "all on one node",
    "STRICT_SPREAD": "each on a node of its own",
}
#: How long ranks that only tell of another one's failure are believed to be first.
_ECHO_S = 10.0
#: How long actors may take to end by themselves.
_END_S = 10.0


@dataclass(frozen=True)
class Place:
    """A rank's place in its world."""

    rank: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def number(hosts: Sequence[str]) -> list[Place]:
    """The places of actors on these hosts: ranks are counted host by host, hosts in the order in which they appear.

    >>> [place.rank for place in number(["a", "b", "a"])]
    [0, 2, 1]
    >>> number(["a", "b", "a"])[1]
    Place(rank=2, local_rank=0, local_size=1, cross_rank=1, cross_size=2)
    """
    members: dict[str, list[int]] = {}
    for actor, host in enumerate(hosts):
        members.setdefault(host, []).append(actor)
    places: dict[int, Place] = {}
    for i, here in enumerate(members.values()):
        for local_rank, actor in enumerate(here):
            peers = [other > local_rank for other in map(len, members.values())]
            places[actor] = Place(len(places), local_rank, len(here), sum(peers[:i]), sum(peers))
    return [places[actor] for actor in range(len(hosts))]


def ray_module() -> Any:
    """Ray, or an error that says what installs it."""
    try:
        import ray
    except ImportError as error:
        raise ImportError("phalanx.ray needs Ray, which is not installed here: pip install ray") from error
    return ray


def start_timeout_s() -> float:
    """How long a job may wait for its place, in seconds."""
    text = os.environ.get("PHALANX_START_TIMEOUT") or "60"
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"PHALANX_START_TIMEOUT={text!r} is not a number of seconds") from error


@dataclass
class Wish:
    """What actors shall be like."""

    #: Who asks, for messages.
    who: str
    #: How many bundles of the placement group, and how many actors in each.
    n_bundles: int
    per_bundle: int
    cpus: int
    placement: str
    #: For the place in the cluster, in seconds.
    wait_s: float
    #: Further variables of every rank.
    environment: Mapping[str, str]
    #: How to wait longer, for messages.
    longer: str = "PHALANX_START_TIMEOUT"
    #: Take the placement group of the caller, if there is one.
    in_current_group: bool = False

    @property
    def n(self) -> int:
        return self.n_bundles * self.per_bundle


class Actors:
    """Actors that are ranks of one world. :meth:`end` must be called."""

    def __init__(self, wish: Wish) -> None:
        self._ray = ray_module()
        self._wish = wish
        self._actors: list[Any] = []
        self._group: Any = None
        self._why_over: str | None = None
        if not self._ray.is_initialized():
            self._ray.init()
        try:
            self._start()
        except BaseException:
            self.end(kindly=False)
            raise

    def _start(self) -> None:
        wish, ray = self._wish, self._ray
        until = time.monotonic() + wish.wait_s
        group, bundles = self._find_group(until)
        kind = ray.remote(num_cpus=wish.cpus, max_restarts=0, max_task_retries=0)(RankActor)
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        for bundle in bundles:
            chosen = strategy(placement_group=group, placement_group_bundle_index=bundle)
            self._actors.append(kind.options(scheduling_strategy=chosen).remote())
        interface = wish.environment.get("PHALANX_INTERFACE") or os.environ.get("PHALANX_INTERFACE")
        # Actors that have a place begin soon; starting Python takes a while on a busy node.
        asked = [actor.where.remote(interface) for actor in self._actors]
        found = self._all_of(asked, max(until, time.monotonic() + 30.0), "start")
        places = number([where.host for where in found])
        self._actors = [actor for _, actor in sorted(zip(places, self._actors, strict=True), key=lambda p: p[0].rank)]
        in_order = sorted(zip(places, found, strict=True), key=lambda p: p[0].rank)
        self.whereabouts = [where for _, where in in_order]
        is_one_host = in_order[0][0].local_size == wish.n
        meeting = "127.0.0.1" if is_one_host and not interface else self.whereabouts[0].address
        # Not an argument of the actor's creation, which Ray keeps for restarts.
        secret = secrets.token_bytes(32)
        told = [self._told(place, where, meeting) for place, where in in_order]
        become = [a.become.remote(env, secret) for a, env in zip(self._actors, told, strict=True)]
        self._all_of(become, time.monotonic() + 30.0, "become ranks")

    def _told(self, place: Place, where: Whereabouts, meeting: str) -> dict[str, str]:
        """The variables of one rank."""
        own = {
            "RANK": place.rank,
            "SIZE": self._wish.n,
            "LOCAL_RANK": place.local_rank,
            "LOCAL_SIZE": place.local_size,
            "CROSS_RANK": place.cross_rank,
            "CROSS_SIZE": place.cross_size,
            "HOSTNAME": where.hostname,
        }
        return {
            **_foreign.settings(os.environ),
            "OMP_NUM_THREADS": str(self._wish.cpus),
            **self._wish.environment,
            **{f"PHALANX_{name}": str(value) for name, value in own.items()},
            # Without a port: rank 0 tries several, which follow from the secret.
            "PHALANX_RENDEZVOUS": meeting,
        }

    def _find_group(self, until: float) -> tuple[Any, list[int]]:
        """A placement group that has its resources, and the bundle of each actor."""
        from ray.util.placement_group import get_current_placement_group, placement_group

        wish = self._wish
        current = get_current_placement_group() if wish.in_current_group else None
        if current is not None:
            return current, [-1] * wish.n
        bundles = [{"CPU": wish.cpus * wish.per_bundle}] * wish.n_bundles
        self._group = placement_group(bundles, strategy=wish.placement)
        # In short turns, so that Ctrl-C is heard.
        while not self._group.wait(timeout_seconds=min(1.0, max(0.1, until - time.monotonic()))):
            if time.monotonic() >= until:
                raise InitializationError(self._no_place())
        return self._group, [bundle for bundle in range(wish.n_bundles) for _ in range(wish.per_bundle)]

    def _no_place(self) -> str:
        wish = self._wish
        sizes = [node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]]
        free = self._ray.available_resources().get("CPU", 0)
        return (
            f"{wish.who}: after {wish.wait_s:g} s the Ray cluster has no place for {wish.n} workers that want "
            f"{_many(wish.cpus, 'CPU')} each, {PLACEMENTS[wish.placement]} ({wish.placement}): it has "
            f"{_many(sum(sizes), 'CPU')} on {_many(len(sizes), 'node')}, {free:g} free; ask for less, add nodes, or wait "
            f"longer ({wish.longer})"
        )

    def _all_of(self, refs: list[Any], until: float, what: str) -> list[Any]:
        """The answers of all actors, before there are ranks."""
        left = max(0.1, until - time.monotonic())
        _, late = self._ray.wait(refs, num_returns=len(refs), timeout=left)
        if late:
            raise InitializationError(
                f"{self._wish.who}: {len(late)} of {len(refs)} actors did not {what} in time; "
                "`ray status` and Ray's log files of their nodes say more"
            )
        try:
            return list(self._ray.get(refs))
        except self._ray.exceptions.RayError as error:
            hint = ""
            if "No module named" in str(error):
                hint = "; every node of the Ray cluster needs the same phalanx (pip install phalanx)"
            raise InitializationError(f"{self._wish.who}: an actor did not {what}{hint}:\n\n{error}") from error

    def refs(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> list[Any]:
        """Starts the function on all ranks; Ray's names of the results."""
        call = self._put(fn, args, kwargs)
        return [actor.result.remote([call]) for actor in self._actors]

    def call(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        ranks: Sequence[int] | None = None,
        settle_s: float = 0.0,
    ) -> list[Any]:
        """The results of the function on these ranks, or on all. The first failure is raised.

        Then all actors are ended, unless every one of them has returned within ``settle_s``.
        """
        call = self._put(fn, args, kwargs)
        wanted = range(self._wish.n) if ranks is None else ranks
        pending = {self._actors[rank].call.remote([call]): rank for rank in wanted}
        outcome = _Outcome()
        try:
            self._collect(pending, outcome, settle_s)
        except BaseException:
            self._over("it was interrupted")
            raise
        if not outcome.has_failed:
            return [outcome.results[rank] for rank in wanted]
        if pending or outcome.deaths:
            self._over("a rank failed while others were still working")
        raise outcome.first()

    def _put(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        if self._why_over is not None:
            raise RuntimeError(f"{self._wish.who}: the actors have ended because {self._why_over}; start new ones")
        if not callable(fn):
            raise TypeError(f"{self._wish.who}: fn must be a function, not {fn!r}")
        return self._ray.put((fn, tuple(args), dict(kwargs or {})))

    def _collect(self, pending: dict[Any, int], outcome: _Outcome, settle_s: float) -> None:
        """Takes the results as they come; after a failure, those that come soon."""
        exceptions = self._ray.exceptions
        until: float | None = None
        while pending:
            left = None if until is None else max(0.0, until - time.monotonic())
            ready, _ = self._ray.wait(list(pending), num_returns=1, timeout=left)
            if not ready:
                return
            rank = pending.pop(ready[0])
            try:
                is_good, value = self._ray.get(ready[0])
            except exceptions.RayTaskError as error:
                # The function is through: what it returned cannot be sent.
                is_good, value = False, Failure(_last_line(error), str(error), False, None, None)
            except exceptions.RayError as error:
                is_good, value = False, str(error)
            outcome.note(rank, is_good, value)
            if outcome.has_failed:
                settled = settle_s if outcome.is_first_known else max(settle_s, _ECHO_S)
                settled = 0.0 if outcome.deaths else settled
                until = min(until or float("inf"), time.monotonic() + settled)

    def _over(self, why: str) -> None:
        self.end(kindly=False)
        self._why_over = why

    def end(self, *, kindly: bool = True) -> None:
        """Ends the actors and gives their place back. Kindly: what Python does at exit is done."""
        actors, self._actors = self._actors, []
        group, self._group = self._group, None
        self._why_over = self._why_over or "they were shut down"
        try:
            if kindly and actors:
                for word in ("leave", "__ray_terminate__"):
                    leaving = [getattr(actor, word).remote() for actor in actors]
                    self._ray.wait(leaving, num_returns=len(leaving), timeout=_END_S)
        finally:
            for actor in actors:
                self._ray.kill(actor, no_restart=True)
            if actors:
                # An actor that is gone refuses.
                last = [actor.where.remote() for actor in actors]
                self._ray.wait(last, num_returns=len(last), timeout=_END_S)
            if group is not None:
                from ray.util.placement_group import remove_placement_group

                remove_placement_group(group)


class _Outcome:
    """What came back from ranks, and whose failure counts."""

    def __init__(self) -> None:
        self.results: dict[int, Any] = {}
        #: In the order in which they came.
        self.failures: dict[int, Failure] = {}
        #: Ranks whose process ended, with what Ray says about it.
        self.deaths: dict[int, str] = {}

    def note(self, rank: int, is_good: bool, value: Any) -> None:
        if is_good:
            self.results[rank] = value
        elif isinstance(value, Failure):
            self.failures[rank] = value
        else:
            self.deaths[rank] = value

    @property
    def has_failed(self) -> bool:
        return bool(self.failures or self.deaths)

    @property
    def is_first_known(self) -> bool:
        """Whether a failure is there that did not follow from another one."""
        return bool(self.deaths) or any(not failure.is_echo for failure in self.failures.values())

    def first(self) -> RankFailedError:
        """The failure that the others follow from."""
        for rank, failure in self.failures.items():
            if not failure.is_echo:
                return failure.blamed_on(rank)
        named = [failure.rank for failure in self.failures.values() if failure.rank is not None]
        dead = next((rank for rank in named if rank in self.deaths), next(iter(self.deaths), None))
        if dead is None:
            if not named:
                rank, failure = next(iter(self.failures.items()))
                return failure.blamed_on(rank)
            dead = named[0]
        said = next((failure for failure in self.failures.values() if failure.rank == dead), None)
        how = (said.cause if said else None) or "its process ended before the function returned"
        text = "\n\n".join(part for part in (self.deaths.get(dead), said.traceback if said else None) if part)
        return RankFailedError(f"rank {dead} died: {how}\n\n{text}".rstrip(), rank=dead, traceback=text)


def _many(n: float, what: str) -> str:
    return f"{n:g} {what}" if n == 1 else f"{n:g} {what}s"


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


__all__ = ["PLACEMENTS", "Actors", "Wish", "number", "ray_module", "start_timeout_s"]
