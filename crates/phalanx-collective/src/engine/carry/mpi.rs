//! Allreduce by MPI: what was agreed on goes through its one thread, all tensors of a type together. MPI knows no factors and no narrower type on
//! the way: both are applied here, before and after its call.

use super::{Load, compress, reduce::by_type, reduce::narrowed};
use crate::{
    communicator::{Communicator, Scale},
    error::Error,
};
use phalanx_core::{DType, Rank, ReduceOp, kernel::ReduceKernel};

/// Reduces with one call for each element type. `along`: tier by tier, as `-mode m` has it.
pub(super) fn allreduce(
    comm: &mut Communicator,
    loads: &mut [Load],
    (op, scale, wire): (ReduceOp, Scale, Option<DType>),
    along: bool,
) -> Result<(), Error> {
    for (dtype, pieces) in by_type(loads) {
        let travels_as = narrowed(dtype, wire);
        let length = |n_bytes: usize| n_bytes / dtype.size() * travels_as.size();
        let n_bytes: usize = pieces.iter().map(|p| length(p.n_bytes)).sum();
        // Words, so that elements of every type are aligned.
        let mut words = vec![0u64; n_bytes.div_ceil(size_of::<u64>())];
        let all = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..n_bytes];
        let mut at = 0;
        for piece in &pieces {
            let room = &mut all[at..at + length(piece.n_bytes)];
            at += room.len();
            // A rank that has joined brings zeros.
            if let Some(places) = &loads[piece.load].places {
                compress::pack(room, travels_as, places[piece.index].input());
            }
        }
        scaled(all, travels_as, scale.pre)?;
        comm.allreduce_by_mpi(all, travels_as, op, along)?;
        scaled(all, travels_as, scale.post)?;
        let mut at = 0;
        for piece in &pieces {
            let came = &all[at..at + length(piece.n_bytes)];
            at += came.len();
            if let Some(places) = &mut loads[piece.load].places {
                compress::unpack(places[piece.index].output_mut(), came, travels_as);
            }
        }
    }
    Ok(())
}

/// Multiplies all elements.
fn scaled(all: &mut [u8], dtype: DType, factor: f64) -> Result<(), Error> {
    if factor != 1.0 {
        // A sum of one contribution is the contribution times its factor.
        let kernel = ReduceKernel::new(dtype, ReduceOp::Sum, factor, 1.0, 1)?;
        let plain = all.to_vec();
        kernel.apply(all, &[&plain]);
    }
    Ok(())
}

/// What `-mode m` says of a reduction that MPI does not have; the same on all ranks.
pub(super) fn no_adasum() -> Error {
    let why = "it has no adasum: reduce with sum or average, or start DDL with another letter than -mode m";
    Error::NoMpi { rank: Rank::ZERO, why: why.into() }
}
