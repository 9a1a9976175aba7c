//! What C programs see: the codes and the structs of phalanx.h.

use std::ffi::{c_char, c_void};

/// What functions answer instead of a result. Horovod's functions use the first six as Horovod does.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    /// phalanx_init() was not called, or failed, or phalanx_shutdown() was.
    NotInitialized = -1,
    /// horovod_add_process_set() and horovod_remove_process_set() without HOROVOD_DYNAMIC_PROCESS_SETS=1.
    NotDynamic = -2,
    /// There is no such process set.
    UnknownSet = -3,
    /// This rank is no member of the process set.
    ForeignSet = -4,
    /// A rank has shut down its engine, which ends the engines of all ranks.
    ShutDown = -5,
    /// A process set of exactly these ranks exists.
    ExistingSet = -6,
    /// A null pointer, a negative count, a code that is none, a shape that does not fit.
    Invalid = -7,
    /// The name belongs to an operation that was not yet seen to be done.
    DuplicateName = -8,
    /// Ranks submitted different things under one name. Every rank that did gets it; all goes on.
    Mismatch = -9,
    /// A rank is lost; the text says which, and how.
    PeerLost = -10,
    /// An operation waited longer than PHALANX_STALL_ABORT for some ranks.
    Stalled = -11,
    /// This process was forked from the one that called phalanx_init().
    Forked = -12,
    /// The time given to phalanx_wait() is over; the operation goes on.
    Timeout = -13,
    /// The operation is not done yet.
    Pending = -14,
    /// The handle was released, or never was one.
    UnknownHandle = -15,
    /// The function waits, which a callback must not.
    InCallback = -16,
    /// Hosts, networks or memory failed; the text says what.
    Failed = -17,
    /// A bug of the library; the text is for its authors.
    Internal = -18,
}

/// The type of an element. Horovod's own numbers are the same up to PHALANX_DTYPE_F16 = 6; after it Horovod has FLOAT32 = 7, FLOAT64 = 8 and
/// BOOL = 9, because it knows no bfloat16.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CDType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    I32 = 4,
    I64 = 5,
    F16 = 6,
    BF16 = 7,
    F32 = 8,
    F64 = 9,
    /// One byte, 0 or 1.
    Bool = 10,
}

/// How the elements of all ranks become one. The numbers are Horovod's: horovod_reduce_op_sum() is PHALANX_OP_SUM.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum COp {
    Average = 0,
    Sum = 1,
    Adasum = 2,
    Min = 3,
    Max = 4,
    Product = 5,
}

/// For `wire` in phalanx_options: elements travel as what they are.
pub const PHALANX_SAME_DTYPE: i32 = -1;

/// For `device` in phalanx_options.
pub const PHALANX_CPU: i32 = -1;

/// Elements in memory that the caller owns, or, as an output, in memory that the handle owns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CTensor {
    /// Aligned to its element type; may be NULL if there are no elements. Inputs of operations that are not in place are only read.
    pub data: *mut c_void,
    /// `ndim` dimensions; may be NULL if there are none. Copied by the call.
    pub shape: *const i64,
    pub ndim: i32,
    /// A phalanx_dtype.
    pub dtype: i32,
}

/// Called once when an operation is done, on any thread: often one of the engine's, sometimes the one that submits, perhaps before that call has
/// returned. `status` is what phalanx_wait() would return. It may read the results of `handle`, release it, and submit operations. It must be
/// quick, and functions that wait refuse to.
pub type Callback = Option<extern "C" fn(handle: i64, status: i32, user: *mut c_void)>;

