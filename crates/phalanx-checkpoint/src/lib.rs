//! Checkpoints as files and directories. This crate does not know ranks' networks, graphs or Python.
//!
//! ```text
//! DIR/checkpoint-<step>/shard-<i>-of-<n>.safetensors   the tensors; each rank writes one shard
//! DIR/checkpoint-<step>/manifest.json                  what is where, with digests ([`Manifest`])
//! DIR/latest                                           names the newest checkpoint; a hint, never needed
//! DIR/done                                             training has ended
//! DIR/.lock                                            the session that saves here
//! DIR/.draft-<step>-...                                a save that is under way, or was killed
//! ```
//!
//! A save has verbs of its own, so that a caller with several ranks can agree between them: [`CheckpointDraft::begin`] on
//! rank 0, [`CheckpointDraft::write_shard`] on each rank, [`CheckpointDraft::commit`] on rank 0. Where ranks have no common
//! directory, a [`ShardStream`] is what a rank sends instead, and [`CheckpointDraft::receive_shard`] where rank 0 puts it.
//! [`Checkpoints::save`] is all of it for one process.
//!
//! - CKPT-1: a save that is killed at any point leaves the old or the new checkpoint whole, and a later save collects
//!   what it left behind.
//! - CKPT-2: a changed bit in a shard, a manifest or `latest` is found. The file is named, and the tensor if the bit
//!   belongs to one; the newest older whole checkpoint is loaded instead.
//! - CKPT-3: a checkpoint that does not fit changes nothing, and all tensors that do not fit are named at once.
//! - CKPT-4: loaded bits do not depend on how many ranks wrote the shards or read them.
//! - CKPT-5: a full disk costs the save that met it, and nothing else.
//!
//! *Step* is the number of training steps that are in the state, *epoch* the pass over the data: words of the manifest,
//! which users read.

mod checkpoint;
mod checkpoints;
mod copied;
mod digest;
mod draft;
mod durable;
mod error;
mod follow;
mod hold;
mod keep;
mod layout;
mod load;
mod manifest;
mod part;
mod saver;
mod shard;
mod share;
mod stream;
mod sweep;

pub use checkpoint::{Checkpoint, Damage};
pub use checkpoints::{Checkpoints, Listed, NewestWhole, Pointer, Restored};
pub use copied::Copied;
pub use draft::CheckpointDraft;
pub use error::{CheckpointError, Flaw, ManifestFault, Skipped, TensorMisfit};
pub use follow::{Follow, Followed, Newest, mark_done, unmark_done};
pub use hold::DirHold;
pub use keep::Keep;
pub use load::{Loaded, Strictness};
pub use manifest::{About, Manifest, ShardRecord, SliceRecord, TensorRecord};
pub use part::{OwnedTensors, Part, PartError, Several};
pub use shard::ShardId;
pub use share::{TensorInfo, TensorSlice, share_out};
pub use stream::{ReceivedShard, ShardStream};
pub use sweep::{Swept, sweep};
