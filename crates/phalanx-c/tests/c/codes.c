/* Every mistake has its code, before init, after it, in a forked child, after the end. In a world of any size. */
#include "check.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

static const int64_t FOUR[] = {4};
static float DATA[8] = {1, 2, 3, 4, 5, 6, 7, 8};

static phalanx_tensor four(void) {
    phalanx_tensor tensor = {DATA, FOUR, 1, PHALANX_DTYPE_F32};
    return tensor;
}

static void before_init(int32_t code) {
    phalanx_tensor tensor = four();
    int ids[8];
    SAME(phalanx_allreduce(&tensor, NULL), code);
    SAME(phalanx_join(NULL), code);
    SAME(phalanx_barrier(NULL), code);
    SAME(phalanx_rank(), code);
    SAME(phalanx_add_process_set(ids, 0), code);
    SAME(phalanx_is_initialized(), 0);
    SAME(horovod_rank(), -1);
    SAME(horovod_size(), -1);
    SAME(horovod_local_rank(), -1);
    SAME(horovod_local_size(), -1);
    SAME(horovod_cross_rank(), -1);
    SAME(horovod_cross_size(), -1);
    SAME(horovod_is_homogeneous(), -1);
    SAME(horovod_mpi_threads_supported(), -1);
    SAME(horovod_add_process_set(ids, 0), -1);
    SAME(horovod_remove_process_set(1), -1);
    SAME(horovod_process_set_rank(0), -1);
    SAME(horovod_process_set_size(0), -1);
    SAME(horovod_process_set_included(0), -1);
    SAME(horovod_process_set_ranks(0, ids), -1);
    SAME(horovod_number_of_process_sets(), 0);
    SAME(horovod_is_initialized(), 0);
    SAME(horovod_start_timeline("never-written.json", false), -1);
    SAME(horovod_stop_timeline(), -1);
    CLAIM(!horovod_gloo_enabled());
}

static void wrong_tensors(void) {
    phalanx_tensor tensor = four(), other = four();
    static const int64_t negative[] = {-1}, huge[] = {INT64_MAX, 8};
    SAME(phalanx_allreduce(NULL, NULL), PHALANX_STATUS_INVALID);
    SAYS(phalanx_last_error(), "the tensor");
    tensor.dtype = 11;
    SAME(phalanx_allreduce(&tensor, NULL), PHALANX_STATUS_INVALID);
    SAYS(phalanx_last_error(), "11 is not a phalanx_dtype");
    tensor.dtype = -1;
    SAME(phalanx_allgather(&tensor, NULL), PHALANX_STATUS_INVALID);
    tensor = four();
    tensor.data = NULL;
    SAME(phalanx_broadcast(&tensor, 0, NULL), PHALANX_STATUS_INVALID);
    tensor.data = (char *)DATA + 1;
    SAME(phalanx_allreduce(&tensor, NULL), PHALANX_STATUS_INVALID);
    SAYS(phalanx_last_error(), "not aligned");
    tensor = four();
    tensor.shape = NULL;
    SAME(phalanx_reducescatter(&tensor, NULL), PHALANX_STATUS_INVALID);
    tensor.shape = negative;
    SAME(phalanx_allreduce(&tensor, NULL), PHALANX_STATUS_INVALID);
    tensor.shape = huge;
    tensor.ndim = 2;
    SAME(phalanx_allreduce(&tensor, NULL), PHALANX_STATUS_INVALID);
    tensor.ndim = -1;
    SAME(phalanx_allreduce(&tensor, NULL), PHALANX_STATUS_INVALID);
    tensor.ndim = 1 << 30;
    SAME(phalanx_allreduce(&tensor, NULL), PHALANX_STATUS_INVALID);
    tensor = four();
    other.data = DATA + 2;
    SAME(phalanx_allreduce_into(&tensor, &other, NULL), PHALANX_STATUS_INVALID);
    SAYS(phalanx_last_error(), "overlap in memory");
    other = four();
    other.dtype = PHALANX_DTYPE_I32;
    other.data = DATA + 4;
    SAME(phalanx_allreduce_into(&tensor, &other, NULL), PHALANX_STATUS_INVALID);
    SAME(phalanx_allreduce_into(&tensor, NULL, NULL), PHALANX_STATUS_INVALID);
    SAME(phalanx_grouped_allreduce(NULL, 2, NULL), PHALANX_STATUS_INVALID);
    SAME(phalanx_grouped_allreduce(&tensor, -1, NULL), PHALANX_STATUS_INVALID);
    SAME(phalanx_grouped_allreduce(&tensor, 0, NULL), PHALANX_STATUS_INVALID);
}

