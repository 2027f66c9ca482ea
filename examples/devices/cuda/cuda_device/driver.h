// The part of NVIDIA's driver API that the runtime uses. No header of NVIDIA is needed.
#include <stddef.h>
#include <stdint.h>

typedef struct object* object; // any of the driver's handles
typedef uint64_t address;      // in the memory of a card

enum {
  CAPABILITY_MAJOR = 75,
  CAPABILITY_MINOR = 76,
  JIT_ERROR_LOG_BUFFER = 5,
  JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
  POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
  POOL_RELEASE_THRESHOLD = 4,
  STREAM_NON_BLOCKING = 1,
  EVENT_DISABLE_TIMING = 2,
};

#define FUNCTIONS(X)                                                                               \
  X(cuInit, (unsigned flags))                                                                      \
  X(cuGetErrorString, (int error, const char** text))                                              \
  X(cuDriverGetVersion, (int* version))                                                            \
  X(cuDeviceGetCount, (int* count))                                                                \
  X(cuDeviceGet, (int* device, int index))                                                         \
  X(cuDeviceGetName, (char* name, int bytes, int device))                                          \
  X(cuDeviceGetAttribute, (int* value, int attribute, int device))                                 \
  X(cuDevicePrimaryCtxRetain, (object * context, int device))                                      \
  X(cuCtxPushCurrent_v2, (object context))                                                         \
  X(cuCtxPopCurrent_v2, (object * context))                                                        \
  X(cuCtxSynchronize, (void))                                                                      \
  X(cuDeviceGetDefaultMemPool, (object * pool, int device))                                        \
  X(cuMemPoolSetAttribute, (object pool, int attribute, void* value))                              \
  X(cuStreamCreate, (object * stream, unsigned flags))                                             \
  X(cuStreamSynchronize, (object stream))                                                          \
  X(cuStreamWaitEvent, (object stream, object event, unsigned flags))                              \
  X(cuEventCreate, (object * event, unsigned flags))                                               \
  X(cuEventRecord, (object event, object stream))                                                  \
  X(cuEventDestroy_v2, (object event))                                                             \
  X(cuMemAlloc_v2, (address * memory, size_t bytes))                                               \
  X(cuMemFree_v2, (address memory))                                                                \
  X(cuMemAllocAsync, (address * memory, size_t bytes, object stream))                              \
  X(cuMemFreeAsync, (address memory, object stream))                                               \
  X(cuMemcpyHtoDAsync_v2, (address memory, const void* host, size_t bytes, object stream))         \
  X(cuMemcpyDtoHAsync_v2, (void* host, address memory, size_t bytes, object stream))               \
  X(cuModuleLoadDataEx,                                                                            \
    (object * module, const void* code, unsigned count, int* options, void** values))              \
  X(cuModuleUnload, (object module))                                                               \
  X(cuModuleGetFunction, (object * function, object module, const char* name))                     \
  X(cuLaunchKernel,                                                                                \
    (object function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x, \
     unsigned threads_y, unsigned threads_z, unsigned shared_bytes, object stream,                 \
     void** parameters, void** more))
