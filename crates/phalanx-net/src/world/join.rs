//! How a rank joins, as a sequence of types: each step consumes the one before it, so no step can be skipped or repeated.
//!
//! [`Guest`] has reached the hub and offers memory; [`Met`] knows all members; [`Sharing`] shares memory with its host; [`World`] has
//! a watch thread.

use super::{
    KNOCK_AGAIN, World,
    place::{Place, connect_hub},
    roster::{
        await_roster, give_up, hub_rank_lost, introduce, n_workers, patience_of, share_memory, topology_of,
    },
};
use crate::{
    arena::{Arena, ArenaOffer, MAX_LOCAL, Patience},
    channel::Channel,
    discover::Identity,
    door::Listener,
    error::NetError,
    frame::{self, Decoder},
    hub::message::{MAX_FRAME, Member, Up},
    link::{self, LinkAddress, ListenContext},
    lost::Casualties,
    watch::{HubHost, Watch, Watched},
};
use phalanx_core::{Config, Rank, Topology, Transport};
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32},
    },
    time::Instant,
};

/// A rank whose connection the hub has accepted.
pub(super) struct Guest {
    identity: Identity,
    config: Config,
    transport: &'static link::StreamTransport,
    deadline: Instant,
    place: Place,
    hub: Channel,
    decoder: Decoder,
    listeners: Vec<Listener>,
    /// Nothing fails for want of memory that nobody would share: with links everywhere, or one rank on each host.
    offer: Option<io::Result<ArenaOffer>>,
    hello: Vec<u8>,
}

/// A rank that knows all others.
pub(super) struct Met {
    guest: Guest,
    members: Vec<Member>,
    topology: Arc<Topology>,
    patience: Patience,
    casualties: Arc<Casualties>,
}

/// A rank that shares memory with the others of its host, if there are any.
pub(super) struct Sharing {
    met: Met,
    arena: Option<Arc<Arena>>,
}

impl Guest {
    /// Reaches the hub at this place.
    pub fn knock(
        identity: Identity,
        mut place: Place,
        config: Config,
        build: &str,
    ) -> Result<Guest, NetError> {
        let deadline = Instant::now() + config.start_timeout;
        let transport = link::chosen(&config)?;
        let (hub, here) = connect_hub(&mut place, identity.rank, deadline, &config)?;
        let there = hub.socket().peer_addr().ok().and_then(|address| address.as_socket());
        let hub_ip = there.map_or(here, |address| address.ip());
        let ips = place.link_ips(here, hub_ip)?;
        let offer = match config.transport {
            Transport::Auto => Some(ArenaOffer::make(identity.n_ranks.min(MAX_LOCAL as u32) as usize)),
            Transport::Tcp => None,
        };
        let site = ListenContext { interface: config.interface.as_deref(), ips: &ips };
        let (listeners, addresses): (Vec<Listener>, Vec<LinkAddress>) = link::open(transport, &site)?;
        let offered = offer.as_ref().and_then(|offer| offer.as_ref().ok());
        let member = introduce(&identity, &config, offered, addresses, build);
        let hello = frame::encode(&Up::Join(member)).expect("a member's introduction is small");
        let decoder = Decoder::new(MAX_FRAME);
        Ok(Guest { identity, config, transport, deadline, place, hub, decoder, listeners, offer, hello })
    }