/// How an operation is done. Begin with PHALANX_OPTIONS_INIT; NULL means the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct COptions {
    /// sizeof(phalanx_options): later versions may add to the end.
    pub struct_size: usize,
    /// The name under which ranks find each other's tensors, UTF-8; NULL: in the order of submission. Copied by the call.
    pub name: *const c_char,
    /// 0 is all ranks.
    pub process_set: i32,
    /// A phalanx_op, for operations that reduce.
    pub op: i32,
    /// Factors before and after the reduction.
    pub prescale: f64,
    pub postscale: f64,
    /// A phalanx_dtype in which elements travel, or PHALANX_SAME_DTYPE.
    pub wire: i32,
    /// The device from which the tensor came, or PHALANX_CPU. All ranks must have it on the same kind; memory is the host's in any case.
    pub device: i32,
    /// May be NULL.
    pub callback: Callback,
    /// Given to the callback.
    pub user: *mut c_void,
}

/// What this rank has done since phalanx_init().
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CCounters {
    /// Operations submitted by this rank.
    pub submitted: u64,
    /// Operations that ran.
    pub operations: u64,
    /// Operations that were refused because ranks disagreed.
    pub failed: u64,
    /// Bytes of the tensors of operations that ran.
    pub bytes: u64,
    pub batches: u64,
    /// Batches of more than one operation.
    pub fused_batches: u64,
    /// Bytes copied into and out of the fusion buffer.
    pub packed_bytes: u64,
    /// Operations run from a recording, without a word between ranks.
    pub replayed: u64,
    /// Operations announced by number.
    pub cached: u64,
    /// Operations announced in full.
    pub negotiated: u64,
    /// Microseconds spent moving data.
    pub moving_us: u64,
    /// Times the engine had nothing to do and slept.
    pub waits: u64,
}

impl COptions {
    pub(crate) const DEFAULT: COptions = COptions {
        struct_size: size_of::<COptions>(),
        name: std::ptr::null(),
        process_set: 0,
        op: COp::Sum as i32,
        prescale: 1.0,
        postscale: 1.0,
        wire: PHALANX_SAME_DTYPE,
        device: PHALANX_CPU,
        callback: None,
        user: std::ptr::null_mut(),
    };
}

impl Status {
    pub(crate) const ALL: [Status; 19] = [
        Status::Ok,
        Status::NotInitialized,
        Status::NotDynamic,
        Status::UnknownSet,
        Status::ForeignSet,
        Status::ShutDown,
        Status::ExistingSet,
        Status::Invalid,
        Status::DuplicateName,
        Status::Mismatch,
        Status::PeerLost,
        Status::Stalled,
        Status::Forked,
        Status::Timeout,
        Status::Pending,
        Status::UnknownHandle,
        Status::InCallback,
        Status::Failed,
        Status::Internal,
    ];

    pub(crate) const fn name(self) -> &'static std::ffi::CStr {
        match self {
            Status::Ok => c"ok",
            Status::NotInitialized => c"not initialized",
            Status::NotDynamic => c"process sets are not dynamic",
            Status::UnknownSet => c"unknown process set",
            Status::ForeignSet => c"not a member of the process set",
            Status::ShutDown => c"shut down",
            Status::ExistingSet => c"process set exists",
            Status::Invalid => c"invalid argument",
            Status::DuplicateName => c"duplicate name",
            Status::Mismatch => c"mismatch between ranks",
            Status::PeerLost => c"a rank is lost",
            Status::Stalled => c"stalled",
            Status::Forked => c"forked",
            Status::Timeout => c"timeout",
            Status::Pending => c"not done yet",
            Status::UnknownHandle => c"unknown handle",
            Status::InCallback => c"must not wait in a callback",
            Status::Failed => c"failed",
            Status::Internal => c"internal error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_types_have_the_codes_of_the_library() {
        use CDType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16};
        let ours = [U8, I8, U16, I16, I32, I64, F16, BF16, F32, F64, Bool];
        let theirs = phalanx_core::DType::ALL;
        assert_eq!(ours.len(), theirs.len());
        for (a, b) in ours.into_iter().zip(theirs) {
            assert_eq!((a as u8, format!("{a:?}").to_lowercase()), (b as u8, b.name().to_string()));
        }
    }

    #[test]
    fn codes_count_downwards_without_gaps() {
        for (i, status) in Status::ALL.into_iter().enumerate() {
            assert_eq!(status as i32, -(i as i32));
        }
    }
}
