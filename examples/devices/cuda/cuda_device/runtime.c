// Runtime of the cuda device: memory, streams and programs. It loads NVIDIA's driver itself.
//
// A call runs on a stream, which has a queue of the driver each for uploads, kernels and downloads.
// The entry returns when its arguments are on the card and its kernels are enqueued. Its results
// stay there, by the address that the caller gave them, until `cuda_wait` copies them to it or
// `cuda_forget` drops them. An argument at the address of such a result is not uploaded.
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
#define DECLARE(name, parameters) int(*name) parameters;
  FUNCTIONS(DECLARE)
} cu;

// --- errors

static _Thread_local char fault[4096];

const char* cuda_fault(void) {
  return fault;
}

static int fail(const char* function, int error) {
  const char* text = NULL;
  if (cu.cuGetErrorString) cu.cuGetErrorString(error, &text);
  snprintf(fault, sizeof fault, "%s: %s (error %d)", function, text ? text : "unknown", error);
  return 1;
}

#define TRY(name, ...)                                                                             \
  do {                                                                                             \
    const int error_ = cu.name(__VA_ARGS__);                                                       \
    if (error_ != 0) return fail(#name, error_);                                                   \
  } while (0)

// --- devices

enum { MAX_STREAMS = 16, MAX_DEVICES = 64, TABLE = 4096 };

struct stream {
  struct device* device;
  object upload, compute, download;
  pthread_mutex_t mutex; // held while a call enqueues its commands
};

struct device {
  int id, streams;
  object context;
  pid_t process; // the driver does not work in a child of a fork
  struct stream stream[MAX_STREAMS];
  pthread_mutex_t mutex;
  struct buffer* results[TABLE]; // on the card, by their address; guarded by the mutex
  int64_t uploads, downloads, resident;
};

static pthread_mutex_t devices_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct device* devices[MAX_DEVICES];

static int open_driver(const char* path) {
  static char opened[1024]; // guarded by devices_mutex
  if (strcmp(opened, path) == 0) return 0;
  if (opened[0]) {
    snprintf(fault, sizeof fault, "this process uses %s, and cannot use %.1024s", opened, path);
    return 1;
  }
  void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    snprintf(fault, sizeof fault, "%s", dlerror());
    return 1;
  }
#define LOAD(name, parameters)                                                                     \
  *(void**)&cu.name = dlsym(library, #name);                                                       \
  if (!cu.name) {                                                                                  \
    snprintf(fault, sizeof fault, "%s does not have " #name ", install a newer driver", path);     \
    return 1;                                                                                      \
  }
  FUNCTIONS(LOAD)
  TRY(cuInit, 0);
  snprintf(opened, sizeof opened, "%s", path);
  return 0;
}

// Make the card the one of this thread until `leave`, unless the process is the child of a fork.
static int enter(struct device* device) {
  if (device->process != getpid()) {
    snprintf(fault, sizeof fault, "cuCtxPushCurrent: CUDA does not work in the child of a fork");
    return 1;
  }
  TRY(cuCtxPushCurrent_v2, device->context);
  return 0;
}

static int leave(int status) {
  object context = NULL;
  cu.cuCtxPopCurrent_v2(&context);
  return status;
}

// Make the pool keep its memory, and not delay uploads until memory that kernels use is free.
static int set_pool(int id) {
  object pool = NULL;
  uint64_t threshold = UINT64_MAX;
  int allows = 0;
  TRY(cuDeviceGetDefaultMemPool, &pool, id);
  TRY(cuMemPoolSetAttribute, pool, POOL_RELEASE_THRESHOLD, &threshold);
  TRY(cuMemPoolSetAttribute, pool, POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &allows);
  return 0;
}

static int open_streams(struct device* device) {
  for (int i = 0; i < device->streams; ++i) {
    struct stream* stream = &device->stream[i];
    stream->device = device;
    pthread_mutex_init(&stream->mutex, NULL);
    TRY(cuStreamCreate, &stream->upload, STREAM_NON_BLOCKING);
    TRY(cuStreamCreate, &stream->compute, STREAM_NON_BLOCKING);
    TRY(cuStreamCreate, &stream->download, STREAM_NON_BLOCKING);
  }
  return 0;
}

static int open_device(int index, int least_capability, struct device* device) {
  int count = 0, major = 0, minor = 0;
  TRY(cuDeviceGetCount, &count);
  if (index >= count) {
    snprintf(fault, sizeof fault, "card %d does not exist: the driver has %d", index, count);
    return 1;
  }
  TRY(cuDeviceGet, &device->id, index);
  TRY(cuDeviceGetAttribute, &major, CAPABILITY_MAJOR, device->id);
  TRY(cuDeviceGetAttribute, &minor, CAPABILITY_MINOR, device->id);
  if (major * 10 + minor < least_capability) {
    snprintf(fault, sizeof fault, "card %d has compute capability %d.%d; the code needs %d.%d",
             index, major, minor, least_capability / 10, least_capability % 10);
    return 1;
  }
  TRY(cuDevicePrimaryCtxRetain, &device->context, device->id);
  device->process = getpid();
  pthread_mutex_init(&device->mutex, NULL);
  if (set_pool(device->id) != 0 || enter(device) != 0) return 1;
  return leave(open_streams(device));
}

// Return card `index` of the driver at `path`, which is opened at its first use, or null.
struct device* cuda_device(const char* path, int index, int streams, int least_capability) {
  fault[0] = 0;
  pthread_mutex_lock(&devices_mutex);
  struct device* device = open_driver(path) == 0 ? devices[index] : NULL;
  if (!device && fault[0] == 0) {
    device = calloc(1, sizeof *device);
    device->streams = streams;
    if (open_device(index, least_capability, device) != 0) {
      free(device); // what the driver made for it stays until the process ends
      device = NULL;
    }
    __atomic_store_n(&devices[index], device, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&devices_mutex);
  return device;
}

// Return the card's name and the version of its driver.
const char* cuda_description(struct device* device) {
  static _Thread_local char text[512];
  char name[256] = "";
  int version = 0;
  cu.cuDeviceGetName(name, sizeof name, device->id);
  cu.cuDriverGetVersion(&version);
  snprintf(text, sizeof text, "%s, CUDA %d.%d", name, version / 1000, version % 1000 / 10);
  return text;
}

// Number of uploads, downloads, and arguments that were on the card already, since it was opened.
void cuda_counts(struct device* device, int64_t* counts) {
  counts[0] = __atomic_load_n(&device->uploads, __ATOMIC_RELAXED);
  counts[1] = __atomic_load_n(&device->downloads, __ATOMIC_RELAXED);
  counts[2] = __atomic_load_n(&device->resident, __ATOMIC_RELAXED);
}

static void count(int64_t* counter) {
  __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

// --- results on the card

struct buffer {
  address memory;
  struct stream* stream; // that computes it and frees it
  object done;           // event: it is computed
  int references;
  void* host; // where the caller wants it
  size_t bytes;
  struct buffer* next; // in the table of results
};

static int new_buffer(struct stream* stream, void* host, size_t bytes, struct buffer** result) {
  struct buffer* buffer = *result = calloc(1, sizeof *buffer);
  buffer->stream = stream;
  buffer->references = 1;
  buffer->host = host;
  buffer->bytes = bytes;
  TRY(cuEventCreate, &buffer->done, EVENT_DISABLE_TIMING);
  TRY(cuMemAllocAsync, &buffer->memory, bytes + !bytes, stream->compute);
  return 0;
}

// Drop a reference. After the last one, the stream frees the memory when its commands have run.
static void release(struct buffer* buffer) {
  if (!buffer || __atomic_sub_fetch(&buffer->references, 1, __ATOMIC_ACQ_REL) != 0) return;
  if (buffer->memory) cu.cuMemFreeAsync(buffer->memory, buffer->stream->compute);
  if (buffer->done) cu.cuEventDestroy_v2(buffer->done);
  free(buffer);
}

// Return the result at an address with a reference, or null. With `takes` it leaves the table.
static struct buffer* result_at(struct device* device, void* host, int takes) {
  pthread_mutex_lock(&device->mutex);
  struct buffer** place = &device->results[((uintptr_t)host >> 6) % TABLE];
  while (*place && (*place)->host != host)
    place = &(*place)->next;
  struct buffer* buffer = *place;
  if (buffer && takes)
    *place = buffer->next;
  else if (buffer)
    __atomic_fetch_add(&buffer->references, 1, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&device->mutex);
  return buffer;
}

static void keep_result(struct device* device, struct buffer* buffer) {
  release(result_at(device, buffer->host, 1));
  pthread_mutex_lock(&device->mutex);
  struct buffer** place = &device->results[((uintptr_t)buffer->host >> 6) % TABLE];
  buffer->next = *place;
  *place = buffer;
  pthread_mutex_unlock(&device->mutex);
}

static int download(struct buffer* buffer) {
  struct stream* stream = buffer->stream;
  count(&stream->device->downloads);
  TRY(cuStreamWaitEvent, stream->download, buffer->done, 0);
  TRY(cuMemcpyDtoHAsync_v2, buffer->host, buffer->memory, buffer->bytes, stream->download);
  TRY(cuStreamSynchronize, stream->download);
  return 0;
}

// Copy the result at an address to host memory. Return 0 if it is there.
int32_t cuda_wait(void* host) {
  fault[0] = 0;
  for (int i = 0; i < MAX_DEVICES; ++i) {
    struct device* device = __atomic_load_n(&devices[i], __ATOMIC_ACQUIRE);
    if (!device) continue;
    if (enter(device) != 0) return 1;
    struct buffer* buffer = result_at(device, host, 1);
    const int status = buffer ? download(buffer) : 0;
    release(buffer);
    leave(0);
    if (buffer) return status;
  }
  return 0;
}

// Drop the result at an address, which nothing will read.
void cuda_forget(void* host) {
  for (int i = 0; i < MAX_DEVICES; ++i) {
    struct device* device = __atomic_load_n(&devices[i], __ATOMIC_ACQUIRE);
    if (!device || enter(device) != 0) continue;
    release(result_at(device, host, 1));
    leave(0);
  }
}

// --- weights

struct weight {
  struct device* device;
  address memory;
};

static int upload(struct weight* weight, const void* data, size_t bytes) {
  object stream = weight->device->stream[0].upload;
  count(&weight->device->uploads);
  TRY(cuMemAlloc_v2, &weight->memory, bytes + !bytes);
  TRY(cuMemcpyHtoDAsync_v2, weight->memory, data, bytes, stream);
  TRY(cuStreamSynchronize, stream);
  return 0;
}

// Free a weight, or the buffer of a pack. The commands of all streams are over then.
void cuda_release(void* handle) {
  struct weight* weight = handle;
  if (!weight->memory || enter(weight->device) != 0) return;
  cu.cuCtxSynchronize();
  cu.cuMemFree_v2(weight->memory);
  leave(0);
}

// Copy data to the card, and store the weight at `handle`.
int32_t cuda_upload(void* handle, struct device* device, const void* data, int64_t bytes) {
  fault[0] = 0;
  struct weight* weight = handle;
  *weight = (struct weight){device, 0};
  if (enter(device) != 0) return 1;
  const int status = leave(upload(weight, data, (size_t)bytes));
  if (status != 0) cuda_release(weight);
  return status;
}

// --- programs

enum kind { ARGUMENT, SCALAR, PACK, LITERAL, TEMPORARY, RESULT };

// Parameter of kernels. The offset is in the call's workspace, or for a literal among the literals.
struct slot {
  int32_t kind, number;
  int64_t bytes, offset;
};

struct step {
  object kernel;
  int32_t blocks, first, count; // among the program's places
};

struct program {
  struct device* device;
  object module;
  int32_t slots, steps, arguments, threads;
  size_t workspace;
  struct slot* slot;
  struct step* step;
  int32_t* places; // slots of the steps, one step after the other
  struct weight literals;
};

void cuda_unload(struct program* program) {
  if (program->literals.device) cuda_release(&program->literals);
  if (program->module && enter(program->device) == 0) {
    cu.cuCtxSynchronize();
    cu.cuModuleUnload(program->module);
    leave(0);
  }
  free(program->slot);
  free(program->step);
  free(program->places);
  free(program);
}

static int load_module(struct program* program, const void* code) {
  char log[3072] = "";
  int options[] = {JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, (void*)(uintptr_t)sizeof log};
  const int error = cu.cuModuleLoadDataEx(&program->module, code, 2, options, values);
  if (error == 0) return 0;
  fail("cuModuleLoadDataEx", error);
  strncat(fault, "\n", sizeof fault - strlen(fault) - 1);
  strncat(fault, log, sizeof fault - strlen(fault) - 1);
  return 1;
}

static int load(struct program* program, const void* code, const char** names) {
  if (program->steps && load_module(program, code) != 0) return 1;
  for (int i = 0; i < program->steps; ++i)
    TRY(cuModuleGetFunction, &program->step[i].kernel, program->module, names[i]);
  return 0;
}

static void* copy_of(const void* data, size_t bytes) {
  return memcpy(malloc(bytes + 1), data, bytes);
}

// Return a program, or null. Each step has the name of a kernel, its blocks, and a number of
// places.
struct program* cuda_load(struct device* device, const void* code, int32_t arguments,
                          int32_t threads, int64_t workspace, int32_t slots,
                          const struct slot* slot, int32_t steps, const char** names,
                          const int32_t* blocks, const int32_t* counts, const int32_t* places,
                          const void* literals, int64_t literal_bytes) {
  fault[0] = 0;
  struct program* program = calloc(1, sizeof *program);
  *program = (struct program){.device = device,
                              .slots = slots,
                              .steps = steps,
                              .arguments = arguments,
                              .threads = threads,
                              .workspace = (size_t)workspace};
  program->slot = copy_of(slot, (size_t)slots * sizeof *slot);
  program->step = calloc((size_t)steps + 1, sizeof *program->step);
  int32_t total = 0;
  for (int i = 0; i < steps; ++i) {
    program->step[i] = (struct step){NULL, blocks[i], total, counts[i]};
    total += counts[i];
  }
  program->places = copy_of(places, (size_t)total * sizeof *places);
  int status = enter(device);
  if (status == 0) status = leave(load(program, code, names));
  if (status == 0 && literal_bytes)
    status = cuda_upload(&program->literals, device, literals, literal_bytes);
  if (status == 0) return program;
  cuda_unload(program);
  return NULL;
}

// A call: the value of each slot, and its result or the earlier result that it reads.
struct call {
  struct program* program;
  struct stream* stream;
  void* const* arguments; // and results
  void* const* packed;
  address workspace;
  struct buffer** buffers;
  address* values;
  void** parameters;
};

static int bind_argument(struct call* call, int32_t place) {
  const struct slot* slot = &call->program->slot[place];
  struct stream* stream = call->stream;
  void* host = call->arguments[slot->number];
  struct buffer* buffer = call->buffers[place] = result_at(stream->device, host, 0);
  if (buffer) {
    count(&stream->device->resident);
    call->values[place] = buffer->memory;
    if (buffer->stream != stream) TRY(cuStreamWaitEvent, stream->compute, buffer->done, 0);
    return 0;
  }
  if (cuda_wait(host) != 0) return 1; // a result of another card
  count(&stream->device->uploads);
  call->values[place] = call->workspace + (size_t)slot->offset;
  TRY(cuMemcpyHtoDAsync_v2, call->values[place], host, (size_t)slot->bytes, stream->upload);
  return 0;
}

static int bind(struct call* call, int32_t place) {
  const struct slot* slot = &call->program->slot[place];
  void* host = NULL;
  call->parameters[place] = &call->values[place];
  switch (slot->kind) {
  case ARGUMENT:
    return bind_argument(call, place);
  case SCALAR:
    call->parameters[place] = call->arguments[slot->number];
    return 0;
  case PACK:
    call->values[place] = ((const struct weight*)call->packed[slot->number])->memory;
    return 0;
  case LITERAL:
    call->values[place] = call->program->literals.memory + (size_t)slot->offset;
    return 0;
  case TEMPORARY:
    call->values[place] = call->workspace + (size_t)slot->offset;
    return 0;
  case RESULT:
    host = call->arguments[call->program->arguments + slot->number];
    if (new_buffer(call->stream, host, (size_t)slot->bytes, &call->buffers[place]) != 0) return 1;
    call->values[place] = call->buffers[place]->memory;
  }
  return 0;
}

static int launch(struct call* call) {
  struct program* program = call->program;
  void* parameters[256];
  for (int32_t s = 0; s < program->steps; ++s) {
    const struct step* step = &program->step[s];
    for (int32_t k = 0; k < step->count; ++k)
      parameters[k] = call->parameters[program->places[step->first + k]];
    TRY(cuLaunchKernel, step->kernel, (unsigned)step->blocks, 1, 1, (unsigned)program->threads, 1,
        1, 0, call->stream->compute, parameters, NULL);
  }
  return 0;
}

// Let the streams of earlier results that the call reads free them after the call's kernels.
static int order_frees(struct call* call) {
  object done = NULL;
  for (int32_t i = 0; i < call->program->slots; ++i) {
    struct buffer* buffer = call->buffers[i];
    if (!buffer || buffer->stream == call->stream) continue;
    if (!done) {
      TRY(cuEventCreate, &done, EVENT_DISABLE_TIMING);
      TRY(cuEventRecord, done, call->stream->compute);
    }
    TRY(cuStreamWaitEvent, buffer->stream->compute, done, 0);
  }
  if (done) TRY(cuEventDestroy_v2, done);
  return 0;
}

static int run(struct call* call) {
  struct program* program = call->program;
  struct stream* stream = call->stream;
  if (program->workspace)
    TRY(cuMemAllocAsync, &call->workspace, program->workspace, stream->upload);
  for (int32_t i = 0; i < program->slots; ++i)
    if (bind(call, i) != 0) return 1;
  // The arguments are read, and the workspace exists.
  TRY(cuStreamSynchronize, stream->upload);
  if (launch(call) != 0 || order_frees(call) != 0) return 1;
  for (int32_t i = 0; i < program->slots; ++i)
    if (program->slot[i].kind == RESULT)
      TRY(cuEventRecord, call->buffers[i]->done, stream->compute);
  for (int32_t i = 0; i < program->slots; ++i) {
    if (program->slot[i].kind != RESULT) continue;
    keep_result(stream->device, call->buffers[i]);
    call->buffers[i] = NULL;
  }
  return 0;
}

static struct stream* stream_of_thread(struct device* device) {
  static int threads;
  static _Thread_local int number = -1;
  if (number < 0) number = __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);
  return &device->stream[number % device->streams];
}

// The entry of all programs. Its first buffer is the program (LoadedCode.context).
int32_t cuda_entry(void* const* buffers) {
  fault[0] = 0;
  struct program* program = buffers[0];
  struct stream* stream = stream_of_thread(program->device);
  if (enter(program->device) != 0) return 1;
  const size_t slots = (size_t)program->slots + 1;
  struct call call = {program, stream, buffers + 3, buffers[1], 0, NULL, NULL, NULL};
  call.buffers = calloc(slots, sizeof *call.buffers);
  call.values = calloc(slots, sizeof *call.values);
  call.parameters = calloc(slots, sizeof *call.parameters);
  pthread_mutex_lock(&stream->mutex);
  const int status = run(&call);
  if (status != 0) {
    cu.cuStreamSynchronize(stream->upload);
    cu.cuStreamSynchronize(stream->compute);
  }
  if (call.workspace) cu.cuMemFreeAsync(call.workspace, stream->compute);
  pthread_mutex_unlock(&stream->mutex);
  for (int32_t i = 0; i < program->slots; ++i)
    release(call.buffers[i]);
  free(call.buffers);
  free(call.values);
  free(call.parameters);
  return leave(status);
}
