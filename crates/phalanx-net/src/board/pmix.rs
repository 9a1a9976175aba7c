//! PMIx, by loading `libpmix.so.2`: the launcher's own library, for Open MPI's `mpirun` and `srun --mpi=pmix`. Private to the job: its server
//! serves the processes that it started, as one user.
//!
//! An MPI library of the same process uses the same library, which counts how often it was opened: the session may begin before or after
//! `MPI_Init`. It ends with the process (RDZV-4), because a process that has closed PMIx cannot start MPI any more.
//! One of the files with `unsafe`: it calls a C library.

use super::{Notices, Wait, wire::MAX_ANSWER};
use crate::error::BoardError;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};
use phalanx_core::Rank;
use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    fmt, ptr,
    sync::{Arc, Condvar, Mutex, PoisonError},
};

const LIBRARY: &str = "libpmix.so.2";
const SUCCESS: c_int = 0;
/// Done at once, without a call back.
const OPERATION_SUCCEEDED: c_int = -157;
/// `PMIX_BOOL` and `PMIX_STRING`.
const BOOL: u16 = 1;
const STRING: u16 = 3;
/// `PMIX_GLOBAL`: for processes of this host and of others.
const GLOBAL: u8 = 3;

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Process {
    namespace: [c_char; 256],
    rank: u32,
}

/// `pmix_value_t`.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

/// As much of the union as is used here, and room for what the library may have in it.
#[repr(C)]
union Data {
    string: *mut c_char,
    flag: bool,
    room: [u64; 7],
}

impl Value {
    fn string(text: &CStr) -> Value {
        let mut data = Data { room: [0; 7] };
        data.string = text.as_ptr().cast_mut();
        Value { kind: STRING, data }
    }
}

/// `pmix_info_t`.
#[repr(C)]
struct Info {
    key: [c_char; 512],
    flags: u32,
    value: Value,
}

impl Info {
    /// `PMIX_COLLECT_DATA`: a fence brings everything that was put to every host. Without it a host that has asked for a process's data once
    /// may answer from what it knew then.
    fn collect() -> Info {
        let mut key = [0; 512];
        for (to, from) in key.iter_mut().zip(b"pmix.collect") {
            *to = *from as c_char;
        }
        Info { key, flags: 0, value: Value { kind: BOOL, data: Data { flag: true } } }
    }
}

type InitFn = unsafe extern "C" fn(*mut Process, *const c_void, usize) -> c_int;
type FinalizeFn = unsafe extern "C" fn(*const c_void, usize) -> c_int;
type PutFn = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type CommitFn = unsafe extern "C" fn() -> c_int;
type FenceFn = unsafe extern "C" fn(
    *const Process,
    usize,
    *const c_void,
    usize,
    extern "C" fn(c_int, *mut c_void),
    *mut c_void,
) -> c_int;
type GetFn = unsafe extern "C" fn(
    *const Process,
    *const c_char,
    *const c_void,
    usize,
    extern "C" fn(c_int, *mut Value, *mut c_void),
    *mut c_void,
) -> c_int;
type ErrorFn = unsafe extern "C" fn(c_int) -> *const c_char;

/// The functions, which stay as long as the process: the library is never unloaded.
#[derive(Clone, Copy)]
struct Functions {
    init: InitFn,
    finalize: FinalizeFn,
    put: PutFn,
    commit: CommitFn,
    fence: FenceFn,
    get: GetFn,
    error: ErrorFn,
}

pub struct Pmix {
    call: Functions,
    me: Process,
}

impl fmt::Debug for Pmix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pmix").field("rank", &self.me.rank).finish_non_exhaustive()
    }
}

/// What the library calls back with, kept by both sides: a call that is given up may still be answered.
#[derive(Default)]
struct Pending {
    answer: Mutex<Option<(c_int, Option<String>)>>,
    came: Condvar,
}

impl Pmix {
    /// Connects to the server on this host, which takes as long as the library takes.
    pub fn open() -> Result<Pmix, BoardError> {
        let call = load().map_err(|error| BoardError::Library { name: LIBRARY, why: error.to_string() })?;
        let mut me = Process { namespace: [0; 256], rank: 0 };
        // SAFETY: `me` is a `pmix_proc_t`; no information is passed.
        let status = unsafe { (call.init)(&raw mut me, ptr::null(), 0) };
        let board = Pmix { call, me };
        board.judge(status)?;
        Ok(board)
    }

