//! Where the values of a session come from: a checkpoint, or the chief.
//!
//! The chief alone decides and reads; the others take over what it has, so no other rank needs to see the directory.
//! - RESTORE-1: a checkpoint that does not fit on one rank is refused on all of them, and changes nothing on that rank.
//! - RESTORE-2: a tensor that only one rank has goes back to that rank, if it exists in this world.

use super::{error::SessionError, peers::Peers};
use phalanx_checkpoint::{
    About, Checkpoint, CheckpointError, Checkpoints, Loaded, Part, Skipped, Strictness, TensorInfo,
    TensorMisfit,
};
use phalanx_core::Rank;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What travels at a time: much more than an exchange costs, and it fits into a core's caches.
const PIECE_BYTES: usize = 1 << 20;

/// Where the values came from.
#[derive(Clone, Debug, PartialEq)]
pub enum StateOrigin {
    /// There was no checkpoint.
    Anew,
    Checkpoint {
        about: About,
        path: PathBuf,
        /// Newer ones that are not whole.
        skipped: Vec<String>,
        /// Tensors that were left as they are.
        left: Vec<String>,
    },
}

impl StateOrigin {
    /// Steps that are in the values.
    pub fn step(&self) -> u64 {
        match self {
            StateOrigin::Anew => 0,
            StateOrigin::Checkpoint { about, .. } => about.step,
        }
    }
}

/// Which checkpoint.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// The newest whole one of a directory, if there is one.
    Newest(&'a Path),
    /// The checkpoint at this path, or the newest whole one in it; none is an error.
    At(&'a Path),
}

/// What the chief has loaded, as it tells the others.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    about: About,
    path: PathBuf,
    skipped: Vec<String>,
    left: Vec<String>,
    /// What all ranks have alike.
    common: Vec<TensorInfo>,
    /// What other ranks alone have, in the order of the bytes that follow.
    private: Vec<TensorInfo>,
}

/// Loads a checkpoint into a part, on all ranks alike (SESS-1).
pub fn restore(
    wanted: Wanted<'_>,
    part: &mut dyn Part,
    peers: &Peers,
    strictness: Strictness,
) -> Result<StateOrigin, SessionError> {
    let own: Result<Option<(Told, Vec<u8>)>, CheckpointError> =
        if peers.is_chief() { load(wanted, part, peers, strictness) } else { Ok(None) };
    let (own, bytes) = match own {
        Ok(Some((told, bytes))) => (Ok(Some(told)), bytes),
        Ok(None) => (Ok(None), Vec::new()),
        Err(why) => (Err(why), Vec::new()),
    };
    let said: Result<&Option<Told>, String> = own.as_ref().map_err(ToString::to_string);
    let said: Result<Option<Told>, String> = peers.gather_from_chief("restore", &said)?;
    match (said, own) {
        (Err(_), Err(why)) => Err(SessionError::Checkpoint(why)),
        (Err(why), _) => Err(SessionError::Restore { rank: Rank::ZERO, why }),
        (Ok(None), _) => Ok(StateOrigin::Anew),
        (Ok(Some(told)), _) => {
            hand_out(part, peers, &told, bytes)?;
            let Told { about, path, skipped, left, .. } = told;
            Ok(StateOrigin::Checkpoint { about, path, skipped, left })
        }
    }
}

/// Gives all ranks what the chief has, and what it says of it.
pub fn share(about: About, part: &mut dyn Part, peers: &Peers) -> Result<About, SessionError> {
    let (path, skipped, left) = (PathBuf::new(), Vec::new(), Vec::new());
    let told = Told { about, path, skipped, left, common: common(part), private: Vec::new() };
    let told: Told = peers.gather_from_chief("share", &told)?;
    hand_out(part, peers, &told, Vec::new())?;
    Ok(told.about)
}

fn common(part: &dyn Part) -> Vec<TensorInfo> {
    part.tensors().into_iter().filter(|info| info.owner.is_none()).collect()
}

/// Loads on the chief, and reads what is other ranks' own.
fn load(
    wanted: Wanted<'_>,
    part: &mut dyn Part,
    peers: &Peers,
    strictness: Strictness,
) -> Result<Option<(Told, Vec<u8>)>, CheckpointError> {
    let Some((checkpoint, loaded, skipped)) = open(wanted, part, strictness)? else { return Ok(None) };
    let manifest = checkpoint.manifest();
    let is_others = |info: &&TensorInfo| info.owner.is_some_and(|owner| owner > 0 && owner < peers.n_ranks);
    let private: Vec<TensorInfo> =
        manifest.tensors.iter().map(|t| &t.info).filter(is_others).cloned().collect();
    let mut bytes = Vec::new();
    for info in &private {
        bytes.extend(checkpoint.read(&info.name)?);
    }
    let skipped = skipped.iter().map(Skipped::to_string).collect();
    // What is another rank's own is not missed here.
    let left = loaded.left.iter().filter(|misfit| !private.iter().any(|info| info.name == misfit.name));
    let left = left.map(TensorMisfit::to_string).collect();
    let (about, path) = (manifest.about.clone(), checkpoint.path().to_path_buf());
    Ok(Some((Told { about, path, skipped, left, common: common(part), private }, bytes)))
}

type Opened = Option<(Checkpoint, Loaded, Vec<Skipped>)>;

