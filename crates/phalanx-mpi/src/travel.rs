//! How elements of ours become elements of MPI's and come back (MPI-3).

use half::{bf16, f16};
use phalanx_core::{DType, ReduceOp};

/// Element types that every MPI can reduce, in the order of its tables of handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MpiType {
    U8,
    I8,
    U16,
    I16,
    I32,
    I64,
    F32,
    F64,
}

impl MpiType {
    pub fn size(self) -> usize {
        match self {
            MpiType::U8 | MpiType::I8 => 1,
            MpiType::U16 | MpiType::I16 => 2,
            MpiType::I32 | MpiType::F32 => 4,
            MpiType::I64 | MpiType::F64 => 8,
        }
    }
}

/// Reductions of MPI's, in the order of its tables of handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MpiOp {
    Sum,
    Product,
    Min,
    Max,
}

/// One reduction on its way through MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Travel {
    dtype: DType,
    averages: bool,
    pub kind: MpiType,
    pub op: MpiOp,
}

impl Travel {
    pub fn of(dtype: DType, op: ReduceOp) -> Travel {
        let averages = op == ReduceOp::Average;
        let kind = match dtype {
            DType::F16 | DType::BF16 | DType::F32 => MpiType::F32,
            DType::F64 => MpiType::F64,
            // The sum may not fit into the type of which the average is taken.
            _ if averages => MpiType::I64,
            DType::U8 | DType::Bool => MpiType::U8,
            DType::I8 => MpiType::I8,
            DType::U16 => MpiType::U16,
            DType::I16 => MpiType::I16,
            DType::I32 => MpiType::I32,
            DType::I64 => MpiType::I64,
        };
        let op = match (op, dtype == DType::Bool) {
            (ReduceOp::Sum | ReduceOp::Max, true) => MpiOp::Max,
            (ReduceOp::Product | ReduceOp::Min, true) => MpiOp::Min,
            (ReduceOp::Sum | ReduceOp::Average, _) => MpiOp::Sum,
            (ReduceOp::Product, _) => MpiOp::Product,
            (ReduceOp::Min, _) => MpiOp::Min,
            (ReduceOp::Max, _) => MpiOp::Max,
        };
        Travel { dtype, averages, kind, op }
    }

    /// The elements as MPI gets them.
    pub fn outward(&self, data: &[u8]) -> Vec<u8> {
        let each = data.chunks_exact(self.dtype.size());
        match (self.dtype, self.kind) {
            (DType::F16, _) => {
                each.flat_map(|b| f16::from_ne_bytes([b[0], b[1]]).to_f32().to_ne_bytes()).collect()
            }
            (DType::BF16, _) => {
                each.flat_map(|b| bf16::from_ne_bytes([b[0], b[1]]).to_f32().to_ne_bytes()).collect()
            }
            (dtype, MpiType::I64) if dtype != DType::I64 => {
                each.flat_map(|b| widened(dtype, b).to_ne_bytes()).collect()
            }
            _ => data.to_vec(),
        }
    }

    /// What came back, as our elements. Averages are divided here: integers towards zero.
    pub fn homeward(&self, came: &[u8], n_ranks: u32, data: &mut [u8]) {
        if !self.averages && !matches!(self.dtype, DType::F16 | DType::BF16) {
            data.copy_from_slice(came);
            return;
        }
        let size = self.dtype.size();
        let each = data.chunks_exact_mut(size).zip(came.chunks_exact(self.kind.size()));
        let n = if self.averages { f64::from(n_ranks) } else { 1.0 };
        for (to, from) in each {
            match self.kind {
                MpiType::F32 => {
                    let x = f32::from_ne_bytes([from[0], from[1], from[2], from[3]]) / n as f32;
                    match self.dtype {
                        DType::F16 => to.copy_from_slice(&f16::from_f32(x).to_ne_bytes()),
                        DType::BF16 => to.copy_from_slice(&bf16::from_f32(x).to_ne_bytes()),
                        _ => to.copy_from_slice(&x.to_ne_bytes()),
                    }
                }
                MpiType::F64 => to.copy_from_slice(&(f64::from_ne_bytes(eight(from)) / n).to_ne_bytes()),
                // The quotient fits into the narrow type, whose bytes it begins or ends with.
                _ => {
                    let x = i64::from_ne_bytes(eight(from)) / i64::from(n_ranks);
                    let bytes = x.to_le_bytes();
                    to.copy_from_slice(&bytes[..size]);
                    if cfg!(target_endian = "big") {
                        to.reverse();
                    }
                }
            }
        }
    }
}

fn eight(b: &[u8]) -> [u8; 8] {
    [b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]
}

fn widened(dtype: DType, b: &[u8]) -> i64 {
    match dtype {
        DType::I8 => i64::from(b[0] as i8),
        DType::U16 => i64::from(u16::from_ne_bytes([b[0], b[1]])),
        DType::I16 => i64::from(i16::from_ne_bytes([b[0], b[1]])),
        DType::I32 => i64::from(i32::from_ne_bytes([b[0], b[1], b[2], b[3]])),
        _ => i64::from(b[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mpi_does_not_have_travels_as_something_wider_and_comes_back() {
        let halves: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|x| f16::from_f32(*x).to_ne_bytes()).collect();
        let travel = Travel::of(DType::F16, ReduceOp::Average);
        assert_eq!((travel.kind, travel.op), (MpiType::F32, MpiOp::Sum), "MPI-3");
        let sent = travel.outward(&halves);
        assert_eq!(sent, [1.5f32, -2.0].iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>());
        let mut back = vec![0; 4];
        // Twice the same, averaged.
        let doubled: Vec<u8> = [3.0f32, -4.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
        travel.homeward(&doubled, 2, &mut back);
        assert_eq!(back, halves);
    }

    #[test]
    fn averages_of_integers_do_not_wrap_and_round_towards_zero() {
        let travel = Travel::of(DType::I8, ReduceOp::Average);
        let sent = travel.outward(&[100, (-101i8) as u8]);
        assert_eq!(sent, [100i64, -101].iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>(), "MPI-3");
        let sum: Vec<u8> = [200i64, -203].iter().flat_map(|x| x.to_ne_bytes()).collect();
        let mut back = vec![0; 2];
        travel.homeward(&sum, 2, &mut back);
        assert_eq!(back, [100, (-101i8) as u8]);
    }

    #[test]
    fn bools_are_any_and_all() {
        assert_eq!(Travel::of(DType::Bool, ReduceOp::Sum).op, MpiOp::Max, "MPI-3");
        assert_eq!(Travel::of(DType::Bool, ReduceOp::Product).op, MpiOp::Min);
        assert_eq!(Travel::of(DType::I64, ReduceOp::Average).kind, MpiType::I64);
    }
}
