/* init and shutdown again and again in one process, with Horovod's functions; ranks arrive at different times. */
#include "check.h"

#include <unistd.h>

#define N_CYCLES 50

static void mistaken_inits(void) {
    const int backwards[] = {1, 0, 2}, sizes[] = {1, 1}, twice[] = {0, 0}, negative[] = {-1};
    CLAIM(!horovod_init(backwards, 2, NULL, NULL, 0));
    SAYS(phalanx_last_error(), "all ranks in order");
    CLAIM(!horovod_init(NULL, -1, NULL, NULL, 0));
    CLAIM(!horovod_init(NULL, 3, NULL, NULL, 0));
    CLAIM(!horovod_init(NULL, 0, twice, sizes, 2));
    SAYS(phalanx_last_error(), "already");
    CLAIM(!horovod_init(NULL, 0, twice, NULL, 2));
    CLAIM(!horovod_init(NULL, 0, twice, negative, 1));
    CLAIM(!horovod_init(NULL, 0, negative, sizes, 1));
    CLAIM(!horovod_is_initialized());
}

/* Ranks that were given different process sets all hear of it, and can start again. */
static void different_sets(int rank) {
    const int sizes[] = {1};
    CLAIM(!horovod_init(NULL, 0, &rank, sizes, 1));
    SAYS(phalanx_last_error(), "different process sets");
}

static void sum(int cycle, int size) {
    float data[3] = {1, 2, 3};
    const int64_t shape[] = {3};
    phalanx_tensor tensor = {data, shape, 1, PHALANX_DTYPE_F32};
    phalanx_options options = PHALANX_OPTIONS_INIT;
    int64_t handle;
    char name[32];
    snprintf(name, sizeof name, "cycle %d", cycle % 3);
    options.name = name;
    options.op = horovod_reduce_op_sum();
    handle = phalanx_allreduce(&tensor, &options);
    CLAIM(handle > 0);
    SAME(phalanx_wait(handle, 60), PHALANX_STATUS_OK);
    SAME(data[2], 3 * size);
    SAME(phalanx_release(handle), PHALANX_STATUS_OK);
}

int main(void) {
    const int static_ranks[] = {0}, static_sizes[] = {1};
    int cycle, rank, size, ids[8], ranks[8];
    setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1", 1); /* read at init, not when the library is loaded */
    CLAIM(horovod_init(NULL, 0, NULL, NULL, 0));
    rank = horovod_rank();
    size = horovod_size();
    horovod_shutdown();
    mistaken_inits();
    if (size > 1)
        different_sets(rank);
    for (cycle = 0; cycle < N_CYCLES; cycle++) {
        int with_set = size > 1 && cycle % 10 == 0;
        if (cycle < 5)
            usleep((useconds_t)(rank * 2000));
        CLAIM(horovod_init(NULL, 0, static_ranks, static_sizes, with_set));
        CLAIM(horovod_init(NULL, 0, NULL, NULL, 0));
        SAME(horovod_rank(), rank);
        SAME(horovod_size(), size);
        SAME(horovod_number_of_process_sets(), with_set ? 2 : 1);
        if (with_set) {
            horovod_process_set_ids(ids);
            SAME(ids[1], 1);
            SAME(horovod_process_set_included(1), rank == 0);
            SAME(horovod_process_set_rank(1), rank == 0 ? 0 : -4);
            SAME(horovod_process_set_size(1), 1);
            SAME(horovod_add_process_set(static_ranks, 1), -6);
            SAME(horovod_remove_process_set(1), 1);
            SAME(horovod_remove_process_set(1), -3);
            SAME(horovod_add_process_set(static_ranks, 1), 1); /* numbers are used again */
            SAME(horovod_process_set_ranks(1, ranks), 0);
            SAME(ranks[0], 0);
        }
        if (cycle == 1) {
            SAME(horovod_start_timeline("timeline.json", true), 1);
            SAME(horovod_start_timeline("timeline.json", false), 1);
        }
        sum(cycle, size);
        if (cycle == 1)
            SAME(horovod_stop_timeline(), 1);
        horovod_shutdown();
        horovod_shutdown();
        CLAIM(!horovod_is_initialized());
    }
    /* What the environment says wrong is said at init, and can be put right. */
    setenv("PHALANX_FUSION_BYTES", "much", 1);
    CLAIM(!horovod_init(NULL, 0, NULL, NULL, 0));
    SAYS(phalanx_last_error(), "PHALANX_FUSION_BYTES");
    unsetenv("PHALANX_FUSION_BYTES");
    CLAIM(horovod_init(NULL, 0, NULL, NULL, 0));
    sum(0, size);
    horovod_shutdown();
    printf("%d cycles\n", N_CYCLES);
    return 0;
}
