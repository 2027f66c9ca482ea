// Runtime of the opencl device: buffers, queues and programs. It loads libOpenCL itself and needs
// no headers of it.
//
// A call runs on a stream, which has an in-order queue each for uploads, kernels and downloads. The
// entry copies its arguments to the device, enqueues the kernels and returns. Its results stay in
// device memory, by the address that the caller gave them, until `opencl_wait` copies them there or
// `opencl_forget` drops them. An argument at the address of such a result is not uploaded.
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// --- OpenCL
// ----------------------------------------------------------------------------------------------------

typedef struct cl_object* cl_object; // any of OpenCL's handles
typedef int32_t cl_int;

enum {
  CL_DEVICE_TYPE_ALL = -1,
  CL_MEM_READ_WRITE = 1,
  CL_MEM_ALLOC_HOST_PTR = 1 << 4,
  CL_MAP_READ = 1,
  CL_MAP_WRITE_INVALIDATE = 1 << 2,
  CL_PROGRAM_BUILD_LOG = 0x1183,
  CL_DEVICE_NAME = 0x102B,
  CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
  CL_DRIVER_VERSION = 0x102D,
  CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
  CL_COMPLETE = 0,
};

#define FUNCTIONS(X)                                                                               \
  X(cl_int, clGetPlatformIDs, (uint32_t, cl_object*, uint32_t*))                                   \
  X(cl_int, clGetDeviceIDs, (cl_object, uint64_t, uint32_t, cl_object*, uint32_t*))                \
  X(cl_int, clGetDeviceInfo, (cl_object, uint32_t, size_t, void*, size_t*))                        \
  X(cl_object, clCreateContext,                                                                    \
    (const intptr_t*, uint32_t, const cl_object*, void*, void*, cl_int*))                          \
  X(cl_object, clCreateCommandQueue, (cl_object, cl_object, uint64_t, cl_int*))                    \
  X(cl_object, clCreateBuffer, (cl_object, uint64_t, size_t, void*, cl_int*))                      \
  X(cl_object, clCreateProgramWithSource,                                                          \
    (cl_object, uint32_t, const char**, const size_t*, cl_int*))                                   \
  X(cl_int, clBuildProgram, (cl_object, uint32_t, const cl_object*, const char*, void*, void*))    \
  X(cl_int, clGetProgramBuildInfo, (cl_object, cl_object, uint32_t, size_t, void*, size_t*))       \
  X(cl_object, clCreateKernel, (cl_object, const char*, cl_int*))                                  \
  X(cl_int, clSetKernelArg, (cl_object, uint32_t, size_t, const void*))                            \
  X(cl_int, clEnqueueNDRangeKernel,                                                                \
    (cl_object, cl_object, uint32_t, const size_t*, const size_t*, const size_t*, uint32_t,        \
     const cl_object*, cl_object*))                                                                \
  X(cl_int, clEnqueueBarrierWithWaitList, (cl_object, uint32_t, const cl_object*, cl_object*))     \
  X(cl_int, clEnqueueMarkerWithWaitList, (cl_object, uint32_t, const cl_object*, cl_object*))      \
  X(void*, clEnqueueMapBuffer,                                                                     \
    (cl_object, cl_object, uint32_t, uint64_t, size_t, size_t, uint32_t, const cl_object*,         \
     cl_object*, cl_int*))                                                                         \
  X(cl_int, clEnqueueUnmapMemObject,                                                               \
    (cl_object, cl_object, void*, uint32_t, const cl_object*, cl_object*))                         \
  X(cl_int, clFlush, (cl_object))                                                                  \
  X(cl_int, clFinish, (cl_object))                                                                 \
  X(cl_int, clGetEventInfo, (cl_object, uint32_t, size_t, void*, size_t*))                         \
  X(cl_int, clRetainEvent, (cl_object))                                                            \
  X(cl_int, clReleaseEvent, (cl_object))                                                           \
  X(cl_int, clReleaseMemObject, (cl_object))                                                       \
  X(cl_int, clReleaseKernel, (cl_object))                                                          \
  X(cl_int, clReleaseProgram, (cl_object))

