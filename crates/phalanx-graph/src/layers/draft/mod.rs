//! What a layer consists of, as data: its parameters and operations, in the order in which they join a program. Layers of
//! several operations are expanded here and nowhere else. [`Builder`](super::Builder) and `phalanx.graph` add what a draft
//! lists; names, shared parameters and lengths of sequences are theirs to decide.
//!
//! - LAYER-1: an item of a draft takes inputs of the layer, and values that items before it made.

mod activation;
mod attention;
mod fault;
mod loss;
mod network;
mod norm;
mod projected;
mod recurrent;
mod sequence;
mod tags;
#[cfg(test)]
mod tests;

use crate::{
    ir::{Dim, Init, Shape, Sig},
    op::OpKind,
};
use serde::{Deserialize, Serialize};

pub use activation::ActivationLayer;
pub use attention::AttentionLayer;
pub use fault::LayerFault;
pub use loss::{AccuracyLayer, HuberLayer, StackLayer};
pub use network::{ConvLayer, DropoutLayer, EmbeddingLayer, FcLayer, PoolLayer};
pub use norm::{BatchNormLayer, LayerNormLayer};
pub use projected::{LstmBias, ProjectedGruLayer, ProjectedLstmLayer};
pub use recurrent::{RecurrentLayer, RnnCell};
pub use sequence::{SequencePoolLayer, SequenceSoftmaxLayer};
pub use tags::{CrfDecodingLayer, CrfLayer};

/// Where a value of a draft comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum DraftValue {
    /// An input of the layer.
    Input(usize),
    /// An output of an item.
    Made(usize, usize),
}

/// After what the outputs of an operation are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Naming {
    /// The layer.
    Layer,
    /// A layer within it.
    Part(usize),
    /// The operation is a layer by itself.
    Alone(&'static str),
}

/// What joins the program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum DraftItem {
    /// A variable that is learned, of the layer's element type; or one that exists, if the caller shares it.
    Parameter {
        slot: &'static str,
        shape: Shape,
        begin: Init,
        naming: Naming,
    },
    /// A variable in the store that is not learned.
    State {
        slot: &'static str,
        shape: Shape,
        begin: Init,
    },
    Op {
        kind: OpKind,
        inputs: Vec<DraftValue>,
        naming: Naming,
    },
    /// An operation that writes variables, some of which live in the store.
    Write {
        kind: OpKind,
        inputs: Vec<DraftValue>,
        outputs: Vec<Written>,
    },
}

/// What such an operation writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Written {
    /// A new variable of the layer's element type. The layer's result has no slot.
    New {
        slot: Option<&'static str>,
        shape: Shape,
    },
    Stored(DraftValue),
}

/// A layer, expanded. The first output is its result.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LayerDraft {
    /// The kinds of the layers within it.
    pub parts: Vec<&'static str>,
    pub items: Vec<DraftItem>,
    pub outputs: Vec<DraftValue>,
}

macro_rules! layers {
    ($($kind:ident($layer:ident)),* $(,)?) => {
        /// Any layer that is expanded.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum LayerKind { $($kind($layer)),* }

        impl LayerKind {
            /// Every kind of layer.
            pub const KINDS: &[&str] = &[$(stringify!($kind)),*];

            /// Expands the layer for inputs like these.
            pub fn draft(&self, inputs: &[Sig]) -> Result<LayerDraft, LayerFault> {
                match self { $(LayerKind::$kind(layer) => layer.draft(inputs)),* }
            }
        }

        $(impl From<$layer> for LayerKind {
            fn from(layer: $layer) -> LayerKind { LayerKind::$kind(layer) }
        })*
    };
}

layers! {
    Accuracy(AccuracyLayer),
    Activation(ActivationLayer),
    Attention(AttentionLayer),
    BatchNorm(BatchNormLayer),
    Conv(ConvLayer),
    Crf(CrfLayer),
    CrfDecoding(CrfDecodingLayer),
    Dropout(DropoutLayer),
    Embedding(EmbeddingLayer),
    Fc(FcLayer),
    Huber(HuberLayer),
    LayerNorm(LayerNormLayer),
    Pool(PoolLayer),
    ProjectedGru(ProjectedGruLayer),
    ProjectedLstm(ProjectedLstmLayer),
    Recurrent(RecurrentLayer),
    SequencePool(SequencePoolLayer),
    SequenceSoftmax(SequenceSoftmaxLayer),
    Stack(StackLayer),
}

impl LayerDraft {
    fn parameter(
        &mut self,
        naming: Naming,
        slot: &'static str,
        shape: impl Into<Shape>,
        begin: Init,
    ) -> DraftValue {
        self.item(DraftItem::Parameter { slot, shape: shape.into(), begin, naming })
    }

    fn state(&mut self, slot: &'static str, shape: impl Into<Shape>, begin: Init) -> DraftValue {
        self.item(DraftItem::State { slot, shape: shape.into(), begin })
    }

    /// An operation; gives its first output.
    fn op(&mut self, naming: Naming, kind: impl Into<OpKind>, inputs: &[DraftValue]) -> DraftValue {
        self.item(DraftItem::Op { kind: kind.into(), inputs: inputs.to_vec(), naming })
    }

    /// An operation that is a layer by itself.
    fn alone(&mut self, layer: &'static str, kind: impl Into<OpKind>, inputs: &[DraftValue]) -> DraftValue {
        self.op(Naming::Alone(layer), kind, inputs)
    }

    fn item(&mut self, item: DraftItem) -> DraftValue {
        self.items.push(item);
        DraftValue::Made(self.items.len() - 1, 0)
    }

    /// The next layer within this one.
    fn part(&mut self, kind: &'static str) -> Naming {
        self.parts.push(kind);
        Naming::Part(self.parts.len() - 1)
    }

    /// Complete, with one result.
    fn giving(mut self, result: DraftValue) -> LayerDraft {
        self.outputs = vec![result];
        self
    }
}

/// Another output of the operation that made a value.
fn output(of: DraftValue, number: usize) -> DraftValue {
    match of {
        DraftValue::Made(item, _) => DraftValue::Made(item, number),
        input => input,
    }
}

/// The size of an axis that a parameter or a shape depends on.
fn fixed(inputs: &[Sig], input: usize, axis: usize) -> Result<usize, LayerFault> {
    match shape(inputs, input)?.dims().get(axis) {
        Some(Dim::Fixed(n)) => Ok(*n),
        Some(Dim::Batch(_) | Dim::BatchPlus(..)) => Err(LayerFault::OfBatch { input, axis }),
        None => Err(LayerFault::NoAxis { input, axis }),
    }
}

fn shape(inputs: &[Sig], input: usize) -> Result<&Shape, LayerFault> {
    inputs.get(input).map(|sig| &sig.shape).ok_or(LayerFault::Missing { input })
}

/// A size that the user wrote.
fn size(name: &'static str, given: i64) -> Result<usize, LayerFault> {
    usize::try_from(given).map_err(|_| LayerFault::Negative { name, given })
}
