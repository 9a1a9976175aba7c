"""Ranks never drift apart in silence: whatever part of a model each of them uses, they end with the same bits, or all raise."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import pytest
import torch
from ranks import run_ranks

import phalanx.torch as hvd
from phalanx import MismatchError

LR = 0.5


class Branches(torch.nn.Module):
    """A model of which ranks use different parts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = torch.nn.Linear(3, 3)
        self.left, self.right, self.idle = (torch.nn.Linear(3, 1) for _ in range(3))

    def forward(self, x: torch.Tensor, way: int) -> torch.Tensor:
        hidden = torch.tanh(self.stem(x))
        return (self.left if way == 0 else self.right)(hidden)


def batch(step: int, r: int) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * step + r))


def loss_of(net: torch.nn.Module, step: int, r: int) -> torch.Tensor:
    return (net(batch(step, r), (r + step) % 2) ** 2).mean() * (1 + 3 * r)


def bits(net: torch.nn.Module) -> list[list[float]]:
    return [p.detach().double().flatten().tolist() for p in net.parameters()]


def alike(results: list[Any]) -> Any:
    assert all(result == results[0] for result in results), "ranks differ"
    return results[0]


def close(a: list[list[float]], b: list[list[float]]) -> None:
    for x, y in zip(a, b, strict=True):
        assert torch.allclose(torch.tensor(x), torch.tensor(y), rtol=1e-5, atol=1e-6)


def wrapped(net: torch.nn.Module, how: str, **options: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.5)
    if how == "optimizer":
        return net, hvd.DistributedOptimizer(optimizer, net.named_parameters(), **options)
    return hvd.DistributedDataParallel(net, bucket_cap_mb=1e-5, **options), optimizer


# Clipping and unscaling, with ranks that use different parts of the model.


def clipped(how: str, options: dict[str, Any]) -> list[list[float]]:
    net = Branches()
    model, optimizer = wrapped(net, how, **options)
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
    return bits(net)


def clipped_alone(n: int) -> list[list[float]]:
    net = Branches()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.5)
    for step in range(6):
        optimizer.zero_grad()
        (torch.stack([loss_of(net, step, r) for r in range(n)]).sum() / n).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
    return bits(net)


@pytest.mark.parametrize(
    ("how", "options"),
    [("optimizer", {}), ("optimizer", {"groups": 2}), ("model", {})],
    ids=["optimizer", "groups", "model"],
)
def test_clipping_is_right_whatever_each_rank_has_used(n: int, how: str, options: dict[str, Any]) -> None:
    close(alike(run_ranks(n, clipped, how, options)), clipped_alone(n))  # REDUCE-1; momentum shows that BUCKET-3 holds


def unscaled(with_inf: bool) -> tuple[list[list[float]], float]:
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for step in range(6):
        optimizer.zero_grad()
        loss = loss_of(net, step, hvd.rank())
        if with_inf and step == 2 and hvd.rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        scaler.step(optimizer)
        scaler.update()
    return bits(net), scaler.get_scale()


def test_unscaling_is_right_and_all_ranks_leave_out_the_same_steps(n: int) -> None:
    close(alike(run_ranks(n, unscaled, False))[0], clipped_alone(n))
    _, scale = alike(run_ranks(n, unscaled, True))
    assert scale == 512.0


# Parameters that come later.


def unfrozen(how: str) -> list[list[float]]:
    net = Branches()
    for p in [*net.stem.parameters(), *net.idle.parameters()]:
        p.requires_grad_(False)
    model, optimizer = wrapped(net, how)
    for step in range(4):
        if step == 2:
            for p in net.stem.parameters():
                p.requires_grad = True
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
    return bits(net)


def unfrozen_alone(n: int) -> list[list[float]]:
    net = Branches()
    for p in [*net.stem.parameters(), *net.idle.parameters()]:
        p.requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.5)
    for step in range(4):
        if step == 2:
            for p in net.stem.parameters():
                p.requires_grad = True
        optimizer.zero_grad()
        (torch.stack([loss_of(net, step, r) for r in range(n)]).sum() / n).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
    return bits(net)


@pytest.mark.parametrize("how", ["optimizer", "model"])
def test_unfrozen_parameters_are_followed(n: int, how: str) -> None:
    close(alike(run_ranks(n, unfrozen, how)), unfrozen_alone(n))


