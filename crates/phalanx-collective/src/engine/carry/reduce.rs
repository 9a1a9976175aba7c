//! Allreduce and broadcast: results where the inputs were.

use super::{Carrier, InOut, Load, adasum, aligned, compress, mpi};
use crate::{
    communicator::{Communicator, Scale},
    engine::spec::ReduceRule,
    error::Error,
    invoke::{Ask, Hands},
    plan::step::{CollectiveOp, Layout},
};
use phalanx_core::{DType, Rank, ReduceOp};

/// One tensor of a batch: which load, which of its tensors, and its size in the type in which it travels.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub load: usize,
    pub index: usize,
    pub n_bytes: usize,
}

impl Carrier {
    pub(super) fn allreduce(&mut self, comm: &mut Communicator, loads: &mut [Load]) -> Result<(), Error> {
        let spec = &loads[0].agreed.spec;
        let (wire, scale) = (spec.wire, Scale { pre: spec.prescale, post: spec.postscale });
        let op = match spec.reduce {
            ReduceRule::Op(op) => op,
            ReduceRule::Adasum if comm.climbs_by_mpi() => return Err(mpi::no_adasum()),
            ReduceRule::Adasum => return adasum::allreduce(comm, loads, scale),
        };
        if spec.by_mpi || comm.climbs_by_mpi() {
            let along = !spec.by_mpi;
            return mpi::allreduce(comm, loads, (op, scale, wire), along);
        }
        for (dtype, pieces) in by_type(loads) {
            let travels_as = narrowed(dtype, wire);
            let ratio = dtype.size() / travels_as.size();
            let (large, small): (Vec<Piece>, Vec<Piece>) =
                pieces.into_iter().partition(|p| p.n_bytes >= self.direct_bytes && travels_as == dtype);
            for piece in large {
                self.reduce_one(comm, loads, piece, (dtype, op, scale))?;
            }
            if small.len() == 1 && travels_as == dtype {
                self.reduce_one(comm, loads, small[0], (dtype, op, scale))?;
            } else if !small.is_empty() {
                self.reduce_packed(comm, loads, &small, (travels_as, op, scale), ratio)?;
            }
        }
        Ok(())
    }

    fn reduce_one(
        &mut self,
        comm: &mut Communicator,
        loads: &mut [Load],
        piece: Piece,
        (dtype, op, scale): (DType, ReduceOp, Scale),
    ) -> Result<(), Error> {
        let layout = Layout::Whole { len: (piece.n_bytes / dtype.size()) as u64 };
        let ask = Ask { op: CollectiveOp::Allreduce, layout, dtype, reduce: Some((op, scale)) };
        match loads[piece.load].places.as_mut().map(|p| &mut p[piece.index]) {
            Some(InOut::Apart { input, output }) => {
                comm.call(ask, Hands::Apart { input: input.bytes(), output: output.bytes_mut() })
            }
            Some(InOut::InPlace(tensor)) => comm.call(ask, together(tensor.bytes_mut())),
            None => comm.call(ask, together(self.spare(piece.n_bytes))),
        }
    }

    fn reduce_packed(
        &mut self,
        comm: &mut Communicator,
        loads: &mut [Load],
        pieces: &[Piece],
        (dtype, op, scale): (DType, ReduceOp, Scale),
        ratio: usize,
    ) -> Result<(), Error> {
        let total: usize = pieces.iter().map(|p| aligned(p.n_bytes / ratio)).sum();
        let buffer = &mut self.fusion(comm, total)?[..total];
        let mut at = 0;
        for piece in pieces {
            let room = &mut buffer[at..at + piece.n_bytes / ratio];
            match &loads[piece.load].places {
                Some(places) => compress::pack(room, dtype, places[piece.index].input()),
                None => room.fill(0),
            }
            // What lies between the tensors travels, too.
            let end = at + aligned(room.len());
            buffer[at + piece.n_bytes / ratio..end].fill(0);
            at = end;
        }
        comm.allreduce_bytes(buffer, dtype, op, scale)?;
        at = 0;
        for piece in pieces {
            let n_bytes = piece.n_bytes / ratio;
            if let Some(places) = &mut loads[piece.load].places {
                compress::unpack(places[piece.index].output_mut(), &buffer[at..at + n_bytes], dtype);
            }
            at += aligned(n_bytes);
        }
        Ok(())
    }

    pub(super) fn broadcast(&mut self, comm: &mut Communicator, loads: &mut [Load]) -> Result<(), Error> {
        let root = Rank(loads[0].agreed.spec.root);
        let i_send = comm.rank() == root;
        let pieces: Vec<Piece> = by_type(loads).into_iter().flat_map(|(_, pieces)| pieces).collect();
        let alone = pieces.len() == 1;
        let (large, small): (Vec<Piece>, Vec<Piece>) =
            pieces.into_iter().partition(|p| alone || p.n_bytes >= self.direct_bytes);
        for piece in large {
            match loads[piece.load].places.as_mut().map(|p| &mut p[piece.index]) {
                Some(place) => {
                    if let (true, InOut::Apart { input, output }) = (i_send, &mut *place) {
                        output.bytes_mut().copy_from_slice(input.bytes());
                    }
                    comm.broadcast(place.output_mut().bytes_mut(), root)?;
                }
                None => comm.broadcast(self.spare(piece.n_bytes), root)?,
            }
        }
        if small.is_empty() {
            return Ok(());
        }
        let total: usize = small.iter().map(|p| aligned(p.n_bytes)).sum();
        let buffer = &mut self.fusion(comm, total)?[..total];
        let mut at = 0;
        for piece in small.iter().filter(|_| i_send) {
            if let Some(places) = &loads[piece.load].places {
                buffer[at..at + piece.n_bytes].copy_from_slice(places[piece.index].input().bytes());
            }
            at += aligned(piece.n_bytes);
        }
        comm.broadcast(buffer, root)?;
        at = 0;
        for piece in &small {
            if let Some(places) = &mut loads[piece.load].places {
                places[piece.index].output_mut().bytes_mut().copy_from_slice(&buffer[at..at + piece.n_bytes]);
            }
            at += aligned(piece.n_bytes);
        }
        Ok(())
    }
}

/// The type in which elements travel, where a narrower one was agreed on.
pub(super) fn narrowed(dtype: DType, wire: Option<DType>) -> DType {
    wire.filter(|_| matches!(dtype, DType::F32 | DType::F64)).unwrap_or(dtype)
}

fn together(memory: &mut [u8]) -> Hands<'_> {
    let all = 0..memory.len();
    Hands::Together { memory, input: all.clone(), output: all }
}

/// The tensors of a batch by element type, in the order in which the types first appear.
pub(super) fn by_type(loads: &[Load]) -> Vec<(DType, Vec<Piece>)> {
    let mut groups: Vec<(DType, Vec<Piece>)> = Vec::new();
    for (load, l) in loads.iter().enumerate() {
        for (index, form) in l.agreed.spec.forms.iter().enumerate() {
            let piece = Piece { load, index, n_bytes: form.n_bytes() as usize };
            match groups.iter_mut().find(|(dtype, _)| *dtype == form.dtype) {
                Some((_, pieces)) => pieces.push(piece),
                None => groups.push((form.dtype, vec![piece])),
            }
        }
    }
    groups
}
