/* A process that runs a model of one input by libtorchmdla_runtime.so, as engine_process.py does by other engines. */
#include <torchmdla/runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void check(tmdla_status status) {
  if (status == TMDLA_OK) return;
  fprintf(stderr, "%s\n", tmdla_last_error());
  exit(1);
}

static tmdla_tensor allocate(const tmdla_info *info) {
  size_t count = 1;
  for (int32_t i = 0; i < info->rank; ++i)
    count *= (size_t)info->sizes[i];
  tmdla_tensor tensor = {calloc(count, sizeof(float)), info->dtype, info->rank, info->sizes, NULL};
  return tensor;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  const tmdla_options options = {TMDLA_API_VERSION, atoi(argv[2]), 0};
  tmdla_model *model;
  tmdla_info input, output;
  check(tmdla_load(argv[1], &options, &model));
  check(tmdla_input(model, 0, &input));
  check(tmdla_output(model, 0, &output));
  const tmdla_tensor from = allocate(&input), to = allocate(&output);
  check(tmdla_run(model, &from, 1, &to, 1));
  printf("%.6f\n", now());
  fflush(stdout);
  for (int calls; scanf("%d", &calls) == 1; fflush(stdout)) {
    while (calls-- > 0) {
      const double start = now();
      check(tmdla_run(model, &from, 1, &to, 1));
      printf("%.6f ", now() - start);
    }
    printf("\n");
  }
  return 0;
}
