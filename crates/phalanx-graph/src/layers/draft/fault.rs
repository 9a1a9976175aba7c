//! Why a layer cannot be made of its inputs. The caller says what variables are called, so the text has their words for them.

/// What is wrong; `input` counts the inputs of the layer from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerFault {
    /// There are fewer inputs than the layer takes.
    Missing {
        input: usize,
    },
    NoAxis {
        input: usize,
        axis: usize,
    },
    /// A parameter would depend on the batch.
    OfBatch {
        input: usize,
        axis: usize,
    },
    /// No dimension is left to multiply by weights.
    NoneLeft {
        input: usize,
        axis: usize,
    },
    Takes {
        input: usize,
        wanted: &'static str,
    },
    Negative {
        name: &'static str,
        given: i64,
    },
    Groups {
        channels: usize,
        filters: usize,
        groups: i64,
    },
    Heads {
        input: usize,
        width: usize,
        heads: i64,
    },
    Gates {
        input: usize,
        gates: usize,
        size: i64,
    },
    NoActivation {
        act: String,
        known: String,
    },
}

impl LayerFault {
    /// The input that is wrong, if it is one.
    pub fn input(&self) -> Option<usize> {
        match *self {
            LayerFault::Missing { input }
            | LayerFault::NoAxis { input, .. }
            | LayerFault::OfBatch { input, .. }
            | LayerFault::NoneLeft { input, .. }
            | LayerFault::Takes { input, .. }
            | LayerFault::Heads { input, .. }
            | LayerFault::Gates { input, .. } => Some(input),
            LayerFault::Negative { .. } | LayerFault::Groups { .. } | LayerFault::NoActivation { .. } => None,
        }
    }

    /// The whole text, for a layer called `op`; `shown` has the inputs as the user knows them.
    pub fn tell(&self, op: &str, shown: &[String]) -> String {
        let shown = |input: usize| shown.get(input).map_or("nothing", String::as_str);
        match self {
            LayerFault::Missing { input } => format!("{op}: input {input} is missing"),
            LayerFault::NoAxis { input, axis } => format!("{op}: {} has no axis {axis}", shown(*input)),
            LayerFault::OfBatch { input, axis } => {
                let x = shown(*input);
                format!("{op}: axis {axis} of {x} depends on the batch; it must have a fixed size")
            }
            LayerFault::NoneLeft { input, axis } => {
                format!("{op}: {} has no dimension {axis} to take from", shown(*input))
            }
            LayerFault::Takes { input, wanted } => format!("{op} takes {wanted}, got {}", shown(*input)),
            LayerFault::Negative { name, given } => {
                format!("{op}: {name} must be a number from 0, got {given}")
            }
            LayerFault::Groups { channels, filters, groups } => format!(
                "{op}: {channels} channels and {filters} filters cannot be divided into {groups} groups"
            ),
            LayerFault::Heads { width, heads, .. } => {
                format!("{op}: a width of {width} cannot be divided into {heads} heads")
            }
            LayerFault::Gates { input, gates, size } => format!(
                "{op}: the input has {gates} gates side by side, as wide as size; got {} and size={size}. Take \
                 fc(x, {gates} * width) before",
                shown(*input)
            ),
            LayerFault::NoActivation { act, known } => {
                format!("there is no activation '{act}'; choose one of {known}")
            }
        }
    }
}
