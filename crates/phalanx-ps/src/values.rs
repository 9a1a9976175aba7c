//! Bytes of rows, aligned for every element type, and their change between the type of a table and the type in which they travel.

use crate::spec::{RowReduction, TableSpec};
use half::{bf16, f16, slice::HalfFloatSliceExt};
use phalanx_core::{DType, kernel::Float};
use phalanx_net::large_pages;
use std::borrow::Cow;

/// Elements of rows as they are stored or travel.
#[derive(Clone, Debug, Default)]
pub struct RowValues {
    store: Vec<u64>,
    len: usize,
}

impl RowValues {
    pub fn zeros(len: usize) -> RowValues {
        let mut store = vec![0u64; len.div_ceil(8)];
        large_pages::prefer(bytemuck::cast_slice_mut(&mut store));
        RowValues { store, len }
    }

    pub fn of(bytes: &[u8]) -> RowValues {
        let mut values = RowValues::zeros(bytes.len());
        values.bytes_mut().copy_from_slice(bytes);
        values
    }

    /// Longer, with zeros.
    pub fn resize(&mut self, len: usize) {
        self.store.resize(len.div_ceil(8), 0);
        self.len = len;
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.store)[..self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.store)[..self.len]
    }

    pub fn as_slice<T: bytemuck::Pod>(&self) -> &[T] {
        let whole = bytemuck::cast_slice::<u64, T>(&self.store);
        &whole[..self.len / size_of::<T>()]
    }

    pub fn as_mut_slice<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        let n = self.len / size_of::<T>();
        &mut bytemuck::cast_slice_mut::<u64, T>(&mut self.store)[..n]
    }

    /// The same rows in the other type; moved where it is the same.
    pub fn convert(self, from: DType, to: DType) -> RowValues {
        match (from, to) {
            (DType::F32, DType::F16) => {
                let mut out = RowValues::zeros(self.len / 2);
                out.as_mut_slice::<f16>().convert_from_f32_slice(self.as_slice());
                out
            }
            (DType::F16, DType::F32) => {
                let mut out = RowValues::zeros(self.len * 2);
                self.as_slice::<f16>().convert_to_f32_slice(out.as_mut_slice());
                out
            }
            (DType::F32, DType::BF16) => {
                let mut out = RowValues::zeros(self.len / 2);
                out.as_mut_slice::<bf16>().convert_from_f32_slice(self.as_slice());
                out
            }
            (DType::BF16, DType::F32) => {
                let mut out = RowValues::zeros(self.len * 2);
                self.as_slice::<bf16>().convert_to_f32_slice(out.as_mut_slice());
                out
            }
            // Specs allow nothing else (TableSpec::check).
            _ => self,
        }
    }
}

/// Rows with strictly rising numbers, and what belongs to each.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    pub ids: Vec<u32>,
    /// How many workers touched each row; empty where nobody asks.
    pub touches: Vec<u32>,
    pub values: RowValues,
}

impl Rows {
    /// The rows of one worker, each once.
    pub fn of_worker(ids: &[u64], values: &[u8], spec: &TableSpec) -> Rows {
        let (ids, values) = match spec.dtype {
            DType::F64 => gathered(ids, &elements::<f64>(values), spec.width),
            _ => gathered(ids, &elements::<f32>(values), spec.width),
        };
        let touches = if spec.reduction == RowReduction::ByTouch { vec![1; ids.len()] } else { Vec::new() };
        Rows { ids, touches, values }
    }

    /// The same of rows that travelled as they came, with the bits that the worker would have made.
    pub fn of_raw(self, spec: &TableSpec) -> Rows {
        let ids: Vec<u64> = self.ids.iter().map(|&id| id.into()).collect();
        Rows::of_worker(&ids, self.values.bytes(), spec)
    }

    /// The sum of several contributions, row by row, in their order.
    pub fn merge(contributions: Vec<Rows>, width: usize, dtype: DType) -> Rows {
        let mut some: Vec<Rows> = contributions.into_iter().filter(|rows| !rows.ids.is_empty()).collect();
        match (some.len(), dtype) {
            (0, _) => Rows::default(),
            (1, _) => some.remove(0),
            (_, DType::F64) => merged::<f64>(&some, width),
            _ => merged::<f32>(&some, width),
        }
    }
}

/// Bytes as elements: copied only if they are not aligned.
fn elements<T: Float>(bytes: &[u8]) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(elements) => Cow::Borrowed(elements),
        Err(_) => Cow::Owned(RowValues::of(bytes).as_slice().to_vec()),
    }
}

