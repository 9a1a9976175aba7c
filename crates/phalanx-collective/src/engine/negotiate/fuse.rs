//! Which operations are fused into one batch.
//!
//! - FUSE-1: a batch holds operations of one kind, reduction, factors, root and wire type; its size is within the limit, unless one operation
//!   alone is larger.
//! - FUSE-2: the order of batches is the order of their first operations.

use super::message::Agreed;
use crate::engine::spec::{Kind, ReduceRule};
use phalanx_core::DType;
use std::sync::Arc;

/// Operations that run as one.
pub type Batch = Arc<[Arc<Agreed>]>;

/// A batch stays open to later operations of its kind while this many others are added.
const LOOK_AHEAD: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusionLimits {
    /// Most bytes of a batch.
    pub fusion_bytes: u64,
    /// From this size a tensor travels alone, straight from its owner's memory: packing would cost more than it saves.
    pub alone_bytes: u64,
}

/// What must be equal for two operations to travel together.
#[derive(PartialEq)]
struct Likeness<'a> {
    kind: Kind,
    reduce: ReduceRule,
    scales: (u64, u64),
    root: u32,
    wire: Option<DType>,
    device: i32,
    by_mpi: bool,
    absent: &'a [u32],
}

fn likeness(agreed: &Agreed) -> Option<Likeness<'_>> {
    let spec = &agreed.spec;
    let fusible = match spec.kind {
        Kind::Allreduce => spec.reduce != ReduceRule::Adasum,
        Kind::Allgather | Kind::Broadcast | Kind::Reducescatter => true,
        Kind::Alltoall | Kind::Barrier | Kind::AddSet | Kind::RemoveSet => false,
    };
    fusible.then_some(Likeness {
        kind: spec.kind,
        reduce: spec.reduce,
        scales: (spec.prescale.to_bits(), spec.postscale.to_bits()),
        root: spec.root,
        wire: spec.wire,
        device: spec.device,
        by_mpi: spec.by_mpi,
        absent: &agreed.absent,
    })
}

/// Bytes an operation takes in the fusion buffer.
pub fn weight(agreed: &Agreed) -> u64 {
    match agreed.spec.kind {
        Kind::Allgather => {
            let of_row = |row: &Vec<u64>| {
                let bytes = row.iter().zip(&agreed.spec.forms);
                bytes.map(|(n, f)| n * f.row_elements() * f.dtype.size() as u64).sum::<u64>()
            };
            agreed.rows.iter().map(of_row).sum()
        }
        _ => agreed.spec.n_bytes(),
    }
}

/// Sorts operations into batches.
pub fn fuse(operations: &[Arc<Agreed>], limits: FusionLimits) -> Vec<Batch> {
    let mut batches: Vec<(Vec<Arc<Agreed>>, u64, usize)> = Vec::new();
    for (i, operation) in operations.iter().enumerate() {
        let bytes = weight(operation);
        let like = likeness(operation).filter(|_| bytes < limits.alone_bytes);
        let open = like.as_ref().and_then(|like| {
            batches.iter_mut().rev().take_while(|(_, _, at)| i - at <= LOOK_AHEAD).find(
                |(batch, total, _)| {
                    total + bytes <= limits.fusion_bytes
                        && likeness(&batch[0]).as_ref() == Some(like)
                        && *total < limits.fusion_bytes
                        && (batch.len() > 1 || weight(&batch[0]) < limits.alone_bytes)
                },
            )
        });
        match open {
            Some((batch, total, at)) => {
                batch.push(operation.clone());
                *total += bytes;
                *at = i;
            }
            None => batches.push((vec![operation.clone()], bytes, i)),
        }
    }
    batches.into_iter().map(|(batch, ..)| batch.into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::spec::{Form, Spec};

    fn operation(name: &str, kind: Kind, n: u64) -> Arc<Agreed> {
        let spec = Spec::new(kind, vec![Form { dtype: DType::F32, shape: vec![n] }]);
        Arc::new(Agreed { name: name.into(), spec, rows: Vec::new(), absent: Vec::new() })
    }

    fn names(batches: &[Batch]) -> Vec<String> {
        batches.iter().map(|b| b.iter().map(|o| &*o.name).collect::<Vec<_>>().join("+")).collect()
    }

    #[test]
    fn likes_travel_together_within_the_limit() {
        let limits = FusionLimits { fusion_bytes: 100, alone_bytes: 80 };
        let (reduce, cast) = (Kind::Allreduce, Kind::Broadcast);
        let list = [
            operation("a", reduce, 10),
            operation("x", cast, 5),
            operation("b", reduce, 10),
            operation("c", reduce, 10),
            operation("large", reduce, 20),
            operation("d", reduce, 1),
            operation("y", cast, 5),
            operation("z", Kind::Barrier, 0),
        ];
        assert_eq!(names(&fuse(&list, limits)), ["a+b", "x+y", "c+d", "large", "z"], "FUSE-1, FUSE-2");
        let alone = FusionLimits { fusion_bytes: 0, ..limits };
        assert_eq!(fuse(&list, alone).len(), list.len());
    }
}
