// What two opposite plain TCP streams reach: each rank sends BYTES on one connection while it receives BYTES on another. No sums, no messages.
// One thread a direction, blocking sockets, writes and reads of up to 1 MiB, over memory of BYTES in each direction. An allreduce of BYTES
// between two ranks moves as much, so this time is its limit. A call's time is the slower rank's, started after a barrier.
// usage: RANK=0|1 ADDR=ip PORT=n tcpstreams [seconds] [BYTES...]      env PEER, PIN=1: each rank's two threads share one core
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#define MOST 20000
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static int cmp(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return (x > y) - (x < y); }
static void die(const char *m) { perror(m); exit(1); }
static int out, in, me; // the connection this rank writes, and the one it reads
static size_t PIECE = 1 << 20;
static void put(const char *p, size_t n) { while (n) { ssize_t w = send(out, p, n < PIECE ? n : PIECE, 0); if (w <= 0) die("send"); p += w; n -= w; } }
static void get(char *p, size_t n) { while (n) { ssize_t w = recv(in, p, n < PIECE ? n : PIECE, 0); if (w <= 0) die("recv"); p += w; n -= w; } }
static pthread_barrier_t go, done;
static const char *from;
static size_t bytes;
static void *writer(void *unused) {
  for (;;) { pthread_barrier_wait(&go); put(from, bytes); pthread_barrier_wait(&done); }
  return unused;
}
static void meet(void) { char c = 0; put(&c, 1); get(&c, 1); }
static int dial(struct sockaddr_in *sa) {
  for (int i = 0; i < 500; i++) { int fd = socket(AF_INET, SOCK_STREAM, 0); if (!connect(fd, (void *)sa, sizeof *sa)) return fd; close(fd); usleep(20000); }
  die("connect"); return -1;
}
int main(int argc, char **argv) {
  me = atoi(getenv("RANK")); double budget = argc > 1 ? atof(argv[1]) : 0.4; int one = 1;
  if (getenv("PIECE")) PIECE = strtoul(getenv("PIECE"), 0, 10);
  if (getenv("PIN")) { cpu_set_t s; CPU_ZERO(&s); CPU_SET(me % sysconf(_SC_NPROCESSORS_ONLN), &s); sched_setaffinity(0, sizeof s, &s); }
  struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(atoi(getenv("PORT")))};
  inet_pton(AF_INET, getenv("ADDR"), &sa.sin_addr);
  if (!me) {
    int l = socket(AF_INET, SOCK_STREAM, 0); setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(l, (void *)&sa, sizeof sa) || listen(l, 2)) die("listen");
    in = accept(l, 0, 0); out = accept(l, 0, 0);
  } else { out = dial(&sa); in = dial(&sa); }
  setsockopt(out, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  pthread_barrier_init(&go, 0, 2); pthread_barrier_init(&done, 0, 2);
  pthread_t thread; if (pthread_create(&thread, 0, writer, 0)) die("thread");
  for (int z = 2; z < argc; z++) {
    bytes = strtoull(argv[z], 0, 10);
    char *a, *b; if (posix_memalign((void **)&a, 4096, bytes) || posix_memalign((void **)&b, 4096, bytes)) return 1;
    memset(a, 1, bytes); memset(b, 0, bytes); from = a;
    static double t[MOST], o[MOST]; int it = 0, warm = 5; double start = 0;
    for (; it < MOST; it++) {
      meet();
      if (it == warm) start = now();
      double t0 = now();
      pthread_barrier_wait(&go); get(b, bytes); pthread_barrier_wait(&done);
      if (it >= warm) t[it - warm] = now() - t0;
      if (it >= warm + 5) { char stop = now() - start > budget; if (!me) put(&stop, 1); else get(&stop, 1); if (stop) { it++; break; } }
    }
    int c = it - warm;
    put((char *)t, c * sizeof *t); get((char *)o, c * sizeof *t);
    for (int i = 0; i < c; i++) if (o[i] > t[i]) t[i] = o[i];
    qsort(t, c, sizeof *t, cmp);
    if (!me) { printf("%s\t2\tstreams\tf32\t%zu\t%.2f\t%.2f\t%.4f\n", getenv("PEER") ? getenv("PEER") : "streams", bytes, t[c / 2] * 1e6, t[0] * 1e6, bytes / t[c / 2] / 1e9); fflush(stdout); }
    free(a); free(b);
  }
}
