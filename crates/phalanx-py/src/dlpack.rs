//! DLPack: how one library hands a tensor's memory to another. The layout is that of `dlpack.h`, before it had versions, which everybody reads.

use phalanx_collective::engine::Tensor;
use phalanx_core::DType;
use pyo3::{ffi, prelude::*, types::PyCapsule};
use std::{
    ffi::{CStr, c_void},
    ptr::NonNull,
};

/// kDLCPU.
pub const CPU: i32 = 1;
/// A consumer renames the capsule once the memory is its own.
const NAME: &CStr = c"dltensor";

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: (i32, i32),
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct DlManaged {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManaged)>,
}

/// What the consumer sees, first, and what keeps it valid.
#[repr(C)]
struct Held {
    managed: DlManaged,
    shape: Vec<i64>,
    strides: Vec<i64>,
    tensor: Tensor,
}

/// The tensor's memory, for whoever takes it out of the capsule.
pub fn capsule(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyCapsule>> {
    let mut shape: Vec<i64> = tensor.shape().iter().map(|d| *d as i64).collect();
    let mut strides = vec![1i64; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1);
    }
    let code = match tensor.dtype() {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
        DType::U8 | DType::U16 => 1,
        DType::F16 | DType::F32 | DType::F64 => 2,
        DType::BF16 => 4,
        DType::Bool => 6,
    };
    let seen = DlTensor {
        data: tensor.address().cast(),
        device: (CPU, 0),
        ndim: shape.len() as i32,
        code,
        bits: tensor.dtype().size() as u8 * 8,
        lanes: 1,
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let managed = DlManaged { tensor: seen, context: std::ptr::null_mut(), deleter: Some(delete) };
    // Vectors move with the box, what they point to does not.
    let held = Box::into_raw(Box::new(Held { managed, shape, strides, tensor }));
    let pointer = NonNull::new(held.cast()).expect("a box has an address");
    // SAFETY: the pointer is that of a managed tensor, which is the first field of `Held`, and lives until its deleter is called, by the consumer or by
    // `unused`.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, NAME, Some(unused)) }
}

/// Called once by whoever owns the memory then, on any thread, with the GIL or without.
unsafe extern "C" fn delete(managed: *mut DlManaged) {
    // SAFETY: `capsule` made it as a box of `Held`, whose first field this is.
    drop(unsafe { Box::from_raw(managed.cast::<Held>()) });
}

/// Called by Python when the capsule goes; it still has its name if nobody took the memory.
unsafe extern "C" fn unused(capsule: *mut ffi::PyObject) {
    // SAFETY: Python passes the capsule that is going, with the GIL held.
    let pointer = unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 0 {
            return;
        }
        ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr())
    };
    // SAFETY: still under its first name it is ours, and nobody else will delete it.
    unsafe { delete(pointer.cast()) };
}