static void wrong_options(void) {
    phalanx_tensor tensor = four();
    static const int64_t splits[] = {-1, 2, 3, 4};
    phalanx_options options = PHALANX_OPTIONS_INIT, zeros;
    memset(&zeros, 0, sizeof zeros);
    SAME(phalanx_allreduce(&tensor, &zeros), PHALANX_STATUS_INVALID);
    SAYS(phalanx_last_error(), "PHALANX_OPTIONS_INIT");
    options.op = 6;
    SAME(phalanx_allreduce(&tensor, &options), PHALANX_STATUS_INVALID);
    SAYS(phalanx_last_error(), "6 is not a phalanx_op");
    options.op = PHALANX_OP_MAX;
    SAME(phalanx_reducescatter(&tensor, &options), PHALANX_STATUS_INVALID);
    options = (phalanx_options)PHALANX_OPTIONS_INIT;
    options.process_set = 77;
    SAME(phalanx_allreduce(&tensor, &options), PHALANX_STATUS_UNKNOWN_SET);
    options.process_set = -1;
    SAME(phalanx_allreduce(&tensor, &options), PHALANX_STATUS_UNKNOWN_SET);
    options = (phalanx_options)PHALANX_OPTIONS_INIT;
    options.name = "\xff\xfe";
    SAME(phalanx_allreduce(&tensor, &options), PHALANX_STATUS_INVALID);
    SAYS(phalanx_last_error(), "UTF-8");
    options = (phalanx_options)PHALANX_OPTIONS_INIT;
    options.wire = 99;
    SAME(phalanx_allreduce(&tensor, &options), PHALANX_STATUS_INVALID);
    options.wire = PHALANX_DTYPE_I8;
    SAME(phalanx_allreduce(&tensor, &options), PHALANX_STATUS_INVALID);
    options = (phalanx_options)PHALANX_OPTIONS_INIT;
    options.prescale = NAN;
    SAME(phalanx_allreduce(&tensor, &options), PHALANX_STATUS_INVALID);
    SAME(phalanx_broadcast(&tensor, -1, NULL), PHALANX_STATUS_INVALID);
    SAME(phalanx_broadcast(&tensor, 1000, NULL), PHALANX_STATUS_INVALID);
    SAME(phalanx_alltoall(&tensor, splits, phalanx_size(), NULL), PHALANX_STATUS_INVALID);
    SAME(phalanx_alltoall(&tensor, NULL, 1, NULL), PHALANX_STATUS_INVALID);
    SAME(phalanx_alltoall(&tensor, splits, -1, NULL), PHALANX_STATUS_INVALID);
}

static void wrong_handles(void) {
    phalanx_tensor output;
    int64_t rows[4];
    SAME(phalanx_poll(0), PHALANX_STATUS_UNKNOWN_HANDLE);
    SAME(phalanx_wait(-5, 1), PHALANX_STATUS_UNKNOWN_HANDLE);
    SAME(phalanx_release(123456), PHALANX_STATUS_UNKNOWN_HANDLE);
    SAME(phalanx_output(0, 0, &output), PHALANX_STATUS_UNKNOWN_HANDLE);
    SAME(phalanx_received_splits(0, rows, 4), PHALANX_STATUS_UNKNOWN_HANDLE);
    SAME(phalanx_last_joined(0), PHALANX_STATUS_UNKNOWN_HANDLE);
    CLAIM(phalanx_error(0) == NULL);
}

static void wrong_sets(void) {
    const int twice[] = {0, 0}, strange[] = {0, 1000}, negative[] = {-1};
    int all[64], i, size = phalanx_size();
    for (i = 0; i < size; i++)
        all[i] = size - 1 - i;
    SAME(phalanx_add_process_set(twice, 2), PHALANX_STATUS_INVALID);
    SAME(phalanx_add_process_set(strange, 2), PHALANX_STATUS_INVALID);
    SAME(phalanx_add_process_set(negative, 1), PHALANX_STATUS_INVALID);
    SAME(phalanx_add_process_set(NULL, 3), PHALANX_STATUS_INVALID);
    SAME(phalanx_add_process_set(all, -3), PHALANX_STATUS_INVALID);
    SAME(phalanx_add_process_set(all, 0), PHALANX_STATUS_INVALID);
    SAME(phalanx_add_process_set(all, size), PHALANX_STATUS_EXISTING_SET);
    SAME(phalanx_remove_process_set(0), PHALANX_STATUS_UNKNOWN_SET);
    SAME(phalanx_remove_process_set(9), PHALANX_STATUS_UNKNOWN_SET);
    SAME(phalanx_remove_process_set(-9), PHALANX_STATUS_UNKNOWN_SET);
    SAME(horovod_process_set_rank(9), -3);
    SAME(horovod_process_set_size(-9), -3);
    SAME(horovod_process_set_included(9), -3);
    SAME(horovod_process_set_ranks(9, all), -3);
    SAME(horovod_process_set_ranks(0, NULL), PHALANX_STATUS_INVALID);
    SAME(horovod_add_process_set(all, size), -2);
    SAME(horovod_remove_process_set(1), -2);
    SAYS(phalanx_last_error(), "HOROVOD_DYNAMIC_PROCESS_SETS=1");
}

