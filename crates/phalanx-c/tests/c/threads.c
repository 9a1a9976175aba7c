/* Many threads submit, wait for the same handles, change process sets, and one ends it all under them. */
#include "check.h"

#include <pthread.h>

#define N_THREADS 4
#define N_ROUNDS 200
#define N_LENGTH 257

static int SIZE;

static void *reduce(void *number) {
    int me = (int)(intptr_t)number, round, i;
    static float data[N_THREADS][N_LENGTH];
    const int64_t shape[] = {N_LENGTH};
    char name[32];
    snprintf(name, sizeof name, "thread %d", me);
    for (round = 0; round < N_ROUNDS; round++) {
        phalanx_tensor tensor = {data[me], shape, 1, PHALANX_DTYPE_F32};
        phalanx_options options = PHALANX_OPTIONS_INIT;
        int64_t handle;
        for (i = 0; i < N_LENGTH; i++)
            data[me][i] = (float)(me + round);
        options.name = name;
        handle = phalanx_allreduce(&tensor, &options);
        CLAIM(handle > 0);
        SAME(phalanx_wait(handle, 60), PHALANX_STATUS_OK);
        SAME(phalanx_release(handle), PHALANX_STATUS_OK);
        for (i = 0; i < N_LENGTH; i++)
            SAME(data[me][i], SIZE * (me + round));
    }
    return NULL;
}

static void *change_sets(void *unused) {
    const int32_t ranks[] = {0};
    int round;
    (void)unused;
    for (round = 0; SIZE > 1 && round < 10; round++) {
        int32_t set = phalanx_add_process_set(ranks, 1);
        CLAIM(set > 0);
        SAME(phalanx_remove_process_set(set), PHALANX_STATUS_OK);
    }
    return NULL;
}

/* How a handle ended, as another thread saw it. */
static void *wait_for(void *handle) {
    return (void *)(intptr_t)phalanx_wait(*(const int64_t *)handle, -1);
}

static void together(void *(*work)(void *), void *extra, pthread_t *threads, int n) {
    int i;
    for (i = 0; i < n; i++)
        SAME(pthread_create(&threads[i], NULL, work, extra ? extra : (void *)(intptr_t)i), 0);
}

static void joined(pthread_t *threads, int n, int32_t expected) {
    int i;
    for (i = 0; i < n; i++) {
        void *result;
        SAME(pthread_join(threads[i], &result), 0);
        SAME((intptr_t)result, expected);
    }
}

static void *barrier(void *unused) {
    int64_t handle = phalanx_barrier(NULL);
    (void)unused;
    SAME(phalanx_wait(handle, 60), PHALANX_STATUS_OK);
    SAME(phalanx_release(handle), PHALANX_STATUS_OK);
    return NULL;
}

int main(void) {
    pthread_t threads[N_THREADS + 1];
    int64_t handle = 0;
    int cycle;
    for (cycle = 0; cycle < 3; cycle++) {
        SAME(phalanx_init(), PHALANX_STATUS_OK);
        SIZE = phalanx_size();
        together(reduce, NULL, threads, N_THREADS);
        together(change_sets, NULL, threads + N_THREADS, 1);
        joined(threads, N_THREADS + 1, 0);
        /* Only rank 0 submits it: all who wait for it are told of the end. */
        if (SIZE > 1 && phalanx_rank() == 0) {
            static const int64_t shape[] = {1};
            static float value[1];
            phalanx_tensor tensor = {value, shape, 1, PHALANX_DTYPE_F32};
            handle = phalanx_allreduce(&tensor, NULL);
            CLAIM(handle > 0);
            together(wait_for, &handle, threads, N_THREADS);
        }
        barrier(NULL); /* before it the others must not end */
        SAME(phalanx_shutdown(), PHALANX_STATUS_OK);
        if (SIZE > 1 && handle > 0) {
            joined(threads, N_THREADS, PHALANX_STATUS_SHUT_DOWN);
            SAME(phalanx_release(handle), PHALANX_STATUS_OK);
        }
        handle = 0;
    }
    printf("all threads are through\n");
    return 0;
}
