//! The ordered, blocking level: every rank calls the same collectives in the same order.
//!
//! - COMM-1: a call that fails because a rank is lost fails on every rank, naming the same one; later calls fail at once.
//! - COMM-2: ranks of one host that call different things all get `Mismatch`, and the communicator stays usable; across hosts the world ends.

use crate::{
    buffer::ArenaVec,
    bytes,
    cache::Cache,
    error::Error,
    explore::Exploring,
    invoke::{Ask, Hands},
    meter::{Meter, TierTraffic},
    mpi::MpiDoor,
    plan::{
        self, Algorithm, Wiring,
        step::{CollectiveOp, Layout},
    },
    run::{ear::Ear, exchange::WireFault},
};
use phalanx_core::{Config, DType, Element, Rank, ReduceOp, Topology, Transport};
use phalanx_net::{
    World,
    arena::{Board, CallHeader, Lane},
};
use std::sync::Arc;

/// Factors applied to every contribution before, and to the result after a reduction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    pub pre: f64,
    pub post: f64,
}

impl Default for Scale {
    fn default() -> Scale {
        Scale { pre: 1.0, post: 1.0 }
    }
}

/// What tells a communicator from all others of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommunicatorId {
    /// No other communicator of its ranks ever has it: links and engines go by it.
    pub number: u32,
    /// Where its slots are; another one may have had it before (TENANT-1).
    pub lane: u32,
}

/// A group of ranks and this rank's place in it.
#[derive(Debug)]
pub struct Communicator {
    pub(crate) world: Arc<World>,
    /// Number 0 is that of all workers.
    pub(crate) number: u32,
    /// World ranks of the members; position = rank in this communicator.
    pub(crate) members: Vec<Rank>,
    pub(crate) me: Rank,
    pub(crate) topology: Arc<Topology>,
    pub(crate) lane: Option<Lane>,
    /// Each member's position in the lane, for those on this host.
    pub(crate) seats: Vec<Option<u16>>,
    pub(crate) calls: u64,
    pub(crate) cache: Cache,
    pub(crate) headers: Vec<CallHeader>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) staging: Vec<u8>,
    pub(crate) forced: Option<Algorithm>,
    pub(crate) last_plan: &'static str,
    pub(crate) wiring: Option<Wiring>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) exploring: Exploring,
    /// The pipelined piece; the world's, unless it was tuned.
    pub(crate) segment_bytes: u64,
    /// Engines this communicator has served.
    pub(crate) n_engines: u32,
    pub(crate) ear: Option<Ear>,
    pub(crate) mpi: MpiDoor,
    pub(crate) fault: Option<Arc<WireFault>>,
}

impl Communicator {
    /// The world that the environment describes: a launcher's, or a world of one.
    pub fn from_env() -> Result<Communicator, Error> {
        Communicator::of_world(Arc::new(World::from_env_with(crate::BUILD)?))
    }

    /// All workers of a world; a server has none. A world has one such communicator; `split` makes more.
    pub fn of_world(world: Arc<World>) -> Result<Communicator, Error> {
        if !world.is_worker(world.rank()) {
            return Err(Error::Serves { rank: world.rank(), n_workers: world.n_workers() });
        }
        if !world.claim() {
            return Err(Error::WorldTaken);
        }
        let members = (0..world.n_workers()).map(Rank).collect();
        Communicator::of(world, CommunicatorId { number: 0, lane: 0 }, members)
    }

    pub(crate) fn of(
        world: Arc<World>,
        place: CommunicatorId,
        members: Vec<Rank>,
    ) -> Result<Communicator, Error> {
        let CommunicatorId { number, lane } = place;
        let me =
            members.iter().position(|&r| r == world.rank()).expect("a rank makes communicators it is in");
        let mut hosts = vec![Vec::new(); world.topology().n_hosts() as usize];
        for (i, &rank) in members.iter().enumerate() {
            hosts[world.topology().host_of(rank) as usize].push(Rank::at(i));
        }
        let topology = Topology::new(hosts).expect("members are distinct ranks of a topology");
        let group = topology.neighbours(Rank::at(me)).to_vec();
        let mut seats = vec![None; members.len()];
        for (seat, rank) in group.iter().enumerate() {
            seats[rank.index()] = Some(seat as u16);
        }
        let lane =
            match world.arena() {
                Some(arena) if world.config().transport == Transport::Auto && group.len() > 1 => {
                    let ranks: Vec<Rank> = group.iter().map(|r| members[r.index()]).collect();
                    let seat = ranks.iter().position(|&r| r == world.rank()).expect("it is on its own host");
                    let lane = Lane::open(arena.clone(), lane, ranks, seat, world.config().timeout);
                    Some(lane.ok_or_else(|| {
                        Error::Split("the arena is too small for another communicator".into())
                    })?)
                }
                _ => None,
            };
        let wiring = if number == 0 { configured(world.config(), &topology)? } else { None };
        let forced = match &world.config().algorithm {
            None => None,
            Some(name) => Some(name.parse().map_err(|e: plan::UnknownAlgorithm| Error::NoSuchAlgorithm {
                name: name.clone(),
                known: e.to_string(),
            })?),
        };
        Ok(Communicator {
            number,
            members,
            me: Rank::at(me),
            topology: Arc::new(topology),
            lane,
            seats,
            calls: 0,
            cache: Cache::new(),
            headers: Vec::new(),
            scratch: Vec::new(),
            staging: Vec::new(),
            forced,
            last_plan: "",
            wiring,
            meter: Arc::default(),
            exploring: Exploring::new(world.config(), number, Rank::at(me)),
            segment_bytes: world.config().segment_bytes,
            n_engines: 0,
            ear: None,
            mpi: MpiDoor::default(),
            fault: None,
            world,
        })
    }

