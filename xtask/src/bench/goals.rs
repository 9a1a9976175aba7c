//! What we set out to reach: our time as a multiple of the other's, at most.

/// Sizes of the f32 allreduce tables.
pub const SIZES: [u64; 7] = [4, 1 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
/// The other collectives and their sizes.
pub const OTHERS: [&str; 4] = ["broadcast", "allgather", "reduce_scatter", "alltoall"];
pub const OTHER_SIZES: [u64; 3] = [4 << 10, 1 << 20, 64 << 20];
/// Sizes between two hosts.
pub const NET_SIZES: [u64; 5] = [4, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
/// The size of the f16 and bf16 comparison.
pub const HALF_BYTES: u64 = 16 << 20;

/// Whose memory is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Private,
    Arena,
}

/// Against Open MPI, by size.
pub fn against_openmpi(np: u32, memory: Memory, bytes: u64) -> Option<f64> {
    const NONE: f64 = f64::INFINITY;
    let goals: [f64; 7] = match (np, memory) {
        (2, Memory::Private) => [1.0, 0.9, 0.55, 0.5, 0.8, 0.85, 0.45],
        (2, Memory::Arena) => [NONE, NONE, 0.25, 0.2, 0.25, 0.3, 0.2],
        (4, Memory::Private) => [1.1, 1.0, 0.5, 0.7, 0.8, 0.55, 0.35],
        _ => return None,
    };
    let place = SIZES.iter().position(|&s| s == bytes)?;
    Some(goals[place]).filter(|g| g.is_finite())
}

/// Against the hand-made allreduce for the same kind of memory.
pub fn against_handmade(memory: Memory, bytes: u64) -> Option<f64> {
    match memory {
        Memory::Private if bytes >= 64 << 10 => Some(1.15),
        Memory::Arena if bytes >= 64 << 10 => Some(1.25),
        _ => None,
    }
}

/// Between two hosts, against two opposite TCP streams that move as many bytes: nine tenths of their bandwidth.
pub fn against_streams(bytes: u64) -> Option<f64> {
    (bytes == 64 << 20).then_some(1.0 / 0.9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_stand_at_their_sizes() {
        assert_eq!(against_openmpi(2, Memory::Private, 64 << 20), Some(0.45));
        assert_eq!(against_openmpi(2, Memory::Arena, 1 << 10), None);
        assert_eq!(against_openmpi(4, Memory::Private, 16 << 10), Some(0.5));
        assert_eq!(against_openmpi(3, Memory::Private, 4), None);
        assert_eq!(against_handmade(Memory::Private, 4), None);
        assert_eq!(against_streams(1 << 20), None);
        assert!(against_streams(64 << 20).is_some_and(|goal| (1.11..1.12).contains(&goal)));
    }
}
