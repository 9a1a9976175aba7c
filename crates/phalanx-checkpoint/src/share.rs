//! Which shard holds which elements. Pure, and the same on all ranks.
//!
//! - SHARE-1: every element of every tensor is in exactly one slice, in the order of the tensors.
//! - SHARE-2: shares differ by less than [`WHOLE_BELOW`] bytes: only tensors below that size are kept in one piece.

use phalanx_core::DType;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Tensors of fewer bytes are not cut: two slices of them would cost more than they even out.
pub const WHOLE_BELOW: u64 = 64 << 10;

/// A tensor's name and form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorInfo {
    pub name: String,
    #[serde(serialize_with = "dtype_name", deserialize_with = "dtype_of")]
    pub dtype: DType,
    pub shape: Vec<u64>,
    /// The only rank that has this tensor, if not all have it alike. It is not missed where another world loads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
}

impl TensorInfo {
    /// A tensor that all ranks have alike.
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl IntoIterator<Item = usize>) -> TensorInfo {
        let shape = shape.into_iter().map(|d| d as u64).collect();
        TensorInfo { name: name.into(), dtype, shape, owner: None }
    }

    /// The same, but only this rank has it. Ranks must give such tensors different names.
    pub fn owned_by(mut self, rank: u32) -> TensorInfo {
        self.owner = Some(rank);
        self
    }

    /// The number of elements; `u64::MAX` for a shape that no memory holds.
    pub fn elements(&self) -> u64 {
        let is_empty = self.shape.contains(&0);
        let product = self.shape.iter().fold(1u64, |n, &d| n.saturating_mul(d));
        if is_empty { 0 } else { product }
    }

    pub fn bytes(&self) -> u64 {
        self.elements().saturating_mul(self.dtype.size() as u64)
    }

    /// Type and shape, such as `f32[3, 4]`.
    pub fn form(&self) -> String {
        format!("{}{:?}", self.dtype, self.shape)
    }
}

impl fmt::Display for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.form())
    }
}

fn dtype_name<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(dtype.name())
}

fn dtype_of<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

/// A range of elements of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSlice {
    pub tensor: TensorInfo,
    /// The first element, counted through the tensor in its order in memory.
    pub start: u64,
    pub count: u64,
}

impl TensorSlice {
    pub fn whole(tensor: TensorInfo) -> TensorSlice {
        let count = tensor.elements();
        TensorSlice { tensor, start: 0, count }
    }

    pub fn is_whole(&self) -> bool {
        self.start == 0 && self.count == self.tensor.elements()
    }

    pub fn bytes(&self) -> u64 {
        self.count * self.tensor.dtype.size() as u64
    }

    /// Where the slice begins in the tensor's bytes.
    pub fn offset(&self) -> u64 {
        self.start * self.tensor.dtype.size() as u64
    }
}

/// Shares out tensors that all ranks have alike: shard `i` of `n_shards` gets the `i`th part of all bytes.
pub fn share_out(tensors: &[TensorInfo], n_shards: usize) -> Vec<Vec<TensorSlice>> {
    assert!(n_shards > 0, "a checkpoint has at least one shard");
    let total: u64 = tensors.iter().map(TensorInfo::bytes).sum();
    let mut shares = vec![Vec::new(); n_shards];
    let (mut shard, mut begin) = (0, 0);
    for tensor in tensors {
        let (size, bytes) = (tensor.dtype.size() as u64, tensor.bytes());
        // Where shard `i` ends within this tensor, in elements; `None` if it goes on behind it.
        let end = |i: usize| {
            if i + 1 == n_shards {
                return None;
            }
            let cut = (u128::from(total) * (i as u128 + 1) / n_shards as u128) as u64;
            let inside = cut.saturating_sub(begin);
            let snapped = match bytes {
                _ if bytes >= WHOLE_BELOW => inside,
                _ if inside * 2 < bytes => 0,
                _ if inside < bytes => bytes,
                _ => inside,
            };
            (snapped < bytes).then_some(snapped / size)
        };
        let mut start = 0;
        while let Some(stop) = end(shard) {
            if stop > start {
                shares[shard].push(TensorSlice { tensor: tensor.clone(), start, count: stop - start });
                start = stop;
            }
            shard += 1;
        }
        shares[shard].push(TensorSlice { tensor: tensor.clone(), start, count: tensor.elements() - start });
        begin += bytes;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tensors() -> impl Strategy<Value = Vec<TensorInfo>> {
        let dims = prop_oneof![
            prop::collection::vec(0usize..40, 0..3),
            prop::collection::vec(100usize..400, 2..3),
            Just(vec![0, usize::MAX, usize::MAX])
        ];
        let one = (0usize..11, dims);
        prop::collection::vec(one, 0..20).prop_map(|all| {
            let named = all.into_iter().enumerate();
            named.map(|(i, (d, dims))| TensorInfo::new(format!("t{i}"), DType::ALL[d], dims)).collect()
        })
    }

    proptest! {
        /// SHARE-1, SHARE-2.
        #[test]
        fn every_element_is_in_one_slice_and_shares_are_even(tensors in tensors(), n in 1usize..9) {
            let shares = share_out(&tensors, n);
            prop_assert_eq!(shares.len(), n);
            let mut slices = shares.iter().flatten().peekable();
            for tensor in &tensors {
                let mut next = 0;
                while let Some(slice) = slices.next_if(|s| s.tensor.name == tensor.name) {
                    prop_assert_eq!(slice.start, next);
                    prop_assert!(slice.count > 0 || tensor.elements() == 0);
                    next += slice.count;
                }
                prop_assert_eq!(next, tensor.elements(), "{}", tensor);
            }
            prop_assert!(slices.next().is_none());
            let total: u64 = tensors.iter().map(TensorInfo::bytes).sum();
            for share in &shares {
                let bytes: u64 = share.iter().map(TensorSlice::bytes).sum();
                prop_assert!(bytes.abs_diff(total / n as u64) < WHOLE_BELOW, "{} of {} / {}", bytes, total, n);
            }
        }
    }

    #[test]
    fn a_large_tensor_is_cut_and_a_small_one_is_not() {
        let tensors =
            [TensorInfo::new("small", DType::F32, [100]), TensorInfo::new("large", DType::F32, [100_000])];
        let cuts: Vec<Vec<(&str, u64, u64)>> =
            vec![vec![("small", 0, 100), ("large", 0, 49_950)], vec![("large", 49_950, 50_050)]];
        let shares = share_out(&tensors, 2);
        let got: Vec<Vec<_>> = shares
            .iter()
            .map(|share| share.iter().map(|s| (s.tensor.name.as_str(), s.start, s.count)).collect())
            .collect();
        assert_eq!(got, cuts);
        assert_eq!(share_out(&tensors[..1], 3).iter().map(Vec::len).sum::<usize>(), 1);
    }
}
