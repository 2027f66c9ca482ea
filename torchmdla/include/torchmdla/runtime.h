/* C interface of libtorchmdla_runtime.so, which runs models that torchmdla.export_native wrote. It
 * needs neither PyTorch nor Python (docs/native.md).
 *
 * A model is shared and never changes. Any number of threads may use it at the same time, except
 * for tmdla_free. A session calls the methods of a model and has the state that they write. One
 * thread at a time may use a session. A function that fails returns a status other than TMDLA_OK;
 * tmdla_last_error() returns the reason.
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

/* Version of this interface: 1 has models, 2 adds methods and sessions, 3 devices. It increases
 * when something is added. A library accepts the options of its own version and of earlier ones. */
#define TMDLA_API_VERSION 3

typedef enum tmdla_status {
  TMDLA_OK = 0,
  TMDLA_INVALID_ARGUMENT = 1, /* an argument of a function below is invalid */
  TMDLA_NOT_READABLE = 2,     /* the file does not exist or cannot be read */
  TMDLA_BAD_FILE = 3,         /* it is damaged, of another version, or for another machine */
  TMDLA_WRONG_PROCESSOR = 4,  /* it is for another processor, or for a device that is not loaded */
  TMDLA_WRONG_TENSOR = 5,     /* the model does not accept a tensor's dtype or sizes */
  TMDLA_FAILED = 6,           /* the model's own error, such as an index out of bounds */
  TMDLA_NO_MEMORY = 7,
  TMDLA_INTERNAL = 8,
  TMDLA_NOT_TRUSTED = 9, /* a user other than this one and root may have written the file */
  TMDLA_RAISED = 10,     /* the program raised an exception: tmdla_last_exception() */
  TMDLA_WRONG_VALUE = 11 /* a method does not accept an argument's type, or their number */
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

/* Load the library of a device (torchmdla/device.h), so that models with code for the device load.
 * The libraries in the variable TORCHMDLA_DEVICE_LIBRARIES, paths separated by colons, are loaded
 * without a call. Version 3. */
tmdla_status tmdla_load_device(const char* path);

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
 * the C library, or whether a method may use the operator of this name, such as "aten::select.int".
 */
int tmdla_provides(const char* function);

/* Methods. A model has one method at least, mostly "forward". */

typedef struct tmdla_method_info {
  const char* name;       /* "forward" */
  const char* schema;     /* "forward(x: Tensor, sr: int = 16000) -> Tensor" */
  size_t parameter_count; /* without self */
} tmdla_method_info;

typedef struct tmdla_parameter_info {
  const char* name;
  const char* type;    /* as TorchScript writes it: "Dict[str, List[Tensor]]" */
  int32_t has_default; /* not 0: a call may omit it if it omits all later ones, too */
} tmdla_parameter_info;

/* The pointers that these functions write are valid as long as the model lives. */
size_t tmdla_method_count(const tmdla_model* model);
tmdla_status tmdla_method(const tmdla_model* model, size_t method, tmdla_method_info* info);
tmdla_status tmdla_parameter(const tmdla_model* model, size_t method, size_t index,
                             tmdla_parameter_info* info);

/* Write the number of the method of this name to `method`. */
tmdla_status tmdla_find_method(const tmdla_model* model, const char* name, size_t* method);

/* Values */

typedef enum tmdla_kind {
  TMDLA_NONE = 0,
  TMDLA_BOOLEAN = 1, /* as.integer is 0 or 1 */
  TMDLA_INTEGER = 2,
  TMDLA_REAL = 3,
  TMDLA_STRING = 4,
  TMDLA_TENSOR = 5,
  TMDLA_LIST = 6,
  TMDLA_TUPLE = 7,
  TMDLA_DICT = 8 /* keys and values alternate among the items */
} tmdla_kind;

/* Argument or result of a method. */
typedef struct tmdla_value {
  int32_t kind;   /* a tmdla_kind */
  int32_t unused; /* 0 */
  size_t count;   /* bytes of a string, items of a list, tuple or dictionary, else 0 */
  union {
    int64_t integer;
    double real;
    const char* text; /* a result has a 0 after its last byte */
    const tmdla_tensor* tensor;
    const struct tmdla_value* items;
  } as;
} tmdla_value;

/* Sessions */

typedef struct tmdla_session tmdla_session;

/* Make a session with the state of the file. The model must live longer than its sessions. */
tmdla_status tmdla_session_create(const tmdla_model* model, tmdla_session** session);

/* Free the session with its results. Null is allowed and has no effect. */
void tmdla_session_free(tmdla_session* session);

/* Set the state to that of the file. The session keeps its memory. */
tmdla_status tmdla_session_reset(tmdla_session* session);

/* Call a method. `result` is set to a value that belongs to the session. It is valid until the next
 * function that has the session as an argument. The program may write to the arguments' tensors if
 * it does so in PyTorch; otherwise they are only read, and only during the call.
 *
 * A call takes its memory from the session. It does not allocate if earlier calls needed as much:
 * after a few calls of each kind, a session does not allocate any more. After a failure the state
 * is the one that the program left. */
tmdla_status tmdla_call(tmdla_session* session, size_t method, const tmdla_value* arguments,
                        size_t argument_count, const tmdla_value** result);

/* Return the qualified name of the exception that the last failed call in this thread raised, such
 * as "builtins.ValueError". It is empty if the failure is another one. tmdla_last_error() returns
 * its text. */
const char* tmdla_last_exception(void);

/* Return the bytes of memory that the session has. */
size_t tmdla_session_memory(const tmdla_session* session);

/* Attributes that methods write, by number. Names are paths such as "encoder.state". */
size_t tmdla_attribute_count(const tmdla_model* model);
const char* tmdla_attribute_name(const tmdla_model* model, size_t index);

/* Return an attribute's value in the session. It is valid as a result of tmdla_call is. */
tmdla_status tmdla_get_attribute(tmdla_session* session, size_t index, const tmdla_value** value);

/* Set an attribute's value. The session copies its tensors. */
tmdla_status tmdla_set_attribute(tmdla_session* session, size_t index, const tmdla_value* value);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