def added() -> list[list[float]]:
    net = Branches()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.left.parameters(), lr=LR))
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": list(net.stem.parameters()), "lr": 0.1})
        optimizer.zero_grad()
        (net(batch(step, hvd.rank()), 0) ** 2).mean().backward()
        optimizer.step()
    return bits(net)


def test_added_parameters_are_followed(n: int) -> None:
    trained = alike(run_ranks(n, added))
    assert trained[0] != bits(Branches())[0]


def given_to_the_model() -> list[list[float]]:
    net = Branches()
    model = hvd.DistributedDataParallel(net)
    net.head = torch.nn.Linear(3, 1)
    with torch.no_grad():
        net.head.weight.fill_(0.5)
        net.head.bias.fill_(0.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for step in range(3):
        optimizer.zero_grad()
        (net.head(model(batch(step, hvd.rank()), 0).expand(-1, 3)) ** 2).mean().backward()
        optimizer.step()
    return bits(net)


def test_layers_given_to_a_wrapped_model_are_followed(n: int) -> None:
    alike(run_ranks(n, given_to_the_model))


def unfrozen_on_one_rank(how: str) -> str:
    net = Branches()
    for p in net.stem.parameters():
        p.requires_grad_(False)
    model, optimizer = wrapped(net, how)
    for step in range(2):
        if step == 1 and hvd.rank() == 1:
            net.stem.weight.requires_grad_(True)
        optimizer.zero_grad()
        try:
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        except MismatchError as error:
            return str(error)
    return "nothing was said"


@pytest.mark.parametrize("how", ["optimizer", "model"])
def test_a_parameter_unfrozen_on_one_rank_is_named_on_all(n: int, how: str) -> None:
    text = alike(run_ranks(n, unfrozen_on_one_rank, how))
    assert "stem.weight" in text and "rank 1" in text  # REDUCE-3


# Passes.


def separate_losses() -> list[list[float]]:
    """Two losses over different parameters, each with a pass of its own."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    for step in range(3):
        optimizer.zero_grad()
        x = batch(step, hvd.rank())
        (net.left(x) ** 2).mean().backward()
        (net.right(x) ** 2).mean().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
    return bits(net)


def one_loss() -> list[list[float]]:
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    for step in range(3):
        optimizer.zero_grad()
        x = batch(step, hvd.rank())
        ((net.left(x) ** 2).mean() + (net.right(x) ** 2).mean()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
    return bits(net)


def test_losses_with_a_pass_each_add_up(n: int) -> None:
    close(alike(run_ranks(n, separate_losses)), alike(run_ranks(n, one_loss)))


def uneven_passes() -> list[list[float]]:
    """A rank has one loss more than the others."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    for step in range(3):
        optimizer.zero_grad()
        x = batch(step, hvd.rank())
        (net.left(x) ** 2).mean().backward()
        if hvd.rank() == 0:
            (net.right(x) ** 2).mean().backward()
        optimizer.step()
    return bits(net)


def test_ranks_may_have_differently_many_losses(n: int) -> None:
    alike(run_ranks(n, uneven_passes))  # REDUCE-2, ROUND-1


def accumulated(passes: int) -> list[list[float]]:
    """Passes that add up use other parts of the model than the last one does."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer", backward_passes_per_step=passes)
    for step in range(3):
        optimizer.zero_grad()
        for i in range(passes):
            loss_of(net, step + i, hvd.rank()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
    return bits(net)


def not_synchronized() -> list[list[float]]:
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    for step in range(3):
        optimizer.zero_grad()
        with optimizer.no_sync():
            loss_of(net, step, hvd.rank()).backward()
        loss_of(net, step + 1, hvd.rank()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
    return bits(net)


def test_accumulated_gradients_are_complete_when_the_last_pass_ends(n: int) -> None:
    close(alike(run_ranks(n, accumulated, 2)), alike(run_ranks(n, not_synchronized)))


def without_a_batch() -> list[list[float]]:
    """A rank has no data for a step, and only calls it."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    for step in range(3):
        optimizer.zero_grad()
        if step != 1 or hvd.rank() != 0:
            loss_of(net, step, hvd.rank()).backward()
        optimizer.step()
    return bits(net)


def test_a_rank_without_a_batch_takes_part_in_the_step(n: int) -> None:
    alike(run_ranks(n, without_a_batch))


def one_step_more() -> str:
    """With nothing to train a step needs nobody, and so one rank is a step ahead."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    try:
        for step in range(3):
            for p in net.parameters():
                p.requires_grad_(step != 1)
            if step != 1:
                loss_of(net, step, hvd.rank()).backward()
            if step != 1 or hvd.rank() == 0:
                optimizer.step()
            optimizer.zero_grad()
    except MismatchError as error:
        return str(error)
    return "nothing was said"


def test_a_step_that_one_rank_makes_alone_is_told_to_all(n: int) -> None:
    text = alike(run_ranks(n, one_step_more))
    assert "finished steps" in text and "rank 0" in text  # REDUCE-3


def rejected_pass() -> str:
    """A rank throws its pass away, the others make a step of theirs."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    try:
        for step in range(3):
            loss_of(net, step, hvd.rank()).backward()
            if step != 1 or hvd.rank() != 0:
                optimizer.step()
            optimizer.zero_grad()
    except MismatchError as error:
        return str(error)
    return "nothing was said"


def test_a_pass_that_one_rank_throws_away_is_told_to_all(n: int) -> None:
    assert "without a step" in alike(run_ranks(n, rejected_pass))


def checkpointed(how: str, reentrant: bool) -> list[list[float]]:
    net = Branches()
    model, optimizer = wrapped(net, how)
    inner = net.stem.forward
    net.stem.forward = lambda x: torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=reentrant)  # type: ignore[method-assign]
    for step in range(3):
        optimizer.zero_grad()
        x = batch(step, hvd.rank()).requires_grad_()
        (model(x, hvd.rank() % 2) ** 2).mean().backward()
        optimizer.step()
    return bits(net)


