/* libphalanx: named, asynchronous, fused collectives. docs/c.md explains how to use it.
 *
 * Written by cbindgen from crates/phalanx-c/src; do not edit. To write it anew:
 *     PHALANX_TEST_WRITE_HEADER=1 cargo test -p phalanx-c header
 */

#ifndef PHALANX_H
#define PHALANX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Options as they are when nothing else is said: phalanx_options options = PHALANX_OPTIONS_INIT; */
#define PHALANX_OPTIONS_INIT \
    { sizeof(phalanx_options), NULL, 0, PHALANX_OP_SUM, 1.0, 1.0, PHALANX_SAME_DTYPE, PHALANX_CPU, NULL, NULL }

// For `wire` in phalanx_options: elements travel as what they are.
#define PHALANX_SAME_DTYPE -1

// For `device` in phalanx_options.
#define PHALANX_CPU -1

// What functions answer instead of a result. Horovod's functions use the first six as Horovod does.
typedef enum phalanx_status {
    PHALANX_STATUS_OK = 0,
    // phalanx_init() was not called, or failed, or phalanx_shutdown() was.
    PHALANX_STATUS_NOT_INITIALIZED = -1,
    // horovod_add_process_set() and horovod_remove_process_set() without HOROVOD_DYNAMIC_PROCESS_SETS=1.
    PHALANX_STATUS_NOT_DYNAMIC = -2,
    // There is no such process set.
    PHALANX_STATUS_UNKNOWN_SET = -3,
    // This rank is no member of the process set.
    PHALANX_STATUS_FOREIGN_SET = -4,
    // A rank has shut down its engine, which ends the engines of all ranks.
    PHALANX_STATUS_SHUT_DOWN = -5,
    // A process set of exactly these ranks exists.
    PHALANX_STATUS_EXISTING_SET = -6,
    // A null pointer, a negative count, a code that is none, a shape that does not fit.
    PHALANX_STATUS_INVALID = -7,
    // The name belongs to an operation that was not yet seen to be done.
    PHALANX_STATUS_DUPLICATE_NAME = -8,
    // Ranks submitted different things under one name. Every rank that did gets it; all goes on.
    PHALANX_STATUS_MISMATCH = -9,
    // A rank is lost; the text says which, and how.
    PHALANX_STATUS_PEER_LOST = -10,
    // An operation waited longer than PHALANX_STALL_ABORT for some ranks.
    PHALANX_STATUS_STALLED = -11,
    // This process was forked from the one that called phalanx_init().
    PHALANX_STATUS_FORKED = -12,
    // The time given to phalanx_wait() is over; the operation goes on.
    PHALANX_STATUS_TIMEOUT = -13,
    // The operation is not done yet.
    PHALANX_STATUS_PENDING = -14,
    // The handle was released, or never was one.
    PHALANX_STATUS_UNKNOWN_HANDLE = -15,
    // The function waits, which a callback must not.
    PHALANX_STATUS_IN_CALLBACK = -16,
    // Hosts, networks or memory failed; the text says what.
    PHALANX_STATUS_FAILED = -17,
    // A bug of the library; the text is for its authors.
    PHALANX_STATUS_INTERNAL = -18,
} phalanx_status;

// The type of an element. Horovod's own numbers are the same up to PHALANX_DTYPE_F16 = 6; after it Horovod has FLOAT32 = 7, FLOAT64 = 8 and
// BOOL = 9, because it knows no bfloat16.
typedef enum phalanx_dtype {
    PHALANX_DTYPE_U8 = 0,
    PHALANX_DTYPE_I8 = 1,
    PHALANX_DTYPE_U16 = 2,
    PHALANX_DTYPE_I16 = 3,
    PHALANX_DTYPE_I32 = 4,
    PHALANX_DTYPE_I64 = 5,
    PHALANX_DTYPE_F16 = 6,
    PHALANX_DTYPE_BF16 = 7,
    PHALANX_DTYPE_F32 = 8,
    PHALANX_DTYPE_F64 = 9,
    // One byte, 0 or 1.
    PHALANX_DTYPE_BOOL = 10,
} phalanx_dtype;

