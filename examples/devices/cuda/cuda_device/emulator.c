// Driver that emulates a card on the processor, to run and test programs where no card is. Modules
// are shared libraries (code.py).
//
// A stream keeps its commands, and runs them when something waits for it: this is the latest time
// at which a driver may run them. Memory has no defined content before it is written and after it
// is freed. Threads of a block are contexts that take turns, and change where they exchange values.
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

enum { INVALID_VALUE = 1, INVALID_IMAGE = 200, NOT_FOUND = 500, GARBAGE = 0xA5 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; // held in functions that use streams

// --- threads of a card

enum { MAX_THREADS = 1024, WARP = 32, STACK = 128 << 10 };

struct function {
  void (*launch)(void** parameters);
  int32_t parameters;
};

// A context runs threads one after the other. When one waits for others, the scheduler begins more.
static ucontext_t scheduler, contexts[MAX_THREADS];
static char* stacks;
static int context, is_over[MAX_THREADS]; // of contexts
static int thread, begun, threads, block;
static void (*body)(void**);
static void** body_parameters;
static uint32_t exchanged[MAX_THREADS];

static void run_threads(void) {
  while (begun < threads) {
    thread = begun++;
    body(body_parameters);
  }
  is_over[context] = 1;
  swapcontext(&contexts[context], &scheduler);
}

// Let the other threads of the block run until they exchange values, too.
static void take_turns(void) {
  const int self = thread;
  swapcontext(&contexts[context], &scheduler);
  thread = self;
}

static void run_block(void) {
  int count = 0, left = 0;
  for (begun = 0; begun < threads; ++count) {
    context = count;
    is_over[context] = 0;
    getcontext(&contexts[context]);
    contexts[context].uc_stack.ss_sp = stacks + (size_t)context * STACK;
    contexts[context].uc_stack.ss_size = STACK;
    makecontext(&contexts[context], run_threads, 0);
    swapcontext(&scheduler, &contexts[context]);
    left += !is_over[context];
  }
  while (left)
    for (context = 0; context < count; ++context)
      if (!is_over[context]) {
        swapcontext(&scheduler, &contexts[context]);
        left -= is_over[context];
      }
}

#define EMULATES(name) __asm__("emulated." name)

int32_t thread_number(void) EMULATES("read.ptx.sreg.tid.x");
int32_t thread_number(void) {
  return thread;
}

int32_t block_number(void) EMULATES("read.ptx.sreg.ctaid.x");
int32_t block_number(void) {
  return block;
}

uint32_t shuffle(uint32_t, uint32_t, uint32_t, uint32_t) EMULATES("shfl.sync.bfly.i32");
uint32_t shuffle(uint32_t mask, uint32_t value, uint32_t distance, uint32_t clamp) {
  (void)mask, (void)clamp;
  exchanged[thread] = value;
  take_turns();
  const uint32_t other = exchanged[thread ^ (int)distance];
  take_turns();
  return other;
}

float shuffle_float(uint32_t, float, uint32_t, uint32_t) EMULATES("shfl.sync.bfly.f32");
float shuffle_float(uint32_t mask, float value, uint32_t distance, uint32_t clamp) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits = shuffle(mask, bits, distance, clamp);
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Tensor cores multiply blocks of 16 × 16 numbers. A thread of a warp has 8 numbers of each block,
// and the driver defines which ones: here, those from 8 times its number in the warp on, row by
// row.
enum { SIZE = 16, PART = 8 };

static float blocks_of_warps[MAX_THREADS / WARP][3][SIZE * SIZE];

static float number_of(const uint16_t* bits, int is_bf16) {
  const uint32_t wide = (uint32_t)*bits << 16;
  float number;
  _Float16 half;
  memcpy(&number, &wide, sizeof number);
  memcpy(&half, bits, sizeof half);
  return is_bf16 ? number : (float)half;
}

static void load_part(const char* name, void* part, void** operands) {
  const int is_column = strstr(name, ".col.") != NULL, bytes = strstr(name, ".f32.") ? 4 : 2;
  const char* matrix = *(const char**)operands[0];
  const int leading = *(const int32_t*)operands[1];
  for (int e = 0; e < PART; ++e) {
    const int place = thread % WARP * PART + e, row = place / SIZE, column = place % SIZE;
    const int offset = is_column ? column * leading + row : row * leading + column;
    memcpy((char*)part + e * bytes, matrix + offset * bytes, (size_t)bytes);
  }
}

static void store_part(void** operands) {
  float* matrix = *(float**)operands[0];
  const int leading = *(const int32_t*)operands[PART + 1];
  for (int e = 0; e < PART; ++e) {
    const int place = thread % WARP * PART + e;
    matrix[place / SIZE * leading + place % SIZE] = *(const float*)operands[1 + e];
  }
}

static void multiply_parts(const char* name, float* part, void** operands) {
  const int is_bf16 = strstr(name, ".bf16") != NULL, count = is_bf16 ? 4 : 8;
  float (*block)[SIZE * SIZE] = blocks_of_warps[thread / WARP];
  const int first = thread % WARP * PART;
  for (int e = 0; e < PART; ++e) {
    block[0][first + e] = number_of((const uint16_t*)operands[e / 2] + e % 2, is_bf16);
    block[1][first + e] = number_of((const uint16_t*)operands[count + e / 2] + e % 2, is_bf16);
    block[2][first + e] = *(const float*)operands[2 * count + e];
  }
  take_turns();
  for (int e = 0; e < PART; ++e) {
    const int row = (first + e) / SIZE, column = (first + e) % SIZE;
    part[e] = block[2][first + e];
    for (int k = 0; k < SIZE; ++k)
      part[e] += block[0][row * SIZE + k] * block[1][k * SIZE + column];
  }
  take_turns();
}

void wmma(const char*, void*, void**) EMULATES("wmma");
void wmma(const char* name, void* result, void** operands) {
  if (strstr(name, ".load."))
    load_part(name, result, operands);
  else if (strstr(name, ".store."))
    store_part(operands);
  else
    multiply_parts(name, result, operands);
}

// --- streams

struct stream;

struct event {
  struct stream* stream;
  int64_t commands; // of the stream, that come before it
};

struct command {
  enum { COPY, FREE, LAUNCH, WAIT } kind;
  union {
    struct {
      void* to;
      const void* from;
      size_t bytes;
    } copy;
    struct {
      const struct function* function;
      int blocks, threads;
      uint64_t* values;
    } launch;
    void* memory;
    struct event event;
  };
};

// The counts are those of all commands since the stream exists; `commands` begins with number
// `first`.
struct stream {
  struct command* commands;
  int64_t enqueued, over, first;
};

static void run_until(struct stream* stream, int64_t count);

static void run_launch(const struct function* function, int blocks, int count, uint64_t* values) {
  void* parameters[256];
  for (int k = 0; k < function->parameters; ++k)
    parameters[k] = &values[k];
  if (!stacks) stacks = malloc((size_t)MAX_THREADS * STACK);
  body = function->launch;
  body_parameters = parameters;
  threads = count;
  for (block = 0; block < blocks; ++block)
    run_block();
  free(values);
}

// Memory begins with its size.
static void free_memory(void* memory) {
  size_t* start = (size_t*)memory - 8;
  memset(memory, GARBAGE, *start);
  free(start);
}

static void run_command(struct command* command) {
  switch (command->kind) {
  case COPY:
    memcpy(command->copy.to, command->copy.from, command->copy.bytes);
    break;
  case FREE:
    free_memory(command->memory);
    break;
  case LAUNCH:
    run_launch(command->launch.function, command->launch.blocks, command->launch.threads,
               command->launch.values);
    break;
  case WAIT:
    run_until(command->event.stream, command->event.commands);
  }
}

static void run_until(struct stream* stream, int64_t count) {
  while (stream->over < count)
    run_command(&stream->commands[stream->over++ - stream->first]);
}

static int enqueue(object handle, struct command command) {
  struct stream* stream = (struct stream*)handle;
  pthread_mutex_lock(&mutex);
  if (stream->over == stream->enqueued) stream->first = stream->enqueued;
  const size_t place = (size_t)(stream->enqueued++ - stream->first);
  if (place % 64 == 0)
    stream->commands = realloc(stream->commands, (place + 64) * sizeof *stream->commands);
  stream->commands[place] = command;
  pthread_mutex_unlock(&mutex);
  return 0;
}

static struct stream* streams[256];

int cuStreamCreate(object* stream, unsigned flags) {
  (void)flags;
  struct stream* created = calloc(1, sizeof *created);
  pthread_mutex_lock(&mutex);
  int number = 0;
  while (streams[number])
    ++number;
  streams[number] = created;
  pthread_mutex_unlock(&mutex);
  *stream = (object)created;
  return 0;
}

int cuStreamSynchronize(object stream) {
  pthread_mutex_lock(&mutex);
  run_until((struct stream*)stream, ((struct stream*)stream)->enqueued);
  pthread_mutex_unlock(&mutex);
  return 0;
}

int cuCtxSynchronize(void) {
  for (int i = 0; streams[i]; ++i)
    cuStreamSynchronize((object)streams[i]);
  return 0;
}

int cuEventCreate(object* event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof(struct event));
  return 0;
}

