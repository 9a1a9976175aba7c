//! The caller's memory, lent to the engine together with whatever keeps it alive.
//!
//! - TENSOR-1: a tensor owns its keeper, and the keeper owns the bytes: they are valid, and no other code touches them, as long as the tensor
//!   exists. Constructors that cannot know this are `unsafe` and say what the caller promises.

use super::spec::Form;
use crate::{buffer::ArenaVec, bytes};
use phalanx_core::{DType, Element};
use phalanx_net::{arena::Arena, large_pages};
use std::{any::Any, fmt, sync::Arc};

/// Elements of a type and shape known at run time.
pub struct EngineTensor {
    address: *mut u8,
    n_bytes: usize,
    form: Form,
    keeper: Box<dyn Any + Send>,
}

// SAFETY: TENSOR-1: the bytes belong to the keeper, which may be sent; the pointer is only a way to them.
unsafe impl Send for EngineTensor {}

/// Elements that do not fill the shape they are given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{have} elements do not fill the shape {shape:?}, which has {want}")]
pub struct ShapeError {
    have: u64,
    want: u64,
    shape: Vec<u64>,
}

/// Memory aligned for every element type.
struct Zeros(Vec<u128>);

impl EngineTensor {
    /// A vector as a tensor of one dimension.
    pub fn new<T: Element>(elements: Vec<T>) -> EngineTensor {
        let shape = vec![elements.len() as u64];
        EngineTensor::shaped(elements, shape).expect("its own length fits")
    }

    pub fn shaped<T: Element>(mut elements: Vec<T>, shape: Vec<u64>) -> Result<EngineTensor, ShapeError> {
        let form = fitting::<T>(elements.len(), shape)?;
        let view = bytes::of_mut(&mut elements);
        let (address, n_bytes) = (view.as_mut_ptr(), view.len());
        Ok(EngineTensor { address, n_bytes, form, keeper: Box::new(elements) })
    }

    /// Memory born in the arena: ranks of one host reduce it where it is.
    pub fn in_arena<T: Element>(
        mut elements: ArenaVec<T>,
        shape: Vec<u64>,
    ) -> Result<EngineTensor, ShapeError> {
        let form = fitting::<T>(elements.len(), shape)?;
        let view = bytes::of_mut(&mut elements);
        let (address, n_bytes) = (view.as_mut_ptr(), view.len());
        Ok(EngineTensor { address, n_bytes, form, keeper: Box::new(elements) })
    }

    pub fn zeros(dtype: DType, shape: Vec<u64>) -> EngineTensor {
        let form = Form { dtype, shape };
        let n_bytes = form.n_bytes() as usize;
        let mut zeros = Zeros(vec![0; n_bytes.div_ceil(size_of::<u128>())]);
        let address = zeros.0.as_mut_ptr().cast();
        let mut tensor = EngineTensor { address, n_bytes, form, keeper: Box::new(zeros) };
        tensor.prefer_large_pages();
        tensor
    }

    /// Says that all bytes are about to be written.
    pub(super) fn prefer_large_pages(&mut self) {
        large_pages::prefer(self.bytes_mut());
    }

    /// Zeros that the ranks of this host reduce where they are. Ordinary memory where there is no arena, or no room in it.
    pub(super) fn zeros_in(arena: Option<&Arc<Arena>>, dtype: DType, shape: Vec<u64>) -> EngineTensor {
        let form = Form { dtype, shape };
        let n_bytes = form.n_bytes() as usize;
        match arena.filter(|_| n_bytes > 0).and_then(|arena| arena.alloc(n_bytes)) {
            Some(block) => EngineTensor { address: block.address(), n_bytes, form, keeper: Box::new(block) },
            None => EngineTensor::zeros(form.dtype, form.shape),
        }
    }