@pytest.mark.parametrize("how", ["optimizer", "model"])
def test_recomputed_layers(n: int, how: str) -> None:
    close(alike(run_ranks(n, checkpointed, how, True)), alike(run_ranks(n, checkpointed, how, False)))


def clipped_without_a_batch() -> str:
    """A rank without a batch clips nothing, and gets everybody's gradients only in its step."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    try:
        for step in range(4):
            optimizer.zero_grad()
            if step != 1 or hvd.rank() != 0:
                loss_of(net, step, hvd.rank()).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
            optimizer.step()
    except MismatchError as error:
        return str(error)
    return "nothing was said"


def test_a_rank_that_could_not_clip_is_told_to_all(n: int) -> None:
    assert "changed after they were reduced" in alike(run_ranks(n, clipped_without_a_batch))


def alone_after_all() -> None:
    """What one rank computes must not be added to what is everybody's."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    loss_of(net, 0, hvd.rank()).backward()
    with pytest.raises(AssertionError, match="a further backward pass"), optimizer.no_sync():
        loss_of(net, 0, hvd.rank()).backward()
    optimizer.zero_grad()
    loss_of(net, 0, hvd.rank()).backward()
    optimizer.step()
    hvd.check_equal(net)


def test_no_pass_of_its_own_after_the_reduced_one(n: int) -> None:
    run_ranks(n, alone_after_all)


def interrupted_elsewhere() -> list[list[float]]:
    """A pass ends with an exception, on each rank at another place; then training goes on."""
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    loss_of(net, 0, hvd.rank()).backward()
    optimizer.step()
    where = net.stem.weight if hvd.rank() == 0 else net.stem.bias
    hook = where.register_hook(lambda _grad: 1 // 0)
    optimizer.zero_grad()
    with pytest.raises(ZeroDivisionError):
        (net(batch(1, hvd.rank()), 0) ** 2).mean().backward()
    hook.remove()
    for step in range(2, 5):
        optimizer.zero_grad()
        loss_of(net, step, hvd.rank()).backward()
        optimizer.step()
    return bits(net)


def test_a_pass_that_ends_in_the_middle_leaves_nothing_behind(n: int) -> None:
    alike(run_ranks(n, interrupted_elsewhere))


def wrapped_again(how: str) -> list[list[float]]:
    net = Branches()
    for step in range(3):
        model, optimizer = wrapped(net, how)
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    other = "model" if how == "optimizer" else "optimizer"
    with pytest.raises(ValueError, match="not both"):
        wrapped(net, other)
    return bits(net)


@pytest.mark.parametrize("how", ["optimizer", "model"])
def test_what_is_wrapped_again_belongs_to_the_new_wrapper(how: str) -> None:
    alike(run_ranks(2, wrapped_again, how))


def groups_in_two_passes() -> list[list[float]]:
    net = Branches()
    ps = [*net.left.parameters(), *net.right.parameters()]
    rest = [p for p in net.parameters() if all(p is not q for q in ps)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=LR), net.named_parameters(), op=hvd.Sum, groups=[ps, rest]
    )
    for step in range(2):
        optimizer.zero_grad()
        x = batch(step, hvd.rank())
        (net.left(x) ** 2).mean().backward()
        first = net.left.weight.grad.clone()
        (net.right(x) ** 2).mean().backward()
        assert torch.equal(net.left.weight.grad, first)
        optimizer.step()
    return bits(net)


