/* Functions that compiled groups and the Python code of the mdla device call. They use a library
 * with the C API of microndla.h, which they load by its path.
 *
 * A function that fails returns null or a value other than 0. mdla_fault() then returns the reason,
 * which begins with the name of the library's function. */
#ifndef TORCHMDLA_MDLA_BINDING_H
#define TORCHMDLA_MDLA_BINDING_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MDLA_EXPORT __attribute__((visibility("default")))

/* Names and values of flags, alternating, terminated by null. */
typedef const char* const* mdla_flags;

/* Input or output array of the model. position: index of its buffer among those of an entry.
 * elements: number of elements of one inference. */
typedef struct mdla_port {
  uint64_t position;
  uint64_t elements;
} mdla_port;

/* Return the fault of the latest call in this thread, or "". It is valid until the thread's next
 * call. */
MDLA_EXPORT const char* mdla_fault(void);
MDLA_EXPORT void mdla_set_fault(const char* text);

/* Cycles of one inference according to the library: transfer of inputs to the card, computation,
 * and transfer of outputs from the card. 0 if the library does not report them. */
typedef struct mdla_cost {
  int64_t input, compute, output;
} mdla_cost;

/* Compile the ONNX file `model` to the file `binary`. If there are samples, choose number formats
 * by them. samples: `count` arrays, one sample's inputs after the other's; sample_elements: their
 * sizes. */
MDLA_EXPORT int mdla_compile(const char* library, mdla_flags flags, const char* model,
                             const char* binary, const char* shapes, const float* const* samples,
                             const uint64_t* sample_elements, unsigned count, mdla_cost* cost);

/* Load `binary` on the device. Contexts with equal flags share a card. A call of an entry runs
 * `parts` inferences, which use consecutive parts of equal size of every buffer. If the library
 * does not return a result for `seconds` (0: no limit), the context is lost and every call of it
 * fails. */
MDLA_EXPORT void* mdla_load(const char* library, mdla_flags flags, const char* binary,
                            const mdla_port* inputs, unsigned input_count, const mdla_port* outputs,
                            unsigned output_count, unsigned parts, double seconds);

/* Free a context from mdla_load. Null is allowed. */
MDLA_EXPORT void mdla_unload(void* context);

/* Run a program. It is the entry of every program of the device (docs/design/abi.md). Its only
 * packed buffer begins with the address of a context. */
MDLA_EXPORT int32_t mdla_entry(void* const* buffers);

/* Release such a packed buffer. */
MDLA_EXPORT void mdla_release(void* buffer);

/* Asynchronous inferences. mdla_submit starts one. mdla_collect waits for the oldest one that was
 * started, and returns its `user`. Arrays are in the order of the ports. While results are
 * outstanding, all other inferences on the context fail. */
MDLA_EXPORT int mdla_submit(void* context, const float* const* inputs, void* user);
MDLA_EXPORT int mdla_collect(void* context, float** outputs, void** user);

/* Run one inference on arrays in the order of the ports. If `software` is not 0, the library's
 * reference software runs it. Calls of several threads are pipelined, as they are for an entry. */
MDLA_EXPORT int mdla_run(void* context, const float* const* inputs, float** outputs, int software);

/* Call ie_getinfo on a context and return the type (enum ie_type), or -1. */
MDLA_EXPORT int mdla_info(void* context, const char* name, void* value, size_t size);

#ifdef __cplusplus
}
#endif

#endif
