/* The C API of Micron's deep-learning accelerator, version 2022.1, as its public documentation
 * describes it. The vendor's library and the emulator of this directory both export it.
 *
 * A context (`cmem`) is one network on the device. A function that returns a context gives null
 * when it fails, a function that returns int gives -1; ie_getinfo(cmem, "error", …) says why on the
 * emulator. Arrays of inputs and outputs are dense floats in row-major order; their sizes are in
 * elements. */
#ifndef TORCHMDLA_MICRONDLA_H
#define TORCHMDLA_MICRONDLA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IE_VERSION "2022.1"

/* What ie_getinfo wrote to `value`. */
enum ie_type {
  IE_ERROR = -1,
  IE_NOTHING = 0,
  IE_STRING = 1, /* char[], ends with 0 */
  IE_BOOL = 2,   /* one byte */
  IE_INT = 3,
  IE_INT64 = 4,
  IE_FLOAT = 5
};

/* A new context; null without memory. */
void* ie_create(void);

/* Ends the context's asynchronous work and frees it; null is allowed. */
void ie_free(void* cmem);

/* Sets the flag `name` of a context. Flags count from the next ie_compile on, `blockingmode` at
 * once. 0, or -1 for an unknown name or value. */
int ie_setflag(void* cmem, const char* name, const char* value);

/* Writes a flag or a measurement to the `size` bytes at `value`, and returns its type
 * (enum ie_type). -1 for an unknown name, or where it does not fit. */
int ie_getinfo(void* cmem, const char* name, void* value, size_t size);

/* Compiles the ONNX file at `modelpath`.
 * outbin: the file that the device's program and weights are written to, which ie_init loads; null
 *   or "": the context is ready to run without ie_init.
 * inshapes: "1x3x224x224;1x8", null or "" to take the model's own.
 * noutputs, noutdims, outshapes: number of outputs, dimensions of each, sizes of each. The arrays
 *   belong to the context and last until its next compile or init. Each may be null.
 * cmemp: a context whose card this one shares, or null.
 * Returns cmem (a new context where cmem is null). */
void* ie_compile(void* cmem, const char* modelpath, const char* outbin, const char* inshapes,
                 unsigned* noutputs, unsigned** noutdims, uint64_t*** outshapes, void* cmemp);

/* The same, with number formats chosen from samples: inputs holds ninputs arrays of
 * input_elements each, a multiple of the model's inputs, one sample after the other. */
void* ie_compile_vfp(void* cmem, const char* modelpath, const char* outbin, const char* inshapes,
                     unsigned* noutputs, unsigned** noutdims, uint64_t*** outshapes,
                     const float* const* inputs, const uint64_t* input_elements, unsigned ninputs,
                     void* cmemp);

/* Loads a file that ie_compile wrote; the rest as in ie_compile. */
void* ie_init(void* cmem, const char* inbin, unsigned* noutputs, unsigned** noutdims,
              uint64_t*** outshapes, void* cmemp);

/* One inference. output_elements: what each of `outputs` has room for. */
int ie_run(void* cmem, const float* const* inputs, const uint64_t* input_elements, unsigned ninputs,
           float** outputs, uint64_t* output_elements, unsigned noutputs);

/* The same by the reference software, in the device's number formats. */
int ie_run_sw(void* cmem, const float* const* inputs, const uint64_t* input_elements,
              unsigned ninputs, float** outputs, uint64_t* output_elements, unsigned noutputs);

/* Copies the inputs into a free buffer, of which there are two, and starts. Without a free buffer
 * it waits, or returns -1 where the flag blockingmode is 0. */
int ie_putinput(void* cmem, const float* const* inputs, const uint64_t* input_elements,
                unsigned ninputs, void* userparam);

/* The oldest result not yet taken, and the userparam its ie_putinput was given. Without one it
 * waits, or returns -1 where the flag blockingmode is 0. */
int ie_getresult(void* cmem, float** outputs, uint64_t* output_elements, unsigned noutputs,
                 void** userparam);

/* Copy `bytes` bytes from or to a card's memory. */
void ie_read_data(void* cmem, uint64_t address, void* data, uint64_t bytes, int card);
void ie_write_data(void* cmem, uint64_t address, void* data, uint64_t bytes, int card);

/* Replaces the weights (and the bias, unless null) of layer nid, in the model's layout. Layers with
 * weights count from 0 in the order of the model; -1 is the last linear one. */
void ie_write_weights(void* cmem, float* weight, float* bias, int wsize, int bsize, int nid);

#ifdef __cplusplus
}
#endif

#endif