def test_members_of_a_group_are_reduced_once(n: int) -> None:
    alike(run_ranks(n, groups_in_two_passes))


# Gradients that the program holds.


def held_gradients(is_alias: bool) -> tuple[bool, list[list[float]]]:
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    kept = []
    for step in range(5):
        optimizer.zero_grad()
        loss_of(net, step, hvd.rank()).backward()
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        kept.append([(g.flatten() if is_alias else g, g.clone().flatten()) for g in grads])
        optimizer.step()
    return all(torch.equal(g.flatten(), copy) for grads in kept for g, copy in grads), bits(net)


@pytest.mark.parametrize("is_alias", [False, True])
def test_gradients_of_earlier_steps_stay_what_they_were(n: int, is_alias: bool) -> None:
    """BUCKET-2."""
    is_unchanged, _ = alike(run_ranks(n, held_gradients, is_alias))
    assert is_unchanged


def gradients_of_the_programs_own() -> list[list[float]]:
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    flat = torch.zeros(sum(p.numel() for p in net.parameters()))
    at = 0
    for p in net.parameters():
        p.grad = flat[at : at + p.numel()].view(p.shape)
        at += p.numel()
    held = [p.grad for p in net.parameters()]
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        loss_of(net, step, hvd.rank()).backward()
        assert all(p.grad is grad for p, grad in zip(net.parameters(), held, strict=True))
        assert torch.equal(hvd.allreduce(flat.clone(), name="flat"), flat)
        assert flat.abs().sum() > 0
        optimizer.step()
    return bits(net)


def test_gradients_that_are_parts_of_a_tensor_stay_so(n: int) -> None:
    """BUCKET-2: programs that lay out gradients themselves see the results there."""
    alike(run_ranks(n, gradients_of_the_programs_own))


def channels_last() -> list[list[float]]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3))
    net = net.to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
        net(x).square().mean().backward()
        assert net[0].weight.grad.stride() == net[0].weight.stride()
        optimizer.step()
    return bits(net)


def test_layouts_are_kept(n: int) -> None:
    alike(run_ranks(n, channels_last))


def another_layout() -> str:
    net = torch.nn.Conv2d(3, 4, 3)
    if hvd.rank() == 1:
        net = net.to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    with pytest.raises(MismatchError, match="strides"):
        net(torch.ones(1, 3, 8, 8)).sum().backward()
        optimizer.step()
    return "told"


def test_another_layout_on_one_rank_is_told(n: int) -> None:
    alike(run_ranks(n, another_layout))


# What programs do to gradients, optimizers and models.


def trained(prepare: str) -> list[list[float]]:
    """Three steps of a model to which the program does something; the same must be right without ranks."""
    net = Branches()
    base: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    scheduler = torch.optim.lr_scheduler.StepLR(base, 1, 0.5) if prepare == "scheduler" else None
    optimizer = hvd.DistributedOptimizer(base, net.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    if prepare == "step hooks":
        calls = []
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
    for step in range(4):
        optimizer.zero_grad()
        loss_of(net, step, hvd.rank()).backward()
        if prepare == "memory":
            for p in net.parameters():
                if p.grad is not None:
                    p.grad.data = p.grad.data.clone()
        if prepare == "type" and step == 1:
            net.double().float()
        if prepare == "list" and step == 1:
            torch.manual_seed(5)
            net.left = torch.nn.Linear(3, 1)
            ps = optimizer.param_groups[0]["params"]
            ps[:] = list(net.parameters())
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    if prepare == "step hooks":
        assert len(calls) == 4
    if scheduler is not None:
        assert optimizer.param_groups[0]["lr"] == LR / 16
        assert base.param_groups[0] is optimizer.param_groups[0]
    hvd.check_equal(optimizer)
    return bits(net)


@pytest.mark.parametrize("prepare", ["step hooks", "scheduler", "memory", "type", "list"])
def test_what_programs_do_is_the_same_on_all_ranks(n: int, prepare: str) -> None:
    """BUCKET-4, and what a new user has tried."""
    alike(run_ranks(n, trained, prepare))


def hooked(how: str) -> tuple[list[list[float]], float]:
    net = torch.nn.Linear(3, 1)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(1.0)
    model, optimizer = wrapped(net, how)
    for p in net.parameters():

        def double(p: torch.Tensor) -> None:
            assert p.grad is not None
            p.grad = p.grad * 2

        p.register_post_accumulate_grad_hook(double)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((1, 3), float(hvd.rank() + 1))).sum().backward()
    assert net.weight.grad is not None
    return [net.weight.grad.flatten().tolist()], 2 * (hvd.size() + 1) / 2


