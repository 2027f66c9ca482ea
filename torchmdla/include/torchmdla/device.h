/* C interface of a shared library that loads the code of a device
 * (docs/device_files.md).
 *
 * The same library serves PyTorch with torchmdla in Python and in C++, and libtorchmdla_runtime.so.
 * It exports `mdla_open_device`. All functions may be called by several threads at once. They must
 * not throw. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MDLA_DEVICE_API_VERSION 1

/* Entry or pack (docs/design/abi.md). It returns 0 on success. */
typedef int32_t (*mdla_entry)(void* const* buffers);

/* Return the address of a device call (docs/design/abi.md#device-calls), or null if the runtime
 * does not have it. */
typedef void* (*mdla_find_call)(const char* name);

/* Code that a compiler has made. `object_code` is what the device's `lower` returned. The names are
 * those of its manifest; an absent one is an empty string. The memory is valid until `load`
 * returns. */
typedef struct mdla_artifact {
  const void* object_code;
  size_t bytes;
  const char* entry;
  const char* workspace;
  const char* fault;
  const char* const* packs;
  size_t pack_count;
  mdla_find_call find_call; /* of the runtime that loads the code; valid for ever */
} mdla_artifact;

/* Code in this process. Its functions and arrays are valid until `unload`. */
typedef struct mdla_code {
  void* context; /* first buffer of entry and packs in place of the workspace; null for none */
  mdla_entry entry;
  const mdla_entry* packs; /* one for each pack of the artifact; null without packs */
  void (*const* releases)(
      void* buffer); /* for each pack a function or null; null if no pack has one */
  int64_t (*workspace)(const int64_t* sizes); /* null for a program of fixed sizes */
  const char* (*fault)(void);    /* null if the code fails only where PyTorch's operators do */
  int32_t (*wait)(void* result); /* of an asynchronous device (docs/design/abi.md); else null */
  void (*forget)(void* result);  /* set if `wait` is set */
  void* owner;                   /* for `unload` */
} mdla_code;

typedef struct mdla_device {
  uint32_t
      api_version;    /* MDLA_DEVICE_API_VERSION of the header that the library was compiled with */
  const char* name;   /* the name of the device in Python */
  const char* format; /* version of the object code; code of another one is not passed to `load` */
  const char* const*
      features; /* what this machine has, as in `CrossCompilation.features`; ends with null */

  /* Load an artifact into `code`, which is zero. Return null, or the reason of a failure. The text
   * is valid until the calling thread's next call. */
  const char* (*load)(const mdla_artifact* artifact, mdla_code* code);

  /* Free code that was loaded. No thread runs it. */
  void (*unload)(const mdla_code* code);
} mdla_device;

/* Return the device, which lives as long as the process. Return null if it does not work here.
 * `api_version` is the version of the runtime. */
const mdla_device* mdla_open_device(uint32_t api_version);

#ifdef __cplusplus
}
#endif
