//! What a rank sends about itself when it joins, how it waits for the roster, and what it computes from it.

use super::{AGREEMENT, place::Place};
use crate::{
    arena::{Arena, ArenaOffer, Patience, Source},
    channel::Channel,
    cores,
    discover::Identity,
    error::NetError,
    frame::{self, Decoder},
    hub::message::{Down, Member, Up},
    link::LinkAddress,
    lost::{Casualties, Cause, Doom},
};
use phalanx_core::{Config, Rank, TaskRole, Topology};
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

pub(super) fn introduce(
    identity: &Identity,
    config: &Config,
    offer: Option<&ArenaOffer>,
    addresses: Vec<LinkAddress>,
    build: &str,
) -> Member {
    let host_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Member {
        rank: identity.rank,
        n_ranks: identity.n_ranks,
        n_aside: identity.n_aside,
        role: identity.role,
        host_key: host_key(config),
        host_name: config.host_id.clone().unwrap_or(host_name),
        pid: std::process::id(),
        cores: cores::allowed(),
        core_quota: cores::quota(),
        addresses,
        arena_fd: offer.map_or(-1, ArenaOffer::fd),
        arena_heap_bytes: offer.map_or(0, ArenaOffer::heap_bytes),
        trial_address: offer.map_or(0, ArenaOffer::trial_address),
        build: build.to_string(),
        settings: format!(
            "PHALANX_TRANSPORT={}\nPHALANX_ENCRYPT={}\nPHALANX_TIERS={}\nPHALANX_WAYS={}\nPHALANX_ALGORITHM={}\nPHALANX_SEGMENT_BYTES={}\nPHALANX_STRICT={}",
            config.links.clone().unwrap_or_else(|| format!("{:?}", config.transport).to_lowercase()),
            format!("{:?}", config.encrypt).to_lowercase(),
            config.tiers.as_ref().map(ToString::to_string).unwrap_or_default(),
            config.ways.as_deref().map(phalanx_core::Way::show).unwrap_or_default(),
            config.algorithm.as_deref().unwrap_or_default(),
            config.segment_bytes,
            u8::from(config.strict)
        ),
    }
}

/// Equal for processes that can share memory: one kernel, one network, one set of processes.
fn host_key(config: &Config) -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let space =
        |path: &str| std::fs::read_link(path).map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    read("/proc/sys/kernel/random/boot_id").hash(&mut hasher);
    space("/proc/self/ns/net").hash(&mut hasher);
    space("/proc/self/ns/pid").hash(&mut hasher);
    rustix::process::getuid().as_raw().hash(&mut hasher);
    config.host_id.hash(&mut hasher);
    hasher.finish()
}

/// Says hello and waits for the roster; `heard` tells whether the hub has said anything at all.
pub(super) fn await_roster(
    hub: &Channel,
    decoder: &mut Decoder,
    hello: &[u8],
    heard: &mut bool,
    deadline: Instant,
    config: &Config,
) -> Result<Vec<Member>, NetError> {
    let lost =
        |error| NetError::System { what: "the hub closed the connection before the world formed", error };
    hub.send_all(hello).map_err(lost)?;
    let mut bytes = [0; 16 << 10];
    let mut next_beat = Instant::now();
    let mut missing = Vec::new();
    loop {
        while let Some(down) =
            decoder.take::<Down>().map_err(|e| lost(io::Error::new(io::ErrorKind::InvalidData, e)))?
        {
            *heard = true;
            match down {
                Down::Roster(members) => return Ok(members),
                Down::Refused(why) => return Err(NetError::Refused { why }),
                Down::Doomed(doom) => return Err(doom.into()),
                Down::Lost(lost) => return Err(Doom::Lost(lost).into()),
                Down::Missing(ranks) => missing = ranks,
                Down::Alive => {}
            }
        }
        let now = Instant::now();
        if now >= deadline {
            let waited_s = config.start_timeout.as_secs_f64();
            let missing = missing.iter().map(|r: &Rank| format!(" {r}")).collect();
            return Err(NetError::NotFormed { waited_s, missing });
        }
        if now >= next_beat {
            next_beat = now + Duration::from_millis(crate::hub::state::BEAT_MS);
            let alive = frame::encode(&Up::Alive).expect("a word is small");
            hub.send_all(&alive).map_err(lost)?;
        }
        hub.socket().set_read_timeout(Some(Duration::from_millis(200))).map_err(lost)?;
        match hub.recv(&mut bytes) {
            Ok(0) => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => decoder.feed(&bytes[..n]),
            Err(e) if would_wait(&e) => {}
            Err(e) => return Err(lost(e)),
        }
    }
}