    fn judge(&self, status: c_int) -> Result<(), BoardError> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: the library returns a constant string for any status.
        let words = unsafe { (self.call.error)(status) };
        let words = if words.is_null() {
            "unknown".into()
        } else {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(words) }.to_string_lossy()
        };
        Err(BoardError::Refused { answer: format!("{words} ({status})") })
    }

    /// Starts a call that is answered later, and waits for the answer.
    fn ask(
        &self,
        start: impl FnOnce(*mut c_void) -> c_int,
        wait: Wait,
        whom: &str,
    ) -> Result<(c_int, Option<String>), BoardError> {
        let pending = Arc::new(Pending::default());
        let theirs = Arc::into_raw(pending.clone()).cast_mut().cast::<c_void>();
        let status = start(theirs);
        if status != SUCCESS {
            // SAFETY: a call that did not start is not answered, so the share of the library is ours again.
            drop(unsafe { Arc::from_raw(theirs.cast_const().cast::<Pending>()) });
            return if status == OPERATION_SUCCEEDED {
                Ok((SUCCESS, None))
            } else {
                self.judge(status).map(|()| (status, None))
            };
        }
        let left = wait.left().unwrap_or_default();
        let answer = pending.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut answer, _) = pending
            .came
            .wait_timeout_while(answer, left, |answer| answer.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        answer.take().ok_or_else(|| wait.late(whom))
    }
}

fn load() -> Result<Functions, libloading::Error> {
    // SAFETY: the library's initialisers run as they do in every MPI program. Global, because its plugins look for its names.
    let library = unsafe { Library::open(Some(LIBRARY), RTLD_LAZY | RTLD_GLOBAL) }?;
    // SAFETY: these are the types that the PMIx standard gives the functions, unchanged since its version 2.
    let functions = unsafe {
        Functions {
            init: *library.get::<InitFn>(b"PMIx_Init\0")?,
            finalize: *library.get::<FinalizeFn>(b"PMIx_Finalize\0")?,
            put: *library.get::<PutFn>(b"PMIx_Put\0")?,
            commit: *library.get::<CommitFn>(b"PMIx_Commit\0")?,
            fence: *library.get::<FenceFn>(b"PMIx_Fence_nb\0")?,
            get: *library.get::<GetFn>(b"PMIx_Get_nb\0")?,
            error: *library.get::<ErrorFn>(b"PMIx_Error_string\0")?,
        }
    };
    // It has threads of its own; unloading it would pull the code from under them.
    std::mem::forget(library);
    Ok(functions)
}

impl Notices for Pmix {
    fn publish(&mut self, key: &str, text: &str, _: Wait) -> Result<(), BoardError> {
        let (key, text) = (c_string(key)?, c_string(text)?);
        let mut value = Value::string(&text);
        // SAFETY: key and value live until the call returns, which has copied both.
        let status = unsafe { (self.call.put)(GLOBAL, key.as_ptr(), &raw mut value) };
        self.judge(status)?;
        // SAFETY: takes nothing.
        let status = unsafe { (self.call.commit)() };
        self.judge(status)
    }

    fn replace(&mut self, key: &str, text: &str, wait: Wait) -> Result<(), BoardError> {
        self.publish(key, text, wait)
    }

    fn settle(&mut self, wait: Wait) -> Result<(), BoardError> {
        let fence = self.call.fence;
        // Until the process ends: the library may look at it until it has answered, which may be after this has given up.
        let collect = Box::leak(Box::new(Info::collect()));
        // SAFETY: without processes all of this job are meant; the callback gets the share that was made for it, once.
        let start = |data| unsafe { fence(ptr::null(), 0, ptr::from_ref(collect).cast(), 1, fenced, data) };
        let (status, _) = self.ask(start, wait, "all ranks (PMIx does not say which are missing)")?;
        self.judge(status)
    }

    fn look(&mut self, by: Rank, key: &str, wait: Wait) -> Result<String, BoardError> {
        let (get, name) = (self.call.get, c_string(key)?);
        let of = Process { rank: by.0, ..self.me };
        // SAFETY: process and name live until the call returns, which has copied both; the callback gets its share, once.
        let start = |data| unsafe { get(&raw const of, name.as_ptr(), ptr::null(), 0, got, data) };
        let (status, text) = self.ask(start, wait, &format!("rank {by}"))?;
        self.judge(status)?;
        text.ok_or_else(|| BoardError::Missing { rank: by, key: key.into() })
    }

    fn longest(&self) -> usize {
        MAX_ANSWER
    }

    fn finish(&mut self) {
        // SAFETY: no information is passed; nothing of this session is used afterwards.
        unsafe { (self.call.finalize)(ptr::null(), 0) };
    }
}

fn c_string(text: &str) -> Result<CString, BoardError> {
    CString::new(text).map_err(|_| super::wire::nonsense(text))
}

/// The library's answer to a fence.
extern "C" fn fenced(status: c_int, data: *mut c_void) {
    answer(data, status, None);
}

