//! What a checkpoint holds and where: `manifest.json`, and the records of which it is made.
//!
//! The last field of the file is `blake3`, the digest of all bytes before it (without the comma, and with the closing
//! brace). Bytes are compared, not values: no reader must print numbers as we do.
//!
//! - MANIFEST-1: a manifest that is accepted describes every element of every tensor exactly once, within files of the
//!   checkpoint's own directory.

use crate::{
    error::ManifestFault,
    layout,
    share::{TensorInfo, TensorSlice},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

const FORMAT: u64 = 1;
/// Far more than the slices of a million tensors.
pub const LARGEST: u64 = 1 << 30;
const DIGEST_FIELD: &str = ",\n  \"blake3\": \"";
const END: &str = "\"\n}\n";

/// What the caller says of a checkpoint. `sampler` and `extra` are plain JSON; JSON has no NaN and no infinity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Training steps in this state.
    pub step: u64,
    /// Passes over the data.
    pub epoch: u64,
    pub seed: u64,
    /// The next run of the graph, from which random numbers follow.
    pub run: u64,
    /// The number of ranks.
    pub world: u32,
    #[serde(default)]
    pub sampler: Value,
    #[serde(default)]
    pub extra: Value,
}

/// A slice as it stands in a shard. Plain data: ranks exchange it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRecord {
    pub tensor: TensorInfo,
    pub start: u64,
    pub count: u64,
    /// Where its bytes begin in the file.
    pub at: u64,
    /// xxh3 of its bytes: it tells which tensor is damaged once the digest has told that one is.
    pub xxh3: String,
}

/// A shard that is on the disk. Plain data: ranks exchange it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRecord {
    pub shard: u32,
    pub of: u32,
    /// The rank that wrote it.
    pub rank: u32,
    pub bytes: u64,
    pub blake3: String,
    pub slices: Vec<SliceRecord>,
}

/// One shard in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardEntry {
    pub file: String,
    pub rank: u32,
    pub bytes: u64,
    pub blake3: String,
}

/// One slice in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceEntry {
    pub shard: u32,
    pub start: u64,
    pub count: u64,
    /// Where its bytes begin in the file.
    pub at: u64,
    pub xxh3: String,
}

/// One tensor in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorRecord {
    #[serde(flatten)]
    pub info: TensorInfo,
    /// In the order of their elements.
    pub slices: Vec<SliceEntry>,
}

/// What a checkpoint holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u64,
    #[serde(flatten)]
    pub about: About,
    pub shards: Vec<ShardEntry>,
    /// By name.
    pub tensors: Vec<TensorRecord>,
}

impl Manifest {
    /// The manifest of these shards, which the ranks have collected from each other, in any order.
    pub fn new(about: About, mut records: Vec<ShardRecord>) -> Result<Manifest, ManifestFault> {
        records.sort_by_key(|r| r.shard);
        let mut tensors: BTreeMap<String, TensorRecord> = BTreeMap::new();
        let mut shards = Vec::new();
        for (i, record) in records.iter().enumerate() {
            let shard = record.shard;
            if shard as usize != i || record.of as usize != records.len() {
                let why = "the records are not those of all shards, each once";
                return Err(ManifestFault::Shard { shard, why });
            }
            for SliceRecord { tensor, start, count, at, xxh3 } in record.slices.iter().cloned() {
                let entry = tensors
                    .entry(tensor.name.clone())
                    .or_insert_with(|| TensorRecord { info: tensor.clone(), slices: Vec::new() });
                if entry.info != tensor {
                    let (one, other) = (entry.info.form(), tensor.form());
                    return Err(ManifestFault::Disagree { name: tensor.name, one, other });
                }
                entry.slices.push(SliceEntry { shard, start, count, at, xxh3 });
            }
            let file = layout::shard(record.shard, record.of);
            let (bytes, blake3) = (record.bytes, record.blake3.clone());
            shards.push(ShardEntry { file, rank: record.rank, bytes, blake3 });
        }
        let mut tensors: Vec<TensorRecord> = tensors.into_values().collect();
        tensors.iter_mut().for_each(|t| t.slices.sort_by_key(|s| (s.start, s.count)));
        let manifest = Manifest { format: FORMAT, about, shards, tensors };
        manifest.check()?;
        Ok(manifest)
    }

    pub fn step(&self) -> u64 {
        self.about.step
    }

    /// Bytes of all shards.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().fold(0, |sum, shard| shard.bytes.saturating_add(sum))
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorRecord> {
        let at = self.tensors.binary_search_by(|t| t.info.name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[at])
    }