/// Tells every rank that this rank cannot join, and why: a rank that died just now may be the reason. Returns what every rank names.
pub(super) fn give_up(
    hub: &Channel,
    mut decoder: Decoder,
    identity: &Identity,
    place: &Place,
    error: NetError,
) -> NetError {
    let start = Instant::now();
    let mine = error.doom(identity.rank);
    let agreed = (|| {
        let patience = if matches!(error, NetError::Arena { .. }) { AGREEMENT / 2 } else { Duration::ZERO };
        let doom = match reason(hub, &mut decoder, start + patience)? {
            Some(Down::Doomed(doom)) => return Some(doom),
            Some(Down::Lost(lost)) => Doom::Lost(lost),
            _ => mine.clone(),
        };
        let word = frame::encode(&Up::Doomed(doom.clone())).ok()?;
        if hub.send_all(&word).is_err() && doom != mine {
            return Some(doom);
        }
        loop {
            match reason(hub, &mut decoder, start + AGREEMENT) {
                Some(Some(Down::Doomed(agreed))) => return Some(agreed),
                Some(Some(_)) => {}
                Some(None) => return Some(doom),
                None => return Some(doom).filter(|d| *d != mine),
            }
        }
    })();
    match agreed {
        Some(doom) if doom != mine => doom.into(),
        None if place.hub_rank(identity).is_some() => hub_rank_lost(),
        _ => error,
    }
}

pub(super) fn hub_rank_lost() -> NetError {
    NetError::PeerLost { rank: Rank::ZERO, cause: Cause::Disconnected }
}

/// The next loss or doom that the hub tells of before the deadline, if any; `None` when the hub is gone.
fn reason(hub: &Channel, decoder: &mut Decoder, deadline: Instant) -> Option<Option<Down>> {
    let mut bytes = [0; 16 << 10];
    loop {
        while let Some(down) = decoder.take::<Down>().ok()? {
            if matches!(down, Down::Doomed(_) | Down::Lost(_)) {
                return Some(Some(down));
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some(None);
        }
        hub.socket().set_read_timeout(Some(left)).ok()?;
        match hub.recv(&mut bytes) {
            Ok(0) => return None,
            Ok(n) => decoder.feed(&bytes[..n]),
            Err(e) if would_wait(&e) => {}
            Err(_) => return None,
        }
    }
}

fn would_wait(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// Where these ranks are: all of a world, or its workers, which are the first.
pub(super) fn topology_of(members: &[Member]) -> Topology {
    let mut hosts: BTreeMap<u64, Vec<Rank>> = BTreeMap::new();
    for member in members {
        hosts.entry(member.host_key).or_default().push(member.rank);
    }
    Topology::new(hosts.into_values().collect()).expect("a roster names every rank once")
}

/// How many do not serve. An evaluator, alone in its world, counts: it is all there is to make a communicator of.
pub(super) fn n_workers(members: &[Member]) -> u32 {
    members.iter().filter(|member| member.role != TaskRole::Server).count() as u32
}

/// WAIT-1, whether or not these ranks share memory.
pub(super) fn patience_of(members: &[Member], neighbours: &[Rank]) -> Patience {
    let masks: Vec<&[u32]> = neighbours.iter().map(|r| members[r.index()].cores.as_slice()).collect();
    let quota = neighbours.iter().map(|r| members[r.index()].core_quota).min().unwrap_or(u32::MAX);
    let a_core_each = cores::enough(&masks, quota);
    tracing::info!(n_local = neighbours.len(), a_core_each, quota, "how ranks of this host wait");
    if a_core_each { Patience::DEDICATED } else { Patience::SHARED }
}

pub(super) fn share_memory(
    offer: ArenaOffer,
    members: &[Member],
    neighbours: &[Rank],
    patience: Patience,
    identity: &Identity,
    casualties: &Arc<Casualties>,
) -> Result<Arc<Arena>, NetError> {
    let first = &members[neighbours[0].index()];
    let processes: Vec<(u32, u64)> =
        neighbours.iter().map(|r| (members[r.index()].pid, members[r.index()].trial_address)).collect();
    let source = Source {
        processes: &processes,
        pid: first.pid,
        fd: first.arena_fd,
        heap_bytes: first.arena_heap_bytes,
        n_local_max: identity.n_ranks.min(crate::arena::MAX_LOCAL as u32) as usize,
    };
    let me_local = neighbours.iter().position(|&r| r == identity.rank).expect("a rank is on its own host");
    Arena::join(offer, source, neighbours.to_vec(), me_local, patience, casualties.clone())
        .map(Arc::new)
        .map_err(|error| NetError::Arena { error })
}
