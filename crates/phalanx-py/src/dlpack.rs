//! DLPack: how one library passes a tensor's memory to another. The layout is that of the unversioned `dlpack.h`, which all libraries read.

use phalanx_collective::engine::EngineTensor;
use phalanx_core::DType;
use pyo3::{ffi, prelude::*, types::PyCapsule};
use std::{
    ffi::{CStr, c_void},
    mem::offset_of,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
};

/// kDLCPU.
pub const CPU: i32 = 1;
/// A consumer renames the capsule once the memory is its own.
const NAME: &CStr = c"dltensor";

#[repr(C)]
struct DlDevice {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
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

// Where `dlpack.h` has them on a machine of 64 bits; a field of another layout does not compile.
const _: () = assert!(
    offset_of!(DlTensor, device) + offset_of!(DlDevice, kind) == 8
        && offset_of!(DlTensor, device) + offset_of!(DlDevice, id) == 12
        && offset_of!(DlTensor, ndim) == 16
        && offset_of!(DlTensor, code) == 20
        && offset_of!(DlTensor, bits) == 21
        && offset_of!(DlTensor, lanes) == 22
        && offset_of!(DlTensor, shape) == 24
        && offset_of!(DlTensor, strides) == 32
        && offset_of!(DlTensor, byte_offset) == 40
        && offset_of!(DlManaged, context) == 48
        && offset_of!(DlManaged, deleter) == 56
        && offset_of!(Held, managed) == 0
);

/// What the consumer sees, first, and what keeps it valid.
#[repr(C)]
struct Held {
    managed: DlManaged,
    shape: Vec<i64>,
    strides: Vec<i64>,
    memory: Arc<Mutex<EngineTensor>>,
}

/// Memory of its own with the same elements.
pub fn copied(tensor: &EngineTensor) -> EngineTensor {
    let copy = EngineTensor::zeros(tensor.dtype(), tensor.shape().to_vec());
    let bytes = tensor.bytes();
    // SAFETY: both have the same type and shape, hence this many bytes, and one of them was made just now, so that nobody else has it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy.address(), bytes.len()) };
    copy
}

/// The tensor's memory, for the library that takes it out of the capsule; others may have it, too (ARRAY-1).
pub fn capsule(py: Python<'_>, memory: Arc<Mutex<EngineTensor>>) -> PyResult<Bound<'_, PyCapsule>> {
    let tensor = memory.lock().unwrap_or_else(PoisonError::into_inner);
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
        device: DlDevice { kind: CPU, id: 0 },
        ndim: shape.len() as i32,
        code,
        bits: tensor.dtype().size() as u8 * 8,
        lanes: 1,
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let managed = DlManaged { tensor: seen, context: std::ptr::null_mut(), deleter: Some(delete) };
    drop(tensor);
    // Vectors move with the box, what they point to does not.
    let held = Box::into_raw(Box::new(Held { managed, shape, strides, memory }));
    let pointer = NonNull::new(held.cast()).expect("a box has an address");
    // SAFETY: the pointer is that of a managed tensor, which is the first field of `Held`, and lives until its deleter is called, by the consumer or by
    // `unused`.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, NAME, Some(unused)) }
}

/// Called once by the library that owns the memory then, on any thread, with the GIL or without.
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
