//! Processes that are threads of one: several executors side by side.

use phalanx_graph::{
    Collective, CollectiveError,
    exec::{Data, Done, Offer, tree},
};
use std::{
    collections::BTreeMap,
    mem::discriminant,
    sync::{Arc, Mutex, PoisonError},
};

#[derive(Debug)]
pub struct Threads {
    board: Arc<Board>,
    index: usize,
}

#[derive(Debug)]
struct Board {
    n: usize,
    /// Whether it sums parts, or only whole tensors.
    parts: bool,
    /// What is under way, by name, from each that has brought something; `None` once somebody is gone.
    under_way: Mutex<Option<BTreeMap<String, Vec<Option<Brought>>>>>,
}

struct Brought {
    offer: Offer,
    done: Done,
}

impl std::fmt::Debug for Brought {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.offer.fmt(f)
    }
}

impl Threads {
    pub fn new(n: usize) -> Vec<Threads> {
        Threads::with(n, true)
    }

    /// The same, which may not know how to sum parts.
    pub fn with(n: usize, parts: bool) -> Vec<Threads> {
        let board = Arc::new(Board { n, parts, under_way: Mutex::new(Some(BTreeMap::new())) });
        (0..n).map(|index| Threads { board: board.clone(), index }).collect()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // No process waits for one that is gone: what it brought is dropped, and the caller notices.
        let gone = self.board.under_way.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(gone);
    }
}

impl Collective for Threads {
    fn processes(&self) -> usize {
        self.board.n
    }

    fn index(&self) -> usize {
        self.index
    }

    fn enroll(&self, label: &str) -> String {
        label.to_string()
    }

    fn sums_parts(&self) -> bool {
        self.board.parts
    }

    fn start(&self, name: &str, offer: Offer, done: Done) {
        let all = {
            let mut under_way = self.board.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(under_way) = &mut *under_way else { return };
            let n = self.board.n;
            let all = under_way.entry(name.to_string()).or_insert_with(|| (0..n).map(|_| None).collect());
            let before = all[self.index].replace(Brought { offer, done });
            assert!(before.is_none(), "{name} is under way already");
            if all.iter().any(Option::is_none) {
                return;
            }
            under_way.remove(name).expect("it was just there")
        };
        let (offers, dones): (Vec<Offer>, Vec<Done>) =
            all.into_iter().flatten().map(|Brought { offer, done }| (offer, done)).unzip();
        let counts = match &offers[0] {
            Offer::Parts { counts, .. } => Some(counts.clone()),
            _ => None,
        };
        let answer = together(offers);
        for (at, done) in dones.into_iter().enumerate() {
            match (&answer, &counts) {
                (Ok(all), Some(counts)) => done(Ok(vec![part(&all[0], counts, at)])),
                _ => done(answer.clone()),
            }
        }
    }
}

fn together(offers: Vec<Offer>) -> Result<Vec<Data>, CollectiveError> {
    let misfit = || CollectiveError::Misfit { why: format!("{offers:?}") };
    if offers.iter().any(|offer| discriminant(offer) != discriminant(&offers[0])) {
        return Err(misfit());
    }
    let of = |offer: &Offer| match offer {
        Offer::Sum(data) | Offer::Parts { data, .. } | Offer::Broadcast { data, .. } => vec![data.clone()],
        Offer::Join(lists) => lists.clone(),
        Offer::Nothing => Vec::new(),
    };
    let lists: Vec<Vec<Data>> = offers.iter().map(of).collect();
    match &offers[0] {
        Offer::Nothing => Ok(Vec::new()),
        Offer::Broadcast { root, .. } => Ok(lists[*root].clone()),
        Offer::Join(own) => {
            let joined = |at: usize| join(lists.iter().map(|list| &list[at]));
            (0..own.len()).map(joined).collect::<Option<Vec<_>>>().ok_or_else(misfit)
        }
        Offer::Sum(_) | Offer::Parts { .. } => {
            sum(lists.iter().map(|list| &list[0])).map(|sum| vec![sum]).ok_or_else(misfit)
        }
    }
}

fn part(all: &Data, counts: &[usize], at: usize) -> Data {
    let first = counts[..at].iter().sum();
    let range = first..first + counts[at];
    match all {
        Data::U8(all) => Data::U8(all[range].to_vec()),
        Data::I64(all) => Data::I64(all[range].to_vec()),
        Data::F32(all) => Data::F32(all[range].to_vec()),
        Data::F64(all) => Data::F64(all[range].to_vec()),
    }
}

fn join<'a>(parts: impl Iterator<Item = &'a Data>) -> Option<Data> {
    parts.cloned().map(Some).reduce(|all, part| match (all?, part?) {
        (Data::U8(a), Data::U8(b)) => Some(Data::U8([a, b].concat())),
        (Data::I64(a), Data::I64(b)) => Some(Data::I64([a, b].concat())),
        (Data::F32(a), Data::F32(b)) => Some(Data::F32([a, b].concat())),
        (Data::F64(a), Data::F64(b)) => Some(Data::F64([a, b].concat())),
        _ => None,
    })?
}

fn sum<'a>(parts: impl Iterator<Item = &'a Data>) -> Option<Data> {
    let mut parts: Vec<Data> = parts.cloned().collect();
    for (to, from) in tree(parts.len()) {
        let (left, right) = parts.split_at_mut(from);
        match (&mut left[to], &right[0]) {
            (Data::F32(a), Data::F32(b)) if a.len() == b.len() => add(a, b),
            (Data::F64(a), Data::F64(b)) if a.len() == b.len() => add(a, b),
            _ => return None,
        }
    }
    parts.into_iter().next()
}

fn add<T: std::ops::AddAssign + Copy>(a: &mut [T], b: &[T]) {
    a.iter_mut().zip(b).for_each(|(a, &b)| *a += b);
}