    /// The file's content, and its digest.
    pub fn encode(&self) -> (Vec<u8>, String) {
        let mut text = serde_json::to_string_pretty(self).expect("plain types with text keys");
        let digest = blake3::hash(text.as_bytes()).to_hex().to_string();
        text.truncate(text.len() - "\n}".len());
        text.push_str(DIGEST_FIELD);
        text.push_str(&digest);
        text.push_str(END);
        (text.into_bytes(), digest)
    }

    /// The manifest in these bytes, and its digest.
    pub fn decode(bytes: &[u8]) -> Result<(Manifest, String), ManifestFault> {
        let n_hex = 2 * blake3::OUT_LEN;
        let body = bytes.len().checked_sub(DIGEST_FIELD.len() + n_hex + END.len());
        let (body, tail) = bytes.split_at(body.ok_or(ManifestFault::NoDigest)?);
        let digest = tail
            .strip_prefix(DIGEST_FIELD.as_bytes())
            .and_then(|tail| tail.strip_suffix(END.as_bytes()))
            .ok_or(ManifestFault::NoDigest)?;
        let wanted = blake3::Hasher::new().update(body).update(b"\n}").finalize().to_hex();
        if wanted.as_bytes() != digest {
            return Err(ManifestFault::Digest);
        }
        let value: Value = serde_json::from_slice(bytes).map_err(|e| ManifestFault::Json(e.to_string()))?;
        match value.get("format").and_then(Value::as_u64) {
            Some(FORMAT) => {}
            Some(found) => return Err(ManifestFault::Format { found, known: FORMAT }),
            None => return Err(ManifestFault::Json("it has no format".into())),
        }
        let manifest: Manifest =
            serde_json::from_value(value).map_err(|e| ManifestFault::Json(e.to_string()))?;
        manifest.check()?;
        Ok((manifest, wanted.to_string()))
    }

    /// MANIFEST-1. Names and numbers may come from anywhere.
    fn check(&self) -> Result<(), ManifestFault> {
        let of = u32::try_from(self.shards.len()).unwrap_or(u32::MAX);
        for (shard, entry) in (0..of).zip(&self.shards) {
            let wrong = |why| ManifestFault::Shard { shard, why };
            if entry.file != layout::shard(shard, of) {
                return Err(wrong("its file has another name"));
            }
            if entry.blake3.len() != 2 * blake3::OUT_LEN {
                return Err(wrong("its digest is not one"));
            }
        }
        for pair in self.tensors.windows(2) {
            if pair[0].info.name >= pair[1].info.name {
                let name = pair[1].info.name.clone();
                return Err(ManifestFault::Tensor { name, why: "names are not unique and sorted" });
            }
        }
        self.tensors.iter().try_for_each(|tensor| self.check_tensor(tensor))?;
        self.check_overlaps()
    }

    /// No two slices have the same bytes of a file.
    fn check_overlaps(&self) -> Result<(), ManifestFault> {
        let ranges = self.tensors.iter().flat_map(|tensor| {
            let size = tensor.info.dtype.size() as u64;
            tensor.slices.iter().map(move |s| (s.shard, s.at, s.at + s.count * size, &tensor.info.name))
        });
        let mut ranges: Vec<_> = ranges.filter(|(_, at, end, _)| end > at).collect();
        ranges.sort();
        match ranges.windows(2).find(|two| two[0].0 == two[1].0 && two[0].2 > two[1].1) {
            Some(two) => {
                Err(ManifestFault::Tensor { name: two[1].3.clone(), why: "it overlaps another one" })
            }
            None => Ok(()),
        }
    }

    fn check_tensor(&self, tensor: &TensorRecord) -> Result<(), ManifestFault> {
        let name = || tensor.info.name.clone();
        let wrong = |why| ManifestFault::Tensor { name: name(), why };
        let (elements, size) = (tensor.info.elements(), tensor.info.dtype.size() as u64);
        // From here on, products of elements and their size do not overflow.
        elements.checked_mul(size).ok_or_else(|| wrong("it has too many elements"))?;
        let mut next = 0u64;
        for slice in &tensor.slices {
            let shard =
                self.shards.get(slice.shard as usize).ok_or_else(|| wrong("its shard does not exist"))?;
            let end = slice.count.checked_mul(size).and_then(|n| n.checked_add(slice.at));
            if end.is_none_or(|end| end > shard.bytes) {
                return Err(wrong("a slice is beyond the end of its shard"));
            }
            if slice.start > next {
                return Err(ManifestFault::Uncovered { name: name(), from: next, to: slice.start });
            }
            if slice.start < next {
                return Err(ManifestFault::Twice { name: name(), from: slice.start });
            }
            next = next.checked_add(slice.count).ok_or_else(|| wrong("it has too many elements"))?;
        }
        if next > elements {
            return Err(wrong("its slices have more elements than its shape"));
        }
        if next < elements || tensor.slices.is_empty() {
            return Err(ManifestFault::Uncovered { name: name(), from: next, to: elements });
        }
        Ok(())
    }
}

