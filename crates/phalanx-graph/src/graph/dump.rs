//! Graphs for people and tools: Graphviz and JSON.

use super::{Edge, Graph, NodeKind};
use serde_json::json;
use std::fmt::Write;

impl Graph {
    /// For Graphviz: replicas have colours, hazards are dotted.
    pub fn to_dot(&self) -> String {
        let mut out = String::from("digraph {\n  node [shape=box style=filled];\n");
        for (at, node) in self.nodes.iter().enumerate() {
            let colour = match &node.kind {
                NodeKind::Compute { replica: Some(r), .. } => {
                    ["#cfe8ff", "#d9f2d0", "#ffe6cc", "#eadcf4"][r % 4]
                }
                NodeKind::Compute { replica: None, .. } => "#eeeeee",
                NodeKind::Gate => "#ffffff",
                _ => "#ffd6d6",
            };
            let title = escaped(&self.title(node));
            writeln!(out, "  n{at} [label=\"{title}\" fillcolor=\"{colour}\"];").expect("strings take all");
        }
        for (at, before) in self.edges().into_iter().enumerate() {
            for (from, edge) in before {
                let (style, label) = match edge {
                    Edge::True(b, v) => ("solid", format!("{}.{v}", self.program.var(b.var).name)),
                    Edge::Anti(b, _) => ("dotted", self.program.var(b.var).name.clone()),
                    Edge::Output(b, _) => ("dotted", self.program.var(b.var).name.clone()),
                    Edge::Control => ("dashed", String::new()),
                };
                let label = escaped(&label);
                writeln!(out, "  n{from} -> n{at} [style={style} label=\"{label}\"];").expect("as above");
            }
        }
        out.push_str("}\n");
        out
    }

    /// `{"nodes": [{"id", "title", "kind", "replica"}], "edges": [{"from", "to", "why", "var", "version"}]}`
    pub fn to_json(&self) -> String {
        let mut nodes = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let (kind, replica) = match &node.kind {
                NodeKind::Compute { replica, .. } => ("compute", *replica),
                NodeKind::Sum { .. } => ("sum", None),
                NodeKind::Exchange { .. } => ("exchange", None),
                NodeKind::Gather { .. } => ("gather", None),
                NodeKind::Share { .. } => ("share", None),
                NodeKind::Pull { .. } => ("pull", None),
                NodeKind::Push { .. } => ("push", None),
                NodeKind::Serve { .. } => ("serve", None),
                NodeKind::Gate => ("gate", None),
            };
            let title = self.title(node);
            nodes.push(json!({ "id": at, "title": title, "kind": kind, "replica": replica }));
        }
        let mut edges = Vec::new();
        for (to, before) in self.edges().into_iter().enumerate() {
            for (from, edge) in before {
                let (why, of) = match edge {
                    Edge::True(b, v) => ("true", Some((b, v))),
                    Edge::Anti(b, v) => ("anti", Some((b, v))),
                    Edge::Output(b, v) => ("output", Some((b, v))),
                    Edge::Control => ("control", None),
                };
                let mut edge = json!({ "from": from, "to": to, "why": why });
                if let Some((b, v)) = of {
                    edge["var"] = self.program.var(b.var).name.as_str().into();
                    edge["version"] = v.into();
                }
                edges.push(edge);
            }
        }
        json!({ "nodes": nodes, "edges": edges }).to_string() + "\n"
    }
}

/// Inside the quotes of Graphviz.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