@pytest.mark.parametrize("how", ["optimizer", "model"])
def test_hooks_of_the_program_come_before_gradients_travel(n: int, how: str) -> None:
    grads, wanted = alike(run_ranks(n, hooked, how))
    assert grads == [[wanted] * 3]


def copied() -> list[list[float]]:
    net = hvd.DistributedDataParallel(Branches())
    average = copy.deepcopy(net)  # Never trained, as for averages of parameters.
    if hvd.rank() == 0:
        copy.deepcopy(net.module)
    second = copy.deepcopy(net)
    optimizer = torch.optim.SGD(second.parameters(), lr=LR)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(second, step, hvd.rank()).backward()
        optimizer.step()
    hvd.check_equal(second.module)
    assert bits(average) == bits(net)
    return bits(second)


def test_a_copy_of_a_model_is_reduced_too(n: int) -> None:
    alike(run_ranks(n, copied))


def refusals() -> str:
    net = Branches()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=LR), net.named_parameters())
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(optimizer)
    with pytest.raises(TypeError, match="save its state_dict"):
        pickle.dumps(optimizer)
    with pytest.raises(TypeError, match="save model.module"):
        pickle.dumps(hvd.DistributedDataParallel(torch.nn.Linear(1, 1)))
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=LR), gradient_predivide_factor=0.0)
    with pytest.raises(ValueError, match="a name as name="):
        hvd.allreduce(torch.ones(1), "grad")
    with pytest.raises(hvd.PhalanxError, match="ranks have other sizes or another op"):
        hvd.sparse_allreduce_async(torch.eye(2 + hvd.rank()).to_sparse(), "sizes", op=hvd.Sum)()
    with pytest.raises(hvd.PhalanxError, match="ranks have other sizes or another op"):
        hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "ops", op=hvd.Sum if hvd.rank() else hvd.Average)()
    x = torch.ones(1, requires_grad=True)
    with pytest.raises(hvd.PhalanxError, match="only sums and averages"):
        hvd.allreduce(x, op=hvd.Max).backward()
    other = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1 * (1 + hvd.rank()))
    hvd.broadcast_parameters({"w": other.param_groups[0]["params"][0].data}, 0)
    hvd.broadcast_parameters({"b": other.param_groups[0]["params"][1].data}, 0)
    with pytest.raises(MismatchError, match="lr of group 0"):
        hvd.check_equal(other)
    return "told"


def test_what_cannot_be_right_is_refused(n: int) -> None:
    alike(run_ranks(n, refusals))


# What a review has found.


def grouped_in_another_order() -> list[list[float]]:
    net = Branches()
    ps = [net.left.weight, net.left.bias, net.right.bias, net.right.weight]
    if hvd.rank() == 1:
        ps = [ps[0], *reversed(ps[1:])]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=LR), net.named_parameters(), op=hvd.Sum, groups=[ps]
    )
    for step in range(3):
        optimizer.zero_grad()
        x = batch(step, 0)
        (net.left(x) + 2 * net.right(x)).sum().backward()
        assert torch.allclose(net.right.weight.grad, 2 * net.left.weight.grad)
        assert torch.allclose(net.right.bias.grad, torch.tensor([8.0 * hvd.size()]))
        optimizer.step()
    return bits(net)


def test_members_of_groups_in_another_order_are_told_apart(n: int) -> None:
    alike(run_ranks(n, grouped_in_another_order))


