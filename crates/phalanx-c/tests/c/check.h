/* Claims in C: a claim that fails is printed with its line, and the program ends with 1. */
#include "phalanx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLAIM(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition,   \
                    phalanx_last_error());                                                            \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

/* Both sides are shown if they differ. */
#define SAME(left, right)                                                                             \
    do {                                                                                              \
        long long l_ = (long long)(left), r_ = (long long)(right);                                    \
        if (l_ != r_) {                                                                               \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld (last error: %s)\n", __FILE__, __LINE__,     \
                    #left, l_, r_, phalanx_last_error());                                             \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

#define SAYS(text, part)                                                                              \
    do {                                                                                              \
        const char *text_ = (text);                                                                   \
        if (!text_ || !strstr(text_, part)) {                                                         \
            fprintf(stderr, "%s:%d: \"%s\" does not say \"%s\"\n", __FILE__, __LINE__,                \
                    text_ ? text_ : "(null)", part);                                                  \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)
