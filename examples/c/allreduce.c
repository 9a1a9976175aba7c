/* Named asynchronous reductions, a callback, rows gathered, a process set, and a mistake that is named.
 *
 *     cargo build --release
 *     cc -Icrates/phalanx-c/include examples/c/allreduce.c -Ltarget/release -lphalanx \
 *        -Wl,-rpath,"$PWD/target/release" -o allreduce
 *     target/release/phalanx run -np 3 ./allreduce
 */
#include "phalanx.h"

#include <stdio.h>
#include <stdlib.h>

#define N_LAYERS 4
#define N 1000

/* Ends this rank if a function answered with a negative code. The others learn that it is lost. */
static int64_t must(const char *what, int64_t answer) {
    if (answer < 0) {
        fprintf(stderr, "%s: %s: %s\n", what, phalanx_status_name((int32_t)answer), phalanx_last_error());
        exit(1);
    }
    return answer;
}

static phalanx_tensor floats(float *data, const int64_t *rows) {
    phalanx_tensor tensor = {data, rows, 1, PHALANX_DTYPE_F32};
    return tensor;
}

/* Runs on a thread of the engine. */
static void on_done(int64_t handle, int32_t status, void *user) {
    (void)handle;
    *(int32_t *)user = status;
}

static void average_gradients(int rank, int size) {
    static float gradients[N_LAYERS][N];
    static const int64_t shape[] = {N};
    int64_t handles[N_LAYERS];
    int32_t told = 1;
    float expected = (float)(size - 1) / 2;
    int layer, i, n_wrong = 0;

    for (layer = N_LAYERS - 1; layer >= 0; layer--) { /* as backpropagation would: last layer first */
        char name[32];
        phalanx_tensor tensor = floats(gradients[layer], shape);
        phalanx_options options = PHALANX_OPTIONS_INIT;
        for (i = 0; i < N; i++)
            gradients[layer][i] = (float)(rank + layer);
        snprintf(name, sizeof name, "gradient.%d", layer); /* the name is copied */
        options.name = name;
        options.op = PHALANX_OP_AVERAGE;
        if (layer == 0) {
            options.callback = on_done;
            options.user = &told;
        }
        handles[layer] = must("allreduce", phalanx_allreduce(&tensor, &options));
    }
    for (layer = 0; layer < N_LAYERS; layer++) {
        must("wait", phalanx_wait(handles[layer], 60));
        must("release", phalanx_release(handles[layer]));
        for (i = 0; i < N; i++)
            n_wrong += gradients[layer][i] != expected + (float)layer;
    }
    printf("rank %d of %d: %d gradients averaged, %d elements wrong, callback said %s\n", rank, size, N_LAYERS,
           n_wrong, phalanx_status_name(told));
}

static void gather_rows(int rank) {
    int32_t rows[16] = {0};
    int64_t shape[] = {rank + 1}; /* rank r brings r + 1 rows */
    phalanx_tensor input = {rows, shape, 1, PHALANX_DTYPE_I32};
    phalanx_tensor all;
    int64_t handle, i;
    for (i = 0; i <= rank && i < 16; i++)
        rows[i] = 10 * rank + (int32_t)i;
    handle = must("allgather", phalanx_allgather(&input, NULL));
    must("wait", phalanx_wait(handle, 60));
    must("output", phalanx_output(handle, 0, &all));
    printf("rank %d gathered %lld rows:", rank, (long long)all.shape[0]);
    for (i = 0; i < all.shape[0]; i++)
        printf(" %d", ((const int32_t *)all.data)[i]);
    printf("\n");
    must("release", phalanx_release(handle)); /* from here on all.data is gone */
}

static void sum_among_two(int rank) {
    static const int32_t members[] = {0, 2};
    static const int64_t shape[] = {1};
    float value = (float)(rank + 1);
    phalanx_tensor tensor = floats(&value, shape);
    phalanx_options options = PHALANX_OPTIONS_INIT;
    int64_t handle;
    int32_t set = (int32_t)must("add_process_set", phalanx_add_process_set(members, 2));
    options.process_set = set;
    handle = phalanx_allreduce(&tensor, &options);
    if (handle == PHALANX_STATUS_FOREIGN_SET) {
        printf("rank %d: %s\n", rank, phalanx_last_error());
    } else {
        must("allreduce", handle);
        must("wait", phalanx_wait(handle, 60));
        must("release", phalanx_release(handle));
        printf("rank %d: the sum in process set %d is %g\n", rank, set, value);
    }
    must("remove_process_set", phalanx_remove_process_set(set));
}

/* Rank 1 brings another shape than the others: everybody is told, and everything goes on. */
static void disagree(int rank) {
    float data[6] = {0};
    int64_t shape[] = {rank == 1 ? 6 : 4};
    phalanx_tensor tensor = floats(data, shape);
    phalanx_options options = PHALANX_OPTIONS_INIT;
    int64_t handle;
    int32_t status;
    options.name = "bias";
    handle = must("allreduce", phalanx_allreduce(&tensor, &options));
    status = phalanx_wait(handle, 60);
    printf("rank %d: %s: %s\n", rank, phalanx_status_name(status), phalanx_error(handle));
    must("release", phalanx_release(handle));
}

int main(void) {
    int rank, size;
    int64_t barrier;
    phalanx_counters counters;

    must("init", phalanx_init());
    rank = phalanx_rank();
    size = phalanx_size();

    average_gradients(rank, size);
    gather_rows(rank);
    if (size > 2) {
        sum_among_two(rank);
        disagree(rank);
    }

    barrier = must("barrier", phalanx_barrier(NULL));
    must("wait", phalanx_wait(barrier, 60));
    must("release", phalanx_release(barrier));
    must("counters", phalanx_get_counters(&counters, sizeof counters));
    printf("rank %d: phalanx %s ran %llu operations\n", rank, phalanx_version(),
           (unsigned long long)counters.operations);
    must("shutdown", phalanx_shutdown());
    return 0;
}