static struct {
#define DECLARE(type, name, arguments) type(*name) arguments;
  FUNCTIONS(DECLARE)
} cl;

// --- errors
// ----------------------------------------------------------------------------------------------------

static _Thread_local char fault[4096];

const char* opencl_fault(void) {
  return fault;
}

static int fail(const char* function, cl_int error) {
  snprintf(fault, sizeof fault, "%s: error %d of OpenCL", function, error);
  return 1;
}

#define TRY(name, ...)                                                                             \
  do {                                                                                             \
    const cl_int error_ = cl.name(__VA_ARGS__);                                                    \
    if (error_ != 0) return fail(#name, error_);                                                   \
  } while (0)

// --- devices and buffers
// ---------------------------------------------------------------------------------------

enum { MAX_STREAMS = 16, SIZES = 64, MAX_DEVICES = 64, TABLE = 4096 };

struct buffer {
  cl_object memory;
  size_t bytes;
  struct stream* stream; // its free list
  cl_object event;       // the latest command that uses it, or null
  int references;
  int is_shared;       // calls of several streams may read it at the same time
  struct buffer* next; // in a free list or the table of results
  void* address;       // of a result
  int64_t content;     // bytes of a result
};

struct stream {
  struct device* device;
  cl_object upload, compute, download;
  pthread_mutex_t mutex;      // held while a call enqueues its commands
  struct buffer* free[SIZES]; // by the logarithm of the size, guarded by the device's mutex
};

struct device {
  cl_object id, context;
  int streams;
  pid_t process; // OpenCL does not work in a child of a fork
  pthread_mutex_t mutex;
  struct stream stream[MAX_STREAMS];
  struct buffer* results[TABLE]; // results in device memory, by their address; guarded by the mutex
  int64_t uploads, downloads, resident;
  uint64_t flags; // for new buffers
};

static pthread_mutex_t devices_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct device* devices[MAX_DEVICES];

static int open_library(void) {
  static int is_open; // guarded by devices_mutex
  if (is_open) return 0;
  void* library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    snprintf(fault, sizeof fault, "%s", dlerror());
    return 1;
  }
#define LOAD(type, name, arguments)                                                                \
  *(void**)&cl.name = dlsym(library, #name);                                                       \
  if (!cl.name) {                                                                                  \
    snprintf(fault, sizeof fault, "libOpenCL.so.1 does not have " #name);                          \
    return 1;                                                                                      \
  }
  FUNCTIONS(LOAD)
  is_open = 1;
  return 0;
}

// Find the device with number `index` among those of all platforms. Return their number.
static int find_device(int index, cl_object* found) {
  cl_object platforms[16], ids[MAX_DEVICES];
  uint32_t count = 0, total = 0;
  if (cl.clGetPlatformIDs(16, platforms, &count) != 0) return 0;
  for (uint32_t p = 0; p < count && p < 16; ++p) {
    uint32_t here = 0;
    if (cl.clGetDeviceIDs(platforms[p], (uint64_t)CL_DEVICE_TYPE_ALL, MAX_DEVICES, ids, &here) != 0)
      continue;
    if ((uint32_t)index >= total && (uint32_t)index < total + here) *found = ids[index - total];
    total += here;
  }
  return (int)total;
}

static int open_device(int index, int streams, struct device* device) {
  cl_int error = 0;
  const int count = find_device(index, &device->id);
  if (!device->id) {
    snprintf(fault, sizeof fault, "OpenCL device %d does not exist: the drivers have %d devices",
             index, count);
    return 1;
  }
  uint32_t is_unified = 0;
  cl.clGetDeviceInfo(device->id, CL_DEVICE_HOST_UNIFIED_MEMORY, sizeof is_unified, &is_unified,
                     NULL);
  device->flags = CL_MEM_READ_WRITE | (is_unified ? CL_MEM_ALLOC_HOST_PTR : 0);
  device->context = cl.clCreateContext(NULL, 1, &device->id, NULL, NULL, &error);
  if (error) return fail("clCreateContext", error);
  device->streams = streams;
  device->process = getpid();
  pthread_mutex_init(&device->mutex, NULL);
  for (int i = 0; i < streams; ++i) {
    struct stream* stream = &device->stream[i];
    stream->device = device;
    pthread_mutex_init(&stream->mutex, NULL);
    cl_object* queues[] = {&stream->upload, &stream->compute, &stream->download};
    for (int q = 0; q < 3; ++q) {
      *queues[q] = cl.clCreateCommandQueue(device->context, device->id, 0, &error);
      if (error) return fail("clCreateCommandQueue", error);
    }
  }
  return 0;
}

// Return the device with number `index`, which is opened at its first use, or null.
struct device* opencl_device(int index, int streams) {
  fault[0] = 0;
  if (index < 0 || index >= MAX_DEVICES || streams < 1 || streams > MAX_STREAMS) {
    snprintf(fault, sizeof fault, "OpenCL device %d with %d streams does not exist", index, streams);
    return NULL;
  }
  pthread_mutex_lock(&devices_mutex);
  struct device* device = devices[index];
  if (!device && open_library() == 0) {
    device = calloc(1, sizeof *device);
    if (device && open_device(index, streams, device) != 0) {
      free(device); // what the driver made for it stays until the process ends
      device = NULL;
    }
    devices[index] = device;
  }
  pthread_mutex_unlock(&devices_mutex);
  return device;
}

// Return the name of the device and the version of its driver.
const char* opencl_description(struct device* device) {
  static _Thread_local char text[512];
  char name[256] = "", version[256] = "";
  cl.clGetDeviceInfo(device->id, CL_DEVICE_NAME, sizeof name, name, NULL);
  cl.clGetDeviceInfo(device->id, CL_DRIVER_VERSION, sizeof version, version, NULL);
  snprintf(text, sizeof text, "%.255s, %.200s", name, version);
  return text;
}

// Number of uploads, downloads, and arguments that were in device memory already, since the device
// was opened.
void opencl_counts(struct device* device, int64_t* counts) {
  counts[0] = __atomic_load_n(&device->uploads, __ATOMIC_RELAXED);
  counts[1] = __atomic_load_n(&device->downloads, __ATOMIC_RELAXED);
  counts[2] = __atomic_load_n(&device->resident, __ATOMIC_RELAXED);
}

static void count(int64_t* counter) {
  __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

static int class_of(size_t bytes) {
  return bytes <= 64 ? 6 : 64 - __builtin_clzll(bytes - 1);
}

static int is_idle(const struct buffer* buffer) {
  cl_int status = CL_COMPLETE;
  if (buffer->event)
    cl.clGetEventInfo(buffer->event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status,
                      NULL);
  return status <= CL_COMPLETE;
}

// Return a buffer for at least `bytes`, with one reference, or null. An upload needs an idle
// buffer: it would wait for the kernels that use another one.
static struct buffer* allocate(struct stream* stream, size_t bytes, int needs_idle) {
  struct device* device = stream->device;
  const int size_class = class_of(bytes);
  pthread_mutex_lock(&device->mutex);
  struct buffer** place = &stream->free[size_class];
  while (*place && needs_idle && !is_idle(*place))
    place = &(*place)->next;
  struct buffer* buffer = *place;
  if (buffer) *place = buffer->next;
  pthread_mutex_unlock(&device->mutex);
  if (!buffer) {
    cl_int error = 0;
    buffer = calloc(1, sizeof *buffer);
    if (!buffer) return NULL;
    buffer->bytes = (size_t)1 << size_class;
    buffer->stream = stream;
    buffer->memory = cl.clCreateBuffer(device->context, device->flags, buffer->bytes, NULL, &error);
    if (error) {
      fail("clCreateBuffer", error);
      free(buffer);
      return NULL;
    }
  }
  buffer->references = 1;
  buffer->next = NULL;
  return buffer;
}

static void retain(struct buffer* buffer) {
  __atomic_fetch_add(&buffer->references, 1, __ATOMIC_RELAXED);
}

// Return whether OpenCL works: in the child of a fork it does not, and other threads of the parent
// may have held locks.
static int is_usable(const struct device* device) {
  if (device->process == getpid()) return 1;
  snprintf(fault, sizeof fault,
           "clEnqueueNDRangeKernel: OpenCL does not work in the child of a fork");
  return 0;
}

// Drop a reference. The last one puts the buffer on its stream's free list: later commands of the
// stream wait for those that use it. A shared buffer is freed by the driver, after the commands of
// all streams.
static void release(struct buffer* buffer) {
  if (!buffer || __atomic_sub_fetch(&buffer->references, 1, __ATOMIC_ACQ_REL) != 0) return;
  struct stream* stream = buffer->stream;
  if (stream->device->process != getpid()) return;
  if (buffer->is_shared) {
    cl.clReleaseMemObject(buffer->memory);
    if (buffer->event) cl.clReleaseEvent(buffer->event);
    free(buffer);
    return;
  }
  const int size_class = class_of(buffer->bytes);
  pthread_mutex_lock(&stream->device->mutex);
  buffer->next = stream->free[size_class];
  stream->free[size_class] = buffer;
  pthread_mutex_unlock(&stream->device->mutex);
}

static void set_event(struct buffer* buffer, cl_object event) {
  pthread_mutex_lock(&buffer->stream->device->mutex);
  cl_object previous = buffer->event;
  if (event) cl.clRetainEvent(event);
  buffer->event = event;
  pthread_mutex_unlock(&buffer->stream->device->mutex);
  if (previous) cl.clReleaseEvent(previous);
}

// Return the buffer's latest command with a reference, or null.
static cl_object event_of(struct buffer* buffer) {
  pthread_mutex_lock(&buffer->stream->device->mutex);
  cl_object event = buffer->event;
  if (event) cl.clRetainEvent(event);
  pthread_mutex_unlock(&buffer->stream->device->mutex);
  return event;
}

// --- transfers
// -------------------------------------------------------------------------------------------------

// Copy between host memory and a buffer, through a mapping: pinned memory of the driver, or the
// buffer itself where the device shares the processor's memory. Return when the host memory was
// read or written.
static int transfer(cl_object queue, struct buffer* buffer, void* host, size_t bytes, int writes) {
  if (bytes == 0) return 0;
  cl_int error = 0;
  cl_object before = event_of(buffer), after = NULL;
  void* mapped = cl.clEnqueueMapBuffer(queue, buffer->memory, 1,
                                       writes ? CL_MAP_WRITE_INVALIDATE : CL_MAP_READ, 0, bytes,
                                       before ? 1 : 0, before ? &before : NULL, NULL, &error);
  if (before) cl.clReleaseEvent(before);
  if (error) return fail("clEnqueueMapBuffer", error);
  if (writes)
    memcpy(mapped, host, bytes);
  else
    memcpy(host, mapped, bytes);
  TRY(clEnqueueUnmapMemObject, queue, buffer->memory, mapped, 0, NULL, &after);
  set_event(buffer, after);
  cl.clReleaseEvent(after);
  TRY(clFlush, queue);
  return 0;
}

// --- results in device memory
// ----------------------------------------------------------------------------------

static struct buffer** bucket_of(struct device* device, const void* address) {
  return &device->results[((uintptr_t)address >> 6) % TABLE];
}

// Return the result at an address with a reference, or null. With `takes` it is removed from the
// table.
static struct buffer* pending_of(struct device* device, void* address, int takes) {
  pthread_mutex_lock(&device->mutex);
  struct buffer** place = bucket_of(device, address);
  while (*place && (*place)->address != address)
    place = &(*place)->next;
  struct buffer* buffer = *place;
  if (buffer && takes)
    *place = buffer->next;
  else if (buffer)
    retain(buffer);
  pthread_mutex_unlock(&device->mutex);
  return buffer;
}

static void keep_result(struct device* device, struct buffer* buffer, void* address,
                        int64_t content) {
  release(pending_of(device, address, 1));
  retain(buffer);
  pthread_mutex_lock(&device->mutex);
  buffer->address = address;
  buffer->content = content;
  struct buffer** place = bucket_of(device, address);
  buffer->next = *place;
  *place = buffer;
  pthread_mutex_unlock(&device->mutex);
}

// Copy the result at an address to host memory. Return 0 if it is there.
int32_t opencl_wait(void* address) {
  fault[0] = 0;
  for (int i = 0; i < MAX_DEVICES; ++i) {
    struct device* device = __atomic_load_n(&devices[i], __ATOMIC_ACQUIRE);
    if (!device) continue;
    if (!is_usable(device)) return 1;
    struct buffer* buffer = pending_of(device, address, 1);
    if (!buffer) continue;
    const int status =
        transfer(buffer->stream->download, buffer, address, (size_t)buffer->content, 0);
    count(&device->downloads);
    release(buffer);
    return status;
  }
  return 0;
}

// Drop the result at an address, which nothing will read.
void opencl_forget(void* address) {
  for (int i = 0; i < MAX_DEVICES; ++i) {
    struct device* device = __atomic_load_n(&devices[i], __ATOMIC_ACQUIRE);
    if (device && device->process == getpid()) release(pending_of(device, address, 1));
  }
}

// --- programs
// --------------------------------------------------------------------------------------------------

enum kind { ARGUMENT, PACK, LITERAL, TEMPORARY, RESULT, FAILURE };

struct slot {
  int32_t kind, number;
  int64_t bytes;
};

struct step {
  cl_object kernel;
  int64_t items;
  int32_t first, count; // among the program's places
};

struct program {
  struct device* device;
  cl_object program;
  int32_t slots, steps, literals, results, arguments;
  struct slot* slot;
  struct step* step;
  int32_t* places; // slots of the steps, one step after the other
  struct buffer** literal;
  pthread_mutex_t mutex; // held while arguments of kernels are set
};

static int build(struct program* program, const char* source) {
  cl_int error = 0;
  program->program =
      cl.clCreateProgramWithSource(program->device->context, 1, &source, NULL, &error);
  if (error) return fail("clCreateProgramWithSource", error);
  error = cl.clBuildProgram(program->program, 1, &program->device->id, "-cl-std=CL1.2 -w", NULL, NULL);
  if (error == 0) return 0;
  const int length = snprintf(fault, sizeof fault, "clBuildProgram: error %d of OpenCL\n", error);
  cl.clGetProgramBuildInfo(program->program, program->device->id, CL_PROGRAM_BUILD_LOG,
                           sizeof fault - length - 1, fault + length, NULL);
  return 1;
}

void opencl_unload(struct program* program) {
  const int is_alive = program->device->process == getpid();
  for (int i = 0; i < program->steps && is_alive; ++i)
    if (program->step[i].kernel) cl.clReleaseKernel(program->step[i].kernel);
  for (int i = 0; i < program->literals; ++i)
    release(program->literal[i]);
  if (program->program && is_alive) cl.clReleaseProgram(program->program);
  pthread_mutex_destroy(&program->mutex);
  free(program->slot);
  free(program->step);
  free(program->places);
  free(program->literal);
  free(program);
}

struct buffer* opencl_upload(struct device* device, const void* data, int64_t bytes) {
  fault[0] = 0;
  if (!is_usable(device)) return NULL;
  struct stream* stream = &device->stream[0];
  struct buffer* buffer = allocate(stream, (size_t)bytes, 1);
  if (buffer) buffer->is_shared = 1;
  count(&device->uploads);
  if (buffer && transfer(stream->upload, buffer, (void*)data, (size_t)bytes, 1) != 0) {
    release(buffer);
    return NULL;
  }
  return buffer;
}

// Free the buffer of a pack, whose address is at `handle`.
void opencl_release(void* handle) {
  release(*(struct buffer**)handle);
}

// Return a program, or null. `steps` has the name of a kernel, in `names`, the work items and the
// number of places of each step. `sizes` are the bytes of the literals, which are one after the
// other in `data`.
struct program* opencl_load(struct device* device, const char* source, int32_t arguments,
                            int32_t results, int32_t slots, const struct slot* slot, int32_t steps,
                            const char** names, const int64_t* items, const int32_t* counts,
                            const int32_t* places, int32_t literals, const int64_t* sizes,
                            const char* data) {
  fault[0] = 0;
  struct program* program = calloc(1, sizeof *program);
  program->device = device;
  program->arguments = arguments;
  program->results = results;
  program->slots = slots;
  program->slot = malloc((size_t)slots * sizeof *slot + 1);
  memcpy(program->slot, slot, (size_t)slots * sizeof *slot);
  program->steps = steps;
  program->step = calloc((size_t)steps + 1, sizeof *program->step);
  int32_t total = 0;
  for (int i = 0; i < steps; ++i) {
    program->step[i] = (struct step){NULL, items[i], total, counts[i]};
    total += counts[i];
  }
  program->places = malloc((size_t)total * sizeof *places + 1);
  memcpy(program->places, places, (size_t)total * sizeof *places);
  program->literals = literals;
  program->literal = calloc((size_t)literals + 1, sizeof *program->literal);
  pthread_mutex_init(&program->mutex, NULL);
  cl_int error = steps ? build(program, source) : 0;
  for (int i = 0; i < steps && error == 0; ++i) {
    program->step[i].kernel = cl.clCreateKernel(program->program, names[i], &error);
    if (error) fail("clCreateKernel", error);
  }
  for (int i = 0; i < literals && error == 0; ++i) {
    program->literal[i] = opencl_upload(device, data, sizes[i]);
    error = program->literal[i] ? 0 : 1;
    data += sizes[i];
  }
  if (error == 0) return program;
  opencl_unload(program);
  return NULL;
}

// Buffers of a call, one for each slot, each with a reference.
struct call {
  struct program* program;
  struct stream* stream;
  struct buffer** buffers;
  void* const* arguments;
  void* const* packed;
};

static struct stream* stream_of_thread(struct device* device) {
  static int threads;
  static _Thread_local int number = -1;
  if (number < 0) number = __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);
  return &device->stream[number % device->streams];
}

// Return a new buffer with a copy of host memory, or null.
static struct buffer* upload(struct call* call, void* host, int64_t bytes) {
  struct buffer* buffer = allocate(call->stream, (size_t)bytes, 1);
  if (buffer && transfer(call->stream->upload, buffer, host, (size_t)bytes, 1) != 0) {
    release(buffer);
    return NULL;
  }
  return buffer;
}

// Return the buffer of an argument: a result that is in device memory, or a copy of host memory.
static struct buffer* bind_argument(struct call* call, const struct slot* slot) {
  struct device* device = call->program->device;
  void* address = call->arguments[slot->number];
  struct buffer* buffer = pending_of(device, address, 0);
  if (buffer) {
    count(&device->resident);
    return buffer;
  }
  if (opencl_wait(address) != 0) return NULL; // a result of another device
  count(&device->uploads);
  return upload(call, address, slot->bytes);
}

// Temporary buffers with equal numbers share memory.
static struct buffer* bind_temporary(struct call* call, int32_t place) {
  const struct slot* slots = call->program->slot;
  for (int32_t i = 0; i < place; ++i)
    if (slots[i].kind == TEMPORARY && slots[i].number == slots[place].number) {
      retain(call->buffers[i]);
      return call->buffers[i];
    }
  return allocate(call->stream, (size_t)slots[place].bytes, 0);
}

static struct buffer* bind(struct call* call, int32_t place) {
  const struct slot* slot = &call->program->slot[place];
  struct buffer* shared = NULL;
  switch (slot->kind) {
  case ARGUMENT:
    return bind_argument(call, slot);
  case PACK:
    shared = *(struct buffer**)call->packed[slot->number];
    break;
  case LITERAL:
    shared = call->program->literal[slot->number];
    break;
  case TEMPORARY:
    return bind_temporary(call, place);
  case RESULT:
    return allocate(call->stream, (size_t)slot->bytes, 0);
  case FAILURE:
    return upload(call, &(int32_t){0}, slot->bytes);
  }
  retain(shared);
  return shared;
}

// Make the kernels of the call wait for the commands of other queues that use its buffers.
static int order(struct call* call) {
  struct program* program = call->program;
  cl_object* events = malloc(((size_t)program->slots + 1) * sizeof *events);
  uint32_t count = 0;
  for (int32_t i = 0; i < program->slots; ++i) {
    cl_object event = event_of(call->buffers[i]);
    if (event) events[count++] = event;
  }
  const cl_int error =
      count ? cl.clEnqueueBarrierWithWaitList(call->stream->compute, count, events, NULL) : 0;
  for (uint32_t i = 0; i < count; ++i)
    cl.clReleaseEvent(events[i]);
  free(events);
  return error ? fail("clEnqueueBarrierWithWaitList", error) : 0;
}

static int run_kernels(struct call* call) {
  struct program* program = call->program;
  for (int32_t s = 0; s < program->steps; ++s) {
    const struct step* step = &program->step[s];
    for (int32_t k = 0; k < step->count; ++k) {
      struct buffer* buffer = call->buffers[program->places[step->first + k]];
      TRY(clSetKernelArg, step->kernel, (uint32_t)k, sizeof buffer->memory, &buffer->memory);
    }
    const size_t items = (size_t)step->items;
    TRY(clEnqueueNDRangeKernel, call->stream->compute, step->kernel, 1, NULL, &items, NULL, 0, NULL,
        NULL);
  }
  return 0;
}

// Wait for the kernels if they check their inputs. Return whether a check or the transfer failed.
static int checks_failed(struct call* call) {
  int32_t failure = 0;
  for (int32_t i = 0; i < call->program->slots; ++i)
    if (call->program->slot[i].kind == FAILURE &&
        transfer(call->stream->download, call->buffers[i], &failure, sizeof failure, 0) != 0)
      return 1;
  return failure;
}

static int run(struct call* call) {
  struct program* program = call->program;
  for (int32_t i = 0; i < program->slots; ++i) {
    call->buffers[i] = bind(call, i);
    if (!call->buffers[i]) return 1;
  }
  if (order(call) != 0) return 1;
  pthread_mutex_lock(&program->mutex);
  const int status = run_kernels(call);
  pthread_mutex_unlock(&program->mutex);
  if (status != 0) return status;
  cl_object done = NULL;
  TRY(clEnqueueMarkerWithWaitList, call->stream->compute, 0, NULL, &done);
  for (int32_t i = 0; i < program->slots; ++i)
    if (!call->buffers[i]->is_shared) set_event(call->buffers[i], done);
  cl.clReleaseEvent(done);
  TRY(clFlush, call->stream->compute);
  if (checks_failed(call) != 0) return 1;
  for (int32_t i = 0; i < program->slots; ++i) {
    const struct slot* slot = &program->slot[i];
    if (slot->kind == RESULT)
      keep_result(program->device, call->buffers[i],
                  call->arguments[program->arguments + slot->number], slot->bytes);
  }
  return 0;
}

// The entry of all programs. Its first buffer is the program (LoadedCode.context).
int32_t opencl_entry(void* const* buffers) {
  fault[0] = 0;
  struct program* program = buffers[0];
  if (!is_usable(program->device)) return 1;
  struct call call = {program, stream_of_thread(program->device), NULL, buffers + 3, buffers[1]};
  call.buffers = calloc((size_t)program->slots + 1, sizeof *call.buffers);
  pthread_mutex_lock(&call.stream->mutex);
  const int status = run(&call);
  if (status != 0) cl.clFinish(call.stream->compute);
  pthread_mutex_unlock(&call.stream->mutex);
  for (int32_t i = 0; i < program->slots; ++i)
    release(call.buffers[i]);
  free(call.buffers);
  return status;
}
