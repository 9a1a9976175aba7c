"""Whether what a session has fits what it goes on with: objects, their classes, and settings of optimizers.

Schedulers and programs change settings while they train. So what a program gives its optimizer now is compared with what it gave when the
training began, and not with what was saved.

>>> import torch
>>> then = given([("optimizer", torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9))])
>>> now = given([("optimizer", torch.optim.SGD([torch.zeros(1)], lr=0.5, momentum=0.9))])
>>> differences(then["optimizer"], now["optimizer"])
[('lr', 0, '0.1', '0.5')]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from phalanx.distributed._log import log, warn

#: Settings of the groups of an optimizer's parameters, as texts.
Groups = list[dict[str, str]]
#: Larger ones are not settings.
MOST_ELEMENTS = 16


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


def given(others: Sequence[tuple[str, Any]]) -> dict[str, Groups]:
    """The settings that optimizers have now, by the names of the objects. What is not plain is left out."""
    found = {}
    for name, one in others:
        if isinstance(one, torch.optim.Optimizer):
            try:
                found[name] = _settings(one.param_groups)
            except Exception as why:
                log(f"settings of {name} cannot be compared: {type(why).__name__}: {why}")
    return found


def _settings(groups: Any) -> Groups:
    # A scheduler writes the rate that it began with down a second time.
    hidden = ("params", "param_names", "initial_lr")
    each = [{str(key): _text(value) for key, value in group.items() if key not in hidden} for group in groups]
    return [{key: text for key, text in group.items() if text is not None} for group in each]


def _text(value: Any) -> str | None:
    """Equal for equal settings: 0 and 0.0 are, and NaN is equal to itself. ``None`` for what is not plain."""
    if isinstance(value, torch.Tensor):
        # The rate 0.1 may be a tensor of 32 bits.
        return _text(_rounded(value.tolist())) if value.numel() <= MOST_ELEMENTS else None
    if value is None or isinstance(value, (bool, str)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        each = [_text(one) for one in value]
        return None if None in each else f"[{', '.join(map(str, each))}]"
    if isinstance(value, Mapping):
        items = {str(key): _text(one) for key, one in value.items()}
        return None if None in items.values() else f"{{{', '.join(f'{key}: {items[key]}' for key in sorted(items))}}}"
    if isinstance(value, complex) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    is_whole = math.isfinite(number) and number == int(number) and abs(number) < 1e15
    return repr(int(number)) if is_whole else repr(number)


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def differences(then: Groups, now: Groups) -> list[tuple[str, int, str, str]]:
    """Settings that were given with another value: what they are called, the group, and both values."""
    if len(then) != len(now):
        return []
    pairs = enumerate(zip(then, now, strict=True))
    return [(key, at, was[key], own[key]) for at, (was, own) in pairs for key in sorted(was.keys() & own.keys()) if was[key] != own[key]]


def tell_settings(name: str, then: Groups | None, own: Groups | None, saved: Any, now: Mapping[str, Any]) -> None:
    """One line for each setting that was given otherwise ``then``; ``saved`` is the state that counts.

    Those of ``now`` are set by the program in every step; they are compared with the saved ones. A fault here does not end the session.
    """
    try:
        _tell_settings(name, then or [], own or [], _settings(saved["param_groups"]), now)
    except Exception as why:
        log(f"settings of {name} cannot be compared with the saved ones: {type(why).__name__}: {why}")


def _tell_settings(name: str, then: Groups, own: Groups, saved: Groups, now: Mapping[str, Any]) -> None:
    for key, at, was, is_now in differences(then, own):
        # The program may have set it to this value after it had begun.
        if key in now or saved[at].get(key) == is_now:
            continue
        place = f" of parameter group {at}" if len(own) > 1 else ""
        warn(
            f"{name}: {key}{place} was {was} when it was saved and is {is_now} now; the saved value counts: to change it, set param_groups "
            "after the session has begun"
        )
    for key, value in now.items():
        before, text = saved[0].get(key) if saved else None, _text(value)
        if before is not None and before != text:
            warn(
                f"{name}: {key} was {before} in the last step, and the trainer's arguments and number of ranks make it {text}, which counts"
            )


def trains_another(model: torch.nn.Module, optimizer: Any) -> bool:
    """Whether an optimizer has none of the model's parameters."""
    groups = getattr(optimizer, "param_groups", None)
    own = {id(parameter) for parameter in model.parameters()}
    if not groups or not own or not any(group["params"] for group in groups):
        return False
    return not any(id(parameter) in own for group in groups for parameter in group["params"])


__all__ = ["classes", "differences", "given", "misfit", "tell_settings", "trains_another"]
