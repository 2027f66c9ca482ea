/* C interface of libtorchmdla_runtime.so, which runs models that torchmdla.export_native wrote. It
 * needs neither PyTorch nor Python (docs/native.md).
 *
 * Any number of threads may use one model at the same time, except for tmdla_free. A function that
 * fails returns a status other than TMDLA_OK; tmdla_last_error() returns the reason.
 */
#ifndef TORCHMDLA_RUNTIME_H
#define TORCHMDLA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Version of this interface. It increases when something below changes its meaning, but not when
 * something is only added. */
#define TMDLA_API_VERSION 1

typedef enum tmdla_status {
  TMDLA_OK = 0,
  TMDLA_INVALID_ARGUMENT = 1, /* an argument of a function below is invalid */
  TMDLA_NOT_READABLE = 2,     /* the file does not exist or cannot be read */
  TMDLA_BAD_FILE = 3,         /* it is damaged, of another version, or for another machine */
  TMDLA_WRONG_PROCESSOR = 4,  /* it needs instructions that this processor does not have */
  TMDLA_WRONG_TENSOR = 5,     /* the model does not accept a tensor's dtype or sizes */
  TMDLA_FAILED = 6,           /* the model's own error, such as an index out of bounds */
  TMDLA_NO_MEMORY = 7,
  TMDLA_INTERNAL = 8,
  TMDLA_NOT_TRUSTED = 9 /* a user other than this one and root may have written the file */
} tmdla_status;

/* Dtypes, with the numbers of PyTorch's c10::ScalarType. */
typedef enum tmdla_dtype {
  TMDLA_UINT8 = 0,
  TMDLA_INT8 = 1,
  TMDLA_INT16 = 2,
  TMDLA_INT32 = 3,
  TMDLA_INT64 = 4,
  TMDLA_FLOAT16 = 5,
  TMDLA_FLOAT32 = 6,
  TMDLA_FLOAT64 = 7,
  TMDLA_COMPLEX64 = 9,
  TMDLA_COMPLEX128 = 10,
  TMDLA_BOOL = 11, /* a byte, 0 or 1 */
  TMDLA_BFLOAT16 = 15
} tmdla_dtype;

typedef struct tmdla_model tmdla_model;

typedef struct tmdla_options {
  uint32_t api_version; /* TMDLA_API_VERSION */
  int32_t threads;      /* 0: OMP_NUM_THREADS, or else one for each CPU */
  int32_t any_owner;    /* not 0: run the file's code even if other users may have written it */
} tmdla_options;

/* Input or output of a model. Its pointers are valid as long as the model lives. */
typedef struct tmdla_info {
  const char* name;
  int32_t dtype; /* a tmdla_dtype */
  int32_t rank;
  const int64_t* sizes; /* -1 for a size that is not fixed */
} tmdla_info;

/* Tensor in the caller's memory. The library uses it only during the call. */
typedef struct tmdla_tensor {
  void* data;
  int32_t dtype; /* a tmdla_dtype */
  int32_t rank;
  const int64_t* sizes;
  const int64_t* strides; /* in elements; null if the tensor is contiguous */
} tmdla_tensor;

/* Return the TMDLA_API_VERSION of the loaded library. */
uint32_t tmdla_api_version(void);

/* Return the reason of the last failed call in the calling thread, in one line. It is valid until
 * the next call that fails in this thread. */
const char* tmdla_last_error(void);

/* Load the model in the file `path`. `options` may be null. The file must not change while the
 * model lives: its weights are mapped, and all processes that load it share them. */
tmdla_status tmdla_load(const char* path, const tmdla_options* options, tmdla_model** model);

/* Free the model. Null is allowed and has no effect. */
void tmdla_free(tmdla_model* model);

/* Compare the weights with their checksums, which reads all of them. tmdla_load checks everything
 * else. */
tmdla_status tmdla_verify(const tmdla_model* model);

/* Set the number of threads that a call of the model uses, including the calling one. 0 selects the
 * value of the environment variable OMP_NUM_THREADS, or else one thread for each CPU that this
 * process may use. The affinity mask and the quota of the control group limit these CPUs. */
tmdla_status tmdla_set_threads(tmdla_model* model, int32_t threads);
int32_t tmdla_threads(const tmdla_model* model);

size_t tmdla_input_count(const tmdla_model* model);
size_t tmdla_output_count(const tmdla_model* model);
tmdla_status tmdla_input(const tmdla_model* model, size_t index, tmdla_info* info);
tmdla_status tmdla_output(const tmdla_model* model, size_t index, tmdla_info* info);

/* Write the sizes of output `index` for inputs of these sizes to `sizes`, which has room for the
 * output's rank. The data of the inputs is not read. */
tmdla_status tmdla_output_sizes(const tmdla_model* model, const tmdla_tensor* inputs,
                                size_t input_count, size_t index, int64_t* sizes);

/* Run the model and write the outputs to the caller's memory. An output must not overlap an input
 * or another output. */
tmdla_status tmdla_run(const tmdla_model* model, const tmdla_tensor* inputs, size_t input_count,
                       const tmdla_tensor* outputs, size_t output_count);

/* Run the model with DLPack tensors on the CPU (https://dmlc.github.io/dlpack/latest/). The caller
 * keeps ownership of them. */
struct DLManagedTensor;
tmdla_status tmdla_run_dlpack(const tmdla_model* model, struct DLManagedTensor* const* inputs,
                              size_t input_count, struct DLManagedTensor* const* outputs,
                              size_t output_count);

/* Return whether code in a file may call the function of this name, which belongs to the runtime or
 * the C library. */
int tmdla_provides(const char* function);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
