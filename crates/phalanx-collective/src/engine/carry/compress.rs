//! Copies tensors into the buffer that is sent, and back; converts them to a narrower type if that was agreed.

use crate::engine::tensor::EngineTensor;
use half::{bf16, f16, slice::HalfFloatSliceExt};
use phalanx_core::DType;

/// Elements converted at a time.
const BLOCK: usize = 1024;

/// Copies a tensor into `room`, as elements of `wire`.
pub fn pack(room: &mut [u8], wire: DType, tensor: &EngineTensor) {
    match (tensor.dtype(), wire) {
        (from, to) if from == to => room.copy_from_slice(tensor.bytes()),
        (DType::F32, DType::F16) => {
            narrow(room, tensor.as_slice::<f32>(), |s, d: &mut [f16]| d.convert_from_f32_slice(s));
        }
        (DType::F64, DType::F16) => {
            narrow(room, tensor.as_slice::<f64>(), |s, d: &mut [f16]| d.convert_from_f64_slice(s));
        }
        (DType::F32, DType::BF16) => {
            narrow(room, tensor.as_slice::<f32>(), |s, d: &mut [bf16]| d.convert_from_f32_slice(s));
        }
        (DType::F64, DType::BF16) => {
            narrow(room, tensor.as_slice::<f64>(), |s, d: &mut [bf16]| d.convert_from_f64_slice(s));
        }
        (from, to) => unreachable!("submission refuses {from} that travels as {to}"),
    }
}

/// Copies elements of `wire` back into a tensor.
pub fn unpack(tensor: &mut EngineTensor, from: &[u8], wire: DType) {
    match (tensor.dtype(), wire) {
        (to, from_type) if to == from_type => tensor.bytes_mut().copy_from_slice(from),
        (DType::F32, DType::F16) => widen::<f16, f32>(tensor, from, |s, d| s.convert_to_f32_slice(d)),
        (DType::F64, DType::F16) => widen::<f16, f64>(tensor, from, |s, d| s.convert_to_f64_slice(d)),
        (DType::F32, DType::BF16) => widen::<bf16, f32>(tensor, from, |s, d| s.convert_to_f32_slice(d)),
        (DType::F64, DType::BF16) => widen::<bf16, f64>(tensor, from, |s, d| s.convert_to_f64_slice(d)),
        (to, from_type) => unreachable!("submission refuses {to} that travels as {from_type}"),
    }
}

fn narrow<S, D: bytemuck::Pod>(room: &mut [u8], elements: Option<&[S]>, convert: impl Fn(&[S], &mut [D])) {
    let elements = elements.expect("the type was matched, and submitted tensors are aligned");
    let room: &mut [D] = bytemuck::cast_slice_mut(room);
    for (to, from) in room.chunks_mut(BLOCK).zip(elements.chunks(BLOCK)) {
        convert(from, to);
    }
}

fn widen<S: bytemuck::Pod, D: bytemuck::Pod>(
    tensor: &mut EngineTensor,
    from: &[u8],
    convert: impl Fn(&[S], &mut [D]),
) {
    let from: &[S] = bytemuck::cast_slice(from);
    let to: &mut [D] = bytemuck::cast_slice_mut(tensor.bytes_mut());
    for (to, from) in to.chunks_mut(BLOCK).zip(from.chunks(BLOCK)) {
        convert(from, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_the_narrow_type_comes_back_unchanged() {
        for wire in [DType::F16, DType::BF16] {
            let mut room = vec![0u128; 8];
            let room: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut room)[..6];
            let mut tensor = EngineTensor::new(vec![1.5f32, -2.0, 0.25]);
            pack(room, wire, &tensor);
            tensor.bytes_mut().fill(0);
            unpack(&mut tensor, room, wire);
            assert_eq!(tensor.into_vec::<f32>().unwrap(), [1.5, -2.0, 0.25]);
            let mut wide = EngineTensor::new(vec![0.5f64, -8.0, 3.0]);
            pack(room, wire, &wide);
            wide.bytes_mut().fill(0);
            unpack(&mut wide, room, wire);
            assert_eq!(wide.into_vec::<f64>().unwrap(), [0.5, -8.0, 3.0]);
        }
    }
}
