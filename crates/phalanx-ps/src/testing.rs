//! Tables that tests open.

use crate::spec::{RowReduction, Spread, TableRule, TableSpec, TableUpdate};
use phalanx_core::DType;
use std::sync::Arc;

/// 64 rows of 4 elements; element e of row r begins with r + e / 8.
pub fn spec(name: &str) -> TableSpec {
    TableSpec {
        name: name.to_string(),
        height: 64,
        width: 4,
        dtype: DType::F32,
        first: Arc::new(|row, bytes| {
            for (e, value) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *value = (row as f32 + e as f32 / 8.0).to_le_bytes();
            }
        }),
        rule: TableRule::new(TableUpdate::Sgd),
        reduction: RowReduction::Sum,
        wire: None,
        partitions: 3,
        spread: Spread::Mod,
        raw: false,
    }
}
