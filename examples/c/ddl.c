/* IBM DDL's functions in C: 12 ranks on 3 hosts of 4 pass "-mode n:4x3".
 *
 *     cc ddl.c -I ../../crates/phalanx-c/include -L ../../target/debug -lphalanx -o ddl
 *     phalanx run -np 4 ./ddl "-mode n:4"
 */
#include <stdio.h>
#include "phalanx.h"

static int failed(const char *what, int code) {
    if (code >= 0) return 0;
    fprintf(stderr, "%s: %s\n", what, phalanx_last_error());
    return 1;
}

int main(int argc, char **argv) {
    if (failed("ddl_init", ddl_init(argc > 1 ? argv[1] : NULL))) return 1;
    const size_t n = 1000;
    void *memory = NULL;
    if (failed("ddl_malloc", ddl_malloc(&memory, 0, n * sizeof(float)))) return 1;
    float *x = memory;
    for (size_t i = 0; i < n; i++) x[i] = (float)(ddl_rank() + 1);
    if (failed("ddl_allreduce", ddl_allreduce(x, n, PHALANX_DTYPE_F32, PHALANX_OP_SUM))) return 1;
    const int size = ddl_size();
    if (x[n - 1] != (float)(size * (size + 1) / 2)) {
        fprintf(stderr, "the sum is wrong: %f\n", x[n - 1]);
        return 1;
    }
    x[0] = (float)ddl_rank();
    if (failed("ddl_bcast", ddl_bcast(x, 1, PHALANX_DTYPE_F32))) return 1;
    if (x[0] != 0.0f) return 1;
    void *parts[2] = {x, x + 500};
    const size_t counts[2] = {3, 500};
    if (failed("ddl_allreduce_n", ddl_allreduce_n(parts, counts, 2, PHALANX_DTYPE_F32, PHALANX_OP_MAX))) return 1;
    if (ddl_rank() == 0) printf("%d ranks, sum and maximum are right\n", size);
    ddl_free(memory);
    return failed("ddl_finalize", ddl_finalize());
}
