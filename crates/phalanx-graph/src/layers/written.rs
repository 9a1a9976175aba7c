//! Adds what a draft lists to the builder's program. Parameters are named after the layer, outputs after their operation.

use super::{
    Builder, Made,
    draft::{DraftItem, DraftValue, LayerKind, Naming, Written},
};
use crate::{
    ir::{GraphError, Role, Sig, Site, VarId, VarKind},
    op::OpKind,
};

/// What a layer is called in errors, and in names of its parameters.
#[derive(Clone, Copy)]
pub struct LayerName {
    pub op: &'static str,
    pub as_name: &'static str,
}

impl LayerName {
    pub fn same(name: &'static str) -> LayerName {
        LayerName { op: name, as_name: name }
    }
}

impl Builder {
    /// Adds a layer; gives its outputs.
    #[track_caller]
    pub(super) fn layer(
        &mut self,
        called: LayerName,
        layer: impl Into<LayerKind>,
        inputs: &[VarId],
    ) -> Result<Vec<VarId>, GraphError> {
        let sigs: Vec<Sig> = inputs.iter().map(|&x| self.program.sig(x).clone()).collect();
        // Closures do not know their caller's line.
        let site = Site::here();
        let draft = layer.into().draft(&sigs).map_err(|fault| {
            let show = |&x: &VarId| format!("`{}` {}", self.program.var(x).name, self.program.sig(x));
            let shown: Vec<String> = inputs.iter().map(show).collect();
            GraphError::Layer { op: called.op, text: fault.tell(called.op, &shown), site }
        })?;
        let mut made = Vec::with_capacity(draft.items.len());
        for item in draft.items {
            let outputs = self.item(item, called.as_name, &draft.parts, &Found { inputs, made: &made })?;
            made.push(outputs);
        }
        let values = Found { inputs, made: &made };
        Ok(draft.outputs.into_iter().map(|value| values.get(value)).collect())
    }

    /// The same where only the first output is of interest.
    #[track_caller]
    pub(super) fn layer1(
        &mut self,
        called: LayerName,
        layer: impl Into<LayerKind>,
        inputs: &[VarId],
    ) -> Made {
        Ok(self.layer(called, layer, inputs)?[0])
    }

    #[track_caller]
    fn item(
        &mut self,
        item: DraftItem,
        layer: &str,
        parts: &[&str],
        values: &Found<'_>,
    ) -> Result<Vec<VarId>, GraphError> {
        match item {
            DraftItem::Parameter { slot, shape, begin, naming } => {
                let of = match naming {
                    Naming::Part(part) => parts[part],
                    Naming::Layer | Naming::Alone(_) => layer,
                };
                Ok(vec![self.parameter(&format!("{of}.{slot}"), shape, begin)?])
            }
            DraftItem::State { slot, shape, begin } => {
                Ok(vec![self.state(&format!("{layer}.{slot}"), shape, begin)?])
            }
            DraftItem::Op { kind, inputs, .. } => self.op(kind, &values.all(&inputs)),
            DraftItem::Write { kind, inputs, outputs } => {
                self.write(kind, &values.all(&inputs), outputs, layer, values)
            }
        }
    }

    /// An operation that writes variables of the store beside new ones.
    #[track_caller]
    fn write(
        &mut self,
        kind: OpKind,
        inputs: &[VarId],
        outputs: Vec<Written>,
        layer: &str,
        values: &Found<'_>,
    ) -> Result<Vec<VarId>, GraphError> {
        let site = Site::here();
        let mut written = Vec::with_capacity(outputs.len());
        for output in outputs {
            written.push(match output {
                Written::Stored(value) => values.get(value),
                Written::New { slot, shape } => {
                    let name = slot.map_or(kind.operator().name().to_string(), |s| format!("{layer}.{s}"));
                    let (name, sig) = (self.program.fresh(&name), Sig::dense(self.dtype, shape));
                    self.program.declare(&name, sig, VarKind::Temp, site.clone())?
                }
            });
        }
        self.program.append_to(kind, inputs, &written, Role::Forward, site)?;
        Ok(written)
    }
}

/// What the values of a draft are in the program.
struct Found<'a> {
    inputs: &'a [VarId],
    made: &'a [Vec<VarId>],
}

impl Found<'_> {
    /// Items take only what is there already (LAYER-1).
    fn get(&self, value: DraftValue) -> VarId {
        match value {
            DraftValue::Input(input) => self.inputs[input],
            DraftValue::Made(item, output) => self.made[item][output],
        }
    }

    fn all(&self, values: &[DraftValue]) -> Vec<VarId> {
        values.iter().map(|&value| self.get(value)).collect()
    }
}
