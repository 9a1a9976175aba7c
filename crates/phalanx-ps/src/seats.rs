//! Who serves and who collects: which ranks have a server, and which rank has the office of a host.

use phalanx_core::{Rank, Topology};

/// Where servers and offices are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seats {
    /// The rank of each server.
    servers: Vec<Rank>,
    /// The rank of each office, and the workers of its host.
    offices: Vec<(Rank, Vec<Rank>)>,
}

impl Seats {
    /// Ranks that only serve are the servers; without them the first worker of each host has one. Offices are with the first workers.
    pub fn of(workers: &Topology, own_servers: impl Iterator<Item = Rank>) -> Seats {
        let offices: Vec<(Rank, Vec<Rank>)> =
            workers.hosts().iter().map(|ranks| (ranks[0], ranks.to_vec())).collect();
        let mut servers: Vec<Rank> = own_servers.collect();
        if servers.is_empty() {
            servers = offices.iter().map(|(rank, _)| *rank).collect();
        }
        Seats { servers, offices }
    }

    pub fn servers(&self) -> &[Rank] {
        &self.servers
    }

    pub fn offices(&self) -> &[(Rank, Vec<Rank>)] {
        &self.offices
    }

    /// The number of the server that this rank has.
    pub fn server_at(&self, rank: Rank) -> Option<u32> {
        self.servers.iter().position(|r| *r == rank).map(|i| i as u32)
    }

    /// The number of the office that this rank has.
    pub fn office_at(&self, rank: Rank) -> Option<u32> {
        self.offices.iter().position(|(r, _)| *r == rank).map(|i| i as u32)
    }

    /// The number of the office to which a worker writes.
    pub fn office_of(&self, worker: Rank) -> Option<u32> {
        self.offices.iter().position(|(_, workers)| workers.contains(&worker)).map(|i| i as u32)
    }
}
