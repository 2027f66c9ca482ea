/* Calls the method "forward" of a program with a float32 tensor of zeros and numbers, and prints its result:
 *
 *     call_method model.tmdla 1x512 16000
 *
 * A number with a point is a float, another one is an int.
 */
#include <torchmdla/runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { most_sizes = 8, most_arguments = 8 };

static void check(tmdla_status status) {
  if (status == TMDLA_OK) return;
  if (status == TMDLA_RAISED) fprintf(stderr, "%s: ", tmdla_last_exception());
  fprintf(stderr, "%s\n", tmdla_last_error());
  exit(1);
}

static int32_t read_sizes(char *text, int64_t *sizes) {
  int32_t rank = 0;
  for (char *size = strtok(text, "x"); size && rank < most_sizes; size = strtok(NULL, "x"))
    sizes[rank++] = atol(size);
  return rank;
}

static void print_tensor(const tmdla_tensor *tensor) {
  int64_t count = 1;
  printf("tensor ");
  for (int32_t i = 0; i < tensor->rank; ++i) {
    printf("%s%lld", i ? "x" : "", (long long)tensor->sizes[i]);
    count *= tensor->sizes[i];
  }
  if (tensor->dtype == TMDLA_FLOAT32 && count > 0) printf(", first %.9g", *(const float *)tensor->data);
  printf("\n");
}

static void print_value(const tmdla_value *value, int depth) {
  printf("%*s", 2 * depth, "");
  switch (value->kind) {
  case TMDLA_NONE:
    printf("none\n");
    break;
  case TMDLA_BOOLEAN:
    printf("%s\n", value->as.integer ? "true" : "false");
    break;
  case TMDLA_INTEGER:
    printf("%lld\n", (long long)value->as.integer);
    break;
  case TMDLA_REAL:
    printf("%.17g\n", value->as.real);
    break;
  case TMDLA_STRING:
    printf("%s\n", value->as.text);
    break;
  case TMDLA_TENSOR:
    print_tensor(value->as.tensor);
    break;
  default:
    printf("%zu items\n", value->count);
    for (size_t i = 0; i < value->count; ++i)
      print_value(&value->as.items[i], depth + 1);
  }
}

int main(int argc, char **argv) {
  if (argc < 3 || argc - 2 > most_arguments) {
    fprintf(stderr, "usage: %s model.tmdla SIZES [NUMBER]…\n", argv[0]);
    return 2;
  }
  tmdla_model *model;
  tmdla_session *session;
  tmdla_method_info info;
  size_t method;
  check(tmdla_load(argv[1], NULL, &model));
  check(tmdla_find_method(model, "forward", &method));
  check(tmdla_method(model, method, &info));
  printf("%s\n", info.schema);

  int64_t sizes[most_sizes], count = 1;
  const int32_t rank = read_sizes(argv[2], sizes);
  for (int32_t i = 0; i < rank; ++i)
    count *= sizes[i];
  float *const data = calloc((size_t)count + 1, sizeof(float));
  if (!data) abort();
  const tmdla_tensor tensor = {data, TMDLA_FLOAT32, rank, sizes, NULL};
  tmdla_value arguments[most_arguments] = {{0}};
  arguments[0].kind = TMDLA_TENSOR;
  arguments[0].as.tensor = &tensor;
  for (int i = 3; i < argc; ++i) {
    tmdla_value *const argument = &arguments[i - 2];
    argument->kind = strchr(argv[i], '.') ? TMDLA_REAL : TMDLA_INTEGER;
    if (argument->kind == TMDLA_REAL)
      argument->as.real = atof(argv[i]);
    else
      argument->as.integer = atol(argv[i]);
  }

  const tmdla_value *result;
  check(tmdla_session_create(model, &session));
  check(tmdla_call(session, method, arguments, (size_t)argc - 2, &result));
  print_value(result, 0);
  tmdla_session_free(session);
  tmdla_free(model);
  free(data);
  return 0;
}
