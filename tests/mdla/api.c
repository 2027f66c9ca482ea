/* The accelerator's whole C API from a C program. Arguments: two ONNX files (x: 1x3x8x8, one output) and a folder.
 * Prints what went wrong and returns 1, or prints "ok". */
#include "microndla.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUTS 192
#define JOBS 40
#define THREADS 4

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      printf("line %d: %s\n", __LINE__, #condition);                                                                   \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

struct network {
  void* cmem;
  uint64_t outputs;
};

static void fill(float* input, int seed) {
  for (int at = 0; at < INPUTS; ++at) input[at] = (float)((at * 37 + seed * 101) % 64 - 32) / 16;
}

static int run(void* cmem, int seed, float* output, uint64_t outputs, int software) {
  float input[INPUTS];
  fill(input, seed);
  const float* inputs[] = {input};
  uint64_t sizes[] = {INPUTS}, output_sizes[] = {outputs};
  float* results[] = {output};
  return (software ? ie_run_sw : ie_run)(cmem, inputs, sizes, 1, results, output_sizes, 1);
}

static int put(void* cmem, int seed) {
  float input[INPUTS];
  fill(input, seed);
  const float* inputs[] = {input};
  uint64_t sizes[] = {INPUTS};
  return ie_putinput(cmem, inputs, sizes, 1, (void*)(intptr_t)seed);
}

static int get(const struct network* network, float* output, int* seed) {
  float* results[] = {output};
  uint64_t sizes[] = {network->outputs};
  void* user = NULL;
  int status = ie_getresult(network->cmem, results, sizes, 1, &user);
  *seed = (int)(intptr_t)user;
  return status;
}

static struct network load(const char* model, const char* binary, void* linked) {
  unsigned count = 0, *dims = NULL;
  uint64_t** shapes = NULL;
  void* compiler = ie_create();
  CHECK(compiler);
  CHECK(ie_setflag(compiler, "nclusters", "2") == 0);
  CHECK(ie_compile(compiler, model, binary, "1x3x8x8", &count, &dims, &shapes, NULL) == compiler);
  ie_free(compiler);
  struct network network = {ie_create(), 1};
  CHECK(ie_init(network.cmem, binary, &count, &dims, &shapes, linked) == network.cmem);
  CHECK(count == 1 && dims[0] >= 1);
  for (unsigned axis = 0; axis < dims[0]; ++axis) network.outputs *= shapes[0][axis];
  return network;
}

static void* put_all(void* argument) {
  struct network* network = argument;
  for (int seed = 1; seed <= JOBS; ++seed) CHECK(put(network->cmem, seed) == 0);
  return NULL;
}

/* One thread puts, another gets: results come in order, each with its own user parameter and values. */
static void asynchronous(struct network* network) {
  float* expected = malloc(sizeof(float) * network->outputs);
  float* output = malloc(sizeof(float) * network->outputs);
  pthread_t putting;
  CHECK(pthread_create(&putting, NULL, put_all, network) == 0);
  for (int seed = 1; seed <= JOBS; ++seed) {
    int got = 0;
    CHECK(get(network, output, &got) == 0);
    CHECK(got == seed);
    CHECK(run(network->cmem, seed, expected, network->outputs, 0) == 0);
    CHECK(memcmp(expected, output, sizeof(float) * network->outputs) == 0);
  }
  pthread_join(putting, NULL);
  free(expected), free(output);
}

static void not_blocking(struct network* network) {
  float* output = malloc(sizeof(float) * network->outputs);
  int seed = 0, taken = 0;
  CHECK(ie_setflag(network->cmem, "blockingmode", "0") == 0);
  CHECK(get(network, output, &seed) == -1);
  while (put(network->cmem, taken + 1) == 0) CHECK(++taken < 100);
  CHECK(taken == 2);
  CHECK(ie_setflag(network->cmem, "blockingmode", "1") == 0);
  for (int at = 1; at <= taken; ++at) CHECK(get(network, output, &seed) == 0 && seed == at);
  free(output);
}

/* Many threads run one context. */
static void* run_many(void* argument) {
  struct network* network = argument;
  float* first = malloc(sizeof(float) * network->outputs);
  float* again = malloc(sizeof(float) * network->outputs);
  CHECK(run(network->cmem, 5, first, network->outputs, 0) == 0);
  for (int at = 0; at < 20; ++at) {
    CHECK(run(network->cmem, 5, again, network->outputs, at % 2) == 0);
    CHECK(memcmp(first, again, sizeof(float) * network->outputs) == 0);
  }
  free(first), free(again);
  return NULL;
}

static void threads(struct network* one, struct network* two) {
  pthread_t running[THREADS];
  for (int at = 0; at < THREADS; ++at) CHECK(pthread_create(&running[at], NULL, run_many, at % 2 ? one : two) == 0);
  for (int at = 0; at < THREADS; ++at) pthread_join(running[at], NULL);
}

static void information(struct network* network) {
  char text[64];
  int number = 0;
  int64_t wide = 0;
  float real = 0;
  CHECK(ie_getinfo(network->cmem, "version", text, sizeof text) == IE_STRING && !strcmp(text, IE_VERSION));
  CHECK(ie_getinfo(network->cmem, "freq", &number, sizeof number) == IE_INT && number > 0);
  CHECK(ie_getinfo(network->cmem, "cycles", &wide, sizeof wide) == IE_INT64 && wide > 0);
  CHECK(ie_getinfo(network->cmem, "hwtime", &real, sizeof real) == IE_FLOAT && real > 0);
  CHECK(ie_getinfo(network->cmem, "layers", text, 4) == IE_ERROR);
  CHECK(ie_getinfo(network->cmem, "no_such_thing", text, sizeof text) == IE_ERROR);
  CHECK(ie_getinfo(network->cmem, "error", text, sizeof text) == IE_STRING && strstr(text, "no_such_thing"));
}

static void memory(struct network* one, struct network* two) {
  int64_t first = 0, second = 0;
  CHECK(ie_getinfo(one->cmem, "base_address", &first, sizeof first) == IE_INT64);
  CHECK(ie_getinfo(two->cmem, "base_address", &second, sizeof second) == IE_INT64);
  CHECK(first != second);
  unsigned char kept[16], written[16], read[16];
  memset(written, 7, sizeof written);
  ie_read_data(one->cmem, second, kept, sizeof kept, 0);
  ie_write_data(one->cmem, second, written, sizeof written, 0);
  ie_read_data(two->cmem, second, read, sizeof read, 0);
  CHECK(memcmp(written, read, sizeof read) == 0);
  ie_write_data(two->cmem, second, kept, sizeof kept, 0);
}

static void faults(struct network* network) {
  float output[1];
  CHECK(run(network->cmem, 1, output, 0, 0) == -1);
  CHECK(run(NULL, 1, output, 1, 0) == -1);
  CHECK(ie_run(network->cmem, NULL, NULL, 1, NULL, NULL, 1) == -1);
  CHECK(ie_setflag(network->cmem, "nclusters", "many") == -1);
  CHECK(ie_setflag(network->cmem, "no_such_flag", "1") == -1);
  CHECK(ie_setflag(network->cmem, NULL, NULL) == -1);
  CHECK(ie_compile(NULL, "/no/such/file", NULL, NULL, NULL, NULL, NULL, NULL) == NULL);
  char text[256];
  CHECK(ie_getinfo(NULL, "error", text, sizeof text) == IE_STRING && strstr(text, "/no/such/file"));
  void* empty = ie_create();
  CHECK(run(empty, 1, output, 1, 0) == -1);
  CHECK(put(empty, 1) == -1);
  ie_free(empty);
  ie_free(NULL);
}

int main(int count, char** arguments) {
  CHECK(count == 4);
  char binaries[2][4096];
  for (int at = 0; at < 2; ++at) snprintf(binaries[at], sizeof binaries[at], "%s/%d.bin", arguments[3], at);
  struct network one = load(arguments[1], binaries[0], NULL);
  struct network two = load(arguments[2], binaries[1], one.cmem);
  information(&one);
  memory(&one, &two);
  threads(&one, &two);
  asynchronous(&one);
  asynchronous(&two);
  not_blocking(&one);
  faults(&one);
  CHECK(put(two.cmem, 1) == 0);
  ie_free(one.cmem);
  ie_free(two.cmem);
  printf("ok\n");
  return 0;
}
