//! When each task ran and on which worker, for `chrome://tracing` and Perfetto. Recording allocates nothing.

use super::{lower::Planned, work::What};
use crate::graph::Graph;
use phalanx_core::trace::Event;
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

#[derive(Debug)]
pub(super) struct Slots {
    begin: Instant,
    slots: Vec<[AtomicU64; 3]>,
}

impl Slots {
    pub(super) fn new(n: usize) -> Slots {
        let mut slots = Slots { begin: Instant::now(), slots: Vec::new() };
        slots.fit(n);
        slots
    }

    pub(super) fn fit(&mut self, n: usize) {
        self.slots.resize_with(n.max(self.slots.len()), Default::default);
    }

    /// Nanoseconds since the trace began.
    pub(super) fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    pub(super) fn record(&self, task: usize, worker: usize, begin: u64) {
        let values = [begin, self.now(), worker as u64];
        // Read after the run, which orders it.
        self.slots[task].iter().zip(values).for_each(|(slot, v)| slot.store(v, Ordering::Relaxed));
    }

    /// The events of the last run, as a JSON array.
    pub(super) fn to_json(&self, graph: &Graph, plan: &Planned) -> String {
        let mut events = Vec::new();
        for (task, slot) in plan.schedule.tasks.iter().zip(&self.slots) {
            let [begin, end, worker] = [0, 1, 2].map(|i| slot[i].load(Ordering::Relaxed));
            if end == 0 {
                continue;
            }
            let name = graph.title(&graph.nodes[task.node]);
            let ops: Vec<&str> = plan.calls[task.calls.clone()]
                .iter()
                .map(|c| match c.what {
                    What::Op(op) => graph.program.op(op).name(),
                    What::Zero => "zero",
                    What::Sum => "sum",
                    What::Bring(..) => "bring",
                    What::Take(..) => "take",
                    What::Copy => "copy",
                    What::Gather => "gather",
                    What::Ask(..) => "ask",
                    What::Answer(..) => "answer",
                })
                .collect();
            let event = Event::new(name, 'X', graph.settings.process as u64).on_thread(worker);
            let event = event.with("cat", ops.join("+")).at_ns(begin).lasting_ns(end - begin);
            events.push(event.args([("replica", task.replica.into())]).to_string());
        }
        format!("[{}]\n", events.join(",\n"))
    }
}