impl SliceRecord {
    pub(crate) fn new(slice: &TensorSlice, at: u64, xxh3: u64) -> SliceRecord {
        let (start, count) = (slice.start, slice.count);
        SliceRecord { tensor: slice.tensor.clone(), start, count, at, xxh3: format!("{xxh3:016x}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::DType;
    use serde_json::json;

    fn slice(name: &str, start: u64, count: u64) -> SliceRecord {
        let tensor = TensorInfo::new(name, DType::F32, [10]);
        SliceRecord::new(&TensorSlice { tensor, start, count }, 8, 7)
    }

    fn record(shard: u32, of: u32, slices: Vec<SliceRecord>) -> ShardRecord {
        ShardRecord { shard, of, rank: shard, bytes: 100, blake3: "0".repeat(64), slices }
    }

    fn about() -> About {
        let extra = json!({ "rate": 0.1f64 + 0.2, "tiny": 5e-324, "big": u64::MAX });
        About { step: 7, epoch: 1, seed: u64::MAX, run: 3, world: 2, sampler: json!([1, "a"]), extra }
    }

    #[test]
    fn what_is_written_is_read_with_the_bits_of_its_floats() {
        let records = vec![record(1, 2, vec![slice("a", 4, 6)]), record(0, 2, vec![slice("a", 0, 4)])];
        let manifest = Manifest::new(about(), records).unwrap();
        let (bytes, digest) = manifest.encode();
        assert_eq!(Manifest::decode(&bytes), Ok((manifest, digest)));
        let value: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(value["shards"][1]["file"], "shard-1-of-2.safetensors");
    }

    /// CKPT-2.
    #[test]
    fn every_changed_bit_is_found() {
        let (bytes, _) =
            Manifest::new(about(), vec![record(0, 1, vec![slice("a", 0, 10)])]).unwrap().encode();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let fault = Manifest::decode(&damaged).unwrap_err();
            assert!(matches!(fault, ManifestFault::Digest | ManifestFault::NoDigest), "bit {bit}: {fault}");
        }
        for n in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..n]).is_err(), "{n} bytes");
        }
    }

    /// MANIFEST-1.
    #[test]
    fn a_manifest_that_leaves_something_out_or_points_elsewhere_is_refused() {
        let new = |records| Manifest::new(about(), records).unwrap_err();
        let uncovered = |from, to| ManifestFault::Uncovered { name: "a".into(), from, to };
        assert_eq!(new(vec![record(0, 1, vec![slice("a", 0, 9)])]), uncovered(9, 10));
        assert_eq!(new(vec![record(0, 1, vec![slice("a", 1, 9)])]), uncovered(0, 1));
        let twice = vec![record(0, 1, vec![slice("a", 0, 9), slice("a", 8, 2)])];
        assert_eq!(new(twice), ManifestFault::Twice { name: "a".into(), from: 8 });
        assert!(matches!(new(vec![record(0, 2, vec![])]), ManifestFault::Shard { .. }));
        assert!(matches!(new(vec![record(0, 2, vec![]), record(0, 2, vec![])]), ManifestFault::Shard { .. }));

        let good = Manifest::new(about(), vec![record(0, 1, vec![slice("a", 0, 10)])]).unwrap();
        type Change = fn(&mut Manifest);
        let changes: [Change; 9] = [
            |m| m.shards[0].file = "../elsewhere".into(),
            |m| m.shards[0].bytes = 47,
            |m| m.tensors[0].slices[0].at = u64::MAX,
            |m| m.tensors[0].slices[0].shard = 1,
            |m| m.tensors[0].slices[0].count = u64::MAX,
            |m| m.tensors[0].info.shape = vec![u64::MAX, 2],
            |m| m.tensors.push(m.tensors[0].clone()),
            |m| m.format = 2,
            |m| {
                m.tensors.push(m.tensors[0].clone());
                m.tensors[1].info.name = "b".into();
            },
        ];
        for (i, change) in changes.into_iter().enumerate() {
            let mut bad = good.clone();
            change(&mut bad);
            assert!(Manifest::decode(&bad.encode().0).is_err(), "change {i}");
        }
    }
}
