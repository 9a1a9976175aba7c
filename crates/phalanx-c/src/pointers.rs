//! Reads C pointers, and refuses values that are visibly wrong.

use crate::{
    abi::{COp, COptions, CTensor},
    failure::Failure,
};
use phalanx_collective::engine::{EngineTensor, Request, spec::Form};
use phalanx_core::{DType, ReduceOp};
use std::ffi::{CStr, c_char};

/// Longer names and more dimensions are mistakes, and would not fit into a message between ranks.
const MAX_NAME: usize = 64 << 10;
const MAX_DIMS: i32 = 64;

/// A tensor as the caller described it.
#[derive(Clone, Debug)]
pub struct CallerTensor {
    address: *mut u8,
    form: Form,
}

impl CallerTensor {
    /// The addresses of its bytes.
    fn span(&self) -> std::ops::Range<usize> {
        let begin = self.address as usize;
        begin..begin + self.form.n_bytes() as usize
    }

    fn is_at(&self, other: &CallerTensor) -> bool {
        self.address == other.address && self.form == other.form
    }

    /// # Safety
    /// The caller of the C function keeps the memory valid, and leaves it alone, until the operation is done.
    pub unsafe fn lend(self) -> EngineTensor {
        // SAFETY: address, size and alignment were checked by `tensor`; the rest is what phalanx.h asks of the caller until the operation is done.
        // After that the tensor is kept for its address only, and nobody follows it.
        unsafe { EngineTensor::lent(self.address, self.form, Box::new(())) }
    }
}

/// # Safety
/// `items` is null or points to `n` of them.
pub unsafe fn slice<'a, T>(items: *const T, n: i32, what: &str) -> Result<&'a [T], Failure> {
    let Ok(len) = usize::try_from(n) else {
        return Err(Failure::invalid(format!("{what}: a count of {n} is negative")));
    };
    if len == 0 {
        return Ok(&[]);
    }
    if items.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL, but its count is {n}")));
    }
    if !items.is_aligned() {
        return Err(Failure::invalid(format!("{what} is not aligned")));
    }
    // SAFETY: it is neither null nor unaligned, and the caller says that `n` are there.
    Ok(unsafe { std::slice::from_raw_parts(items, len) })
}

/// # Safety
/// `text` is null or a string that ends with a zero.
pub unsafe fn string(text: *const c_char, what: &str) -> Result<Option<String>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not null, and the caller says that it ends.
    let bytes = unsafe { CStr::from_ptr(text) };
    if bytes.count_bytes() > MAX_NAME {
        return Err(Failure::invalid(format!("{what} is longer than {MAX_NAME} bytes")));
    }
    match bytes.to_str() {
        Ok(text) => Ok(Some(text.to_string())),
        Err(_) => Err(Failure::invalid(format!("{what} is not UTF-8: {}", bytes.to_string_lossy()))),
    }
}

pub fn counts(numbers: &[i64], what: &str) -> Result<Vec<u64>, Failure> {
    let bad = |n: i64| Failure::invalid(format!("{what}: {n} is negative"));
    numbers.iter().map(|n| u64::try_from(*n).map_err(|_| bad(*n))).collect()
}

pub fn dtype(code: i32) -> Result<DType, Failure> {
    let dtype = u8::try_from(code).ok().and_then(DType::from_code);
    dtype.ok_or_else(|| Failure::invalid(format!("{code} is not a phalanx_dtype")))
}

/// # Safety
/// `tensor` is null or points to one whose shape is null or has `ndim` dimensions.
pub unsafe fn tensor(tensor: *const CTensor) -> Result<CallerTensor, Failure> {
    // SAFETY: the same is asked of our caller.
    let Some(CTensor { data, shape, ndim, dtype: code }) = (unsafe { tensor.as_ref() }).copied() else {
        return Err(Failure::invalid("the tensor is NULL"));
    };
    if ndim > MAX_DIMS {
        return Err(Failure::invalid(format!("{ndim} dimensions are more than {MAX_DIMS}")));
    }
    // SAFETY: the caller says that `ndim` dimensions are there.
    let shape = counts(unsafe { slice(shape, ndim, "the shape") }?, "the shape")?;
    let dtype = dtype(code)?;
    // Without its empty dimensions, so that no product of the others overflows later.
    let sizes = shape.iter().map(|d| (*d).max(1));
    let n_bytes =
        sizes.chain([dtype.size() as u64]).try_fold(1u64, u64::checked_mul).filter(|n| *n <= i64::MAX as u64);
    if n_bytes.is_none() {
        return Err(Failure::invalid(format!("the shape {shape:?} is larger than any memory")));
    }
    let form = Form { dtype, shape };
    if form.n_bytes() > 0 && data.is_null() {
        return Err(Failure::invalid(format!("the data of a tensor of shape {:?} are NULL", form.shape)));
    }
    if data.align_offset(dtype.size()) != 0 {
        return Err(Failure::invalid(format!("{data:?} is not aligned for elements of {dtype}")));
    }
    if (data as usize).checked_add(form.n_bytes() as usize).is_none() {
        return Err(Failure::invalid(format!(
            "a tensor of shape {:?} at {data:?} exceeds the address space",
            form.shape
        )));
    }
    Ok(CallerTensor { address: data.cast(), form })
}

/// # Safety
/// As for `tensor`, `n` times.
pub unsafe fn tensors(items: *const CTensor, n: i32) -> Result<Vec<CallerTensor>, Failure> {
    // SAFETY: the caller says that `n` are there.
    let items = unsafe { slice(items, n, "the tensors") }?;
    // SAFETY: each of them is one that the caller vouches for.
    items.iter().map(|item| unsafe { tensor(item) }).collect()
}

