/* Runs models that torchmdla.export_native wrote: libtorchmdla_runtime.so, which needs neither
 * PyTorch nor Python (docs/native.md).
 *
 * Any number of threads may use one model at the same time, but for tmdla_free. A function that
 * fails returns another status than TMDLA_OK; tmdla_last_error() says why.
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

/* Raised when something below changes its meaning. What is only added leaves it as it is. */
#define TMDLA_API_VERSION 1

typedef enum tmdla_status {
  TMDLA_OK = 0,
  TMDLA_INVALID_ARGUMENT = 1, /* of a function below */
  TMDLA_NOT_READABLE = 2,     /* the file is not there, or cannot be read */
  TMDLA_BAD_FILE = 3,         /* it is damaged, of another version, or for another machine */
  TMDLA_WRONG_PROCESSOR = 4,  /* it needs instructions that this processor does not have */
  TMDLA_WRONG_TENSOR = 5,     /* a tensor has another dtype or other sizes than the model takes */
  TMDLA_FAILED = 6,           /* the model's own error, such as an index out of bounds */
  TMDLA_NO_MEMORY = 7,
  TMDLA_INTERNAL = 8,
  TMDLA_NOT_TRUSTED = 9 /* others than this user and root may have written the file */
} tmdla_status;

/* The numbers that PyTorch has for them. */
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
  int32_t threads;      /* 0: what OMP_NUM_THREADS says, else one for each CPU */
  int32_t any_owner;    /* not 0: whoever may have written the file, its code is run */
} tmdla_options;

/* An input or an output of a model. What it points to lives as long as the model. */
typedef struct tmdla_info {
  const char* name;
  int32_t dtype; /* a tmdla_dtype */
  int32_t rank;
  const int64_t* sizes; /* -1 where the model takes or makes more than one */
} tmdla_info;

/* A tensor in the caller's memory, which is never kept. */
typedef struct tmdla_tensor {
  void* data;
  int32_t dtype; /* a tmdla_dtype */
  int32_t rank;
  const int64_t* sizes;
  const int64_t* strides; /* in elements; null where the tensor is contiguous */
} tmdla_tensor;

/* Of the library that is loaded. */
uint32_t tmdla_api_version(void);

/* Why the latest call of the calling thread that failed did, in one line; valid until the next that
 * fails. */
const char* tmdla_last_error(void);

/* `options` may be null. The file must stay as it is while the model lives: weights are read from
 * it when they are used, and all processes that load it share them. */
tmdla_status tmdla_load(const char* path, const tmdla_options* options, tmdla_model** model);

/* Null is no model, and nothing is done. */
void tmdla_free(tmdla_model* model);

/* Compares the weights with their checksums, which reads all of them; tmdla_load has checked
 * everything else. */
tmdla_status tmdla_verify(const tmdla_model* model);

/* How many threads a call of the model uses, the calling one among them; 0: as many as the variable
 * OMP_NUM_THREADS says, or else one for each CPU that this process may use: of its affinity mask,
 * and no more than the quota of its control group comes to. */
tmdla_status tmdla_set_threads(tmdla_model* model, int32_t threads);
int32_t tmdla_threads(const tmdla_model* model);

size_t tmdla_input_count(const tmdla_model* model);
size_t tmdla_output_count(const tmdla_model* model);
tmdla_status tmdla_input(const tmdla_model* model, size_t index, tmdla_info* info);
tmdla_status tmdla_output(const tmdla_model* model, size_t index, tmdla_info* info);

/* The sizes of output `index` for inputs of these sizes, whose data is not looked at. `sizes` has
 * room for the output's rank. */
tmdla_status tmdla_output_sizes(const tmdla_model* model, const tmdla_tensor* inputs,
                                size_t input_count, size_t index, int64_t* sizes);

/* Computes the outputs, into the caller's memory, which overlaps neither the inputs nor another
 * output. */
tmdla_status tmdla_run(const tmdla_model* model, const tmdla_tensor* inputs, size_t input_count,
                       const tmdla_tensor* outputs, size_t output_count);

/* The same with DLPack's tensors (https://dmlc.github.io/dlpack/latest/), on the CPU. They stay the
 * caller's. */
struct DLManagedTensor;
tmdla_status tmdla_run_dlpack(const tmdla_model* model, struct DLManagedTensor* const* inputs,
                              size_t input_count, struct DLManagedTensor* const* outputs,
                              size_t output_count);

/* Whether code in a file may call the function of this name: a function of the runtime, or of the C
 * library. */
int tmdla_provides(const char* function);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
