"""What all sessions take: their arguments, and the directory to which they save."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from os.path import abspath
from pathlib import Path

from phalanx.distributed.hooks import (
    CheckpointSaverHook,
    LoadCheckpoint,
    SessionRunHook,
    StepCounterHook,
    SummarySaverHook,
)
from phalanx.exceptions import CheckpointError

SAVE_SECS = 600
KEEP = 5
SHARDS = ("each", "rank0")


@dataclass
class Options:
    """What all sessions take."""

    checkpoint_dir: str | PathLike[str] | None
    hooks: Iterable[SessionRunHook] | None
    chief_only_hooks: Iterable[SessionRunHook] | None
    save_checkpoint_secs: float | None
    save_summaries_steps: int | None
    save_summaries_secs: float | None
    stop_grace_period_secs: float
    log_step_count_steps: int | None
    shards: str = "each"

    def __post_init__(self) -> None:
        self.hooks, self.chief_only_hooks = list(self.hooks or ()), list(self.chief_only_hooks or ())

    def checked(self) -> Options:
        """The same, if it makes sense."""
        steps, secs = self.save_summaries_steps, self.save_summaries_secs
        if steps is not None and secs is not None:
            raise ValueError("give save_summaries_steps or save_summaries_secs, and not both")
        if self.checkpoint_dir is None:
            for name, value, default in (
                ("save_summaries_steps", steps, None),
                ("save_summaries_secs", secs, None),
                ("save_checkpoint_secs", self.save_checkpoint_secs or SAVE_SECS, SAVE_SECS),
            ):
                if value != default:
                    raise ValueError(f"{name} needs checkpoint_dir, where it is written")
        for name, value in (("stop_grace_period_secs", self.stop_grace_period_secs),):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise ValueError(f"{name} must be a number from 0, not {value!r}")
        if self.shards not in SHARDS:
            raise ValueError(f'shards must be "each" or "rank0", not {self.shards!r}')
        for each in (*(self.hooks or ()), *(self.chief_only_hooks or ())):
            if not isinstance(each, SessionRunHook):
                raise TypeError(f"hooks are SessionRunHooks, not a {type(each).__name__}")
            if isinstance(each, SummarySaverHook) and each.output_dir is None and self.checkpoint_dir is None:
                raise ValueError("SummarySaverHook needs output_dir, because the session has no checkpoint_dir")
        if any(isinstance(hook, LoadCheckpoint) for hook in self.chief_only_hooks or ()):
            raise ValueError("LoadCheckpoint belongs into hooks, not into chief_only_hooks: all ranks take part")
        return self

    def everything(self) -> tuple[list[SessionRunHook], list[SessionRunHook]]:
        """Hooks of all ranks and of the chief, with those that the other arguments ask for."""
        every, chief = list(self.hooks or ()), list(self.chief_only_hooks or ())
        steps, secs = self.save_summaries_steps, self.save_summaries_secs
        has_summaries = bool(steps or secs)
        if self.log_step_count_steps:
            output = self.checkpoint_dir if has_summaries else None
            chief.append(StepCounterHook(self.log_step_count_steps, output_dir=output))
        if has_summaries:
            chief.append(SummarySaverHook(steps or None, secs or None))
        if self.checkpoint_dir is not None and self.save_checkpoint_secs:
            chief.append(CheckpointSaverHook(self.checkpoint_dir, save_secs=self.save_checkpoint_secs))
        return every, chief


def savers(own: str | None, hooks: Sequence[SessionRunHook]) -> tuple[str | None, int, int | None]:
    """Where the session saves and how much it keeps: what its directory and its hooks say."""
    keep, keep_every = None, None
    for hook in hooks:
        if not isinstance(hook, CheckpointSaverHook):
            continue
        if own is not None and abspath(hook.checkpoint_dir) != abspath(own):
            raise ValueError(
                f"a session saves to one directory, but checkpoint_dir is {own!r} and CheckpointSaverHook has "
                f"{hook.checkpoint_dir!r}"
            )
        own = own or hook.checkpoint_dir
        keep = hook.keep if hook.keep is not None else keep
        keep_every = hook.keep_every if hook.keep_every is not None else keep_every
    for name, number in (("keep", keep), ("keep_every", keep_every)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"{name} must be a whole number from 1, not {number!r}")
    return own, KEEP if keep is None else keep, keep_every


def check_empty(folder: str) -> None:
    """Refuses steps of another training: readers would take the later ones of both, and the others would be deleted."""
    if any(Path(folder).glob("checkpoint-[0-9]*")):
        raise CheckpointError(
            f"{folder} has checkpoints of another training, and this session does not go on from them: give it "
            f"checkpoint_dir={folder!r} to go on, or CheckpointSaverHook another directory"
        )


__all__ = ["Options", "check_empty", "savers"]
