/* The C API of Micron's deep-learning accelerator, version 2022.1, as its public documentation
 * describes it. The vendor's library and the emulator of this directory both export it.
 *
 * A context (`cmem`) is one network on the device. A function that returns a context returns null
 * when it fails, and a function that returns int returns -1. On the emulator, ie_getinfo(cmem,
 * "error", …) writes the reason. Arrays of inputs and outputs are dense floats in row-major order;
 * their sizes are in elements. */
#ifndef TORCHMDLA_MICRONDLA_H
#define TORCHMDLA_MICRONDLA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IE_VERSION "2022.1"

/* Type of the value that ie_getinfo wrote to `value`. */
enum ie_type {
  IE_ERROR = -1,
  IE_NOTHING = 0,
  IE_STRING = 1, /* char[], ends with 0 */
  IE_BOOL = 2,   /* one byte */
  IE_INT = 3,
  IE_INT64 = 4,
  IE_FLOAT = 5
};

/* Return a new context, or null if there is not enough memory. */
void* ie_create(void);

/* End the context's asynchronous work and free it. Null is allowed. */
void ie_free(void* cmem);

/* Set the flag `name` of a context. Flags take effect at the next ie_compile, `blockingmode`
 * immediately. Return 0, or -1 for an unknown name or value. */
int ie_setflag(void* cmem, const char* name, const char* value);

/* Write a flag or a measurement to the `size` bytes at `value` and return its type (enum ie_type).
 * Return -1 for an unknown name, or if it does not fit. */
int ie_getinfo(void* cmem, const char* name, void* value, size_t size);

/* Compile the ONNX file at `modelpath`.
 * outbin: the file to which the device's program and weights are written, for ie_init. With null or
 *   "", the context is ready to run without ie_init.
 * inshapes: "1x3x224x224;1x8", or null or "" to use the model's own.
 * noutputs, noutdims, outshapes: number of outputs, dimensions of each, sizes of each. The arrays
 *   belong to the context and last until its next compile or init. Each may be null.
 * cmemp: a context whose card this one shares, or null.
 * Return cmem, or a new context if cmem is null. */
void* ie_compile(void* cmem, const char* modelpath, const char* outbin, const char* inshapes,
                 unsigned* noutputs, unsigned** noutdims, uint64_t*** outshapes, void* cmemp);

/* Compile as ie_compile does, with number formats chosen from samples. `inputs` contains ninputs
 * arrays, one sample after the other; input_elements are their sizes. ninputs is a multiple of the
 * model's number of inputs. */
void* ie_compile_vfp(void* cmem, const char* modelpath, const char* outbin, const char* inshapes,
                     unsigned* noutputs, unsigned** noutdims, uint64_t*** outshapes,
                     const float* const* inputs, const uint64_t* input_elements, unsigned ninputs,
                     void* cmemp);

/* Load a file that ie_compile wrote. The other parameters are as in ie_compile. */
void* ie_init(void* cmem, const char* inbin, unsigned* noutputs, unsigned** noutdims,
              uint64_t*** outshapes, void* cmemp);

/* Run one inference. output_elements: the number of elements for which each output has room. */
int ie_run(void* cmem, const float* const* inputs, const uint64_t* input_elements, unsigned ninputs,
           float** outputs, uint64_t* output_elements, unsigned noutputs);

/* Run one inference by the reference software, in the device's number formats. */
int ie_run_sw(void* cmem, const float* const* inputs, const uint64_t* input_elements,
              unsigned ninputs, float** outputs, uint64_t* output_elements, unsigned noutputs);

/* Copy the inputs into one of the two buffers and start an inference. If no buffer is free, wait,
 * or return -1 if the flag blockingmode is 0. */
int ie_putinput(void* cmem, const float* const* inputs, const uint64_t* input_elements,
                unsigned ninputs, void* userparam);

/* Get the oldest result that was not fetched yet, and the userparam of its ie_putinput. If there is
 * no such result, wait, or return -1 if the flag blockingmode is 0. */
int ie_getresult(void* cmem, float** outputs, uint64_t* output_elements, unsigned noutputs,
                 void** userparam);

/* Copy `bytes` bytes from or to a card's memory. */
void ie_read_data(void* cmem, uint64_t address, void* data, uint64_t bytes, int card);
void ie_write_data(void* cmem, uint64_t address, void* data, uint64_t bytes, int card);

/* Replace the weights (and the bias, unless null) of layer nid, in the model's layout. Layers with
 * weights are numbered from 0 in the order of the model; -1 is the last linear layer. */
void ie_write_weights(void* cmem, float* weight, float* bias, int wsize, int bsize, int nid);

#ifdef __cplusplus
}
#endif

#endif
