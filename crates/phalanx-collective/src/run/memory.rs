//! The caller's buffers as plans see them, and the only places where plan steps touch memory.
//!
//! - MEM-1: a span is inside its buffer, or the step panics: plans are ours, so a span outside is our bug.
//!
//! `Buffers` borrows the caller's memory for the whole call, so nothing in this process touches it meanwhile. Other processes do
//! (arena memory), in the ranges and at the times that the plan's turns allow; `verify` proves those disjoint.

use crate::plan::step::{Buf, Span};
use phalanx_core::kernel::ReduceKernel;
use std::marker::PhantomData;

/// Input, output and scratch of one call. `input` and `output` may be the same memory.
pub(crate) struct Buffers<'a> {
    input: (*const u8, usize),
    output: (*mut u8, usize),
    scratch: (*mut u8, usize),
    elem_bytes: usize,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> Buffers<'a> {
    pub fn out_of_place(
        input: &'a [u8],
        output: &'a mut [u8],
        scratch: &'a mut [u8],
        elem_bytes: usize,
    ) -> Buffers<'a> {
        Buffers {
            input: (input.as_ptr(), input.len()),
            output: (output.as_mut_ptr(), output.len()),
            scratch: (scratch.as_mut_ptr(), scratch.len()),
            elem_bytes,
            borrowed: PhantomData,
        }
    }

    /// One memory that is input and output at once; `input` and `output` are byte ranges of it.
    pub fn in_place(
        memory: &'a mut [u8],
        input: std::ops::Range<usize>,
        output: std::ops::Range<usize>,
        scratch: &'a mut [u8],
        elem_bytes: usize,
    ) -> Buffers<'a> {
        let at = memory[output.clone()].as_mut_ptr();
        let base = memory.as_mut_ptr();
        Buffers {
            // Both pointers come from the one mutable borrow, so writing through one does not invalidate the other.
            input: (base.wrapping_add(input.start).cast_const(), input.len()),
            output: (if output.is_empty() { at } else { base.wrapping_add(output.start) }, output.len()),
            scratch: (scratch.as_mut_ptr(), scratch.len()),
            elem_bytes,
            borrowed: PhantomData,
        }
    }

    pub fn elem_bytes(&self) -> usize {
        self.elem_bytes
    }

    pub fn input(&self) -> (*const u8, usize) {
        self.input
    }

    pub fn output(&self) -> (*mut u8, usize) {
        self.output
    }

    /// Address and length in bytes of a span.
    #[inline]
    pub fn bytes(&self, span: Span) -> (*mut u8, usize) {
        let (base, size) = match span.buf {
            Buf::In => (self.input.0.cast_mut(), self.input.1),
            Buf::Out => self.output,
            Buf::Scratch => self.scratch,
        };
        let at = span.at as usize * self.elem_bytes;
        let len = span.len as usize * self.elem_bytes;
        assert!(at <= size && len <= size - at, "MEM-1: {span:?} is outside a buffer of {size} bytes");
        (base.wrapping_add(at), len)
    }

    /// The span's bytes, to be sent.
    pub fn read(&self, span: Span) -> &[u8] {
        let (at, len) = self.bytes(span);
        // SAFETY: `bytes` checked the range against the buffer that `Buffers` keeps borrowed; the plan neither writes a span while it is
        // sent (verify: sources and destinations of one exchange are disjoint) nor lets anybody else write it.
        unsafe { std::slice::from_raw_parts(at, len) }
    }

    /// The span's bytes, to be received into.
    pub fn write(&mut self, span: Span) -> &mut [u8] {
        assert!(span.buf != Buf::In, "PLAN-2: inputs are not written");
        let (at, len) = self.bytes(span);
        // SAFETY: as in `read`; `&mut self` keeps this process from holding another view of the same bytes.
        unsafe { std::slice::from_raw_parts_mut(at, len) }
    }

    pub fn copy(&mut self, src: Span, dst: Span) {
        let (from, len) = self.bytes(src);
        let (to, room) = self.bytes(dst);
        assert!(len == room && dst.buf != Buf::In);
        if !std::ptr::eq(from, to) {
            // SAFETY: both ranges are inside borrowed buffers; `copy` allows them to overlap.
            unsafe { std::ptr::copy(from, to, len) };
        }
    }

    /// Copies a span into shared memory at `to`, which has room for it.
    #[inline]
    pub fn copy_out(&self, src: Span, to: *mut u8) {
        let (from, len) = self.bytes(src);
        // SAFETY: the caller got `to` from a slot it has acquired (LANE-2) and checked the room; slots and buffers do not overlap,
        // because the arena's heaps and lanes do not.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }

    /// Copies from shared memory at `from` into a span.
    #[inline]
    pub fn copy_in(&mut self, from: *const u8, dst: Span) {
        assert!(dst.buf != Buf::In);
        let (to, len) = self.bytes(dst);
        // SAFETY: `from` is a published slot or a peer's buffer that the plan lets this rank read now (LANE-1); it does not overlap
        // this rank's buffers unless it is the very same address, which `copy` allows.
        unsafe { std::ptr::copy(from, to, len) };
    }

    /// Scales a span in place.
    pub fn scale(&mut self, reduction: &ReduceKernel, span: Span) {
        assert!(span.buf != Buf::In);
        let (at, len) = self.bytes(span);
        // SAFETY: one source that equals the one destination, inside a borrowed buffer.
        unsafe { reduction.apply_raw(&[at], &[at], len / self.elem_bytes) };
    }

    /// `dst = dst op incoming`.
    pub fn fold(&mut self, reduction: &ReduceKernel, incoming: &[u8], dst: Span) {
        assert!(dst.buf != Buf::In);
        let (at, len) = self.bytes(dst);
        assert_eq!(len, incoming.len());
        // SAFETY: the destination equals the first source; `incoming` is other memory of this process.
        unsafe { reduction.apply_raw(&[at], &[at, incoming.as_ptr()], len / self.elem_bytes) };
    }
}

/// Reduces shared and private memory. Every address has `n_elements` elements.
///
/// The caller vouches, by the plan, that sources are readable now and destinations are this rank's to write (LANE-1, LANE-2).
#[inline]
pub(crate) fn reduce(reduction: &ReduceKernel, dsts: &[*mut u8], srcs: &[*const u8], n_elements: usize) {
    // SAFETY: addresses come from `Buffers::bytes`, `Lane::data` and `Arena::peer_bytes`, each of which checked its bounds for
    // this many elements; a destination either is one of the sources (a rank's own span) or a slot or peer range that overlaps none.
    unsafe { reduction.apply_raw(dsts, srcs, n_elements) };
}