int cuEventRecord(object event, object stream) {
  struct stream* recorded = (struct stream*)stream;
  pthread_mutex_lock(&mutex);
  *(struct event*)event = (struct event){recorded, recorded->enqueued};
  pthread_mutex_unlock(&mutex);
  return 0;
}

int cuEventDestroy_v2(object event) {
  free(event);
  return 0;
}

int cuStreamWaitEvent(object stream, object event, unsigned flags) {
  (void)flags;
  if (!((struct event*)event)->stream) return 0;
  return enqueue(stream, (struct command){.kind = WAIT, .event = *(struct event*)event});
}

// --- memory

int cuMemAlloc_v2(address* memory, size_t bytes) {
  size_t* start = malloc(bytes + 64);
  *start = bytes;
  *memory = (address)(uintptr_t)memset(start + 8, GARBAGE, bytes);
  return 0;
}

int cuMemFree_v2(address memory) {
  free_memory((void*)(uintptr_t)memory);
  return 0;
}

int cuMemAllocAsync(address* memory, size_t bytes, object stream) {
  (void)stream;
  return cuMemAlloc_v2(memory, bytes);
}

int cuMemFreeAsync(address memory, object stream) {
  return enqueue(stream, (struct command){.kind = FREE, .memory = (void*)(uintptr_t)memory});
}

