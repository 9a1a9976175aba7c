"""What careless users do with served tables: it acts as in torch, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import run_ranks

import phalanx.torch as hvd
from phalanx.exceptions import PhalanxError

IDS = torch.tensor([[1, 2], [2, 3]])


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = torch.nn.Embedding(10, 2, sparse=True)
        self.out = torch.nn.Linear(2, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(ids).sum(1))


class Tripled(torch.nn.Embedding):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 3


def served(net: Net, **options: Any) -> torch.optim.SGD:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    hvd.serve_tables(net, optimizer, **options)
    return optimizer


def step(net: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(IDS).square().mean().backward()
    optimizer.step()


def modules_that_cannot_be_served() -> None:
    net = Net()
    net.words = Tripled(10, 2, sparse=True)
    with pytest.raises(ValueError, match=r"words: Tripled has a forward\(\) of its own"):
        served(net)
    net = Net()
    net.words.weight.register_hook(lambda g: g * 0)
    with pytest.raises(ValueError, match="words: its weight has hooks"):
        served(net)
    net = Net()
    torch.nn.utils.parametrizations.weight_norm(net.words)
    with pytest.raises(ValueError, match="words: its weight is computed by a parametrization"):
        served(net)


def test_modules_whose_own_ways_would_be_left_out_are_refused() -> None:
    run_ranks(1, modules_that_cannot_be_served)


def hooks_run() -> None:
    net = Net()
    handle = net.words.register_forward_hook(lambda module, given, rows: rows * 3)
    net.words.register_forward_pre_hook(lambda module, given: (given[0] * 0 + 1,))
    net.eval()
    before = net(IDS)
    served(net)
    assert torch.equal(net(IDS), before) and not net.words.training
    handle.remove()
    assert not torch.equal(net(IDS), before)


def test_hooks_of_a_module_run_in_its_place() -> None:
    run_ranks(1, hooks_run)


def freezing() -> None:
    net = Net()
    optimizer = served(net)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    step(net, optimizer)
    first = net.state_dict()["words.weight"]
    net.requires_grad_(False)
    net.out.requires_grad_(True)
    step(net, optimizer)
    assert torch.equal(net.state_dict()["words.weight"], first)
    net.words.requires_grad_()
    step(net, optimizer)
    assert not torch.equal(net.state_dict()["words.weight"], first)


def test_a_table_is_frozen_with_its_model() -> None:
    run_ranks(2, freezing)


def wrong_uses() -> None:
    net = Net()
    served(net)
    for kind in (torch.float32, torch.bool, torch.uint8):
        with pytest.raises(TypeError, match=r"table 'words': numbers of rows are int64 or int32, not torch\."):
            net(IDS.to(kind))
    assert net(IDS.int()).shape == (2, 1)
    with pytest.raises(AttributeError, match="table 'words' is on servers, so that no rank has its weight"):
        _ = net.words.weight
    with pytest.raises(AttributeError, match="nothing"):
        _ = net.words.nothing


def test_ids_of_another_type_and_the_weight_are_refused() -> None:
    run_ranks(1, wrong_uses)


def dense_by_hand() -> None:
    net = Net()
    optimizer = served(net, dense=True)
    step(net, optimizer)
    with torch.no_grad():
        net.out.weight.fill_(7.0)
    with pytest.raises(RuntimeError, match=r"out\.weight was changed by hand, and servers have other values"):
        net(IDS)
    state = net.state_dict()
    state["out.weight"].fill_(7.0)
    net.load_state_dict(state)
    hvd.barrier()
    step(net, optimizer)
    assert (net.state_dict()["out.weight"] - 7).abs().max() < 5


def test_a_parameter_on_servers_that_is_set_by_hand_is_an_error() -> None:
    run_ranks(2, dense_by_hand)


def added_late() -> None:
    net = Net()
    optimizer = served(net, dense=True)
    step(net, optimizer)
    late = torch.nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [late]})
    (net(IDS).mean() + late.sum()).backward()
    with pytest.raises((ValueError, PhalanxError), match=r"a parameter of shape \[2\] that came after the others"):
        optimizer.step()


def test_a_parameter_that_comes_after_the_others_went_to_servers_is_an_error() -> None:
    run_ranks(2, added_late)


def broadcast_after() -> None:
    net = Net()
    torch.manual_seed(hvd.rank())
    torch.nn.init.normal_(net.out.weight)
    optimizer = served(net, dense=True)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    step(net, optimizer)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    step(net, optimizer)


def test_a_broadcast_of_what_servers_have_changes_nothing() -> None:
    run_ranks(2, broadcast_after)


def unfrozen_late() -> None:
    net = Net()
    net.words.requires_grad_(False)
    served(net)
    for module in (net, net.words):
        with pytest.raises(ValueError, match="table 'words' was frozen when it went to servers"):
            module.requires_grad_(True)
    net = Net()
    net.words.register_state_dict_post_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"words: it has hooks of state_dict\(\) or load_state_dict\(\)"):
        served(net)


def test_tables_that_servers_cannot_train_stay_frozen_and_hooks_of_states_are_refused() -> None:
    run_ranks(1, unfrozen_late)


def numbers_of_any_layout() -> None:
    """Rows that travel as often as they are touched: their numbers may lie apart, be one for all, or change before the step."""
    plain, net = Net(), Net()
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    own = served(net, merge_rows=False)
    table = torch.arange(12).reshape(4, 3) % 10
    for ids in (table[:, :1], table.t(), torch.tensor([[7]]).expand(50, 2), table[:, ::2], table.to(torch.int32)):
        buffer = ids.clone() if ids.is_contiguous() else ids
        for model, optimizer in ((plain, sgd), (net, own)):
            optimizer.zero_grad()
            model(buffer).square().mean().backward()
            if ids.is_contiguous():
                buffer.fill_(9)
            optimizer.step()
            if ids.is_contiguous():
                buffer.copy_(ids)
    torch.testing.assert_close(net.state_dict()["words.weight"], plain.state_dict()["words.weight"])


def test_numbers_of_any_layout() -> None:
    run_ranks(1, numbers_of_any_layout)