// How the elements of all ranks become one. The numbers are Horovod's: horovod_reduce_op_sum() is PHALANX_OP_SUM.
typedef enum phalanx_op {
    PHALANX_OP_AVERAGE = 0,
    PHALANX_OP_SUM = 1,
    PHALANX_OP_ADASUM = 2,
    PHALANX_OP_MIN = 3,
    PHALANX_OP_MAX = 4,
    PHALANX_OP_PRODUCT = 5,
} phalanx_op;

// What this rank has done since phalanx_init().
typedef struct phalanx_counters {
    // Operations submitted by this rank.
    uint64_t submitted;
    // Operations that ran.
    uint64_t operations;
    // Operations that were refused because ranks disagreed.
    uint64_t failed;
    // Bytes of the tensors of operations that ran.
    uint64_t bytes;
    uint64_t batches;
    // Batches of more than one operation.
    uint64_t fused_batches;
    // Bytes copied into and out of the fusion buffer.
    uint64_t packed_bytes;
    // Operations run from a recording, without a word between ranks.
    uint64_t replayed;
    // Operations announced by number.
    uint64_t cached;
    // Operations announced in full.
    uint64_t negotiated;
    // Microseconds spent moving data.
    uint64_t moving_us;
    // Times the engine had nothing to do and slept.
    uint64_t waits;
} phalanx_counters;

// Elements in memory that the caller owns, or, as an output, in memory that the handle owns.
typedef struct phalanx_tensor {
    // Aligned to its element type; may be NULL if there are no elements. Inputs of operations that are not in place are only read.
    void *data;
    // `ndim` dimensions; may be NULL if there are none. Copied by the call.
    const int64_t *shape;
    int32_t ndim;
    // A phalanx_dtype.
    int32_t dtype;
} phalanx_tensor;

// Called once when an operation is done, on any thread: often one of the engine's, sometimes the one that submits, perhaps before that call has
// returned. `status` is what phalanx_wait() would return. It may read the results of `handle`, release it, and submit operations. It must be
// quick, and functions that wait refuse to.
typedef void (*phalanx_callback)(int64_t handle, int32_t status, void *user);

