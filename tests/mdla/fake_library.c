/* A library with the C API of microndla.h that computes nothing: a network gives back its inputs.
 *
 * It fails in the way that the environment variable TORCHMDLA_FAKE_FAULT names when the call comes:
 * create, flag, version, compile, crash, exit, hang, no_binary, init, outputs, sizes, run, written,
 * putinput, getresult; and in ie_getresult
 * - taken, kept: fails once for each inference whose first number is negative, and takes its result
 *   or keeps it for the next call,
 * - swapped: waits for two inferences and gives the first one's result as the second's,
 * - foreign: gives a result as that of an inference that there was not,
 * - more: writes a size that was not announced,
 * - silent: gives no result.
 * No faults are pair: results wait until two inferences have been there at once, in the whole life
 * of the context; and slow: ie_run takes half a millisecond. Built with -DWITHOUT_IE_INIT it lacks that function. */
#include "../../torchmdla/devices/mdla/include/microndla.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_PORTS 8
#define MOST_QUEUED 4

struct queued {
  float *data[MOST_PORTS];
  void *userparam;
  int failed;
};

struct context {
  char error[256];
  unsigned count;
  unsigned dimensions[MOST_PORTS];
  uint64_t sizes[MOST_PORTS][8];
  uint64_t *shapes[MOST_PORTS];
  uint64_t elements[MOST_PORTS];
  struct queued queue[MOST_QUEUED];
  unsigned first, waiting, most_waiting;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int live, linked, runs, putinputs;

static int fault_is(const char *name) {
  const char *fault = getenv("TORCHMDLA_FAKE_FAULT");
  return fault && strcmp(fault, name) == 0;
}

static void *failed(struct context *context, const char *text) {
  snprintf(context->error, sizeof context->error, "%s", text);
  return NULL;
}

/* For tests: contexts that live, those that were linked to another, inferences by ie_run and by
 * ie_putinput. */
int fake_live(void) { return live; }
int fake_linked(void) { return linked; }
int fake_runs(void) { return runs; }
int fake_putinputs(void) { return putinputs; }

void *ie_create(void) {
  if (fault_is("create")) return NULL;
  pthread_mutex_lock(&mutex);
  ++live;
  pthread_mutex_unlock(&mutex);
  return calloc(1, sizeof(struct context));
}

void ie_free(void *cmem) {
  if (!cmem) return;
  pthread_mutex_lock(&mutex);
  --live;
  pthread_mutex_unlock(&mutex);
  free(cmem);
}

int ie_setflag(void *cmem, const char *name, const char *value) {
  (void)cmem, (void)name, (void)value;
  return fault_is("flag") ? -1 : 0;
}

int ie_getinfo(void *cmem, const char *name, void *value, size_t size) {
  struct context *context = cmem;
  if (strcmp(name, "error") == 0) {
    snprintf(value, size, "%s", context->error);
    return context->error[0] ? IE_STRING : IE_NOTHING;
  }
  if (strcmp(name, "version") == 0) {
    snprintf(value, size, "%s", fault_is("version") ? "2019.2.0" : "2022.1.0");
    return IE_STRING;
  }
  return -1;
}

/* The binary is the text of the inputs' shapes. */
void *ie_compile(void *cmem, const char *modelpath, const char *outbin, const char *inshapes,
                 unsigned *noutputs, unsigned **noutdims, uint64_t ***outshapes, void *cmemp) {
  (void)modelpath, (void)noutputs, (void)noutdims, (void)outshapes, (void)cmemp;
  if (fault_is("compile")) return failed(cmem, "no such operator");
  if (fault_is("crash")) *(volatile int *)0 = 1;
  if (fault_is("exit")) exit(3);
  while (fault_is("hang"))
    sleep(1);
  if (fault_is("no_binary")) return cmem;
  FILE *file = fopen(outbin, "w");
  if (!file) return failed(cmem, "cannot write");
  fputs(inshapes, file);
  fclose(file);
  puts("compiled");
  return cmem;
}

void *ie_compile_vfp(void *cmem, const char *modelpath, const char *outbin, const char *inshapes,
                     unsigned *noutputs, unsigned **noutdims, uint64_t ***outshapes,
                     const float *const *inputs, const uint64_t *input_elements, unsigned ninputs,
                     void *cmemp) {
  (void)inputs, (void)input_elements;
  if (ninputs == 0) return failed(cmem, "no samples");
  return ie_compile(cmem, modelpath, outbin, inshapes, noutputs, noutdims, outshapes, cmemp);
}

#ifndef WITHOUT_IE_INIT
void *ie_init(void *cmem, const char *inbin, unsigned *noutputs, unsigned **noutdims,
              uint64_t ***outshapes, void *cmemp) {
  struct context *context = cmem;
  char text[256] = "";
  if (fault_is("init")) return failed(context, "no card");
  if (cmemp) ++linked;
  FILE *file = fopen(inbin, "r");
  if (!file || !fgets(text, sizeof text, file)) return failed(context, "cannot read");
  fclose(file);
  char *outer, *inner;
  for (char *port = strtok_r(text, ";", &outer); port; port = strtok_r(NULL, ";", &outer)) {
    const unsigned i = context->count++;
    context->elements[i] = 1;
    context->shapes[i] = context->sizes[i];
    for (char *size = strtok_r(port, "x", &inner); size; size = strtok_r(NULL, "x", &inner)) {
      context->sizes[i][context->dimensions[i]++] = strtoull(size, NULL, 10);
      context->elements[i] *= strtoull(size, NULL, 10);
    }
  }
  if (fault_is("outputs")) ++context->count;
  if (fault_is("sizes")) ++context->sizes[0][0];
  *noutputs = context->count;
  *noutdims = context->dimensions;
  *outshapes = context->shapes;
  return cmem;
}
#endif

int ie_run(void *cmem, const float *const *inputs, const uint64_t *input_elements,
           unsigned ninputs, float **outputs, uint64_t *output_elements, unsigned noutputs) {
  struct context *context = cmem;
  if (fault_is("run")) {
    failed(context, "the card does not answer");
    return -1;
  }
  for (unsigned i = 0; i < noutputs && i < ninputs; ++i) {
    if (output_elements[i] < input_elements[i]) return -1;
    memcpy(outputs[i], inputs[i], input_elements[i] * sizeof(float));
  }
  if (fault_is("written")) ++output_elements[0];
  if (fault_is("slow")) usleep(500);
  pthread_mutex_lock(&mutex);
  ++runs;
  pthread_mutex_unlock(&mutex);
  return 0;
}

int ie_run_sw(void *cmem, const float *const *inputs, const uint64_t *input_elements,
              unsigned ninputs, float **outputs, uint64_t *output_elements, unsigned noutputs) {
  return ie_run(cmem, inputs, input_elements, ninputs, outputs, output_elements, noutputs);
}

/* Waits a moment for other threads, or for another fault; the caller has the mutex. */
static void wait_a_moment(void) {
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_nsec += 1000000;
  if (end.tv_nsec >= 1000000000) ++end.tv_sec, end.tv_nsec -= 1000000000;
  pthread_cond_timedwait(&changed, &mutex, &end);
}

int ie_putinput(void *cmem, const float *const *inputs, const uint64_t *input_elements,
                unsigned ninputs, void *userparam) {
  struct context *context = cmem;
  if (fault_is("putinput")) {
    failed(context, "no buffer");
    return -1;
  }
  pthread_mutex_lock(&mutex);
  while (context->waiting == MOST_QUEUED)
    wait_a_moment();
  struct queued *slot = &context->queue[(context->first + context->waiting++) % MOST_QUEUED];
  slot->userparam = userparam;
  slot->failed = 0;
  for (unsigned i = 0; i < ninputs; ++i) {
    slot->data[i] = malloc(input_elements[i] * sizeof(float));
    memcpy(slot->data[i], inputs[i], input_elements[i] * sizeof(float));
  }
  if (context->waiting > context->most_waiting) context->most_waiting = context->waiting;
  ++putinputs;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
  return 0;
}

/* The oldest result is ready; the caller has the mutex. */
static int is_ready(struct context *context) {
  if (fault_is("silent") || context->waiting == 0) return 0;
  if (fault_is("swapped")) return context->waiting > 1;
  return !fault_is("pair") || context->most_waiting > 1;
}

int ie_getresult(void *cmem, float **outputs, uint64_t *output_elements, unsigned noutputs,
                 void **userparam) {
  struct context *context = cmem;
  if (fault_is("getresult")) {
    failed(context, "the card is gone");
    return -1;
  }
  pthread_mutex_lock(&mutex);
  while (!is_ready(context))
    wait_a_moment();
  struct queued *slot = &context->queue[context->first];
  const int fails = !slot->failed && slot->data[0][0] < 0 && (fault_is("taken") || fault_is("kept"));
  slot->failed = fails;
  if (fails) failed(context, "a negative number");
  if (!fails || fault_is("taken")) {
    const unsigned next = (context->first + 1) % MOST_QUEUED;
    *userparam = fault_is("swapped") ? context->queue[next].userparam : slot->userparam;
    if (fault_is("foreign")) *userparam = (char *)*userparam + 1000;
    for (unsigned i = 0; i < noutputs; ++i) {
      if (!fails) memcpy(outputs[i], slot->data[i], output_elements[i] * sizeof(float));
      free(slot->data[i]);
    }
    if (fault_is("more")) ++output_elements[0];
    context->first = next;
    --context->waiting;
  }
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
  return fails ? -1 : 0;
}

void ie_read_data(void *cmem, uint64_t address, void *data, uint64_t bytes, int card) {
  (void)cmem, (void)address, (void)data, (void)bytes, (void)card;
}

void ie_write_data(void *cmem, uint64_t address, void *data, uint64_t bytes, int card) {
  (void)cmem, (void)address, (void)data, (void)bytes, (void)card;
}

void ie_write_weights(void *cmem, float *weight, float *bias, int wsize, int bsize, int nid) {
  (void)cmem, (void)weight, (void)bias, (void)wsize, (void)bsize, (void)nid;
}