int cuMemcpyHtoDAsync_v2(address memory, const void* host, size_t bytes, object stream) {
  return enqueue(stream,
                 (struct command){.kind = COPY, .copy = {(void*)(uintptr_t)memory, host, bytes}});
}

int cuMemcpyDtoHAsync_v2(void* host, address memory, size_t bytes, object stream) {
  return enqueue(stream,
                 (struct command){.kind = COPY, .copy = {host, (void*)(uintptr_t)memory, bytes}});
}

// --- modules

// The code begins with its size. It is loaded from a file, which the system keeps after its
// removal.
int cuModuleLoadDataEx(object* module, const void* code, unsigned count, int* options,
                       void** values) {
  (void)options;
  int64_t bytes;
  memcpy(&bytes, code, sizeof bytes);
  char path[] = "/tmp/emulated-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) return INVALID_VALUE;
  const int is_written = write(file, (const char*)code + sizeof bytes, (size_t)bytes) == bytes;
  close(file);
  *module = is_written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  unlink(path);
  if (!*module && count) snprintf(values[0], 1024, "%s", dlerror());
  return *module ? 0 : INVALID_IMAGE;
}

int cuModuleUnload(object module) {
  return dlclose(module);
}

// Functions are not freed: there are few of them.
int cuModuleGetFunction(object* function, object module, const char* name) {
  char symbol[128];
  snprintf(symbol, sizeof symbol, "%s.launch", name);
  void* launch = dlsym(module, symbol);
  snprintf(symbol, sizeof symbol, "%s.parameters", name);
  const int32_t* parameters = dlsym(module, symbol);
  if (!launch || !parameters) return NOT_FOUND;
  struct function* result = malloc(sizeof *result);
  *(void**)&result->launch = launch;
  result->parameters = *parameters;
  *function = (object)result;
  return 0;
}

int cuLaunchKernel(object function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                   unsigned threads_x, unsigned threads_y, unsigned threads_z,
                   unsigned shared_bytes, object stream, void** parameters, void** more) {
  (void)shared_bytes, (void)more;
  if (blocks_y * blocks_z * threads_y * threads_z != 1 || threads_x > MAX_THREADS)
    return INVALID_VALUE;
  const struct function* kernel = (const struct function*)function;
  uint64_t* values = malloc((size_t)kernel->parameters * sizeof *values + 1);
  for (int k = 0; k < kernel->parameters; ++k)
    memcpy(&values[k], parameters[k], sizeof *values);
  const struct command command = {.kind = LAUNCH,
                                  .launch = {kernel, (int)blocks_x, (int)threads_x, values}};
  return enqueue(stream, command);
}

// --- devices

int cuInit(unsigned flags) {
  (void)flags;
  return 0;
}

int cuGetErrorString(int error, const char** text) {
  *text = error == INVALID_IMAGE ? "invalid image"
          : error == NOT_FOUND   ? "not found"
                                 : "invalid value";
  return 0;
}

int cuDriverGetVersion(int* version) {
  *version = 12000;
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}

int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}

int cuDeviceGetName(char* name, int bytes, int device) {
  snprintf(name, (size_t)bytes, "emulated card %d", device);
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  *value = attribute == CAPABILITY_MAJOR ? 8 : 0;
  return 0;
}

int cuDevicePrimaryCtxRetain(object* context, int device) {
  (void)device;
  *context = (object)streams;
  return 0;
}

int cuCtxPushCurrent_v2(object context) {
  return context ? 0 : INVALID_VALUE;
}

int cuCtxPopCurrent_v2(object* context) {
  *context = (object)streams;
  return 0;
}

int cuDeviceGetDefaultMemPool(object* pool, int device) {
  (void)device;
  *pool = (object)streams;
  return 0;
}

int cuMemPoolSetAttribute(object pool, int attribute, void* value) {
  (void)attribute;
  return pool && value ? 0 : INVALID_VALUE;
}
