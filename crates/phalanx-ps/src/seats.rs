//! Who serves and who collects: which ranks have a server, and which rank has the office of a host.

use crate::{
    letter::{LetterKind, Road},
    office::Port,
};
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
    /// The same with an office for each worker: nothing is collected for a host.
    pub fn of_each(workers: &Topology, own_servers: impl Iterator<Item = Rank>) -> Seats {
        let Seats { servers, offices } = Seats::of(workers, own_servers);
        let alone = offices.into_iter().flat_map(|(_, workers)| workers).map(|rank| (rank, vec![rank]));
        Seats { servers, offices: alone.collect() }
    }

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

/// In which capacity a peer wrote such a letter to this rank; `None` if it has none in which it could.
pub fn port_of(seats: &Seats, me: Rank, peer: Rank, kind: LetterKind) -> Option<Port> {
    let answers = matches!(
        kind,
        LetterKind::Pulled
            | LetterKind::HaveRead
            | LetterKind::Written
            | LetterKind::NormIs
            | LetterKind::Refused
    );
    let (own_office, own_server) = (seats.office_at(me), seats.server_at(me));
    if answers {
        return seats.server_at(peer).filter(|_| own_office.is_some()).map(Port::Server);
    }
    if kind == LetterKind::Hello {
        return None;
    }
    match seats.office_at(peer) {
        Some(office) => own_server.map(|_| Port::Office(office)),
        None if own_office.is_some() && seats.office_of(peer) == own_office && kind != LetterKind::Gone => {
            Some(Port::Worker(peer))
        }
        None => None,
    }
}

/// The road of a connection between two ranks.
pub fn road(seats: &Seats, a: Rank, b: Rank) -> Road {
    let is_station = |rank: Rank| seats.office_at(rank).is_some() || seats.server_at(rank).is_some();
    if is_station(a) && is_station(b) { Road::Between } else { Road::Own }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_that_is_not_its_senders_to_send_has_no_port() {
        let workers = Topology::of_sizes(&[2, 1]);
        let seats = Seats::of(&workers, [Rank(3)].into_iter());
        let port = |me, peer, kind| port_of(&seats, Rank(me), Rank(peer), kind);
        assert_eq!(port(0, 1, LetterKind::Push), Some(Port::Worker(Rank(1))));
        assert_eq!(port(0, 3, LetterKind::Pulled), Some(Port::Server(0)));
        assert_eq!(port(3, 2, LetterKind::Push), Some(Port::Office(1)));
        assert_eq!(port(0, 3, LetterKind::Push), None, "a server that only serves pushes nothing");
        assert_eq!(port(0, 2, LetterKind::Release), None, "another host's office");
        assert_eq!(port(0, 1, LetterKind::Pulled), None, "a worker answers nothing");
        assert_eq!(port(0, 1, LetterKind::Gone), None);
        assert_eq!(port(3, 2, LetterKind::Hello), None, "greetings are over");
    }

    #[test]
    fn without_collecting_every_worker_is_an_office_and_servers_stay_where_they_are() {
        let workers = Topology::of_sizes(&[2, 1]);
        let seats = Seats::of_each(&workers, [].into_iter());
        assert_eq!(seats.servers(), [Rank(0), Rank(2)]);
        let offices: Vec<Rank> = seats.offices().iter().map(|(rank, _)| *rank).collect();
        assert_eq!(offices, [Rank(0), Rank(1), Rank(2)]);
        assert_eq!(port_of(&seats, Rank(0), Rank(1), LetterKind::Push), Some(Port::Office(1)));
    }
}
