//! Which cores a rank gets with `--bind` or from a rank file, and how many threads it should use by default.

use crate::wire::CoreSpan;
use rustix::thread::CpuSet;
use std::{fs, path::Path};

/// How many cores' worth of time this process gets: its mask, or less where a control group limits it.
pub fn n_usable() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// The share of one of `n_local` ranks: neighbouring cores, or one core shared in turn when there are more ranks.
pub fn share(allowed: &[u32], local_rank: usize, n_local: usize) -> &[u32] {
    let n = allowed.len();
    if n_local > n {
        let core = local_rank % n.max(1);
        return allowed.get(core..=core).unwrap_or_default();
    }
    &allowed[local_rank * n / n_local..(local_rank + 1) * n / n_local]
}

/// The cores that a rank file names, of those that are allowed here. `socket_of` says where a core is. The error is the core, in words.
pub fn named(
    spans: &[CoreSpan],
    allowed: &[u32],
    socket_of: impl Fn(u32) -> Option<u32>,
) -> Result<Vec<u32>, String> {
    let mut cores = Vec::new();
    for span in spans {
        let Some(socket) = span.socket else {
            let last = span.last.or(allowed.last().copied()).unwrap_or(span.first);
            // At most one number beyond the allowed ones is looked at, however long the range is.
            let missing = (span.first..=last.max(span.first)).find(|core| !allowed.contains(core));
            if let Some(core) = missing {
                return Err(format!("core {core}"));
            }
            cores.extend(span.first..=last);
            continue;
        };
        let of_socket: Vec<u32> =
            allowed.iter().copied().filter(|core| socket_of(*core) == Some(socket)).collect();
        let last = span.last.map_or(of_socket.len(), |last| last as usize + 1);
        let Some(some) = of_socket.get(span.first as usize..last).filter(|some| !some.is_empty()) else {
            let core =
                if of_socket.len() <= span.first as usize { span.first } else { of_socket.len() as u32 };
            return Err(format!("core {core} of socket {socket}"));
        };
        cores.extend(some);
    }
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

/// The socket of a core, as the kernel numbers them.
pub fn socket_of(core: u32) -> Option<u32> {
    let file = format!("/sys/devices/system/cpu/cpu{core}/topology/physical_package_id");
    let text = fs::read_to_string(Path::new(&file)).ok()?;
    // Machines without sockets say -1.
    Some(text.trim().parse().unwrap_or(0))
}

/// A mask of exactly these cores; `None` for no cores, which the kernel would refuse.
pub fn mask(cores: &[u32]) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core as usize));
    (!cores.is_empty()).then_some(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_all_cores_without_overlap() {
        let cores = [0, 2, 4, 6, 8];
        for n in 1..=5 {
            let all: Vec<u32> = (0..n).flat_map(|i| share(&cores, i, n).to_vec()).collect();
            assert_eq!(all, cores, "{n} ranks");
        }
        assert_eq!(share(&cores, 1, 2), [4, 6, 8]);
    }

    #[test]
    fn cores_that_are_named_must_be_there() {
        let allowed = [0, 1, 2, 4, 5, 6];
        let of =
            |socket, first, last| named(&[CoreSpan { socket, first, last }], &allowed, |core| Some(core / 4));
        assert_eq!(of(None, 1, Some(2)), Ok(vec![1, 2]));
        assert_eq!(of(None, 2, Some(4)), Err("core 3".into()));
        assert_eq!(of(None, 6, Some(u32::MAX)), Err("core 7".into()));
        assert_eq!(of(Some(1), 0, Some(1)), Ok(vec![4, 5]), "counted in the socket");
        assert_eq!(of(Some(1), 1, None), Ok(vec![5, 6]));
        assert_eq!(of(Some(1), 1, Some(3)), Err("core 3 of socket 1".into()));
        assert_eq!(of(Some(7), 0, None), Err("core 0 of socket 7".into()));
        let twice = [Some(0), None].map(|socket| CoreSpan { socket, first: 1, last: Some(1) });
        assert_eq!(named(&twice, &allowed, |core| Some(core / 4)), Ok(vec![1]));
    }

    #[test]
    fn more_ranks_than_cores_take_turns() {
        let cores: Vec<_> = (0..5).map(|i| share(&[3, 7], i, 5).to_vec()).collect();
        assert_eq!(cores, [[3], [7], [3], [7], [3]]);
        assert_eq!(share(&[], 0, 1), &[] as &[u32]);
        assert!(mask(&[]).is_none());
    }
}
