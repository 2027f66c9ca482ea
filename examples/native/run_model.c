/* Runs a model with one input and one output, both float32, on numbers in a file, and prints what it computes:
 *
 *     cc run_model.c $(python -m torchmdla_runtime) -o run_model
 *     ./run_model model.tmdla numbers.bin
 */
#include <torchmdla/runtime.h>

#include <stdio.h>
#include <stdlib.h>

static void check(tmdla_status status) {
  if (status == TMDLA_OK) return;
  fprintf(stderr, "%s\n", tmdla_last_error());
  exit(1);
}

static int64_t count(const int64_t *sizes, int32_t rank) {
  int64_t product = 1;
  for (int32_t i = 0; i < rank; ++i)
    product *= sizes[i];
  return product;
}

/* A tensor with memory of its own. */
static tmdla_tensor allocate(const tmdla_info *info) {
  tmdla_tensor tensor = {NULL, info->dtype, info->rank, info->sizes, NULL};
  if (info->dtype != TMDLA_FLOAT32 || count(info->sizes, info->rank) < 0) {
    fprintf(stderr, "%s is not float32, or of more sizes than one\n", info->name);
    exit(1);
  }
  tensor.data = malloc((size_t)count(info->sizes, info->rank) * sizeof(float));
  if (!tensor.data) abort();
  return tensor;
}

static void read_numbers(const char *path, tmdla_tensor *tensor) {
  const size_t wanted = (size_t)count(tensor->sizes, tensor->rank);
  FILE *file = fopen(path, "rb");
  if (!file || fread(tensor->data, sizeof(float), wanted, file) != wanted) {
    fprintf(stderr, "%s does not hold %zu numbers\n", path, wanted);
    exit(1);
  }
  fclose(file);
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s model.tmdla numbers.bin\n", argv[0]);
    return 2;
  }
  const tmdla_options options = {TMDLA_API_VERSION, 0, 0};
  tmdla_model *model;
  check(tmdla_load(argv[1], &options, &model));

  tmdla_info input, output;
  check(tmdla_input(model, 0, &input));
  check(tmdla_output(model, 0, &output));
  tmdla_tensor from = allocate(&input), to = allocate(&output);
  read_numbers(argv[2], &from);
  check(tmdla_run(model, &from, 1, &to, 1));

  for (int64_t i = 0; i < count(to.sizes, to.rank); ++i)
    printf("%.9g\n", ((const float *)to.data)[i]);
  free(from.data);
  free(to.data);
  tmdla_free(model);
  return 0;
}
