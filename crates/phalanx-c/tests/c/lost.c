/* The last rank ends in the middle of something: the others are told who, and everything after that says so, too. */
#include "check.h"

int main(void) {
    static float value[1];
    static const int64_t shape[] = {1};
    phalanx_tensor tensor = {value, shape, 1, PHALANX_DTYPE_F32};
    int64_t handle;
    SAME(phalanx_init(), PHALANX_STATUS_OK);
    handle = phalanx_barrier(NULL);
    SAME(phalanx_wait(handle, 60), PHALANX_STATUS_OK);
    if (phalanx_rank() == phalanx_size() - 1)
        exit(7); /* without shutdown */
    handle = phalanx_allreduce(&tensor, NULL);
    if (handle > 0) {
        SAME(phalanx_wait(handle, 60), PHALANX_STATUS_PEER_LOST);
        SAYS(phalanx_error(handle), "rank 2 is lost");
        SAME(phalanx_release(handle), PHALANX_STATUS_OK);
    } else {
        /* It was known before this rank came here. */
        SAME(handle, PHALANX_STATUS_PEER_LOST);
    }
    SAYS(phalanx_last_error(), "rank 2 is lost");
    SAME(phalanx_barrier(NULL), PHALANX_STATUS_PEER_LOST);
    SAME(horovod_add_process_set(NULL, 0), -2);
    SAME(phalanx_add_process_set((const int32_t[]){0}, 1), PHALANX_STATUS_PEER_LOST);
    SAME(phalanx_shutdown(), PHALANX_STATUS_OK);
    SAME(phalanx_is_initialized(), 0);
    printf("told\n");
    return 0;
}
