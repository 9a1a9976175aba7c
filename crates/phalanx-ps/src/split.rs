//! Which rows of a letter go to which server.

use crate::{
    placement::Placement,
    values::{RowValues, Rows},
};
use std::collections::{BTreeMap, BTreeSet};

/// The servers that have a partition of the table.
pub fn servers_of(placement: &Placement, table: u32) -> BTreeSet<u32> {
    let layout = placement.layout(table as usize);
    (0..layout.n_partitions()).map(|p| layout.server_of(p)).collect()
}

/// The rows of each server of the table; some have none.
pub fn split(placement: &Placement, table: u32, row_bytes: usize, rows: Rows) -> BTreeMap<u32, Rows> {
    let servers = servers_of(placement, table);
    if let (1, Some(&only)) = (servers.len(), servers.first()) {
        return BTreeMap::from([(only, rows)]);
    }
    let layout = placement.layout(table as usize);
    let mut places: BTreeMap<u32, Vec<u32>> =
        servers.into_iter().map(|server| (server, Vec::new())).collect();
    for (at, &id) in rows.ids.iter().enumerate() {
        let server = layout.place(id.into()).server;
        places.get_mut(&server).expect("rows are on servers of their table").push(at as u32);
    }
    let pick = |places: Vec<u32>| Rows {
        ids: places.iter().map(|&at| rows.ids[at as usize]).collect(),
        touches: match rows.touches.is_empty() {
            true => Vec::new(),
            false => places.iter().map(|&at| rows.touches[at as usize]).collect(),
        },
        values: picked(&rows.values, &places, row_bytes),
    };
    places.into_iter().map(|(server, places)| (server, pick(places))).collect()
}

pub fn picked(values: &RowValues, places: &[u32], row_bytes: usize) -> RowValues {
    let mut out = RowValues::zeros(places.len() * row_bytes);
    for (to, &at) in out.bytes_mut().chunks_exact_mut(row_bytes).zip(places) {
        let at = at as usize * row_bytes;
        to.copy_from_slice(&values.bytes()[at..at + row_bytes]);
    }
    out
}
