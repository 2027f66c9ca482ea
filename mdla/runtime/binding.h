/* What the mdla device calls: a library with the C API of microndla.h, loaded by its path, and the
 * functions that compiled groups and the device's Python code use of it.
 *
 * A function that fails returns null or a value other than 0; mdla_fault() then says what happened,
 * beginning with the name of the library's function. */
#ifndef TORCHMDLA_MDLA_BINDING_H
#define TORCHMDLA_MDLA_BINDING_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MDLA_EXPORT __attribute__((visibility("default")))

/* Names and values of flags, alternately, ended by null. */
typedef const char* const* mdla_flags;

/* An array of the model. position: of its buffer among those of an entry; elements: of one
 * inference. */
typedef struct mdla_port {
  uint64_t position;
  uint64_t elements;
} mdla_port;

/* What went wrong in the latest call of this thread, or "". Lasts until the thread's next call. */
MDLA_EXPORT const char* mdla_fault(void);
MDLA_EXPORT void mdla_set_fault(const char* text);

/* Cycles of one inference by the library's own count: inputs to the card, computing, outputs from
 * it. 0 where it does not tell. */
typedef struct mdla_cost {
  int64_t input, compute, output;
} mdla_cost;

/* Compiles the ONNX file `model` to the file `binary`. With samples (arrays of sample_elements,
 * one sample's inputs after the other's) number formats are chosen by them. */
MDLA_EXPORT int mdla_compile(const char* library, mdla_flags flags, const char* model,
                             const char* binary, const char* shapes, const float* const* samples,
                             const uint64_t* sample_elements, unsigned count, mdla_cost* cost);

/* Loads `binary` on the device. Contexts with equal flags share a card. A call of an entry is
 * `parts` inferences, each of as many elements of every buffer, in order. When the library gives no
 * result for `seconds` (0: any time) the context is lost, and fails. */
MDLA_EXPORT void* mdla_load(const char* library, mdla_flags flags, const char* binary,
                            const mdla_port* inputs, unsigned input_count, const mdla_port* outputs,
                            unsigned output_count, unsigned parts, double seconds);

/* Frees what mdla_load returned; null is allowed. */
MDLA_EXPORT void mdla_unload(void* context);

/* The entry of every program (docs/architecture.md). Its one packed buffer begins with the address
 * of a context. */
MDLA_EXPORT int32_t mdla_entry(void* const* buffers);

/* The release function of such a buffer. */
MDLA_EXPORT void mdla_release(void* buffer);

/* Asynchronous use: starts an inference, and waits for the oldest one that was started, whose
 * `user` it gives back. Arrays are in the order of the ports. While results are outstanding, the
 * context cannot be used in another way. */
MDLA_EXPORT int mdla_submit(void* context, const float* const* inputs, void* user);
MDLA_EXPORT int mdla_collect(void* context, float** outputs, void** user);

/* One inference on arrays in the order of the ports; with `software` by the library's reference
 * software. As by an entry, calls of several threads are pipelined. */
MDLA_EXPORT int mdla_run(void* context, const float* const* inputs, float** outputs, int software);

/* ie_getinfo of a context: the type (enum ie_type), or -1. */
MDLA_EXPORT int mdla_info(void* context, const char* name, void* value, size_t size);

#ifdef __cplusplus
}
#endif

#endif
