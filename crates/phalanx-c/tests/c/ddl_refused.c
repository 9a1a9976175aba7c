/* Option strings that DDL does not take: each is refused in one sentence, and the next one can be tried. */
#include <stdio.h>
#include "phalanx.h"

static const char *const bad[] = {
    "-mode q:2", "-mode n2", "-mode n:0", "-mode n:1x1x1x1x2", "-mode n:2x", "-mode n:2x3", "-mode", "-moed n:2",
    "-dump_iter ten", "-dump_iter 100", "-rebind_iter 7", "-dev_sync 3", "-dbg_level 1 -dbg_level 1",
    "-dbg_level 1", "-mode m:2",
};

int main(void) {
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const int code = ddl_init(bad[i]);
        if (code >= 0) {
            printf("%s is taken\n", bad[i]);
            return 1;
        }
        printf("%s\n", phalanx_last_error());
    }
    if (ddl_init("-mode r:2 -dev_sync 2") < 0) return 1;
    if (ddl_init("-mode r:2") >= 0) return 1;
    printf("%s\n", phalanx_last_error());
    float x[3] = {1, 2, 3};
    if (ddl_allreduce_by_mpi(x, 3, PHALANX_DTYPE_F32, PHALANX_OP_SUM) >= 0) return 1;
    printf("%s\n", phalanx_last_error());
    if (ddl_allreduce(x, 3, PHALANX_DTYPE_F32, PHALANX_OP_SUM) < 0 || x[2] != 6) return 1;
    return ddl_finalize() < 0;
}
