/* Calls the method "forward" of a model again and again on chunks of samples, as a program for audio does, and prints
 * the allocations of all calls behind the first ones, the memory of the session, and the time of loading:
 *
 *     stream model.tmdla SAMPLES RATE CALLS FIRST [times.bin]
 *
 * The arguments of the method are a float32 tensor of sizes 1xSAMPLES, and the integer RATE unless it is 0. FIRST calls
 * come before the CALLS that are counted. The file gets the nanoseconds of each of all calls, as int64.
 */
#include <torchmdla/runtime.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* All allocations of the process come here, those of the library too. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
static volatile long allocations;

void *malloc(size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
  ++allocations;
  return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes) {
  ++allocations;
  return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
  ++allocations;
  return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes) {
  *memory = aligned_alloc(alignment, bytes);
  return *memory ? 0 : 12;
}

static void check(tmdla_status status) {
  if (status == TMDLA_OK) return;
  fprintf(stderr, "%s\n", tmdla_last_error());
  exit(1);
}

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int main(int argc, char **argv) {
  if (argc < 6) {
    fprintf(stderr, "usage: %s model.tmdla SAMPLES RATE CALLS FIRST [times.bin]\n", argv[0]);
    return 2;
  }
  const int64_t sizes[] = {1, atoi(argv[2])};
  const long first = atol(argv[5]), calls = atol(argv[4]) + first;
  float *const samples = malloc((size_t)sizes[1] * sizeof(float));
  int64_t *const times = malloc((size_t)calls * sizeof(int64_t));
  if (!samples || !times) abort();

  const tmdla_options options = {TMDLA_API_VERSION, 1, 0};
  tmdla_model *model;
  tmdla_session *session;
  size_t method;
  const int64_t begin = now();
  check(tmdla_load(argv[1], &options, &model));
  check(tmdla_find_method(model, "forward", &method));
  check(tmdla_session_create(model, &session));
  const double load = (double)(now() - begin) / 1e6;

  const tmdla_tensor tensor = {samples, TMDLA_FLOAT32, 2, sizes, NULL};
  tmdla_value arguments[2] = {{0}};
  arguments[0].kind = TMDLA_TENSOR;
  arguments[0].as.tensor = &tensor;
  arguments[1].kind = TMDLA_INTEGER;
  arguments[1].as.integer = atol(argv[3]);
  const size_t count = arguments[1].as.integer > 0 ? 2 : 1;

  const tmdla_value *result = NULL;
  long before = 0;
  for (long call = 0; call < calls; ++call) {
    for (int64_t i = 0; i < sizes[1]; ++i)
      samples[i] = 0.1f * sinf((float)((call * sizes[1] + i) % 16000) * 0.02f);
    if (call == first) before = allocations;
    const int64_t start = now();
    check(tmdla_call(session, method, arguments, count, &result));
    times[call] = now() - start;
  }
  const long counted = allocations - before;

  if (argc > 6) {
    FILE *const file = fopen(argv[6], "wb");
    if (!file || fwrite(times, sizeof(int64_t), (size_t)calls, file) != (size_t)calls) return 1;
    fclose(file);
  }
  printf("%ld allocations, %zu bytes, loaded in %.3f ms\n", counted, tmdla_session_memory(session), load);
  tmdla_session_free(session);
  tmdla_free(model);
  free(times);
  free(samples);
  return 0;
}