def two_checkpoints(uses_all: bool) -> list[list[float]]:
    torch.manual_seed(2)
    blocks = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(3)])
    extra = torch.nn.Linear(3, 3)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([*blocks.parameters(), *extra.parameters()], lr=0.01), op=hvd.Sum, backward_passes_per_step=1
    )
    for _ in range(3):
        optimizer.zero_grad()
        x = torch.ones(2, 3, requires_grad=True)
        for block in blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True)
        if uses_all or hvd.rank() == 0:
            x = x + extra(torch.ones(2, 3))
        x.sum().backward()
        assert torch.allclose(blocks[2].bias.grad, torch.tensor([2.0 * hvd.size()] * 3))
        optimizer.step()
    return [p.detach().flatten().tolist() for p in [*blocks.parameters(), *extra.parameters()]]


@pytest.mark.parametrize("uses_all", [True, False])
def test_checkpoints_send_each_gradient_once(n: int, uses_all: bool) -> None:
    alike(run_ranks(n, two_checkpoints, uses_all))


def joined_in_the_first_epoch() -> list[list[float]]:
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    for epoch in range(3):
        n_batches = 0 if epoch == 0 and hvd.rank() == 1 else 2
        for step in range(n_batches):
            optimizer.zero_grad()
            (net(batch(step, hvd.rank()), 0) + net(batch(step, 5), 1)).sum().backward()
            optimizer.step()
        last = hvd.join()
        hvd.broadcast_parameters(net.state_dict(), root_rank=last)
    return bits(net)


def test_a_rank_that_joined_before_its_first_pass_learns_with_the_others(n: int) -> None:
    alike(run_ranks(n, joined_in_the_first_epoch))


def added_before_the_step() -> list[list[float]]:
    table, first = torch.nn.Embedding(4, 2, sparse=True), torch.nn.Parameter(torch.zeros(2))
    torch.nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([table.weight], lr=1.0), [("b", table.weight)])
    table(torch.tensor([hvd.rank() % 4])).sum().backward()
    optimizer.add_param_group({"params": [first]})
    first.grad = torch.full((2,), float(hvd.rank()))
    optimizer.step()
    return [first.tolist(), table.weight.detach().flatten().tolist()]


def test_a_parameter_added_between_pass_and_step_is_reduced(n: int) -> None:
    alike(run_ranks(n, added_before_the_step))


def other_caps() -> str:
    net = hvd.DistributedDataParallel(Branches(), bucket_cap_mb=25.0 if hvd.rank() else 1e-5)
    with pytest.raises(MismatchError, match="buckets of"):
        loss_of(net, 0, hvd.rank()).backward()
    return "told"


def test_other_buckets_on_ranks_are_told(n: int) -> None:
    """REDUCE-4."""
    alike(run_ranks(n, other_caps))


def alias_of_a_gradient() -> list[float]:
    net = torch.nn.Linear(2, 1, bias=False)
    flat = torch.zeros(2)
    net.weight.grad = flat.detach().view(1, 2).detach()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters())
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        net(torch.full((1, 2), float(hvd.rank()))).sum().backward()
        assert torch.equal(flat, net.weight.grad.flatten())
        optimizer.step()
    return flat.tolist()


def test_memory_that_the_program_shares_with_a_gradient_has_the_result(n: int) -> None:
    """BUCKET-2."""
    assert alike(run_ranks(n, alias_of_a_gradient)) == [(n - 1) / 2] * 2


# LBFGS.


def line_search() -> tuple[list[list[float]], int]:
    net = Branches()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.LBFGS(net.parameters(), max_iter=8, line_search_fn="strong_wolfe"), net.named_parameters()
    )
    n_calls = 0

    def closure() -> torch.Tensor:
        nonlocal n_calls
        n_calls += 1
        optimizer.zero_grad()
        loss = loss_of(net, 0, hvd.rank())
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    return bits(net), n_calls


def test_a_line_search_decides_the_same_on_all_ranks(n: int) -> None:
    alike(run_ranks(n, line_search))


# Two optimizers.


def two_optimizers(kind: str) -> list[list[float]]:
    nets = [Branches(), Branches()]
    pairs = [wrapped(net, kind) for net in nets]
    for step in range(3):
        for model, optimizer in pairs:
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
        for _, optimizer in pairs:
            optimizer.step()
    assert bits(nets[0]) == bits(nets[1])
    return bits(nets[0])


