"""A bucket: the dense gradients of several parameters in one buffer, which is reduced as a whole.

The buffer is a tensor that ranks of one host reduce in place. Large gradients are views of it: they are copied once, when the bucket
is sent, and never back. Small gradients keep their own memory and get their results copied, because managing a view costs more than
the copy.

From ``load`` to ``arrive`` the memory belongs to the engine.

* BUCKET-2: a gradient that the program holds stays valid: if it is the parameter's current one, it gets the result; if it is of an
  earlier step, the bucket allocates new memory and does not write to the old one.
* BUCKET-3: a parameter whose gradient no rank has keeps its gradient.
* BUCKET-4: a gradient that was given other memory is copied back into the bucket, so that its current values are reduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter, is_not
from sys import getrefcount

import torch

from phalanx import _phalanx, _world
from phalanx.torch._memory import CODES

#: Gradients of buckets with fewer bytes a member stay where they are.
_SMALL = 16 << 10
#: Gradients begin at multiples of so many bytes, which vector instructions like.
_ALIGN = 64


def _n_users(tensor: torch.Tensor) -> int:
    """The number of tensors that share its memory; 0 if torch does not provide it."""
    return 0 if _use_count is None else int(_use_count(tensor.untyped_storage()._cdata))


def _references() -> tuple[int, int, int]:
    """How many references a gradient in a list has, a tensor that is only in a list, and memory of one tensor."""
    p = torch.zeros(1, requires_grad=True)
    p.grad = torch.zeros(1)
    return max(map(getrefcount, [p.grad])), max(map(getrefcount, [torch.zeros(1)])), _n_users(p.grad)


_GRAD, _IS_SPARSE = attrgetter("grad"), attrgetter("is_sparse")
_use_count = getattr(torch._C, "_storage_Use_Count", None)
_OF_GRADIENT, _OF_VIEW, _OF_MEMORY = _references()


class Bucket:
    """Parameters of one type on one device, by their numbers, and the memory for their gradients."""

    def __init__(self, name: str, indices: Sequence[int], ps: Sequence[torch.Tensor]) -> None:
        self.name, self.indices, self.ps = name, list(indices), list(ps)
        #: Members whose gradients of this pass are not there yet.
        self.n_missing = len(self.ps)
        self.is_sent = False
        self._age, self._n_users = -1, 0
        self._flat = torch.empty(0)
        self._views: list[torch.Tensor] = []
        self._addresses: list[int] = []
        #: Gradients that the program holds, and where their results are.
        self._held: list[tuple[torch.Tensor, torch.Tensor]] = []
        #: Small gradients that get their results; none where the parameter has no dense one.
        self._back: list[torch.Tensor | None] = []
        #: Places of the members that travel.
        self._places: Sequence[int] = ()
        self._is_small = sum(p.numel() * p.element_size() for p in self.ps) < _SMALL * len(self.ps)

    def reset(self) -> None:
        """For the next pass."""
        self.n_missing, self.is_sent = len(self.ps), False
        self._held, self._back = [], []

    def load(self, places: Sequence[int] | None = None) -> torch.Tensor:
        """The memory with this rank's gradients; zeros for those that it does not have, and for places not in the list."""
        self._held = []
        grads = list(map(_GRAD, self.ps))
        if self._is_small:
            return self._load_small(grads, places)
        if self._age != _world.age() or self._is_moved() or self._is_old_one_held(grads):
            self._renew()
        self._places = range(len(self.ps)) if places is None else places
        n_references = list(map(getrefcount, grads))
        to, fresh = [], []
        for place in range(len(self.ps)) if places is None else self._others_spared(places):
            grad, view = grads[place], self._views[place]
            if grad is view:
                continue
            if grad is None:
                view.zero_()
                continue
            to.append(view)
            if grad.is_sparse:
                fresh.append(grad.to_dense())
                continue
            fresh.append(grad)
            if n_references[place] > _OF_GRADIENT or _n_users(grad) > _OF_MEMORY or grad.requires_grad:
                self._held.append((grad, view))
            else:
                self.ps[place].grad = view
        if to:
            with torch.no_grad():
                _copy(to, fresh)
        return self._flat

    def _load_small(self, grads: list[torch.Tensor | None], places: Sequence[int] | None) -> torch.Tensor:
        if self._age != _world.age():
            self._renew()
        self._places = range(len(self.ps)) if places is None else places
        views, dense = self._views, [grad for grad in grads if grad is not None]
        if places is None and len(dense) == len(views) and not any(map(_IS_SPARSE, dense)):
            self._back = grads
        else:
            if places is not None:
                self._flat.zero_()
            views, dense = [], []
            self._back = [None] * len(self.ps)
            for place in self._places:
                grad, view = grads[place], self._views[place]
                if grad is None:
                    view.zero_()
                    continue
                views.append(view)
                dense.append(grad.to_dense() if grad.is_sparse else grad)
                self._back[place] = None if grad.is_sparse else grad
        if views:
            with torch.no_grad():
                _copy(views, dense)
        return self._flat

    def _arrive_small(self) -> None:
        views = self._views
        grads = [grad for grad in self._back if grad is not None]
        if len(grads) < len(views):
            views = [view for view, grad in zip(self._views, self._back, strict=True) if grad is not None]
            for place in self._places:
                if self._back[place] is None:
                    self.ps[place].grad = self._views[place].clone()
        if grads:
            with torch.no_grad():
                _give(grads, views)
        for p, grad in zip(self.ps, self._back, strict=True):
            if grad is not None and p.grad is not grad:
                # The program replaced it meanwhile, with what this rank alone has.
                p.grad = grad
        self._back = []

    def _is_moved(self) -> bool:
        """Whether a gradient was given other memory, as ``p.grad.data = ...`` and ``model.half()`` do (BUCKET-4)."""
        return [view.data_ptr() for view in self._views] != self._addresses

    def _is_old_one_held(self, grads: list[torch.Tensor | None]) -> bool:
        """Whether the program holds a gradient of an earlier step, or a part of one (BUCKET-2)."""
        if _n_users(self._flat) > self._n_users:
            return any(map(is_not, grads, self._views))
        held = [i for i, n in enumerate(map(getrefcount, self._views)) if n > _OF_VIEW]
        return any(grads[i] is not self._views[i] for i in held)

    def _others_spared(self, places: Sequence[int]) -> Sequence[int]:
        """These places. All other gradients are moved out of the memory and are not sent (BUCKET-3)."""
        for place in set(range(len(self.ps))).difference(places):
            p, view = self.ps[place], self._views[place]
            if p.grad is view:
                p.grad = view.clone()
            view.zero_()
        return places

    def _renew(self) -> None:
        first = self.ps[0]
        step = max(_ALIGN // first.element_size(), 1)
        starts, n = [], 0
        for p in self.ps:
            starts.append(n)
            n += -(-p.numel() // step) * step
        if first.device.type == "cpu" and first.dtype in CODES:
            self._flat = torch.utils.dlpack.from_dlpack(_phalanx.zeros(CODES[first.dtype], n))
        else:
            self._flat = torch.zeros(n, dtype=first.dtype, device=first.device)
        self._views = [_view(self._flat, start, p) for start, p in zip(starts, self.ps, strict=True)]
        self._addresses = [view.data_ptr() for view in self._views]
        self._age, self._n_users = _world.age(), _n_users(self._flat)

    def is_loadable(self, takes_sparse: bool) -> bool:
        """Whether every member has a gradient, and all of them can be sent in this bucket."""
        grads = list(map(_GRAD, self.ps))
        return _are_all_there(grads) and (takes_sparse or not any(map(_IS_SPARSE, grads)))

    def release(self) -> None:
        """Takes all gradients out of the memory."""
        for p, view in zip(self.ps, self._views, strict=False):
            if p.grad is view:
                p.grad = view.clone()

    def abandon(self) -> None:
        """Gives up the memory, because the engine may still write to it."""
        self._age = -1

    def arrive(self) -> None:
        """Makes the results the parameters' gradients."""
        if self._is_small:
            self._arrive_small()
            return
        for grad, view in self._held:
            with torch.no_grad():
                grad.copy_(view)
        stay = {id(view): grad for grad, view in self._held}
        for place in self._places:
            p, view = self.ps[place], self._views[place]
            wanted = stay.get(id(view), view)
            if p.grad is not wanted:
                p.grad = wanted


def _are_all_there(grads: Sequence[torch.Tensor | None]) -> bool:
    return all(map(is_not, grads, repeat(None)))


def _give(grads: list[torch.Tensor], views: list[torch.Tensor]) -> None:
    """Gives gradients their results."""
    try:
        _copy(grads, views)
    except RuntimeError:
        # Elements of some share their memory, as those of an expanded tensor do.
        for grad, view in zip(grads, views, strict=True):
            if any(stride == 0 for stride in grad.stride()):
                grad.set_(view.clone())  # type: ignore[call-overload]
            else:
                grad.copy_(view)


def _copy(to: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copies each of the sources to its place."""
    at_once = getattr(torch, "_foreach_copy_", None)
    if at_once is not None:
        at_once(to, sources)
        return
    # Before torch 2.2.
    for place, source in zip(to, sources, strict=True):
        place.copy_(source)


def _view(flat: torch.Tensor, start: int, p: torch.Tensor) -> torch.Tensor:
    """A part of the memory as a gradient of this parameter, laid out as the parameter is."""
    part = flat[start : start + p.numel()]
    view = part.as_strided(p.size(), p.stride()) if is_laid_out(p) else part.view(p.shape)
    # With a version of its own: who writes to one gradient has not written to its neighbours.
    return view.data


def is_laid_out(p: torch.Tensor) -> bool:
    """Whether it fills its memory in an order of its own, as channels-last weights do."""
    return not p.is_contiguous() and any(
        p.dim() == dim and p.is_contiguous(memory_format=layout)
        for dim, layout in ((4, torch.channels_last), (5, torch.channels_last_3d))
    )