/// # Safety
/// `options` is null or points to some, whose name is null or a string.
pub unsafe fn options(options: *const COptions) -> Result<(COptions, Option<String>), Failure> {
    if options.is_null() {
        return Ok((COptions::DEFAULT, None));
    }
    // SAFETY: not null; the size stands first, and says whether the rest is there.
    let size = unsafe { (&raw const (*options).struct_size).read() };
    if size < size_of::<COptions>() {
        return Err(Failure::invalid(format!(
            "the options have size {size} instead of {}: initialize them with PHALANX_OPTIONS_INIT",
            size_of::<COptions>()
        )));
    }
    // SAFETY: it was just found to be there.
    let options = unsafe { options.read() };
    // SAFETY: the caller says that the name is null or a string.
    let name = unsafe { string(options.name, "the name") }?;
    Ok((options, name))
}

/// Says in a request what the options say.
pub fn apply(request: Request, options: &COptions, name: Option<String>) -> Result<Request, Failure> {
    let set = u32::try_from(options.process_set).map_err(|_| unknown_set(options.process_set))?;
    let mut request =
        request.set(set).scale(options.prescale, options.postscale).device(options.device.max(-1));
    request = match options.op {
        code if code == COp::Average as i32 => request.op(ReduceOp::Average),
        code if code == COp::Sum as i32 => request.op(ReduceOp::Sum),
        code if code == COp::Adasum as i32 => request.adasum(),
        code if code == COp::Min as i32 => request.op(ReduceOp::Min),
        code if code == COp::Max as i32 => request.op(ReduceOp::Max),
        code if code == COp::Product as i32 => request.op(ReduceOp::Product),
        code => return Err(Failure::invalid(format!("{code} is not a phalanx_op"))),
    };
    if options.wire != crate::abi::PHALANX_SAME_DTYPE {
        request = request.compress(dtype(options.wire)?);
    }
    Ok(match name {
        Some(name) => request.name(name),
        None => request,
    })
}

pub fn unknown_set(set: i32) -> Failure {
    Failure::new(crate::abi::Status::UnknownSet, format!("process set {set} does not exist"))
}

/// Refuses tensors of one operation that share memory which one of them writes. True if all outputs are their inputs.
pub fn check_apart(inputs: &[CallerTensor], outputs: &[CallerTensor]) -> Result<bool, Failure> {
    let in_place = !inputs.is_empty()
        && inputs.len() == outputs.len()
        && inputs.iter().zip(outputs).all(|(a, b)| a.is_at(b));
    let read: &[CallerTensor] = if in_place { &[] } else { inputs };
    let mut spans: Vec<(std::ops::Range<usize>, bool)> = Vec::new();
    spans.extend(read.iter().map(|g| (g.span(), false)));
    spans.extend(outputs.iter().map(|g| (g.span(), true)));
    spans.retain(|(span, _)| !span.is_empty());
    spans.sort_unstable_by_key(|(span, _)| (span.start, span.end));
    // The furthest ends so far, of anything and of what is written.
    let (mut end, mut end_written) = (0, 0);
    for (span, written) in spans {
        if span.start < end_written || (written && span.start < end) {
            return Err(Failure::invalid(
                "tensors of one operation overlap in memory; give each result its own memory, or exactly that of its input",
            ));
        }
        end = end.max(span.end);
        end_written = if written { end_written.max(span.end) } else { end_written };
    }
    Ok(in_place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(address: usize, n: u64) -> CallerTensor {
        CallerTensor { address: address as *mut u8, form: Form { dtype: DType::U8, shape: vec![n] } }
    }

    #[test]
    fn shared_memory_is_refused_where_it_is_written() {
        let (a, b, c) = (given(100, 10), given(110, 10), given(105, 10));
        let (a, b, c) = (&[a][..], &[b][..], &[c][..]);
        assert_eq!(check_apart(a, b), Ok(false));
        assert_eq!(check_apart(a, a), Ok(true));
        assert!(check_apart(a, c).is_err());
        assert!(check_apart(c, a).is_err());
        let twice = [a, a].concat();
        assert!(check_apart(&twice, &twice).is_err());
        assert_eq!(check_apart(&twice, b), Ok(false));
        assert_eq!(check_apart(&[], &[]), Ok(false));
        assert_eq!(check_apart(&[given(100, 10), given(105, 0)], &[given(200, 1), given(205, 0)]), Ok(false));
    }

    #[test]
    fn shapes_that_overflow_are_refused() {
        let data = [0u64; 2];
        let look = |shape: &[i64], dtype: i32, offset: usize| {
            let data = data.as_ptr().cast::<u8>().wrapping_add(offset).cast_mut().cast();
            let given = CTensor { data, shape: shape.as_ptr(), ndim: shape.len() as i32, dtype };
            // SAFETY: the shape has as many dimensions as it says, and nobody looks at the data.
            unsafe { tensor(&given) }.map(|g| g.form.shape).map_err(|f| f.text)
        };
        assert_eq!(look(&[2, 2], 8, 0), Ok(vec![2, 2]));
        assert_eq!(look(&[], 8, 4), Ok(vec![]));
        assert_eq!(
            look(&[2], 8, 2).unwrap_err().split_once(' ').unwrap().1,
            "is not aligned for elements of f32"
        );
        assert_eq!(look(&[-2], 8, 0), Err("the shape: -2 is negative".into()));
        assert_eq!(look(&[2], 11, 0), Err("11 is not a phalanx_dtype".into()));
        assert_eq!(look(&[2], -1, 0), Err("-1 is not a phalanx_dtype".into()));
        for large in [&[i64::MAX, 2][..], &[i64::MAX, i64::MAX, 0], &[1 << 31, 1 << 31]] {
            assert!(look(large, 8, 0).unwrap_err().ends_with("is larger than any memory"));
        }
    }
}