/* What a handle answers before and after it is done. */
static void life_of_a_handle(void) {
    int64_t shape[] = {phalanx_size(), 1}, rows[64] = {0};
    int32_t numbers[64] = {7, 7, 7};
    phalanx_tensor input = {numbers, shape, 2, PHALANX_DTYPE_I32}, tensor = four(), output;
    phalanx_options options = PHALANX_OPTIONS_INIT;
    int64_t handle, again;
    options.name = "the same";
    handle = phalanx_alltoall(&input, NULL, 0, &options);
    CLAIM(handle > 0);
    again = phalanx_allreduce(&tensor, &options);
    SAME(again, PHALANX_STATUS_DUPLICATE_NAME);
    SAME(phalanx_wait(handle, NAN), PHALANX_STATUS_INVALID);
    SAME(phalanx_wait(handle, -1), PHALANX_STATUS_OK);
    SAME(phalanx_poll(handle), 1);
    SAME(phalanx_output_count(handle), 1);
    SAME(phalanx_output(handle, 1, &output), PHALANX_STATUS_INVALID);
    SAME(phalanx_output(handle, 0, NULL), PHALANX_STATUS_INVALID);
    SAME(phalanx_output(handle, 0, &output), PHALANX_STATUS_OK);
    SAME(output.ndim, 2);
    SAME(output.shape[0], phalanx_size());
    SAME(output.dtype, PHALANX_DTYPE_I32);
    SAME(((int32_t *)output.data)[0], 7);
    SAME(phalanx_received_splits(handle, rows, 64), phalanx_size());
    SAME(phalanx_received_splits(handle, NULL, 0), phalanx_size());
    SAME(phalanx_received_splits(handle, rows, -1), PHALANX_STATUS_INVALID);
    SAME(rows[0], 1);
    SAME(phalanx_last_joined(handle), PHALANX_STATUS_INVALID);
    SAYS(phalanx_error(handle), "");
    again = phalanx_allreduce(&tensor, &options);
    CLAIM(again > handle); /* the name is free, although the handle is not released */
    SAME(phalanx_wait(again, -1), PHALANX_STATUS_OK);
    SAME(phalanx_release(again), PHALANX_STATUS_OK);
    SAME(phalanx_release(handle), PHALANX_STATUS_OK);
    SAME(phalanx_release(handle), PHALANX_STATUS_UNKNOWN_HANDLE);
    handle = phalanx_join(NULL);
    CLAIM(handle > 0);
    SAME(phalanx_wait(handle, 60), PHALANX_STATUS_OK);
    CLAIM(phalanx_last_joined(handle) >= 0 && phalanx_last_joined(handle) < phalanx_size());
    SAME(phalanx_output_count(handle), 0);
    SAME(phalanx_release(handle), PHALANX_STATUS_OK);
}

struct seen {
    int64_t next;
    int32_t status, waited, ended, n_outputs, released;
};

/* EDGE-3: a callback reads its results, submits, releases; it never waits for others. */
static void in_callback(int64_t handle, int32_t status, void *user) {
    struct seen *seen = user;
    phalanx_tensor tensor = four(), output;
    seen->status = status;
    seen->next = phalanx_barrier(NULL);
    seen->waited = phalanx_wait(seen->next, 1);
    seen->ended = phalanx_shutdown();
    seen->n_outputs = phalanx_output_count(handle);
    if (phalanx_wait(handle, 1) != PHALANX_STATUS_OK || phalanx_output(handle, 0, &output) != PHALANX_STATUS_OK ||
        output.data != tensor.data)
        seen->n_outputs = -1;
    seen->released = phalanx_release(handle);
}

