//! What `Auto` must know before it places variables: the rows that a first batch touches, and how fast links and memory are.
//! - MEASURE-1: all workers get the same numbers, bit for bit, so all of them place alike.

use super::{
    place::{MeasuredRates, TouchedRows},
    run::ParallaxError,
};
use crate::ranks::Ranks;
use phalanx_collective::engine::Engine;
use phalanx_graph::{
    Collective, CollectiveError, Feed, Program, Tensor,
    exec::{Data, Offer},
    op::OpKind,
};
use phalanx_net::World;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, mpsc::sync_channel},
    time::Instant,
};

/// Bytes that are added up between workers, and how often; then, where that took less than a few milliseconds, more of them.
const SENT: [usize; 2] = [1 << 20, 1 << 24];
const TIMES: usize = 3;
const LONG_ENOUGH_S: f64 = 0.02;
/// Bytes that are copied, more than caches hold.
const COPIED: usize = 1 << 25;

/// For [`super::AllotmentStrategy::Auto`]. Every worker calls it with what it would feed in its first step, before `parallel_run`: row
/// numbers in these feeds are counted, links between hosts and memory are timed. A table with a lookup whose row numbers are not fed but
/// computed is left out: its rows are those of the program's shapes.
pub fn measure(
    program: &Program,
    engine: &Arc<Engine>,
    feeds: &[(&str, Feed<'_>)],
) -> Result<MeasuredRates, ParallaxError> {
    measure_rows(&Ranks::new(engine.clone()), engine.world(), &fed_rows(program, feeds))
}

/// The same for tables of which the row numbers of this worker are known, as they come; none if they are not. Every worker names the same
/// tables.
pub fn measure_rows(
    ranks: &Ranks,
    world: &World,
    fed: &BTreeMap<String, Option<Vec<i64>>>,
) -> Result<MeasuredRates, ParallaxError> {
    let hosts: Vec<Vec<usize>> =
        world.workers().hosts().iter().map(|ranks| ranks.iter().map(|rank| rank.index()).collect()).collect();
    let rows = touched(ranks, &hosts, fed)?;
    let copied = copy_seconds();
    let memory = COPIED as f64 / mean(ranks, copied)?;
    // One host sends nothing.
    let wire = if hosts.len() > 1 { wire(ranks, hosts.len() as f64)? } else { f64::INFINITY };
    Ok(MeasuredRates { wire, memory, rows })
}

/// Of each table with sparse gradients the row numbers that are fed, as they come; none if some are computed.
pub fn fed_rows(program: &Program, feeds: &[(&str, Feed<'_>)]) -> BTreeMap<String, Option<Vec<i64>>> {
    let mut found: BTreeMap<String, Option<Vec<i64>>> = BTreeMap::new();
    for (_, op) in program.ops() {
        let OpKind::Embedding(lookup) = &op.kind else { continue };
        if !lookup.sparse {
            continue;
        }
        let ids = &program.var(op.inputs[1]).name;
        let fed = feeds.iter().find(|(name, _)| name == ids).map(|(_, feed)| numbers(feed));
        let of_table =
            found.entry(program.var(op.inputs[0]).name.clone()).or_insert_with(|| Some(Vec::new()));
        *of_table = of_table.take().zip(fed).map(|(mut all, fed)| {
            all.extend(fed.into_iter().filter(|&id| Some(id) != lookup.padding));
            all
        });
    }
    found
}

fn numbers(feed: &Feed<'_>) -> Vec<i64> {
    // Numbers of another type are refused by the step that is fed with them.
    let of = |tensor: &Tensor| tensor.data::<i64>().unwrap_or_default().to_vec();
    match feed {
        Feed::Split(tensor) | Feed::Replicate(tensor) => of(tensor),
        Feed::PerReplica(tensors) => tensors.iter().flat_map(|tensor| of(tensor)).collect(),
    }
}

/// Rows of a worker, and of the workers of a host together, where they are most.
fn touched(
    ranks: &Ranks,
    hosts: &[Vec<usize>],
    fed: &BTreeMap<String, Option<Vec<i64>>>,
) -> Result<BTreeMap<String, TouchedRows>, ParallaxError> {
    let mut found = BTreeMap::new();
    for (table, ids) in fed {
        let distinct: BTreeSet<i64> = ids.iter().flatten().copied().collect();
        let n_fed = ids.as_ref().map_or(-1, |ids| ids.len() as i64);
        let counts = Data::I64(vec![n_fed, distinct.len() as i64]);
        let all = Data::I64(distinct.into_iter().collect());
        let joined = exchanged(ranks, &format!("parallax: rows of {table}"), Offer::Join(vec![counts, all]))?;
        let [Data::I64(counts), Data::I64(rows)] = &joined[..] else { return Err(lost().into()) };
        if counts.iter().step_by(2).any(|&n| n < 0) {
            continue;
        }
        let raw = counts.iter().step_by(2).max().copied().unwrap_or(0) as f64;
        let mut begins = vec![0];
        for n in counts.iter().skip(1).step_by(2) {
            begins.push(begins.last().copied().unwrap_or(0) + *n as usize);
        }
        let of_host = |host: &Vec<usize>| -> usize {
            let own = host.iter().flat_map(|&rank| &rows[begins[rank]..begins[rank + 1]]);
            own.collect::<BTreeSet<_>>().len()
        };
        let union = hosts.iter().map(of_host).max().unwrap_or(0) as f64;
        found.insert(table.clone(), TouchedRows { raw, union });
    }
    Ok(found)
}

/// Bytes in a second into a host, or out of it, while all workers add something up.
fn wire(ranks: &Ranks, hosts: f64) -> Result<f64, ParallaxError> {
    let mut rate = 0.0;
    for bytes in SENT {
        let mut least = f64::INFINITY;
        for _ in 0..TIMES {
            let offer = Offer::Sum(Data::F32(vec![0.0; bytes / size_of::<f32>()]));
            let begin = Instant::now();
            exchanged(ranks, &format!("parallax: {bytes} bytes for Auto"), offer)?;
            least = least.min(begin.elapsed().as_secs_f64());
        }
        let seconds = mean(ranks, least)?;
        rate = 2.0 * bytes as f64 * (hosts - 1.0) / hosts / seconds;
        if seconds > LONG_ENOUGH_S {
            break;
        }
    }
    Ok(rate)
}

fn copy_seconds() -> f64 {
    let (from, mut to) = (vec![1u8; COPIED], vec![0u8; COPIED]);
    let once = |to: &mut Vec<u8>| {
        let begin = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(to);
        begin.elapsed().as_secs_f64()
    };
    (0..TIMES).map(|_| once(&mut to)).fold(f64::INFINITY, f64::min).max(1e-9)
}

/// The same number for all workers.
fn mean(ranks: &Ranks, own: f64) -> Result<f64, ParallaxError> {
    let sums = exchanged(ranks, "parallax: seconds for Auto", Offer::Sum(Data::F64(vec![own])))?;
    let [Data::F64(seconds)] = &sums[..] else { return Err(lost().into()) };
    Ok(seconds[0] / ranks.processes() as f64)
}

/// Waits for an exchange; the engine ends it at the latest when its time is over.
pub(super) fn exchanged(ranks: &Ranks, name: &str, offer: Offer) -> Result<Vec<Data>, CollectiveError> {
    let (told, all) = sync_channel(1);
    let done = Box::new(move |back| {
        // Who waits below has not gone.
        let _ = told.send(back);
    });
    ranks.start(name, offer, done);
    all.recv().unwrap_or_else(|_| Err(lost()))
}

pub(super) fn lost() -> CollectiveError {
    CollectiveError::Failed { call: "an exchange of workers".into(), why: "the engine has ended".into() }
}
