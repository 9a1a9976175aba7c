// Starts and ends: what an MPI library needs until all ranks have found each other. Prints a line on rank 0.
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
  int rank, np, one = 1, all = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &np);
  if (argc > 1) MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("started %d %d\n", np, all);
  MPI_Finalize();
  return 0;
}
