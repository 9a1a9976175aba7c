"""The batches that a run took from loaders. A run that fails before it starts returns them, so that no batch is lost."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from phalanx.graph._forms import Group
from phalanx.graph.errors import FeedError, FetchError, UninitialisedError

#: Errors of executors which say that nothing has run.
NOTHING_RAN = (FeedError, FetchError, UninitialisedError)


class Taken:
    """A context around a run. Until ``begin()`` every error hands back what was taken, then only those before it ran.

    It is all or nothing: batches of several loaders stay together.
    """

    def __init__(self) -> None:
        self._groups: list[tuple[Any, Group]] = []
        self._has_begun = False

    def take(self, loader: Any, places: int) -> Group:
        """The next batches of a loader."""
        group: Group = loader._take(places)
        self._groups.append((loader, group))
        return group

    def begin(self) -> None:
        """From here on what was taken is used."""
        self._has_begun = True

    def __enter__(self) -> Taken:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (not self._has_begun or isinstance(error, NOTHING_RAN)):
            for loader, group in self._groups:
                loader._give_back(group)
