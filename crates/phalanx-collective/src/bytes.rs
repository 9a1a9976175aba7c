//! Slices of elements as bytes.

use phalanx_core::Element;

/// The bytes of elements.
pub(crate) fn of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: `Element` is sealed and implemented only for numbers and bool, none of which has padding.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// The bytes of elements, to be overwritten with elements of the same type.
pub(crate) fn of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `of`. Every bit pattern is a number; bytes of a bool are only ever written from bools (ranks compare element types
    // before data move) or by kernels, which write 0 or 1.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

/// The element whose bytes are all zero.
pub(crate) fn zero<T: Element>() -> T {
    // SAFETY: as in `of`; zero is a number, and `false`.
    unsafe { std::mem::zeroed() }
}
