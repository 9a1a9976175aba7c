"""A bucket: the dense gradients of several parameters in one buffer, which is reduced as a whole.

The buffer is a tensor that ranks of one host reduce in place. Large gradients are views of it: they are copied once, when the bucket
is sent, and never back. Small gradients keep their own memory and get their results copied, because managing a view costs more than
the copy. A large gradient alone in its bucket that is made anew in every pass is reduced in its own memory: copying it costs more than
shared memory gains.

Small gradients that lie in memory as the bucket has them are copied by their addresses, all with one call; torch's own copy of many tensors
costs several times as much for each.

From ``load`` to ``arrive`` the memory belongs to the engine.

* BUCKET-2: a gradient that the program holds stays valid: if it is the parameter's current one, it gets the result; if it is of an
  earlier step, the bucket allocates new memory and does not write to the old one.
* BUCKET-3: a parameter whose gradient no rank has keeps its gradient.
* BUCKET-4: a gradient that was given other memory is copied back into the bucket, so that its current values are reduced.
* BUCKET-5: a gradient alone in its bucket travels in its own memory, and moves into the bucket when it stays for a second pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter, is_, is_not
from sys import getrefcount

import torch

from phalanx import _phalanx, _world
from phalanx.torch._memory import CODES, lend

#: Gradients of buckets with fewer bytes a member stay where they are.
_SMALL = 16 << 10
#: Gradients begin at multiples of this number of bytes, which vector instructions like.
_ALIGN = 64


def _n_users(tensor: torch.Tensor) -> int:
    """The number of tensors that share its memory; 0 if torch does not provide it."""
    return 0 if _use_count is None else int(_use_count(tensor.untyped_storage()._cdata))


def _references() -> tuple[int, int, int]:
    """How many references a gradient in a list has, a tensor that is only in a list, and memory of one tensor."""
    p = torch.zeros(1, requires_grad=True)
    p.grad = torch.zeros(1)
    return max(map(getrefcount, [p.grad])), max(map(getrefcount, [torch.zeros(1)])), _n_users(p.grad)


_GRAD, _IS_SPARSE, _DTYPE, _N_BYTES = map(attrgetter, ("grad", "is_sparse", "dtype", "nbytes"))
_ADDRESS, _IS_IN_ORDER = torch.Tensor.data_ptr, torch.Tensor.is_contiguous
_use_count = getattr(torch._C, "_storage_Use_Count", None)
_OF_GRADIENT, _OF_VIEW, _OF_MEMORY = _references()


def _versions_are_ours() -> bool:
    """Whether this torch lets us say that we wrote to many tensors."""
    tensor = torch.zeros(1)
    before = tensor._version
    try:
        torch.autograd.graph.increment_version([tensor])
    except (AttributeError, TypeError, RuntimeError):
        return False
    return tensor._version > before


_CAN_PACK = _versions_are_ours()


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
        #: How small gradients are copied by their addresses, their numbers of bytes, and where they were when they were sent.
        self._packing: _phalanx.Packing | None = None
        self._sizes: list[int] = []
        self._packed: list[int] = []
        #: Places of the members that travel.
        self._places: Sequence[int] = ()
        #: The gradient that travels in its own memory, and the last one that did (BUCKET-5).
        self._lent: torch.Tensor | None = None
        self._lent_before: Callable[[], torch.Tensor | None] = _nothing
        self._is_small = sum(p.numel() * p.element_size() for p in self.ps) < _SMALL * len(self.ps)

    def reset(self) -> None:
        """For the next pass."""
        self.n_missing, self.is_sent = len(self.ps), False
        self._held, self._back, self._packed, self._lent = [], [], [], None

    def load(self, places: Sequence[int] | None = None) -> torch.Tensor:
        """The memory with this rank's gradients; zeros for those that it does not have, and for places not in the list."""
        self._held = []
        grads = list(map(_GRAD, self.ps))
        if self._is_small:
            return self._load_small(grads, places)
        if len(grads) == 1 and (places is None or len(places) == 1) and self._can_lend(grads[0]):
            return self._lend(grads[0])
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

    def _can_lend(self, grad: torch.Tensor | None) -> bool:
        """Whether a gradient that is alone here was made anew, in memory of its own that can be sent as it is (BUCKET-5)."""
        p = self.ps[0]
        return (
            grad is not None
            and not grad.is_sparse
            and grad is not self._lent_before()
            and not any(map(is_, self._views, repeat(grad)))
            and grad.device.type == "cpu"
            and grad.dtype == p.dtype
            and grad.is_contiguous()
            and not is_laid_out(p)
        )

    def _lend(self, grad: torch.Tensor | None) -> torch.Tensor:
        assert grad is not None, "_can_lend() was asked"
        self._places, self._lent, self._lent_before = range(1), grad, weakref.ref(grad)
        # What was here of an earlier pass is not needed any more.
        self._flat, self._views, self._addresses, self._age = torch.empty(0), [], [], -1
        return grad.detach().view(-1)

    def _load_small(self, grads: list[torch.Tensor | None], places: Sequence[int] | None) -> torch.Tensor:
        if self._age != _world.age():
            self._renew()
        self._places = range(len(self.ps)) if places is None else places
        views, dense = self._views, [grad for grad in grads if grad is not None]
        if places is None and len(dense) == len(views) and not any(map(_IS_SPARSE, dense)):
            self._back = grads
            if self._pack(dense):
                return self._flat
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

    def _pack(self, grads: list[torch.Tensor]) -> bool:
        """Copies the gradients of all members by their addresses, if they lie there as in the bucket; returns whether they do."""
        self._packed = []
        if (
            self._packing is None
            or set(map(_DTYPE, grads)) != {self._flat.dtype}
            or not all(map(_IS_IN_ORDER, grads))
            or list(map(_N_BYTES, grads)) != self._sizes
        ):
            return False
        self._packed = list(map(_ADDRESS, grads))
        self._packing.pack(lend(self._flat), self._packed)
        return True

    def _unpack(self, grads: list[torch.Tensor]) -> bool:
        """Copies the results back by address; returns whether the gradients are still where they were."""
        packed, self._packed = self._packed, []
        if not packed or self._packing is None or list(map(_ADDRESS, grads)) != packed:
            return False
        self._packing.unpack(lend(self._flat), packed)
        # Autograd shall notice that the values it may have saved are not these.
        torch.autograd.graph.increment_version(grads)
        return True

    def _arrive_small(self) -> None:
        views = self._views
        grads = [grad for grad in self._back if grad is not None]
        if len(grads) < len(views):
            views = [view for view, grad in zip(self._views, self._back, strict=True) if grad is not None]
            for place in self._places:
                if self._back[place] is None:
                    self.ps[place].grad = self._views[place].clone()
        if grads and not self._unpack(grads):
            with torch.no_grad():
                _give(grads, views)
        if any(map(is_not, map(_GRAD, self.ps), self._back)):
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
        # As long as a gradient in its own memory, which another rank may send.
        n = starts[-1] + self.ps[-1].numel()
        if first.device.type == "cpu" and first.dtype in CODES:
            self._flat = torch.utils.dlpack.from_dlpack(_phalanx.zeros(CODES[first.dtype], n))
        else:
            self._flat = torch.zeros(n, dtype=first.dtype, device=first.device)
        self._views = [_view(self._flat, start, p) for start, p in zip(starts, self.ps, strict=True)]
        self._addresses = [view.data_ptr() for view in self._views]
        self._age, self._n_users = _world.age(), _n_users(self._flat)
        self._sizes = [p.numel() * p.element_size() for p in self.ps]
        # Elements of other layouts are not in the order of the bucket.
        can_pack = _CAN_PACK and first.device.type == "cpu" and first.dtype in CODES and not any(map(is_laid_out, self.ps))
        places = [(start * first.element_size(), n) for start, n in zip(starts, self._sizes, strict=True)]
        self._packing = _phalanx.Packing(places) if self._is_small and can_pack else None

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
        if self._lent is not None:
            if self.ps[0].grad is not self._lent:
                # The program replaced it meanwhile, with what this rank alone has.
                self.ps[0].grad = self._lent
            self._lent = None
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


def _nothing() -> None:
    return None


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