    /// This rank's number here.
    pub fn rank(&self) -> Rank {
        self.me
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// This rank's place among the ranks of its host.
    pub fn local_rank(&self) -> u32 {
        self.topology.local_of(self.me)
    }

    pub fn local_size(&self) -> u32 {
        self.topology.neighbours(self.me).len() as u32
    }

    /// This rank's place among the ranks with the same place on their hosts.
    pub fn cross_rank(&self) -> u32 {
        let cross = self.topology.cross(self.me);
        cross.iter().position(|&r| r == self.me).expect("a rank crosses itself") as u32
    }

    pub fn cross_size(&self) -> u32 {
        self.topology.cross(self.me).len() as u32
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    pub fn world(&self) -> &World {
        &self.world
    }

    /// The same, for those who outlive the communicator or must not wait for it.
    pub fn world_arc(&self) -> Arc<World> {
        self.world.clone()
    }

    /// The words that the ranks of one host show each other, if all ranks are on one.
    pub(crate) fn board(&self) -> Option<Board> {
        self.lane.as_ref().filter(|_| self.topology.n_hosts() == 1).map(Lane::board)
    }

    /// The number of the links of the next engine; all ranks count alike.
    pub(crate) fn next_engine(&mut self) -> u32 {
        self.n_engines += 1;
        u32::MAX - self.n_engines
    }

    /// Changes how large operations are cut and which algorithm runs them; every rank does so between the same calls.
    pub(crate) fn tune(&mut self, segment_bytes: u64, algorithm: Option<&str>) {
        self.segment_bytes = segment_bytes;
        let wanted = algorithm.filter(|_| self.wiring.is_none()).or(self.world.config().algorithm.as_deref());
        self.forced = wanted.and_then(|name| name.parse().ok());
        self.cache = Cache::new();
    }

    /// The shape of the network and how its tiers work, where one was given.
    pub fn wiring(&self) -> Option<&Wiring> {
        self.wiring.as_ref()
    }

    /// Gives the network another shape; every rank gives the same one, between the same calls. `Wiring::new` lays this communicator's ranks over it.
    pub fn rewire(&mut self, wiring: Wiring) -> Result<(), Error> {
        wiring.grid.tiers().check(self.size())?;
        self.wiring = Some(wiring);
        self.exploring.stop();
        self.mpi.climb_no_more();
        self.meter = Arc::default(); // What was sent along another shape is not this one's.
        self.cache = Cache::new();
        Ok(())
    }

    /// Goes back to the shape of the settings, if they have one; every rank does so between the same calls.
    pub fn unwire(&mut self) {
        let wiring = configured(self.world.config(), &self.topology);
        self.wiring = wiring.expect("it was made when this communicator was").filter(|_| self.number == 0);
        self.exploring.stop();
        self.mpi.climb_no_more();
        self.cache = Cache::new();
    }

    /// What this rank has sent along each tier so far.
    pub fn traffic(&self) -> Vec<TierTraffic> {
        self.meter.read()
    }

    /// The same, for those who read while an engine has the communicator.
    pub fn meter(&self) -> Arc<Meter> {
        self.meter.clone()
    }

    /// The algorithm of the last call, for benchmarks and traces.
    pub fn last_plan(&self) -> &'static str {
        self.last_plan
    }

    /// Zeros that the ranks of this host reduce without staging: gradients should live here.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<ArenaVec<T>, Error> {
        ArenaVec::zeros(&self.world, len)
    }