    /// Memory that somebody else owns, e.g. another language's tensor.
    ///
    /// # Safety
    /// As long as `keeper` exists, `address` is valid for reading and writing the form's bytes, aligned to its element type, every element is a
    /// valid value of that type, and nobody else reads or writes them from the submission until the operation is done.
    pub unsafe fn lent(address: *mut u8, form: Form, keeper: Box<dyn Any + Send>) -> EngineTensor {
        let n_bytes = form.n_bytes() as usize;
        // An empty tensor may have no address at all.
        let address =
            if n_bytes == 0 { std::ptr::NonNull::<u128>::dangling().as_ptr().cast() } else { address };
        EngineTensor { address, n_bytes, form, keeper }
    }

    /// The same elements in a shape that has as many.
    pub(super) fn reshaped(self, shape: Vec<u64>) -> EngineTensor {
        let form = Form { shape, ..self.form };
        assert_eq!(form.n_bytes() as usize, self.n_bytes, "the shape is filled");
        EngineTensor { form, ..self }
    }

    pub fn form(&self) -> &Form {
        &self.form
    }

    pub fn dtype(&self) -> DType {
        self.form.dtype
    }

    pub fn shape(&self) -> &[u64] {
        &self.form.shape
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: TENSOR-1.
        unsafe { std::slice::from_raw_parts(self.address, self.n_bytes) }
    }

    /// Where the bytes are, for those who read or write them by other means, while nothing is submitted.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// The caller writes elements of the tensor's type; not every byte is a bool.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: TENSOR-1; `&mut self` makes it the only view.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.n_bytes) }
    }

    /// The elements, if they are of this type.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        let n = self.n_bytes / size_of::<T>();
        (T::DTYPE == self.form.dtype && self.address.cast::<T>().is_aligned()).then(|| {
            // SAFETY: TENSOR-1; type and alignment were just checked, and all constructors hold elements of the form's type.
            unsafe { std::slice::from_raw_parts(self.address.cast(), n) }
        })
    }

    /// The elements as a vector: the very one the tensor was made of, or a copy. `None` if they are of another type.
    pub fn into_vec<T: Element>(self) -> Option<Vec<T>> {
        if self.keeper.is::<Vec<T>>() {
            return self.keeper.downcast().ok().map(|vec| *vec);
        }
        self.as_slice().map(<[T]>::to_vec)
    }

    /// What kept the memory alive, to be taken back.
    pub fn into_keeper(self) -> Box<dyn Any + Send> {
        self.keeper
    }
}

fn fitting<T: Element>(len: usize, shape: Vec<u64>) -> Result<Form, ShapeError> {
    let (have, form) = (len as u64, Form { dtype: T::DTYPE, shape });
    let want = form.n_elements();
    if have == want { Ok(form) } else { Err(ShapeError { have, want, shape: form.shape }) }
}

impl fmt::Debug for EngineTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?})", self.form.dtype, self.form.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_comes_back_as_it_went() {
        let vec = vec![1.0f32, 2.0, 3.0, 4.0];
        let address = vec.as_ptr();
        let mut tensor = EngineTensor::shaped(vec, vec![2, 2]).unwrap();
        tensor.bytes_mut()[..4].copy_from_slice(&7f32.to_le_bytes());
        assert_eq!(tensor.as_slice::<i32>(), None);
        let back = tensor.into_vec::<f32>().unwrap();
        assert_eq!((back.as_ptr(), back.as_slice()), (address, &[7.0, 2.0, 3.0, 4.0][..]), "TENSOR-1");
    }

    #[test]
    fn shapes_must_fit() {
        let error = EngineTensor::shaped(vec![1u8; 5], vec![2, 3]).unwrap_err();
        assert_eq!(error.to_string(), "5 elements do not fill the shape [2, 3], which has 6");
        assert_eq!(EngineTensor::zeros(DType::F64, vec![0, 4]).bytes().len(), 0);
        assert_eq!(EngineTensor::zeros(DType::I16, vec![]).into_vec::<i16>(), Some(vec![0]));
    }
}