    /// Says hello, and waits for all others.
    pub fn meet(mut self) -> Result<Met, NetError> {
        let mut heard = false;
        let joined = loop {
            let (hub, decoder) = (&self.hub, &mut self.decoder);
            let joined = await_roster(hub, decoder, &self.hello, &mut heard, self.deadline, &self.config);
            if heard || !matches!(joined, Err(NetError::System { .. })) {
                break joined;
            }
            // In a crowd the door may close a connection whose last word it has not read yet: knock again, if the hub still answers.
            let soon = self.deadline.min(Instant::now() + KNOCK_AGAIN);
            let Ok((hub, _)) = connect_hub(&mut self.place, self.identity.rank, soon, &self.config) else {
                break joined;
            };
            (self.hub, self.decoder) = (hub, Decoder::new(MAX_FRAME));
        };
        let members = match joined {
            // Otherwise the others would take this rank's end for the reason.
            Err(error @ NetError::NotFormed { .. }) => return Err(self.give_up(error)),
            Err(NetError::System { .. }) if self.place.hub_rank(&self.identity).is_some() => {
                return Err(hub_rank_lost());
            }
            other => other?,
        };
        let topology = Arc::new(topology_of(&members));
        let patience = patience_of(&members, topology.neighbours(self.identity.rank));
        let casualties = Arc::new(Casualties::new(self.identity.n_ranks));
        Ok(Met { guest: self, members, topology, patience, casualties })
    }

    fn give_up(self, error: NetError) -> NetError {
        give_up(&self.hub, self.decoder, &self.identity, &self.place, error)
    }
}

impl Met {
    /// Maps the memory of this host's ranks.
    pub fn share(mut self) -> Result<Sharing, NetError> {
        let me = &self.guest.identity;
        let neighbours = self.topology.neighbours(me.rank);
        let Some(offer) = self.guest.offer.take().filter(|_| neighbours.len() > 1) else {
            return Ok(Sharing { met: self, arena: None });
        };
        let share = |o| share_memory(o, &self.members, neighbours, self.patience, me, &self.casualties);
        match offer.map_err(|error| NetError::Arena { error }).and_then(share) {
            Ok(arena) => Ok(Sharing { met: self, arena: Some(arena) }),
            Err(error) => Err(self.guest.give_up(error)),
        }
    }
}

impl Sharing {
    /// Begins to watch over the others, and waits until all of this host have come so far.
    pub fn watch(self) -> Result<World, NetError> {
        let Sharing { met: Met { guest, members, topology, patience, casualties }, arena } = self;
        let Guest { identity, config, transport, deadline, place, hub, decoder, listeners, .. } = guest;
        let others = topology.neighbours(identity.rank).iter().filter(|&&rank| rank != identity.rank);
        let pidfds = others
            .filter_map(|&rank| {
                let pid = rustix::process::Pid::from_raw(members[rank.index()].pid as i32)?;
                Some((rank, rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?))
            })
            .collect();
        let hub_host = match place.hub.is_some() || place.served_by_rank_0 {
            true => HubHost::Rank(Rank::ZERO),
            false => HubHost::Launcher,
        };
        let watched = Watched {
            me: identity.rank,
            hub,
            hub_host,
            decoder,
            listeners,
            terms: place.terms.clone(),
            pidfds,
            arena: arena.clone(),
            casualties: casualties.clone(),
        };
        let watch = Watch::start(watched)
            .map_err(|error| NetError::System { what: "cannot start the watch", error })?;
        if let Some(arena) = &arena {
            let left = deadline.saturating_duration_since(Instant::now());
            arena.await_all(left).map_err(|(rank, unmet)| NetError::of(rank, unmet))?;
        }
        tracing::info!(
            rank = %identity.rank,
            n_ranks = identity.n_ranks,
            role = %identity.role,
            hosts = topology.n_hosts(),
            source = identity.source,
            met = %identity.meeting,
            shares_memory = arena.is_some(),
            links = transport.name,
            "world formed"
        );
        Ok(World {
            rank: identity.rank,
            source: identity.source,
            workers: Arc::new(topology_of(&members[..n_workers(&members) as usize])),
            topology,
            members,
            config,
            transport,
            terms: place.terms,
            arena,
            patience,
            casualties,
            claimed: AtomicBool::new(false),
            has_missed: AtomicBool::new(false),
            owner: std::process::id(),
            next_communicator: AtomicU32::new(1),
            n_tables: AtomicU32::new(0),
            splitting: Mutex::new(()),
            links: Mutex::new(BTreeMap::new()),
            watch: Some(watch),
            hub: place.hub,
        })
    }
}
