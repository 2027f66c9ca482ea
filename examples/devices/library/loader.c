/* Library that loads the code of the device `kernels` (torchmdla/device.h). The object code is a shared object. */
#include <torchmdla/device.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct loaded {
  void *object;
  mdla_entry packs[];
} loaded;

static const char *const calls[] = {"mdla_begin_kernel", "mdla_are_events_recorded", "mdla_record_event", NULL};
static _Thread_local char problem[256];

static const char *fail(const char *reason) {
  snprintf(problem, sizeof problem, "%s", reason);
  return problem;
}

/* Return the handle of a shared object, or null. The file is removed at once: the system keeps what it has mapped. */
static void *open_object(const void *bytes, size_t count) {
  char path[] = "/tmp/kernels-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) return NULL;
  void *object = write(file, bytes, count) == (ssize_t)count ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  close(file);
  unlink(path);
  return object;
}

static void unload(const mdla_code *code) {
  loaded *owner = code->owner;
  dlclose(owner->object);
  free(owner);
}

static const char *load(const mdla_artifact *artifact, mdla_code *code) {
  void *object = open_object(artifact->object_code, artifact->bytes);
  if (!object) return fail("it is not a shared object, or there is no room for it in /tmp");
  loaded *owner = malloc(sizeof(loaded) + artifact->pack_count * sizeof(mdla_entry));
  owner->object = object;
  for (size_t k = 0; k < artifact->pack_count; ++k)
    owner->packs[k] = (mdla_entry)dlsym(object, artifact->packs[k]);
  *code = (mdla_code){.entry = (mdla_entry)dlsym(object, artifact->entry), .packs = owner->packs, .owner = owner};
  /* The code calls the runtime through pointers with the names of the calls. */
  for (const char *const *call = calls; *call; ++call) {
    void **pointer = dlsym(object, *call);
    if (pointer) *pointer = artifact->find_call(*call);
  }
  if (code->entry) return NULL;
  unload(code);
  return fail("it has no entry");
}

static const char *features[3];

static const mdla_device device = {
    .api_version = MDLA_DEVICE_API_VERSION,
    .name = "kernels",
    .format = "1",
    .features = features,
    .load = load,
    .unload = unload,
};

const mdla_device *mdla_open_device(uint32_t api_version) {
  if (api_version < MDLA_DEVICE_API_VERSION) return NULL;
  const char **next = features;
#if defined(__x86_64__)
  *next++ = "x86-64";
  if (__builtin_cpu_supports("avx2")) *next++ = "avx2";
#else
  *next++ = "other";
#endif
  return &device;
}
