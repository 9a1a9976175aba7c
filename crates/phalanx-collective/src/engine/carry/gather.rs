//! Allgather: the rows of all ranks, in rank order.

use super::{Carrier, Load, aligned};
use crate::{
    communicator::Communicator,
    error::Error,
    invoke::{Ask, Hands},
    plan::step::{CollectiveOp, Layout},
};
use phalanx_core::DType;

/// One tensor's share of each rank.
struct Piece {
    load: usize,
    index: usize,
    /// Bytes from each rank.
    shares: Vec<usize>,
}

impl Carrier {
    pub(super) fn allgather(&mut self, comm: &mut Communicator, loads: &mut [Load]) -> Result<(), Error> {
        let n = comm.size() as usize;
        let mut pieces = Vec::new();
        for (load, l) in loads.iter_mut().enumerate() {
            let agreed = l.agreed.clone();
            for (index, form) in agreed.spec.forms.iter().enumerate() {
                let rows = |r: usize| agreed.rows.get(r).and_then(|row| row.get(index)).copied().unwrap_or(0);
                let row_bytes = form.row_elements() as usize * form.dtype.size();
                pieces.push(Piece {
                    load,
                    index,
                    shares: (0..n).map(|r| rows(r) as usize * row_bytes).collect(),
                });
                let mut shape = form.shape.clone();
                shape[0] = (0..n).map(rows).sum();
                l.make(form.dtype, shape);
            }
        }
        let alone = pieces.len() == 1;
        let total = |p: &Piece| p.shares.iter().sum::<usize>();
        let (large, small): (Vec<Piece>, Vec<Piece>) =
            pieces.into_iter().partition(|p| alone || total(p) >= self.direct_bytes);
        for Piece { load, index, shares } in large {
            let Load { places, made, .. } = &mut loads[load];
            let input = places.as_ref().map_or(&[][..], |p| p[index].input().bytes());
            gather(comm, input, made[index].bytes_mut(), &shares)?;
        }
        if small.is_empty() { Ok(()) } else { self.gather_packed(comm, loads, &small) }
    }

    fn gather_packed(
        &mut self,
        comm: &mut Communicator,
        loads: &mut [Load],
        pieces: &[Piece],
    ) -> Result<(), Error> {
        let me = comm.rank().index();
        let shares: Vec<usize> =
            (0..comm.size() as usize).map(|r| pieces.iter().map(|p| aligned(p.shares[r])).sum()).collect();
        let total: usize = shares.iter().sum();
        let (own, all) =
            self.fusion(comm, shares[me] + total)?[..shares[me] + total].split_at_mut(shares[me]);
        let mut at = 0;
        for piece in pieces {
            if let Some(places) = &loads[piece.load].places {
                own[at..at + piece.shares[me]].copy_from_slice(places[piece.index].input().bytes());
            }
            at += aligned(piece.shares[me]);
        }
        gather(comm, own, all, &shares)?;
        let mut at = 0;
        let mut ends = vec![0; pieces.len()];
        for rank in 0..shares.len() {
            for (piece, end) in pieces.iter().zip(&mut ends) {
                let share = piece.shares[rank];
                let made = loads[piece.load].made[piece.index].bytes_mut();
                made[*end..*end + share].copy_from_slice(&all[at..at + share]);
                *end += share;
                at += aligned(share);
            }
        }
        Ok(())
    }
}

fn gather(comm: &mut Communicator, input: &[u8], output: &mut [u8], shares: &[usize]) -> Result<(), Error> {
    let layout = Layout::Counts { counts: shares.iter().map(|s| *s as u64).collect() };
    comm.call(
        Ask { op: CollectiveOp::Allgather, layout, dtype: DType::U8, reduce: None },
        Hands::Apart { input, output },
    )
}
