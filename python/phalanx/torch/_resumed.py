"""Whether what a session has fits what it goes on with: objects, their classes, and settings of optimizers.

>>> import torch
>>> saved = {"param_groups": [{"lr": 0.1, "momentum": 0.9, "params": [0]}]}
>>> made = torch.optim.SGD([torch.zeros(1)], lr=0.5, momentum=0.9)
>>> differences(made, saved)
[('lr', 0.1, 0.5)]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from phalanx.distributed._log import warn


def classes(others: Sequence[tuple[str, Any]]) -> dict[str, str]:
    """How the classes of these objects are called, by the objects' names."""
    return {name: type(one).__name__ for name, one in others}


def misfit(others: Sequence[tuple[str, Any]], forms: Mapping[str, Any], saved: Mapping[str, str]) -> str | None:
    """What a session lacks of what was saved, or has of another class; the first of it. Old checkpoints do not name classes."""
    own = classes(others)
    for name in forms:
        if name != "model" and name not in own:
            return f"has the state of {name}{_a(saved.get(name))}, which this session does not have"
    for name, kind in own.items():
        if saved.get(name, kind) != kind:
            return f"has {name} as a {saved[name]}, and this session has a {kind}"
    return None


def _a(kind: str | None) -> str:
    return "" if kind is None else f", a {kind}"


def differences(optimizer: Any, saved: Any) -> list[tuple[str, Any, Any]]:
    """Settings that were saved with another value: what they are called, the saved one, and that of the optimizer."""
    groups = getattr(optimizer, "param_groups", None)
    others = saved.get("param_groups") if isinstance(saved, Mapping) else None
    if not isinstance(groups, list) or not isinstance(others, list) or len(groups) != len(others):
        return []
    found = []
    for at, (own, other) in enumerate(zip(groups, others, strict=True)):
        place = f" of parameter group {at}" if len(groups) > 1 else ""
        found += [(f"{key}{place}", was, now) for key, was, now in _differing(own, other)]
    return found


def _differing(own: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted((own.keys() & other.keys()) - {"params", "param_names", "initial_lr", "lr"}):
        if _plain(own[key]) != _plain(other[key]):
            yield key, _plain(other[key]), _plain(own[key])
    # A scheduler changes the rate, and keeps the one that it began with.
    was, now = (_plain(group.get("initial_lr", group.get("lr"))) for group in (other, own))
    if was != now:
        yield "lr", was, now


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    return list(value) if isinstance(value, tuple) else value


def tell_settings(name: str, optimizer: Any, saved: Any, now: Mapping[str, Any]) -> None:
    """One line for each setting that differs. Saved ones count, except for those of ``now``, which the program sets in every step."""
    for key, was, own in differences(optimizer, saved):
        if key.split()[0] not in now:
            warn(
                f"{name}: {key} was {was!r} when it was saved and is {own!r} now; the saved value counts: to change it, set param_groups "
                "after the session has begun"
            )
    groups = saved.get("param_groups") if isinstance(saved, Mapping) else None
    for key, own in now.items():
        was = _plain(groups[0].get(key)) if groups else own
        if was != own:
            warn(f"{name}: {key} was {was!r} in the last step, and the trainer's arguments make it {own!r}; the arguments count")


def trains_another(model: torch.nn.Module, optimizer: Any) -> bool:
    """Whether an optimizer has none of the model's parameters."""
    groups = getattr(optimizer, "param_groups", None)
    own = {id(parameter) for parameter in model.parameters()}
    if not groups or not own:
        return False
    return not any(id(parameter) in own for group in groups for parameter in group["params"])


__all__ = ["classes", "differences", "misfit", "tell_settings", "trains_another"]