static void callbacks(void) {
    struct seen seen = {0, 1, 1, 1, 0, 1};
    phalanx_tensor tensor = four();
    phalanx_options options = PHALANX_OPTIONS_INIT;
    int64_t handle, after;
    options.callback = in_callback;
    options.user = &seen;
    handle = phalanx_allreduce(&tensor, &options);
    CLAIM(handle > 0);
    after = phalanx_barrier(&(phalanx_options){.struct_size = sizeof options, .name = "after", .op = PHALANX_OP_SUM,
                                               .prescale = 1, .postscale = 1, .wire = -1, .device = -1});
    SAME(phalanx_wait(after, 60), PHALANX_STATUS_OK);
    SAME(phalanx_release(after), PHALANX_STATUS_OK);
    while (phalanx_poll(handle) != PHALANX_STATUS_UNKNOWN_HANDLE) /* the callback releases it last */
        usleep(100);
    SAME(phalanx_wait(seen.next, 60), PHALANX_STATUS_OK);
    SAME(phalanx_release(seen.next), PHALANX_STATUS_OK);
    SAME(seen.status, PHALANX_STATUS_OK);
    SAME(seen.waited, PHALANX_STATUS_IN_CALLBACK);
    SAME(seen.ended, PHALANX_STATUS_IN_CALLBACK);
    SAME(seen.n_outputs, 1);
}

static void forked(void) {
    int status = 0;
    pid_t child;
    fflush(NULL);
    child = fork();
    CLAIM(child >= 0);
    if (child == 0) {
        before_init(PHALANX_STATUS_FORKED);
        CLAIM(!horovod_init(NULL, 0, NULL, NULL, 0));
        SAYS(phalanx_last_error(), "was forked");
        SAME(phalanx_init(), PHALANX_STATUS_FORKED);
        SAME(phalanx_shutdown(), PHALANX_STATUS_FORKED);
        SAME(phalanx_wait(1, 0), PHALANX_STATUS_FORKED);
        exit(42); /* not _exit: what runs at exit must leave the parent's world alone */
    }
    CLAIM(waitpid(child, &status, 0) == child);
    CLAIM(WIFEXITED(status));
    SAME(WEXITSTATUS(status), 42);
}

/* Nobody else submits it: it stays until the end. Its memory must outlive it. */
static int64_t left_over(void) {
    static phalanx_tensor tensor;
    phalanx_options options = PHALANX_OPTIONS_INIT;
    int64_t handle;
    if (phalanx_size() < 2)
        return 0;
    tensor = four();
    options.name = phalanx_rank() == 0 ? "alone" : "others";
    if (phalanx_rank() > 0)
        return 0;
    handle = phalanx_allreduce(&tensor, &options);
    CLAIM(handle > 0);
    SAME(phalanx_poll(handle), 0);
    SAME(phalanx_wait(handle, 0.02), PHALANX_STATUS_TIMEOUT);
    SAME(phalanx_release(handle), PHALANX_STATUS_PENDING); /* EDGE-2 */
    SAME(phalanx_output_count(handle), PHALANX_STATUS_PENDING);
    return handle;
}

int main(void) {
    phalanx_counters counters;
    int64_t handle, barrier;
    SAYS(phalanx_version(), ".");
    before_init(PHALANX_STATUS_NOT_INITIALIZED);
    SAME(phalanx_shutdown(), PHALANX_STATUS_OK);
    SAME(phalanx_init(), PHALANX_STATUS_OK);
    SAME(phalanx_init(), PHALANX_STATUS_OK);
    SAME(phalanx_is_initialized(), 1);
    wrong_tensors();
    wrong_options();
    wrong_handles();
    wrong_sets();
    life_of_a_handle();
    callbacks();
    forked();
    SAME(phalanx_start_timeline(NULL, false), PHALANX_STATUS_INVALID);
    SAME(phalanx_start_timeline("/nowhere/at/all.json", false), PHALANX_STATUS_FAILED);
    SAME(horovod_start_timeline(NULL, false), PHALANX_STATUS_INVALID);
    SAME(phalanx_get_counters(NULL, sizeof counters), PHALANX_STATUS_INVALID);
    memset(&counters, 0xff, sizeof counters);
    SAME(phalanx_get_counters(&counters, sizeof counters.submitted), PHALANX_STATUS_OK);
    CLAIM(counters.submitted > 0 && counters.operations == UINT64_MAX);
    handle = left_over();
    barrier = phalanx_barrier(NULL);
    SAME(phalanx_wait(barrier, 60), PHALANX_STATUS_OK);
    SAME(phalanx_release(barrier), PHALANX_STATUS_OK);
    SAME(phalanx_shutdown(), PHALANX_STATUS_OK);
    if (handle > 0) {
        SAME(phalanx_wait(handle, 0), PHALANX_STATUS_SHUT_DOWN);
        SAYS(phalanx_error(handle), "shut");
        SAME(phalanx_release(handle), PHALANX_STATUS_OK);
    }
    before_init(PHALANX_STATUS_NOT_INITIALIZED);
    printf("all codes are right\n");
    return 0;
}