@pytest.mark.parametrize("kind", ["optimizer", "model"])
def test_two_of_a_kind_do_not_collide(n: int, kind: str) -> None:
    alike(run_ranks(n, two_optimizers, kind))


def crossed() -> str:
    nets = [Branches(), Branches()]
    optimizers = [wrapped(net, "optimizer")[1] for net in nets]
    try:
        for i in (0, 1) if hvd.rank() == 0 else (1, 0):
            loss_of(nets[i], 0, hvd.rank()).backward()
            optimizers[i].step()
    except MismatchError as error:
        return str(error)
    return "nothing was said"


def test_optimizers_in_another_order_are_told_apart(n: int) -> None:
    assert "number" in alike(run_ranks(n, crossed))


# Sparse gradients.


def sparse_on_one_rank() -> list[list[float]]:
    torch.manual_seed(0)
    table, other = torch.nn.Embedding(6, 2, sparse=True), torch.nn.Linear(1, 1)
    net = torch.nn.ModuleList([table, other])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=LR), net.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        part = table(torch.tensor([1, 2])) if hvd.rank() == 0 else other(torch.ones(1, 1))
        part.sum().backward()
        optimizer.step()
    return bits(net)


def test_a_sparse_gradient_that_one_rank_has_in_the_first_step(n: int) -> None:
    """REDUCE-4: one rank alone knows that the gradient is sparse."""
    alike(run_ranks(n, sparse_on_one_rank))


# Groups.


def calls_of_a_step(n_tensors: int) -> int:
    """How many Python functions one step calls."""
    ps = [torch.nn.Parameter(torch.ones(1)) for _ in range(n_tensors)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ps, lr=LR), groups=[ps])
    calls = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    for step in range(3):
        loss = torch.stack([p.sum() for p in ps]).sum()
        sys.setprofile(count if step == 2 else None)
        loss.backward()
        optimizer.step()
        sys.setprofile(None)
        optimizer.zero_grad()
    return calls


def test_groups_cost_as_much_as_they_have_members() -> None:
    few, many = (run_ranks(2, calls_of_a_step, count)[0] for count in (100, 400))
    assert many < 6 * few, (few, many)


# Looking whether ranks are equal.


def drifting(what: str) -> tuple[str, tuple[int, ...], str | None]:
    net = Branches()
    _, optimizer = wrapped(net, "optimizer")
    loss_of(net, 0, hvd.rank()).backward()
    optimizer.step()
    hvd.check_equal(net)
    hvd.check_equal(optimizer)
    hvd.check_equal(net.state_dict())
    with torch.no_grad():
        if hvd.rank() == hvd.size() - 1:
            net.left.weight[0, 1] += 1e-7 if what != "state" else 0.0
            optimizer.state[net.left.weight]["momentum_buffer"] += 1e-3
    with pytest.raises(MismatchError) as caught:
        hvd.check_equal({"model": net, "optimizer": optimizer, "state": optimizer}[what])
    with pytest.raises(ValueError, match="a model, an optimizer"):
        hvd.check_equal(5)
    return str(caught.value), caught.value.ranks, caught.value.tensor


@pytest.mark.parametrize("what", ["model", "optimizer", "state"])
def test_a_difference_is_told_with_its_parameter_ranks_and_digests(n: int, what: str) -> None:
    text, ranks, tensor = alike(run_ranks(n, drifting, what))
    assert ranks == (0, n - 1)
    assert tensor == ("momentum_buffer of left.weight" if what == "state" else "left.weight")
    digests = [word for word in text.split() if len(word) == 16 and set(word) <= set("0123456789abcdef")]
    assert len(set(digests)) == 2


def checked_while_training(how: str) -> tuple[int, str]:
    net = Branches()
    model, optimizer = wrapped(net, how)
    for step in range(9):
        try:
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        except MismatchError as error:
            return step, str(error)
        if step == 3 and hvd.rank() == 1:
            with torch.no_grad():
                net.right.bias += 1.0
    return -1, "nothing was said"


@pytest.mark.parametrize("how", ["optimizer", "model"])
def test_a_drift_is_found_at_the_next_check(how: str) -> None:
    step, text = alike(run_ranks(2, checked_while_training, how, fresh=True, env={"PHALANX_CHECK": "3"}))
    assert step == 5
    assert "right.bias" in text and "step 6" in text