fn open(wanted: Wanted<'_>, part: &mut dyn Part, strictness: Strictness) -> Result<Opened, CheckpointError> {
    let newest = |dir: &Path, part: &mut dyn Part| {
        let restored = Checkpoints::open(dir).load_newest(part, strictness)?;
        Ok(restored.map(|found| (found.checkpoint, found.loaded, found.skipped)))
    };
    match wanted {
        Wanted::Newest(dir) => newest(dir, part),
        Wanted::At(path) if !Checkpoints::open(path).steps()?.is_empty() => newest(path, part),
        Wanted::At(path) => {
            let checkpoint = Checkpoint::open(path)?;
            let loaded = checkpoint.load(part, strictness)?;
            Ok(Some((checkpoint, loaded, Vec::new())))
        }
    }
}

/// Gives all ranks what the chief has. `bytes` are those of `private`, at the chief.
fn hand_out(part: &mut dyn Part, peers: &Peers, told: &Told, bytes: Vec<u8>) -> Result<(), SessionError> {
    if peers.n_ranks == 1 {
        return Ok(());
    }
    let fits = if peers.is_chief() { Ok(()) } else { fit(part, &told.common) };
    let all: Vec<Result<(), String>> = peers.gather("restore.fit", &fits)?;
    for (rank, fits) in all.into_iter().enumerate() {
        fits.map_err(|why| SessionError::Restore { rank: Rank::at(rank), why })?;
    }
    let failed = |info: &TensorInfo, action| {
        let tensor = info.name.clone();
        move |cause| SessionError::Checkpoint(CheckpointError::Part { tensor, action, cause })
    };
    // Memory that goes round, so that no tensor is there twice.
    let mut buffer = Vec::new();
    for piece in pieces(&told.common, PIECE_BYTES) {
        buffer.resize(piece.iter().map(|range| range.len).sum(), 0);
        if peers.is_chief() {
            let mut rest = buffer.as_mut_slice();
            for range in &piece {
                let (own, behind) = rest.split_at_mut(range.len);
                part.read(&range.info.name, range.offset, own).map_err(failed(range.info, "read"))?;
                rest = behind;
            }
        }
        buffer = peers.from_chief("restore.piece", buffer)?;
        if !peers.is_chief() {
            let mut rest = buffer.as_slice();
            for range in &piece {
                let (own, behind) = rest.split_at(range.len);
                part.write(&range.info.name, range.offset, own).map_err(failed(range.info, "written"))?;
                rest = behind;
            }
        }
    }
    let n: u64 = told.private.iter().map(TensorInfo::bytes).sum();
    if n == 0 {
        return Ok(());
    }
    let bytes = if peers.is_chief() { bytes } else { vec![0; n as usize] };
    let bytes = peers.from_chief("restore.private", bytes)?;
    let own = part.tensors();
    let mut begin = 0;
    for info in &told.private {
        let end = begin + info.bytes() as usize;
        if info.owner == Some(peers.rank.0) && own.contains(info) {
            part.write(&info.name, 0, &bytes[begin..end]).map_err(failed(info, "written"))?;
        }
        begin = end;
    }
    Ok(())
}

/// A range of a tensor's bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ByteRange<'a> {
    info: &'a TensorInfo,
    offset: u64,
    len: usize,
}

/// The bytes of all tensors, cut into pieces of this size; only the last one is smaller. The same on all ranks.
fn pieces(infos: &[TensorInfo], size: usize) -> Vec<Vec<ByteRange<'_>>> {
    let (mut all, mut piece, mut room) = (Vec::new(), Vec::new(), size);
    for info in infos {
        let (mut offset, end) = (0, info.bytes());
        while offset < end {
            let len = room.min((end - offset) as usize);
            piece.push(ByteRange { info, offset, len });
            (offset, room) = (offset + len as u64, room - len);
            if room == 0 {
                all.push(std::mem::take(&mut piece));
                room = size;
            }
        }
    }
    all.extend(Some(piece).filter(|piece| !piece.is_empty()));
    all
}

/// Whether this rank has what the chief has. The chief's part was compared with the checkpoint.
fn fit(part: &mut dyn Part, chief: &[TensorInfo]) -> Result<(), String> {
    part.make_room(chief);
    let own = common(part);
    let only = |one: &[TensorInfo], other: &[TensorInfo]| {
        one.iter().find(|info| !other.contains(info)).map(ToString::to_string)
    };
    match (only(&own, chief), only(chief, &own)) {
        (None, None) => Ok(()),
        (Some(own), Some(chief)) => Err(format!("it has {own}, and rank 0 has {chief}")),
        (Some(own), None) => Err(format!("it has {own}, which rank 0 does not have")),
        (None, Some(chief)) => Err(format!("it does not have {chief}, which rank 0 has")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::DType;

    #[test]
    fn small_tensors_travel_together_and_large_ones_in_pieces() {
        let infos = [("a", 3), ("none", 0), ("b", 9), ("c", 2)];
        let infos = infos.map(|(name, n)| TensorInfo::new(name, DType::U8, [n]));
        let cut = |size| -> Vec<Vec<(String, u64, usize)>> {
            let named = |range: ByteRange<'_>| (range.info.name.clone(), range.offset, range.len);
            pieces(&infos, size).into_iter().map(|piece| piece.into_iter().map(named).collect()).collect()
        };
        let at = |name: &str, offset, len| (name.to_string(), offset, len);
        let fives =
            [vec![at("a", 0, 3), at("b", 0, 2)], vec![at("b", 2, 5)], vec![at("b", 7, 2), at("c", 0, 2)]];
        assert_eq!(cut(5), fives);
        assert_eq!(cut(14), [vec![at("a", 0, 3), at("b", 0, 9), at("c", 0, 2)]]);
        assert!(pieces(&infos[1..2], 5).is_empty());
    }
}
