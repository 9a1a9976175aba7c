//! Checks that the tensors fit into memory, before anything is allocated: a failed allocation would end the process.

use super::options::Case;
use crate::limits;

/// More than there is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{op} of {} needs {} of memory on this host ({n_local} x {}), but {} are available; choose smaller --sizes or fewer ranks",
    shown(*.bytes), shown(*.needed), shown(*.needed / u64::from((*.n_local).max(1))), shown(*.available)
)]
pub struct MemoryShortage {
    op: &'static str,
    bytes: u64,
    n_local: u32,
    needed: u64,
    available: u64,
}

/// Looks at every case, with the numbers of ranks in the world and on this host.
pub fn check(cases: &[Case], n_ranks: u32, n_local: u32) -> Result<(), MemoryShortage> {
    // Where the system does not say what there is, it has to be tried.
    limits::available_memory().map_or(Ok(()), |available| judge(cases, n_ranks, n_local, available))
}

fn judge(cases: &[Case], n_ranks: u32, n_local: u32, available: u64) -> Result<(), MemoryShortage> {
    for case in cases {
        let needed = case.memory_bytes(n_ranks).saturating_mul(n_local.into());
        if needed > available {
            return Err(MemoryShortage { op: case.op.name(), bytes: case.bytes, n_local, needed, available });
        }
    }
    Ok(())
}

/// `1.5 GiB`, `3 bytes`.
fn shown(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::options::Buffers;
    use phalanx_collective::plan::step::CollectiveOp;
    use phalanx_core::{DType, ReduceOp};

    #[test]
    fn what_does_not_fit_is_said_with_what_there_is() {
        let case = |op, bytes| Case {
            op,
            dtype: DType::F32,
            reduce: ReduceOp::Sum,
            bytes,
            buffers: Buffers::Private,
        };
        let cases = [
            case(CollectiveOp::Barrier, 0),
            case(CollectiveOp::Allreduce, 1 << 30),
            case(CollectiveOp::Alltoall, 1 << 30),
        ];
        assert_eq!(judge(&cases, 4, 2, 4 << 30), Ok(()));
        assert_eq!(
            judge(&cases, 4, 4, 5 << 30).unwrap_err().to_string(),
            "alltoall of 1.0 GiB needs 8.0 GiB of memory on this host (4 x 2.0 GiB), but 5.0 GiB are available; \
             choose smaller --sizes or fewer ranks"
        );
        assert!(
            judge(&[case(CollectiveOp::Allreduce, u64::MAX)], 1, 9, u64::MAX - 1).is_err(),
            "nothing overflows"
        );
        assert_eq!([shown(3), shown(1536), shown(3 << 19)], ["3 bytes", "1.5 KiB", "1.5 MiB"]);
    }
}
