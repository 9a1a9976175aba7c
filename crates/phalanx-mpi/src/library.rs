//! The functions of an MPI library and its handles, which are addresses of symbols in Open MPI and integers in MPICH.
//! The one file of this crate with `unsafe`: it calls a C library. Every value here lives on the thread that loaded it (MPI-1).

use crate::{
    MpiError, TierPlace,
    travel::{MpiOp, MpiType},
};
use libloading::os::unix::{Library as Shared, RTLD_GLOBAL, RTLD_NOW};
use phalanx_core::Rank;
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    time::{Duration, Instant},
};

const SUCCESS: c_int = 0;
/// `MPI_THREAD_MULTIPLE`, in both.
const MULTIPLE: c_int = 3;
/// No less than either library writes.
const TEXT: usize = 8192;
/// Counts of MPI's are `int`; vectors go in pieces of at most this many elements.
const PIECE: usize = 1 << 28;

type AskFn = unsafe extern "C" fn(*mut c_int) -> c_int;
type InitFn = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, *mut c_int) -> c_int;
type FinalizeFn = unsafe extern "C" fn() -> c_int;
type VersionFn = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
type TextFn = unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int;
type AskCommFn<H> = unsafe extern "C" fn(H, *mut c_int) -> c_int;
type DupFn<H> = unsafe extern "C" fn(H, *mut H) -> c_int;
type SplitFn<H> = unsafe extern "C" fn(H, c_int, c_int, *mut H) -> c_int;
type FreeFn<H> = unsafe extern "C" fn(*mut H) -> c_int;
type HandlerFn<H> = unsafe extern "C" fn(H, H) -> c_int;
type AllreduceFn<H> = unsafe extern "C" fn(*const c_void, *mut c_void, c_int, H, H, H) -> c_int;
type ReduceScatterFn<H> = unsafe extern "C" fn(*const c_void, *mut c_void, *const c_int, H, H, H) -> c_int;
type AllgathervFn<H> =
    unsafe extern "C" fn(*const c_void, c_int, H, *mut c_void, *const c_int, *const c_int, H, H) -> c_int;

/// The handles that are used here.
struct Handles<H> {
    world: H,
    errors_return: H,
    /// In the order of [`MpiType`].
    types: [H; 8],
    /// In the order of [`MpiOp`].
    ops: [H; 4],
}

/// MPICH's handles, the same since its version 3 and in all libraries of its ABI.
const MPICH: Handles<c_int> = Handles {
    world: 0x4400_0000,
    errors_return: 0x5400_0001,
    types: [
        0x4c00_013b,
        0x4c00_0137,
        0x4c00_023c,
        0x4c00_0238,
        0x4c00_0439,
        0x4c00_083a,
        0x4c00_040a,
        0x4c00_080b,
    ],
    ops: [0x5800_0003, 0x5800_0004, 0x5800_0002, 0x5800_0001],
};

/// Open MPI's, by name.
const OPEN_TYPES: [&str; 8] =
    ["uint8_t", "int8_t", "uint16_t", "int16_t", "int32_t", "int64_t", "float", "double"];
const OPEN_OPS: [&str; 4] = ["op_sum", "op_prod", "op_min", "op_max"];

/// The functions of one library, by the type of its handles, and what was made with them.
struct Calls<H> {
    handles: Handles<H>,
    init: InitFn,
    query_thread: AskFn,
    initialized: AskFn,
    finalized: AskFn,
    finalize: FinalizeFn,
    error_string: TextFn,
    comm_rank: AskCommFn<H>,
    comm_size: AskCommFn<H>,
    comm_dup: DupFn<H>,
    comm_split: SplitFn<H>,
    comm_free: FreeFn<H>,
    set_errhandler: HandlerFn<H>,
    allreduce: AllreduceFn<H>,
    reduce_scatter: ReduceScatterFn<H>,
    allgatherv: AllgathervFn<H>,
    /// A communicator of our own: what others send on the world's does not meet it.
    own: Option<H>,
    tiers: Vec<Tier<H>>,
    began: bool,
}

#[derive(Clone, Copy)]
struct Tier<H> {
    comm: H,
    place: usize,
    n: usize,
}

