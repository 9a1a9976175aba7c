"""Which rule servers apply for a torch optimizer."""

from __future__ import annotations

from typing import Any

import torch

#: What torch calls the states that each rule keeps, in the order in which servers have them.
_STATES = {"sgd": (), "momentum": ("momentum_buffer",), "adagrad": ("sum",), "sparse_adam": ("exp_avg", "exp_avg_sq")}


def states_of_rule(rule: str) -> tuple[str, ...]:
    """The names of the states of a rule.

    >>> states_of_rule("adagrad")
    ('sum',)
    """
    return _STATES[rule]


def rule_of(name: str, kind: type, group: dict[str, Any]) -> tuple[str, dict[str, float]]:
    """The rule and its numbers; what servers cannot do is refused."""
    for key, off in [("weight_decay", 0), ("maximize", False), ("differentiable", False)]:
        if group.get(key, off):
            raise ValueError(f"{name}: servers do not apply {key}={group[key]}; give the table a parameter group without it")
    if kind is torch.optim.SGD:
        if group["dampening"]:
            raise ValueError(f"{name}: servers do not apply dampening={group['dampening']}; set it to 0")
        if not group["momentum"]:
            return "sgd", {}
        return "momentum", {"momentum": float(group["momentum"]), "nesterov": float(group["nesterov"])}
    if kind is torch.optim.Adagrad:
        first = float(group["initial_accumulator_value"])
        return "adagrad", {"eps": float(group["eps"]), "first_state": first}
    if kind is torch.optim.SparseAdam:
        beta1, beta2 = group["betas"]
        return "sparse_adam", {"beta1": float(beta1), "beta2": float(beta2), "eps": float(group["eps"])}
    raise ValueError(
        f"{name}: servers apply SGD, Adagrad and SparseAdam, not {kind.__name__}; train the tables with one of these, or with "
        "sparse=False"
    )
