// What plain memory gives: NP threads at once, each with memory of its own, copy BYTES (memcpy) or add BYTES of f32 to others in place.
// A call's time is the slowest thread's, started after a barrier; threads are pinned round-robin, as ranks are.
// Rows as mpi_bench.c, with the operations `copy` and `add`. usage: memory NP [seconds-per-size] BYTES...
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define MAXP 8
#define MOST 20000
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static int cmp(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return (x > y) - (x < y); }
static int P, n_sizes, stop;
static double budget, took[MAXP][MOST];
static size_t sizes[16];
static pthread_barrier_t all;
static void __attribute__((noinline)) add(float *restrict a, const float *restrict b, size_t n) { for (size_t i = 0; i < n; i++) a[i] += b[i]; }
static void measure(int me, int adds, size_t bytes) {
  char *a, *b; if (posix_memalign((void **)&a, 4096, bytes + 64) || posix_memalign((void **)&b, 4096, bytes + 64)) abort();
  memset(a, 0, bytes); memset(b, 0, bytes);
  int it = 0, warm = bytes >= (16u << 20) ? 2 : 20; double start = 0;
  for (; it < MOST + warm; it++) {
    pthread_barrier_wait(&all);
    if (it == warm) start = now();
    double t0 = now();
    if (adds) add((float *)a, (float *)b, bytes / 4); else { memcpy(a, b, bytes); __asm__ volatile("" ::"r"(a) : "memory"); }
    if (it >= warm) took[me][it - warm] = now() - t0;
    if (it >= warm + 5 && (bytes >= (1 << 20) || !(it & 15))) {
      if (!me) stop = now() - start > budget;
      pthread_barrier_wait(&all); int over = stop; pthread_barrier_wait(&all);
      if (over) { it++; break; }
    }
  }
  pthread_barrier_wait(&all);
  if (!me) {
    int c = it - warm;
    for (int i = 0; i < c; i++) for (int q = 1; q < P; q++) if (took[q][i] > took[0][i]) took[0][i] = took[q][i];
    qsort(took[0], c, sizeof(double), cmp);
    double median = took[0][c / 2];
    printf("memory\t%d\t%s\tf32\t%zu\t%.3f\t%.3f\t%.4f\n", P, adds ? "add" : "copy", bytes, median * 1e6, took[0][0] * 1e6, bytes / median / 1e9);
    fflush(stdout);
  }
  pthread_barrier_wait(&all);
  free(a); free(b);
}
static void *rank(void *number) {
  int me = (int)(size_t)number;
  cpu_set_t s; CPU_ZERO(&s); CPU_SET(me % sysconf(_SC_NPROCESSORS_ONLN), &s); sched_setaffinity(0, sizeof s, &s);
  for (int z = 0; z < n_sizes; z++) for (int adds = 0; adds < 2; adds++) measure(me, adds, sizes[z]);
  return 0;
}
int main(int argc, char **argv) {
  P = argc > 1 ? atoi(argv[1]) : 2; budget = argc > 2 ? atof(argv[2]) : 0.5;
  if (P < 1 || P > MAXP) { fprintf(stderr, "memory: 1 to %d threads\n", MAXP); return 2; }
  for (int i = 3; i < argc && n_sizes < 16; i++) sizes[n_sizes++] = strtoull(argv[i], 0, 10);
  pthread_barrier_init(&all, 0, P);
  pthread_t threads[MAXP];
  for (size_t i = 0; i < (size_t)P; i++) if (pthread_create(&threads[i], 0, rank, (void *)i)) { perror("thread"); return 1; }
  for (int i = 0; i < P; i++) pthread_join(threads[i], 0);
}