enum Abi {
    Open(Calls<*mut c_void>),
    Mpich(Calls<c_int>),
}

pub(crate) struct Library {
    name: String,
    version: String,
    abi: Abi,
}

/// The same call for either type of handles.
macro_rules! either {
    ($self:ident, $calls:ident => $body:expr) => {
        match &mut $self.abi {
            Abi::Open($calls) => $body,
            Abi::Mpich($calls) => $body,
        }
    };
}

/// Loads the first of these that can be loaded.
pub(crate) fn open(candidates: &[String]) -> Result<Library, MpiError> {
    let mut refused = MpiError::NoLauncher;
    for name in candidates {
        // SAFETY: initialisers of an MPI library run as in every MPI program; another library that a user names runs those that it has. Global,
        // because Open MPI's plugins look for its names.
        match unsafe { Shared::open(Some(name), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => return of(name, library),
            Err(why) => refused = MpiError::Unloadable { library: name.clone(), why: why.to_string() },
        }
    }
    Err(refused)
}

fn of(name: &str, library: Shared) -> Result<Library, MpiError> {
    let version = version(name, &library)?;
    let abi = if let Ok(world) = symbol(&library, "ompi_mpi_comm_world") {
        let missing = |symbol| MpiError::NotMpi { library: name.into(), missing: symbol };
        let handle = |end: &str| {
            let full = format!("ompi_mpi_{end}");
            symbol(&library, &full).map_err(|()| missing(full))
        };
        let (mut types, mut ops) = ([world; 8], [world; 4]);
        for (to, end) in types.iter_mut().zip(OPEN_TYPES).chain(ops.iter_mut().zip(OPEN_OPS)) {
            *to = handle(end)?;
        }
        let handles = Handles { world, errors_return: handle("errors_return")?, types, ops };
        Abi::Open(calls(name, &library, handles)?)
    } else if ["MPICH", "MVAPICH", "Intel(R) MPI"].iter().any(|family| version.contains(family)) {
        Abi::Mpich(calls(name, &library, MPICH)?)
    } else {
        return Err(MpiError::OtherAbi { library: name.into(), version });
    };
    // It has threads and handlers of its own; unloading it would pull the code from under them.
    std::mem::forget(library);
    Ok(Library { name: name.into(), version, abi })
}

/// The address of a variable of the library.
fn symbol(library: &Shared, name: &str) -> Result<*mut c_void, ()> {
    // SAFETY: only the address is taken; what lies there belongs to the library.
    unsafe { library.get::<*mut c_void>(format!("{name}\0").as_bytes()) }.map(|symbol| *symbol).map_err(drop)
}

/// A function of the library.
///
/// # Safety
/// The function has type `F`.
unsafe fn function<F: Copy>(name: &str, library: &Shared, function: &'static str) -> Result<F, MpiError> {
    let missing = |_| MpiError::NotMpi { library: name.into(), missing: function.into() };
    // SAFETY: as the caller promised.
    unsafe { library.get::<F>(format!("{function}\0").as_bytes()) }.map(|f| *f).map_err(missing)
}

fn version(name: &str, library: &Shared) -> Result<String, MpiError> {
    // SAFETY: the function has this type in every MPI since 3.0.
    let ask = unsafe { function::<VersionFn>(name, library, "MPI_Get_library_version") }?;
    let mut text = vec![0u8; TEXT];
    let mut n = 0;
    // SAFETY: it may be called before MPI is initialised, and writes no more than this.
    unsafe { ask(text.as_mut_ptr().cast(), &raw mut n) };
    Ok(line(&text))
}

/// The first line of a text that ends with a zero.
fn line(text: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(text).map(CStr::to_string_lossy).unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn calls<H>(name: &str, library: &Shared, handles: Handles<H>) -> Result<Calls<H>, MpiError> {
    // SAFETY: these are the types that the MPI standard gives the functions, with handles of the family that was recognised.
    unsafe {
        Ok(Calls {
            handles,
            init: function(name, library, "MPI_Init_thread")?,
            query_thread: function(name, library, "MPI_Query_thread")?,
            initialized: function(name, library, "MPI_Initialized")?,
            finalized: function(name, library, "MPI_Finalized")?,
            finalize: function(name, library, "MPI_Finalize")?,
            error_string: function(name, library, "MPI_Error_string")?,
            comm_rank: function(name, library, "MPI_Comm_rank")?,
            comm_size: function(name, library, "MPI_Comm_size")?,
            comm_dup: function(name, library, "MPI_Comm_dup")?,
            comm_split: function(name, library, "MPI_Comm_split")?,
            comm_free: function(name, library, "MPI_Comm_free")?,
            set_errhandler: function(name, library, "MPI_Comm_set_errhandler")?,
            allreduce: function(name, library, "MPI_Allreduce")?,
            reduce_scatter: function(name, library, "MPI_Reduce_scatter")?,
            allgatherv: function(name, library, "MPI_Allgatherv")?,
            own: None,
            tiers: Vec::new(),
            began: false,
        })
    }
}

impl Library {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    pub fn begin(&mut self, rank: Rank, size: u32) -> Result<(), MpiError> {
        let (mpi_rank, mpi_size) = either!(self, calls => calls.begin())?;
        if (mpi_rank, mpi_size) != (rank.0, size) {
            let library = self.name.clone();
            return Err(MpiError::OtherWorld { library, mpi_rank, mpi_size, rank, size });
        }
        Ok(())
    }

    pub fn separate(&mut self) -> Result<(), MpiError> {
        either!(self, calls => calls.separate())
    }

    pub fn lay(&mut self, tiers: &[TierPlace]) -> Result<(), MpiError> {
        either!(self, calls => calls.lay(tiers))
    }

    pub fn allreduce(
        &mut self,
        from: &[u8],
        to: &mut [u8],
        kind: MpiType,
        op: MpiOp,
    ) -> Result<(), MpiError> {
        let piece = PIECE * kind.size();
        let pieces = from.chunks(piece).zip(to.chunks_mut(piece));
        either!(self, calls => pieces.into_iter().try_for_each(|(from, to)| calls.allreduce(from, to, kind, op)))
    }

    /// How long each tier took.
    pub fn climb(&mut self, data: &mut [u8], kind: MpiType, op: MpiOp) -> Result<Vec<Duration>, MpiError> {
        let mut pieces = data.chunks_mut(PIECE * kind.size());
        either!(self, calls => {
            let mut took = vec![Duration::ZERO; calls.tiers.len()];
            pieces.try_for_each(|piece| calls.climb(0, piece, (kind, op), &mut took))?;
            Ok(took)
        })
    }

    pub fn end(&mut self) -> Result<(), MpiError> {
        either!(self, calls => calls.end())
    }
}

impl<H: Copy> Calls<H> {
    fn judge(&self, call: &'static str, status: c_int) -> Result<(), MpiError> {
        if status == SUCCESS {
            return Ok(());
        }
        let mut text = vec![0u8; TEXT];
        let mut n = 0;
        // SAFETY: it may be called at any time, and writes no more than this.
        let failed = unsafe { (self.error_string)(status, text.as_mut_ptr().cast(), &raw mut n) };
        let why = if failed == SUCCESS { line(&text) } else { format!("status {status}") };
        Err(MpiError::Failed { call, why })
    }

    fn ask(&self, call: &'static str, ask: AskFn) -> Result<c_int, MpiError> {
        let mut answer = 0;
        // SAFETY: these functions take a place for one number, and may be called at any time, but for `MPI_Query_thread`, which is called after
        // initialisation.
        let status = unsafe { ask(&raw mut answer) };
        self.judge(call, status)?;
        Ok(answer)
    }

    /// Initialises MPI if nobody has, and says who this process is there (MPI-2).
    fn begin(&mut self) -> Result<(u32, u32), MpiError> {
        if self.ask("MPI_Finalized", self.finalized)? != 0 {
            return Err(MpiError::Over);
        }
        if self.ask("MPI_Initialized", self.initialized)? == 0 {
            let mut provided = 0;
            // SAFETY: both arguments may be null; it is called once, because the library says that nobody has.
            let status = unsafe {
                (self.init)(std::ptr::null_mut(), std::ptr::null_mut(), MULTIPLE, &raw mut provided)
            };
            self.judge("MPI_Init_thread", status)?;
            self.began = true;
        } else if self.ask("MPI_Query_thread", self.query_thread)? < MULTIPLE {
            return Err(MpiError::OneThread);
        }
        let world = self.handles.world;
        Ok((
            self.number("MPI_Comm_rank", self.comm_rank, world)?,
            self.number("MPI_Comm_size", self.comm_size, world)?,
        ))
    }

    fn number(&self, call: &'static str, ask: AskCommFn<H>, comm: H) -> Result<u32, MpiError> {
        let mut answer = 0;
        // SAFETY: MPI runs, and the communicator is one of its own.
        let status = unsafe { ask(comm, &raw mut answer) };
        self.judge(call, status)?;
        Ok(answer as u32)
    }

    /// A communicator of our own, whose errors are returned instead of ending the process.
    fn separate(&mut self) -> Result<(), MpiError> {
        if self.own.is_some() {
            return Ok(());
        }
        let mut own = self.handles.world;
        // SAFETY: MPI runs; `own` takes a handle.
        let status = unsafe { (self.comm_dup)(self.handles.world, &raw mut own) };
        self.judge("MPI_Comm_dup", status)?;
        self.own = Some(own);
        self.return_errors(own)
    }

    fn return_errors(&self, comm: H) -> Result<(), MpiError> {
        // SAFETY: MPI runs, and both handles are its own.
        let status = unsafe { (self.set_errhandler)(comm, self.handles.errors_return) };
        self.judge("MPI_Comm_set_errhandler", status)
    }

    fn own(&self) -> H {
        self.own.expect("begin() comes first")
    }

    fn lay(&mut self, tiers: &[TierPlace]) -> Result<(), MpiError> {
        self.free_tiers()?;
        for tier in tiers {
            let mut comm = self.handles.world;
            // SAFETY: MPI runs, and the communicator is one of its own; `comm` takes a handle.
            let status = unsafe {
                (self.comm_split)(self.own(), tier.color as c_int, tier.place as c_int, &raw mut comm)
            };
            self.judge("MPI_Comm_split", status)?;
            self.return_errors(comm)?;
            let n = self.number("MPI_Comm_size", self.comm_size, comm)? as usize;
            let place = self.number("MPI_Comm_rank", self.comm_rank, comm)? as usize;
            self.tiers.push(Tier { comm, place, n });
        }
        Ok(())
    }

    fn free_tiers(&mut self) -> Result<(), MpiError> {
        while let Some(mut tier) = self.tiers.pop() {
            // SAFETY: MPI runs; the communicator is not used any more.
            let status = unsafe { (self.comm_free)(&raw mut tier.comm) };
            self.judge("MPI_Comm_free", status)?;
        }
        Ok(())
    }

    fn kind(&self, kind: MpiType) -> H {
        self.handles.types[kind as usize]
    }

    fn op(&self, op: MpiOp) -> H {
        self.handles.ops[op as usize]
    }

    fn allreduce(&self, from: &[u8], to: &mut [u8], kind: MpiType, op: MpiOp) -> Result<(), MpiError> {
        assert_eq!(from.len(), to.len(), "both hold the same elements");
        let n = (from.len() / kind.size()) as c_int;
        // SAFETY: both buffers hold `n` elements of this type, and live until the call returns.
        let status = unsafe {
            (self.allreduce)(
                from.as_ptr().cast(),
                to.as_mut_ptr().cast(),
                n,
                self.kind(kind),
                self.op(op),
                self.own(),
            )
        };
        self.judge("MPI_Allreduce", status)
    }

    /// Reduces this rank's share of `data` along a tier, what lies above on that share, and gathers all shares.
    fn climb(
        &self,
        tier: usize,
        data: &mut [u8],
        (kind, op): (MpiType, MpiOp),
        took: &mut [Duration],
    ) -> Result<(), MpiError> {
        let Some(&Tier { comm, place, n }) = self.tiers.get(tier) else { return Ok(()) };
        if data.is_empty() {
            // So it is on all ranks of the group, and of those above.
            return Ok(());
        }
        if n == 1 {
            return self.climb(tier + 1, data, (kind, op), took);
        }
        let (counts, displs) = shares(data.len() / kind.size(), n);
        let share_bytes = counts[place] as usize * kind.size();
        // Never without an element: the address of an empty vector is what Open MPI takes for MPI_IN_PLACE.
        let mut room = vec![0u8; share_bytes.max(kind.size())];
        let share = &mut room[..share_bytes];
        let began = Instant::now();
        // SAFETY: `data` holds the sum of the counts, `share` this rank's own, both in elements of this type; all live until the call returns.
        let status = unsafe {
            (self.reduce_scatter)(
                data.as_ptr().cast(),
                share.as_mut_ptr().cast(),
                counts.as_ptr(),
                self.kind(kind),
                self.op(op),
                comm,
            )
        };
        self.judge("MPI_Reduce_scatter", status)?;
        took[tier] += began.elapsed();
        self.climb(tier + 1, share, (kind, op), took)?;
        let began = Instant::now();
        // SAFETY: as above, the other way round; places and counts lie inside `data`.
        let status = unsafe {
            (self.allgatherv)(
                share.as_ptr().cast(),
                counts[place],
                self.kind(kind),
                data.as_mut_ptr().cast(),
                counts.as_ptr(),
                displs.as_ptr(),
                self.kind(kind),
                comm,
            )
        };
        took[tier] += began.elapsed();
        self.judge("MPI_Allgatherv", status)
    }

    /// Finalises what was begun here (MPI-2).
    fn end(&mut self) -> Result<(), MpiError> {
        let runs = self.ask("MPI_Initialized", self.initialized)? != 0
            && self.ask("MPI_Finalized", self.finalized)? == 0;
        if !runs {
            return Ok(());
        }
        self.free_tiers()?;
        if let Some(mut own) = self.own.take() {
            // SAFETY: MPI runs; the communicator is not used any more.
            let status = unsafe { (self.comm_free)(&raw mut own) };
            self.judge("MPI_Comm_free", status)?;
        }
        if self.began {
            // SAFETY: MPI runs, was begun here, and nothing of it is used any more.
            let status = unsafe { (self.finalize)() };
            self.judge("MPI_Finalize", status)?;
        }
        Ok(())
    }
}

/// How many of `len` elements each of `n` ranks has, and where its first is.
fn shares(len: usize, n: usize) -> (Vec<c_int>, Vec<c_int>) {
    let at = |i: usize| i * len / n;
    ((0..n).map(|i| (at(i + 1) - at(i)) as c_int).collect(), (0..n).map(|i| at(i) as c_int).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_mpi_and_one_that_is_not_there_are_told_apart() {
        let refused = |name: &str| open(&[name.to_string()]).err().unwrap().to_string();
        assert_eq!(
            refused("libm.so.6"),
            "libm.so.6 is not an MPI library: it has no MPI_Get_library_version. Name libmpi.so.40 of Open MPI or libmpich.so.12 of MPICH in PHALANX_MPI_LIB"
        );
        let absent = refused("libnosuchmpi.so.1");
        assert!(absent.starts_with("libnosuchmpi.so.1 cannot be loaded: "), "{absent}");
        assert!(absent.ends_with("Install it, or name another one in PHALANX_MPI_LIB"), "{absent}");
    }

    #[test]
    fn shares_are_all_of_it_in_order() {
        for (len, n) in [(0, 3), (1, 4), (7, 3), (12, 4)] {
            let (counts, displs) = shares(len, n);
            assert_eq!(counts.iter().sum::<c_int>() as usize, len);
            let mut at = 0;
            for (count, displ) in counts.iter().zip(displs) {
                assert_eq!(displ, at);
                at += count;
            }
        }
    }

    #[test]
    fn texts_of_a_library_are_one_line() {
        assert_eq!(line(b"MPICH Version:\t4.0.2\nMore\n\0junk"), "MPICH Version: 4.0.2");
        assert_eq!(line(b"no end"), "");
    }
}
