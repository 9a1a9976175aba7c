//! TensorBoard's messages, as far as the writer fills them: numbers of fields as in its `event.proto` and `summary.proto`.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct EventMessage {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, tag = "2")]
    pub step: i64,
    #[prost(oneof = "What", tags = "3, 5")]
    pub what: Option<What>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum What {
    /// The first event of every file.
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<SummaryValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SummaryValue {
    #[prost(string, tag = "1")]
    pub tag: String,
    #[prost(oneof = "Shown", tags = "2, 5")]
    pub shown: Option<Shown>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Shown {
    #[prost(float, tag = "2")]
    Simple(f32),
    #[prost(message, tag = "5")]
    Histogram(Histogram),
}

/// Counts of values by size. A bucket here ends at its limit and begins where the one before it ends, the first one at `min`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Histogram {
    #[prost(double, tag = "1")]
    pub min: f64,
    #[prost(double, tag = "2")]
    pub max: f64,
    #[prost(double, tag = "3")]
    pub n: f64,
    #[prost(double, tag = "4")]
    pub sum: f64,
    #[prost(double, tag = "5")]
    pub sum_squares: f64,
    #[prost(double, repeated, tag = "6")]
    pub limits: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    pub counts: Vec<f64>,
}
