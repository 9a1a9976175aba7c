//! Allreduce by MPI: what was agreed on goes through its one thread, all tensors of a type together.

use super::{InOut, Load, reduce::by_type};
use crate::{communicator::Communicator, error::Error};
use phalanx_core::ReduceOp;

/// Reduces with one call for each element type. `along`: tier by tier, as `-mode m` has it.
pub(super) fn allreduce(
    comm: &mut Communicator,
    loads: &mut [Load],
    op: ReduceOp,
    along: bool,
) -> Result<(), Error> {
    for (dtype, pieces) in by_type(loads) {
        let mut all = vec![0u8; pieces.iter().map(|p| p.n_bytes).sum()];
        let mut rest = &mut all[..];
        for piece in &pieces {
            let (room, behind) = rest.split_at_mut(piece.n_bytes);
            // A rank that has joined brings zeros.
            if let Some(places) = &loads[piece.load].places {
                room.copy_from_slice(places[piece.index].input().bytes());
            }
            rest = behind;
        }
        comm.allreduce_by_mpi(&mut all, dtype, op, along)?;
        let mut rest = &all[..];
        for piece in &pieces {
            let (came, behind) = rest.split_at(piece.n_bytes);
            if let Some(places) = &mut loads[piece.load].places {
                InOut::output_mut(&mut places[piece.index]).bytes_mut().copy_from_slice(came);
            }
            rest = behind;
        }
    }
    Ok(())
}