// How an operation is done. Begin with PHALANX_OPTIONS_INIT; NULL means the same.
typedef struct phalanx_options {
    // sizeof(phalanx_options): later versions may add to the end.
    size_t struct_size;
    // The name under which ranks find each other's tensors, UTF-8; NULL: in the order of submission. Copied by the call.
    const char *name;
    // 0 is all ranks.
    int32_t process_set;
    // A phalanx_op, for operations that reduce.
    int32_t op;
    // Factors before and after the reduction.
    double prescale;
    double postscale;
    // A phalanx_dtype in which elements travel, or PHALANX_SAME_DTYPE.
    int32_t wire;
    // The device from which the tensor came, or PHALANX_CPU. All ranks must have it on the same kind; memory is the host's in any case.
    int32_t device;
    // May be NULL.
    phalanx_callback callback;
    // Given to the callback.
    void *user;
} phalanx_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Joins the world that the environment describes (a launcher's, or a world of one) and starts the engine. Every rank calls it. Does nothing if it
// runs already. After phalanx_shutdown() it may be called again, as often as one likes.
int32_t phalanx_init(void);

// Ends the engine, for all ranks: what all have submitted still runs, everything else fails with PHALANX_STATUS_SHUT_DOWN. Handles stay until they
// are released. Does nothing if it does not run.
int32_t phalanx_shutdown(void);

// 1 between phalanx_init() and phalanx_shutdown(), otherwise 0.
int32_t phalanx_is_initialized(void);

// This rank's number. As the five functions below: a negative code if phalanx_init() was not called.
int32_t phalanx_rank(void);

// The number of ranks.
int32_t phalanx_size(void);

// This rank's place among the ranks of its host.
int32_t phalanx_local_rank(void);

// The number of ranks on this host.
int32_t phalanx_local_size(void);

// This rank's place among the ranks with the same place on their hosts.
int32_t phalanx_cross_rank(void);

// The number of ranks with the same place on their hosts.
int32_t phalanx_cross_size(void);

// Makes a process set of these ranks. Every rank calls it with the same ranks, in any order, also those that are not in it; waits for all.
// Returns its number, or a negative code.
//
// The caller promises:
// `ranks` points to `n` ranks.
int32_t phalanx_add_process_set(const int32_t *ranks,
                                int32_t n);

// Removes a process set. Every rank calls it; waits for all. Returns PHALANX_STATUS_OK or a negative code.
int32_t phalanx_remove_process_set(int32_t process_set);

// Writes what happens on this rank from now on to this file, for Perfetto or Chrome; with every look that finds something to run, if `mark_cycles`.
// The file is this rank's own: another rank needs another one.
//
// The caller promises:
// `path` is NULL or a string.
int32_t phalanx_start_timeline(const char *path,
                               bool mark_cycles);

// Ends the timeline, if there is one: when this returns, the file holds everything. phalanx_shutdown() does it, too.
int32_t phalanx_stop_timeline(void);

// What this rank has done since phalanx_init(). `size` is sizeof(phalanx_counters): later versions may add to the end.
//
// The caller promises:
// `counters` has room for `size` bytes.
int32_t phalanx_get_counters(struct phalanx_counters *counters,
                             size_t size);

// What last went wrong on this thread; "" if nothing did. Valid until the next failure on this thread.
const char *phalanx_last_error(void);

// A few words for a code.
const char *phalanx_status_name(int32_t status);

// The version of the library.
const char *phalanx_version(void);

// Reduces a tensor in place.
//
// The caller promises:
// This holds for all submissions: until the handle is done, the memory of inputs and outputs stays valid and nobody touches it. Shapes, names,
// splits and options may go as soon as the call has returned.
int64_t phalanx_allreduce(const struct phalanx_tensor *tensor,
                          const struct phalanx_options *options);

// Reduces a tensor into another of the same type and shape.
//
// The caller promises:
// As for phalanx_allreduce().
int64_t phalanx_allreduce_into(const struct phalanx_tensor *input,
                               const struct phalanx_tensor *output,
                               const struct phalanx_options *options);

// Reduces `n` tensors in place: all of them, or none.
//
// The caller promises:
// As for phalanx_allreduce().
int64_t phalanx_grouped_allreduce(const struct phalanx_tensor *tensors,
                                  int32_t n,
                                  const struct phalanx_options *options);

// Reduces `n` tensors into others: all of them, or none.
//
// The caller promises:
// As for phalanx_allreduce().
int64_t phalanx_grouped_allreduce_into(const struct phalanx_tensor *inputs,
                                       const struct phalanx_tensor *outputs,
                                       int32_t n,
                                       const struct phalanx_options *options);

// Gathers every rank's rows, of which ranks may have different numbers. The output belongs to the handle.
//
// The caller promises:
// As for phalanx_allreduce(); the input is only read.
int64_t phalanx_allgather(const struct phalanx_tensor *input, const struct phalanx_options *options);

// Gives every rank the tensor of `root`, in place. `root` is a rank of the world, not of the process set.
//
// The caller promises:
// As for phalanx_allreduce().
int64_t phalanx_broadcast(const struct phalanx_tensor *tensor,
                          int32_t root,
                          const struct phalanx_options *options);

// Sends rows to every rank: `splits[r]` of them to the r-th; if `splits` is NULL, equally many. The output belongs to the handle.
//
// The caller promises:
// As for phalanx_allreduce(); the input is only read.
int64_t phalanx_alltoall(const struct phalanx_tensor *input,
                         const int64_t *splits,
                         int32_t n_splits,
                         const struct phalanx_options *options);

// Reduces the rows, by sum or average, and leaves each rank with its share of them. The output belongs to the handle.
//
// The caller promises:
// As for phalanx_allreduce(); the input is only read.
int64_t phalanx_reducescatter(const struct phalanx_tensor *input,
                              const struct phalanx_options *options);

// Done when every rank of the process set has submitted it.
//
// The caller promises:
// `options` is NULL or points to some.
int64_t phalanx_barrier(const struct phalanx_options *options);

// Says that this rank has no more data: it takes part in the others' operations with zeros and empty tensors until all have joined.
// phalanx_last_joined() then knows who was last. Of the options only the callback is looked at.
//
// The caller promises:
// `options` is NULL or points to some.
int64_t phalanx_join(const struct phalanx_options *options);

// 1 if the operation is done, well or not; 0 if it is not; or a negative code. Once it is 1, the name may be used again.
int32_t phalanx_poll(int64_t handle);

// Waits until the operation is done, at most `timeout_s` seconds; as long as it takes, if that is negative. Returns how it ended: PHALANX_STATUS_OK
// or its error; or PHALANX_STATUS_TIMEOUT.
int32_t phalanx_wait(int64_t handle,
                     double timeout_s);

// The number of tensors that the operation gave back, or a negative code.
int32_t phalanx_output_count(int64_t handle);

// The tensor that the operation gave back, of a group the one at `index`: the caller's own, or a new one whose memory belongs to the handle. `output->shape`
// belongs to the handle in any case. Both end with phalanx_release().
//
// The caller promises:
// `output` is NULL or has room for a tensor.
int32_t phalanx_output(int64_t handle,
                       int32_t index,
                       struct phalanx_tensor *output);

// Alltoall: the rows received from each rank. Writes at most `capacity` of them and returns how many there are, or a negative code.
//
// The caller promises:
// `rows` has room for `capacity` numbers.
int32_t phalanx_received_splits(int64_t handle,
                                int64_t *rows,
                                int32_t capacity);

// Join: the rank that joined last, or a negative code.
int32_t phalanx_last_joined(int64_t handle);

// What went wrong with an operation: "" if nothing did, or it is not done yet; NULL if there is no such handle. Valid until phalanx_release().
const char *phalanx_error(int64_t handle);

// Forgets an operation and frees its outputs. Every handle is released once; one that is not done answers PHALANX_STATUS_PENDING and stays.
int32_t phalanx_release(int64_t handle);

// Joins the world and starts the engine, with process sets besides that of all ranks: `process_set_sizes` has the size of each of them,
// `process_set_ranks` the ranks of one after the other. `ranks` is empty or has all ranks in order. False if it fails: phalanx_last_error() says why.
// True, whatever the arguments, if it runs already.
//
// The caller promises:
// `ranks` points to `n_ranks` numbers, `process_set_sizes` to `n_process_sets`, `process_set_ranks` to as many as these add up to.
bool horovod_init(const int *ranks,
                  int n_ranks,
                  const int *process_set_ranks,
                  const int *process_set_sizes,
                  int n_process_sets);

// Ends the engine, for all ranks.
void horovod_shutdown(void);

int horovod_is_initialized(void);

// Writes a timeline to this file, or from now on to this file if there is one already. Every rank calls it with the same name; as with Horovod,
// only rank 0 writes (phalanx_start_timeline() is for the others). Returns 1; or -1 (not initialized), -7 (no name), -17 (it cannot be written).
//
// The caller promises:
// `file_name` is NULL or a string.
int horovod_start_timeline(const char *file_name,
                           bool mark_cycles);

// Ends the timeline, if there is one. Returns 1; or -1, -17 as above.
int horovod_stop_timeline(void);

// This rank's number. As the functions below: -1 before horovod_init().
int horovod_rank(void);

int horovod_size(void);

int horovod_local_rank(void);

int horovod_local_size(void);

int horovod_cross_rank(void);

int horovod_cross_size(void);

// 1 if every host has the same number of ranks, otherwise 0.
int horovod_is_homogeneous(void);

// 0: there is no MPI.
int horovod_mpi_threads_supported(void);

bool horovod_mpi_enabled(void);

bool horovod_mpi_built(void);

// True while the engine runs: to programs that ask, Phalanx stands where Gloo would, the way without MPI.
bool horovod_gloo_enabled(void);

// True: see horovod_gloo_enabled().
bool horovod_gloo_built(void);

int horovod_nccl_built(void);

bool horovod_ddl_built(void);

bool horovod_ccl_built(void);

bool horovod_cuda_built(void);

bool horovod_rocm_built(void);

int horovod_reduce_op_average(void);

int horovod_reduce_op_sum(void);

int horovod_reduce_op_adasum(void);

int horovod_reduce_op_min(void);

int horovod_reduce_op_max(void);

int horovod_reduce_op_product(void);

// As phalanx_add_process_set(), if HOROVOD_DYNAMIC_PROCESS_SETS was 1 at horovod_init(). Returns its number; or -1 (not initialized), -2 (not
// dynamic), -5 (shut down, or a rank is lost), -6 (such a set exists), -7 (ranks that cannot be a set).
//
// The caller promises:
// `ranks` points to `n_ranks` numbers.
int horovod_add_process_set(const int *ranks,
                            int n_ranks);

// As phalanx_remove_process_set(), if HOROVOD_DYNAMIC_PROCESS_SETS was 1 at horovod_init(). Returns the number it had; or -1, -2, -5 as above, -3
// (there is no such set, or it is that of all ranks).
int horovod_remove_process_set(int process_set_id);

// This rank's number in a process set; or -1 (not initialized), -3 (there is no such set), -4 (this rank is not in it).
int horovod_process_set_rank(int process_set_id);

// The number of ranks in a process set; or -1, -3 as above.
int horovod_process_set_size(int process_set_id);

// 1 if this rank is in the process set, 0 if it is not; or -1, -3 as above.
int horovod_process_set_included(int process_set_id);

// The number of process sets, with that of all ranks; 0 before horovod_init().
int horovod_number_of_process_sets(void);

// Writes the numbers of all process sets.
//
// The caller promises:
// `ids` has room for horovod_number_of_process_sets() numbers.
void horovod_process_set_ids(int *ids);

// Writes the ranks of a process set. Returns 0; or -1, -3 as above.
//
// The caller promises:
// `ranks` has room for horovod_process_set_size(id) numbers.
int horovod_process_set_ranks(int id, int *ranks);

// Joins the world with the shape that the options name, as in "-mode n:4x3 -dump_iter 100", and starts the engine. NULL or an empty string:
// DDL_OPTIONS of the environment; without a mode there is a single ring. Every rank gives the same. A second call is an error.
//
// The caller promises:
// `options` is NULL or a string.
int32_t ddl_init(const char *options);

// This rank's number.
int32_t ddl_rank(void);

// The number of ranks.
int32_t ddl_size(void);

// This rank's place among the ranks of its host, and the number of the device that belongs to it.
int32_t ddl_local_rank(void);

// Zeroed memory, aligned to `align` bytes, a power of two, or 0 for any type; ddl_free() gives it back.
//
// The caller promises:
// `memory` points to a pointer.
int32_t ddl_malloc(void **memory, size_t align, size_t bytes);

// Gives memory of ddl_malloc() back; NULL is nothing.
//
// The caller promises:
// `memory` is NULL or comes from ddl_malloc(), and is not used any more.
void ddl_free(void *memory);

// Gives every rank the `n` elements of rank 0. `dtype` is a phalanx_dtype.
//
// The caller promises:
// `buffer` holds `n` elements.
int32_t ddl_bcast(void *buffer, size_t n, int32_t dtype);

// Reduces `n` elements over all ranks, in place. `dtype` is a phalanx_dtype, `op` a phalanx_op. Ranks are matched in the order of their calls.
//
// The caller promises:
// `buffer` holds `n` elements.
int32_t ddl_allreduce(void *buffer,
                      size_t n,
                      int32_t dtype,
                      int32_t op);

// As ddl_allreduce(), but MPI_Allreduce does it: for comparison, under mpirun of Open MPI or MPICH.
// Elsewhere it fails on all ranks, and the engine goes on.
//
// The caller promises:
// `buffer` holds `n` elements.
int32_t ddl_allreduce_by_mpi(void *buffer, size_t n, int32_t dtype, int32_t op);

// Reduces several vectors over all ranks, in place: all or none. `counts` has the elements of each.
//
// The caller promises:
// `buffers` and `counts` have `n_buffers` entries, and each buffer its elements; no two share memory.
int32_t ddl_allreduce_n(void *const *buffers,
                        const size_t *counts,
                        int32_t n_buffers,
                        int32_t dtype,
                        int32_t op);

// Ends the engine, for all ranks, as phalanx_shutdown() does. ddl_init() may be called again.
int32_t ddl_finalize(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PHALANX_H */