/// The library's answer to a question for a value, which it frees afterwards.
extern "C" fn got(status: c_int, value: *mut Value, data: *mut c_void) {
    // SAFETY: null, or a value of the library that lives until this returns.
    let value = unsafe { value.as_ref() }.filter(|value| status == SUCCESS && value.kind == STRING);
    // SAFETY: a value of this kind has a string, or null.
    let string = value.map(|value| unsafe { value.data.string }).filter(|string| !string.is_null());
    let text = string.and_then(|string| {
        // SAFETY: the string ends with a zero, which is not looked for further than this.
        let n = unsafe { libc::strnlen(string, MAX_ANSWER) };
        // SAFETY: these bytes were just found to be part of the string.
        let bytes = unsafe { std::slice::from_raw_parts(string.cast::<u8>(), n) };
        String::from_utf8(bytes.to_vec()).ok()
    });
    answer(data, status, text);
}

fn answer(data: *mut c_void, status: c_int, text: Option<String>) {
    // SAFETY: `data` is the share that `ask` made for this one call.
    let pending = unsafe { Arc::from_raw(data.cast_const().cast::<Pending>()) };
    *pending.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some((status, text));
    pending.came.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::atomic::AtomicPtr, sync::atomic::Ordering, time::Duration};

    unsafe extern "C" fn no_init(_: *mut Process, _: *const c_void, _: usize) -> c_int {
        SUCCESS
    }

    unsafe extern "C" fn no_finalize(_: *const c_void, _: usize) -> c_int {
        SUCCESS
    }

    unsafe extern "C" fn put_refused(_: u8, _: *const c_char, _: *mut Value) -> c_int {
        -1
    }

    unsafe extern "C" fn committed() -> c_int {
        SUCCESS
    }

    /// The share of a fence that is never answered in time.
    static LATE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

    unsafe extern "C" fn silent(
        _: *const Process,
        _: usize,
        _: *const c_void,
        _: usize,
        _: extern "C" fn(c_int, *mut c_void),
        data: *mut c_void,
    ) -> c_int {
        LATE.store(data, Ordering::SeqCst);
        SUCCESS
    }

    /// Rank 1 has a text of 20000 characters, rank 2 a number, rank 3 nothing; others are refused.
    unsafe extern "C" fn get(
        of: *const Process,
        _: *const c_char,
        _: *const c_void,
        _: usize,
        call: extern "C" fn(c_int, *mut Value, *mut c_void),
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller's process lives until this returns.
        let rank = unsafe { (*of).rank };
        let data = AtomicPtr::new(data);
        if rank > 3 {
            return -46;
        }
        std::thread::spawn(move || {
            let text = CString::new("x".repeat(20_000)).unwrap();
            let kind = if rank == 1 { STRING } else { 6 };
            let mut value = Value { kind, ..Value::string(&text) };
            let value = if rank == 3 { ptr::null_mut() } else { &raw mut value };
            call(SUCCESS, value, data.into_inner());
        });
        SUCCESS
    }

    unsafe extern "C" fn words(_: c_int) -> *const c_char {
        c"NO-REASON".as_ptr()
    }

    fn fake() -> Pmix {
        let call = Functions {
            init: no_init,
            finalize: no_finalize,
            put: put_refused,
            commit: committed,
            fence: silent,
            get,
            error: words,
        };
        Pmix { call, me: Process { namespace: [0; 256], rank: 0 } }
    }

    #[test]
    fn answers_of_the_library_are_bounded_and_refusals_are_errors() {
        let (mut board, wait) = (fake(), Wait::within(Duration::from_secs(10)));
        assert_eq!(board.look(Rank(1), "k", wait).unwrap().len(), MAX_ANSWER, "RDZV-2");
        for rank in [2, 3] {
            let error = board.look(Rank(rank), "k", wait).unwrap_err();
            assert!(
                matches!(error, BoardError::Missing { rank: Rank(r), .. } if r == rank),
                "RDZV-2: {error}"
            );
        }
        let error = board.look(Rank(4), "k", wait).unwrap_err();
        assert_eq!(error.to_string(), "it refused: NO-REASON (-46)");
        assert_eq!(board.publish("k", "v", wait).unwrap_err().to_string(), "it refused: NO-REASON (-1)");
        assert!(board.publish("k", "a\0b", wait).is_err());
    }

    #[test]
    fn a_call_that_was_given_up_may_still_be_answered() {
        let mut board = fake();
        let late = board.settle(Wait::within(Duration::from_millis(10))).unwrap_err().to_string();
        assert!(late.contains("for all ranks"), "RDZV-3: {late}");
        fenced(SUCCESS, LATE.swap(ptr::null_mut(), Ordering::SeqCst));
    }
}
