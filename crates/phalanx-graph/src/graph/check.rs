//! Proves after each pass that the graph still means what the program says (SSA-1 to SSA-3).

use super::{Buffer, Graph, GraphFault, Node, NodeKind, Owner};
use crate::ir::{OpId, VarKind};
use std::collections::BTreeMap;

impl Graph {
    pub fn check(&self) -> Result<(), GraphFault> {
        self.written_before_read()?;
        self.times()?;
        self.control()
    }

    fn written_before_read(&self) -> Result<(), GraphFault> {
        let mut writer: BTreeMap<Buffer, (usize, By)> = BTreeMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let touched = self.touched(node);
            for buffer in touched.reads {
                let is_temp = self.program.var(buffer.var).kind == VarKind::Temp;
                let comes_later = !self.has_sums && self.parts.is_whole(buffer.var);
                if is_temp && !comes_later && !writer.contains_key(&buffer) {
                    let (what, buffer) = (self.title(node), self.show(buffer));
                    return Err(GraphFault::Unwritten { node: at, what, buffer });
                }
            }
            let last = match &node.kind {
                NodeKind::Compute { replica, ops } => (*replica, ops.last().copied()),
                _ => (None, None),
            };
            let completes = matches!(node.kind, NodeKind::Exchange { .. } | NodeKind::Share { .. });
            for buffer in touched.writes {
                let before = writer.insert(buffer, (at, last));
                let Some((first, op)) = before.filter(|_| !completes) else { continue };
                let (what, name) = (self.title(node), self.show(buffer));
                if self.program.var(buffer.var).kind == VarKind::Temp {
                    return Err(GraphFault::Rewritten { node: at, what, buffer: name, first });
                }
                if op.0 == last.0 && op.1 > last.1 {
                    return Err(GraphFault::Order { node: first, what, buffer: name, later: at });
                }
            }
        }
        Ok(())
    }

    /// No operation runs twice for the same replica.
    fn times(&self) -> Result<(), GraphFault> {
        let mut times: BTreeMap<(Option<usize>, OpId), usize> = BTreeMap::new();
        for node in &self.nodes {
            if let NodeKind::Compute { replica, ops } = &node.kind {
                for &op in ops {
                    let n = times.entry((*replica, op)).or_default();
                    *n += 1;
                    if *n > 1 {
                        let place = replica.map_or("the process".into(), |r| format!("replica {r}"));
                        return Err(GraphFault::Times { op: op.index(), n: *n, place });
                    }
                }
            }
        }
        Ok(())
    }

    fn control(&self) -> Result<(), GraphFault> {
        let mut exchanged = None;
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some(&after) = node.after.iter().find(|&&after| after >= at) {
                return Err(GraphFault::Cycle { node: at, after });
            }
            if self.settings.processes > 1 && leaves(node) {
                if let Some(before) = exchanged.filter(|before| !node.after.contains(before)) {
                    return Err(GraphFault::Loose { node: at, before });
                }
                exchanged = Some(at);
            }
        }
        Ok(())
    }

    fn show(&self, buffer: Buffer) -> String {
        let name = &self.program.var(buffer.var).name;
        match buffer.owner {
            Owner::Replica(r) => format!("`{name}` of replica {r}"),
            Owner::Process => format!("`{name}`"),
        }
    }
}

/// Which replica's last operation a write is.
type By = (Option<usize>, Option<OpId>);

/// Whether it goes to other processes.
pub(super) fn leaves(node: &Node) -> bool {
    matches!(node.kind, NodeKind::Exchange { .. } | NodeKind::Gather { .. } | NodeKind::Share { .. })
}