    /// Reduces in place: afterwards every rank has the same result.
    pub fn allreduce<T: Element>(&mut self, data: &mut [T], op: ReduceOp) -> Result<(), Error> {
        self.allreduce_scaled(data, op, Scale::default())
    }

    /// As [`allreduce`](Self::allreduce), with factors.
    pub fn allreduce_scaled<T: Element>(
        &mut self,
        data: &mut [T],
        op: ReduceOp,
        scale: Scale,
    ) -> Result<(), Error> {
        self.allreduce_bytes(bytes::of_mut(data), T::DTYPE, op, scale)
    }

    /// Reduces elements of a type known at run time, in place.
    pub fn allreduce_bytes(
        &mut self,
        data: &mut [u8],
        dtype: DType,
        op: ReduceOp,
        scale: Scale,
    ) -> Result<(), Error> {
        let len = elements("data", data.len(), dtype)?;
        let all = 0..data.len();
        let hands = Hands::Together { memory: data, input: all.clone(), output: all };
        self.call(
            Ask {
                op: CollectiveOp::Allreduce,
                layout: Layout::Whole { len },
                dtype,
                reduce: Some((op, scale)),
            },
            hands,
        )
    }

    /// Reduces from one buffer into another.
    pub fn allreduce_into<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        scale: Scale,
    ) -> Result<(), Error> {
        same_length("output", output.len(), input.len())?;
        let layout = Layout::Whole { len: input.len() as u64 };
        let hands = Hands::Apart { input: bytes::of(input), output: bytes::of_mut(output) };
        self.call(
            Ask { op: CollectiveOp::Allreduce, layout, dtype: T::DTYPE, reduce: Some((op, scale)) },
            hands,
        )
    }

    /// Reduces `input` and leaves rank r with its share of the result, `counts[r]` elements.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        counts: &[u64],
        op: ReduceOp,
    ) -> Result<(), Error> {
        self.check_counts(counts)?;
        same_length("input", input.len(), counts.iter().sum::<u64>() as usize)?;
        same_length("output", output.len(), counts[self.me.index()] as usize)?;
        let layout = Layout::Counts { counts: counts.to_vec() };
        let hands = Hands::Apart { input: bytes::of(input), output: bytes::of_mut(output) };
        let reduce = Some((op, Scale::default()));
        self.call(Ask { op: CollectiveOp::ReduceScatter, layout, dtype: T::DTYPE, reduce }, hands)
    }

    /// Gives every rank the elements of all ranks, in rank order; rank r contributes `counts[r]`.
    pub fn allgather<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        counts: &[u64],
    ) -> Result<(), Error> {
        self.check_counts(counts)?;
        same_length("input", input.len(), counts[self.me.index()] as usize)?;
        same_length("output", output.len(), counts.iter().sum::<u64>() as usize)?;
        let layout = Layout::Counts { counts: counts.to_vec() };
        let hands = Hands::Apart { input: bytes::of(input), output: bytes::of_mut(output) };
        self.call(Ask { op: CollectiveOp::Allgather, layout, dtype: T::DTYPE, reduce: None }, hands)
    }

    /// Gives every rank the root's elements.
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: Rank) -> Result<(), Error> {
        self.check_root(root)?;
        let layout = Layout::Rooted { root, len: data.len() as u64 };
        let memory = bytes::of_mut(data);
        let all = 0..memory.len();
        let input = if self.me == root { all.clone() } else { 0..0 };
        let hands = Hands::Together { memory, input, output: all };
        self.call(Ask { op: CollectiveOp::Broadcast, layout, dtype: T::DTYPE, reduce: None }, hands)
    }

    /// Reduces into the root's data; those of every other rank stay as they are.
    pub fn reduce<T: Element>(&mut self, data: &mut [T], op: ReduceOp, root: Rank) -> Result<(), Error> {
        self.check_root(root)?;
        let layout = Layout::Rooted { root, len: data.len() as u64 };
        let memory = bytes::of_mut(data);
        let all = 0..memory.len();
        let output = if self.me == root { all.clone() } else { 0..0 };
        let hands = Hands::Together { memory, input: all, output };
        self.call(
            Ask { op: CollectiveOp::Reduce, layout, dtype: T::DTYPE, reduce: Some((op, Scale::default())) },
            hands,
        )
    }

    /// Gives the root every rank's elements, in rank order. `output` is used at the root only and may be empty elsewhere.
    pub fn gather<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        counts: &[u64],
        root: Rank,
    ) -> Result<(), Error> {
        self.check_root(root)?;
        self.check_counts(counts)?;
        same_length("input", input.len(), counts[self.me.index()] as usize)?;
        let output = if self.me == root { output } else { &mut [] };
        if self.me == root {
            same_length("output", output.len(), counts.iter().sum::<u64>() as usize)?;
        }
        let layout = Layout::RootedCounts { root, counts: counts.to_vec() };
        let hands = Hands::Apart { input: bytes::of(input), output: bytes::of_mut(output) };
        self.call(Ask { op: CollectiveOp::Gather, layout, dtype: T::DTYPE, reduce: None }, hands)
    }

    /// Gives rank r its `counts[r]` of the root's elements. `input` is used at the root only and may be empty elsewhere.
    pub fn scatter<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        counts: &[u64],
        root: Rank,
    ) -> Result<(), Error> {
        self.check_root(root)?;
        self.check_counts(counts)?;
        let input = if self.me == root { input } else { &[] };
        if self.me == root {
            same_length("input", input.len(), counts.iter().sum::<u64>() as usize)?;
        }
        same_length("output", output.len(), counts[self.me.index()] as usize)?;
        let layout = Layout::RootedCounts { root, counts: counts.to_vec() };
        let hands = Hands::Apart { input: bytes::of(input), output: bytes::of_mut(output) };
        self.call(Ask { op: CollectiveOp::Scatter, layout, dtype: T::DTYPE, reduce: None }, hands)
    }

    /// Sends `matrix[p * n + q]` elements from every rank p to every rank q, in rank order on both sides.
    /// The matrix is the same on every rank; [`alltoall_counts`](Self::alltoall_counts) makes it from each rank's own row.
    pub fn alltoall<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
        matrix: &[u64],
    ) -> Result<(), Error> {
        let n = self.members.len();
        same_length("matrix", matrix.len(), n * n)?;
        let me = self.me.index();
        same_length("input", input.len(), matrix[me * n..(me + 1) * n].iter().sum::<u64>() as usize)?;
        same_length("output", output.len(), (0..n).map(|p| matrix[p * n + me]).sum::<u64>() as usize)?;
        let layout = Layout::Matrix { n_ranks: self.size(), matrix: matrix.to_vec() };
        let hands = Hands::Apart { input: bytes::of(input), output: bytes::of_mut(output) };
        self.call(Ask { op: CollectiveOp::Alltoall, layout, dtype: T::DTYPE, reduce: None }, hands)
    }

    /// Every rank's rows of the matrix that [`alltoall`](Self::alltoall) wants; rank p's row says what it sends to each rank.
    pub fn alltoall_counts(&mut self, row: &[u64]) -> Result<Vec<u64>, Error> {
        same_length("row", row.len(), self.members.len())?;
        let row: Vec<i64> = row.iter().map(|&c| c as i64).collect();
        let mut matrix = vec![0i64; row.len() * row.len()];
        self.allgather(&row, &mut matrix, &vec![row.len() as u64; row.len()])?;
        Ok(matrix.into_iter().map(|c| c as u64).collect())
    }

    /// Returns when every rank has called it.
    pub fn barrier(&mut self) -> Result<(), Error> {
        let hands = Hands::Apart { input: &[], output: &mut [] };
        self.call(
            Ask { op: CollectiveOp::Barrier, layout: Layout::Empty, dtype: DType::U8, reduce: None },
            hands,
        )
    }

    fn check_root(&self, root: Rank) -> Result<(), Error> {
        if root.0 >= self.size() {
            return Err(Error::NoSuchRoot { root, size: self.size() });
        }
        Ok(())
    }

    fn check_counts(&self, counts: &[u64]) -> Result<(), Error> {
        same_length("counts", counts.len(), self.members.len())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // While the world is there: ranks end MPI together.
        self.mpi = MpiDoor::default();
        if self.number != 0 {
            self.world.close_links(self.number);
        }
    }
}

/// The shape that `PHALANX_TIERS` and `PHALANX_WAYS` ask for.
fn configured(config: &Config, topology: &Topology) -> Result<Option<Wiring>, Error> {
    match (&config.tiers, &config.ways) {
        (Some(tiers), ways) => Ok(Some(Wiring::new(tiers, topology, ways.as_deref())?)),
        (None, Some(_)) => Err(Error::WaysAlone),
        (None, None) => Ok(None),
    }
}

fn elements(what: &'static str, bytes: usize, dtype: DType) -> Result<u64, Error> {
    if !bytes.is_multiple_of(dtype.size()) {
        return Err(Error::Ragged { what, have: bytes as u64, dtype });
    }
    Ok((bytes / dtype.size()) as u64)
}

fn same_length(what: &'static str, have: usize, want: usize) -> Result<(), Error> {
    if have != want {
        return Err(Error::Length { what, have: have as u64, want: want as u64 });
    }
    Ok(())
}