fn merged<T: Float>(some: &[Rows], width: usize) -> Rows {
    let mut ids: Vec<u32> = some.iter().flat_map(|rows| rows.ids.iter().copied()).collect();
    ids.sort_unstable();
    ids.dedup();
    let has_touches = some.iter().any(|rows| !rows.touches.is_empty());
    let mut touches = vec![0; if has_touches { ids.len() } else { 0 }];
    let mut values = RowValues::zeros(ids.len() * width * size_of::<T>());
    let out = values.as_mut_slice::<T>();
    let mut is_begun = vec![false; ids.len()];
    for rows in some {
        let mut at = 0;
        for (i, (id, row)) in rows.ids.iter().zip(rows.values.as_slice::<T>().chunks_exact(width)).enumerate()
        {
            // Both rise, so the search goes on where it stopped.
            at += ids[at..].partition_point(|have| have < id);
            let to = &mut out[at * width..(at + 1) * width];
            if std::mem::replace(&mut is_begun[at], true) {
                to.iter_mut().zip(row).for_each(|(to, &v)| *to += v);
            } else {
                // Not added to zero, which would make a plus of minus zero.
                to.copy_from_slice(row);
            }
            if has_touches {
                touches[at] += rows.touches.get(i).copied().unwrap_or(1);
            }
        }
    }
    Rows { ids, touches, values }
}

/// Sorted numbers without repetition, and the sum of the rows of each, in the order in which they stand.
pub fn gathered<T: Float>(ids: &[u64], rows: &[T], width: usize) -> (Vec<u32>, RowValues) {
    let mut order: Vec<u32> = (0..ids.len() as u32).collect();
    // Stable: equal numbers keep the order in which they stand.
    order.sort_by_key(|&i| ids[i as usize]);
    let mut unique: Vec<u32> = Vec::with_capacity(ids.len());
    let mut values = RowValues::zeros(ids.len() * width * size_of::<T>());
    let out = values.as_mut_slice::<T>();
    for &i in &order {
        let id = ids[i as usize] as u32;
        let row = &rows[i as usize * width..(i as usize + 1) * width];
        if unique.last() == Some(&id) {
            let to = &mut out[(unique.len() - 1) * width..unique.len() * width];
            to.iter_mut().zip(row).for_each(|(to, &v)| *to += v);
        } else {
            out[unique.len() * width..(unique.len() + 1) * width].copy_from_slice(row);
            unique.push(id);
        }
    }
    values.len = unique.len() * width * size_of::<T>();
    (unique, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(ids: &[u32], values: &[f32]) -> Rows {
        Rows {
            ids: ids.to_vec(),
            touches: vec![1; ids.len()],
            values: RowValues::of(bytemuck::cast_slice(values)),
        }
    }

    #[test]
    fn contributions_add_up_row_by_row_in_their_order() {
        let some =
            vec![rows(&[1, 5], &[1e8, 2.0]), rows(&[0, 1], &[3.0, 1.0]), rows(&[], &[]), rows(&[1], &[-1e8])];
        let all = Rows::merge(some, 1, DType::F32);
        assert_eq!((all.ids, all.touches), (vec![0, 1, 5], vec![1, 3, 1]));
        assert_eq!(all.values.as_slice::<f32>(), [3.0, (1e8f32 + 1.0) - 1e8, 2.0]);
    }

    #[test]
    fn own_duplicates_are_added_in_the_order_in_which_they_stand() {
        let (ids, values) = gathered(&[7, 2, 7, 2], &[1.0f32, 1.5, 10.0, 20.0, 3.0, 0.5, -1.0, 5.0], 2);
        assert_eq!((ids, values.as_slice::<f32>()), (vec![2, 7], &[9.0, 25.0, 4.0, 2.0][..]));
        assert_eq!(values.len(), 16);
    }

    #[test]
    fn rows_may_lie_at_any_address() {
        let spec = TableSpec { width: 2, ..crate::testing::spec("t") };
        let values: &[u8] = bytemuck::cast_slice(&[1.0f32, 2.0, 3.0, 4.0]);
        let wanted = Rows::of_worker(&[5, 3], values, &spec);
        for shift in 0..4 {
            let mut bytes = vec![0; shift];
            bytes.extend_from_slice(values);
            let rows = Rows::of_worker(&[5, 3], &bytes[shift..], &spec);
            assert_eq!((rows.ids, rows.values.bytes()), (vec![3, 5], wanted.values.bytes()));
        }
    }

    #[test]
    fn rows_that_travel_narrow_come_back_rounded_once() {
        let sent = RowValues::of(bytemuck::cast_slice(&[1.0f32, 1.0 + 1e-4, -65504.0]));
        for (wire, wanted) in [(DType::F16, [1.0, 1.0, -65504.0]), (DType::BF16, [1.0, 1.0, -65536.0])] {
            let narrow = sent.clone().convert(DType::F32, wire);
            assert_eq!(narrow.len(), 6);
            assert_eq!(narrow.convert(wire, DType::F32).as_slice::<f32>(), wanted);
        }
        assert_eq!(sent.convert(DType::F32, DType::F32).len(), 12);
    }
}
