//! The envelope of our files: eight letters, the version, the length of the head, a checksum of all that
//! follows; the head; the body.

use super::SavedError;
use crate::exec::Tensor;
use phalanx_core::DType;
use serde::{Serialize, de::DeserializeOwned};

/// Letters, version, length of the head, checksum.
const PREFIX: usize = 8 + 4 + 8 + 8;

/// Which kind of file it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub magic: [u8; 8],
    pub version: u32,
}

pub(super) fn seal(kind: Kind, head: &impl Serialize, body: &[u8]) -> Result<Vec<u8>, SavedError> {
    let head = postcard::to_allocvec(head).map_err(|e| SavedError::Head(e.to_string()))?;
    let mut file = Vec::with_capacity(PREFIX + head.len() + body.len());
    file.extend(kind.magic);
    file.extend(kind.version.to_le_bytes());
    file.extend((head.len() as u64).to_le_bytes());
    file.extend([0; 8]);
    file.extend(head);
    file.extend(body);
    let sum = checksum(&file[PREFIX..]).to_le_bytes();
    file[PREFIX - 8..PREFIX].copy_from_slice(&sum);
    Ok(file)
}

/// The head, and the body that nobody has looked at yet.
pub(super) fn open<H: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<(H, &[u8]), SavedError> {
    let Some((prefix, rest)) = bytes.split_at_checked(PREFIX) else {
        let (wanted, got) = (PREFIX as u64, bytes.len() as u64);
        return Err(SavedError::Damaged { what: "length", wanted, got });
    };
    if prefix[..8] != kind.magic {
        return Err(SavedError::Foreign);
    }
    let number =
        |at: usize| u64::from_le_bytes(prefix[at..at + 8].try_into().expect("the prefix is long enough"));
    let version = number(8) as u32;
    if version != kind.version {
        return Err(SavedError::Version { wanted: kind.version, got: version });
    }
    let (wanted, got) = (number(20), checksum(rest));
    if wanted != got {
        return Err(SavedError::Damaged { what: "checksum", wanted, got });
    }
    let n_head = number(12);
    let split = usize::try_from(n_head).ok().and_then(|n| rest.split_at_checked(n));
    let Some((head, body)) = split else {
        let got = rest.len() as u64;
        return Err(SavedError::Damaged { what: "length of the head", wanted: n_head, got });
    };
    let head = postcard::from_bytes(head).map_err(|e| SavedError::Head(e.to_string()))?;
    Ok((head, body))
}

/// Takes a value off the front of the body.
pub(super) fn value(body: &mut &[u8], var: &str, dtype: DType, dims: &[usize]) -> Result<Tensor, SavedError> {
    let n = dims.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
    let Some((value, rest)) = body.split_at_checked(n) else {
        let (wanted, got) = (n as u64, body.len() as u64);
        return Err(SavedError::Damaged { what: "length of the values", wanted, got });
    };
    *body = rest;
    let wanted = format!("{dtype}{dims:?}");
    Tensor::from_le_bytes(dtype, dims, value).map_err(|e| SavedError::Misfit {
        var: var.to_string(),
        wanted,
        got: e.to_string(),
    })
}

/// After the last value there is nothing.
pub(super) fn end(body: &[u8]) -> Result<(), SavedError> {
    match body.len() as u64 {
        0 => Ok(()),
        got => Err(SavedError::Damaged { what: "bytes after the values", wanted: 0, got }),
    }
}

/// Notices damage, not malice (FNV-1a).
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}
