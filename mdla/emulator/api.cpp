// The C API. Its functions do not throw.
#include "context.h"
#include "microndla.h"

#include <cstring>

#define MDLA_API extern "C" __attribute__((visibility("default")))

namespace {

using mdla::Context;
using mdla::Info;
using mdla::require;

// Error text of the last failed call in this thread. ie_getinfo without a context returns it.
thread_local std::string lost_error;

Context* context_of(void* cmem) {
  return static_cast<Context*>(cmem);
}

void keep_error(void* cmem, const char* text) noexcept {
  try {
    lost_error = text;
    if (cmem) context_of(cmem)->set_error(text);
  } catch (...) {
  }
}

// Return the result of body, or `failed` if it throws.
template <class Result, class Body>
Result catch_errors(void* cmem, Result failed, Body body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    keep_error(cmem, error.what());
  } catch (...) {
    keep_error(cmem, "an unknown error");
  }
  return failed;
}

Context& checked(void* cmem) {
  require(cmem != nullptr, "the context is null");
  return *context_of(cmem);
}

std::string text_of(const char* text) {
  return text ? text : "";
}

void return_shapes(Context& context, unsigned* noutputs, unsigned** noutdims,
                   uint64_t*** outshapes) {
  mdla::OutputShapes& shapes = context.output_shapes();
  if (noutputs) *noutputs = static_cast<unsigned>(shapes.dims.size());
  if (noutdims) *noutdims = shapes.dims.data();
  if (outshapes) *outshapes = shapes.pointers.data();
}

// Run body on cmem, or on a new context, which is destroyed again if body fails.
template <class Body> void* with_network(void* cmem, Body body) {
  return catch_errors<void*>(cmem, nullptr, [&]() -> void* {
    std::unique_ptr<Context> new_context(cmem ? nullptr : new Context);
    Context& context = cmem ? *context_of(cmem) : *new_context;
    body(context);
    return cmem ? cmem : new_context.release();
  });
}

int write_info(const Info& info, void* value, size_t size) {
  auto fits = [&](size_t bytes) {
    require(value && bytes <= size, "the value takes ", bytes, " bytes, there are ",
            value ? size : 0);
  };
  if (const auto* text = std::get_if<std::string>(&info)) {
    fits(text->size() + 1);
    std::memcpy(value, text->c_str(), text->size() + 1);
    return IE_STRING;
  }
  return std::visit(
      [&](const auto& number) -> int {
        using Number = std::decay_t<decltype(number)>;
        fits(sizeof number);
        std::memcpy(value, &number, sizeof number);
        if (std::is_same_v<Number, bool>) return IE_BOOL;
        if (std::is_same_v<Number, int32_t>) return IE_INT;
        return std::is_same_v<Number, int64_t> ? IE_INT64 : IE_FLOAT;
      },
      info);
}

// Return the size of the text `x` for the name "x_bytes", or nullopt for other names.
std::optional<Info> text_bytes(Context& context, const std::string& name) {
  constexpr std::string_view kSuffix = "_bytes";
  if (!name.ends_with(kSuffix)) return std::nullopt;
  std::optional<Info> info = context.info(name.substr(0, name.size() - kSuffix.size()));
  if (!info || !std::holds_alternative<std::string>(*info)) return std::nullopt;
  return static_cast<int64_t>(std::get<std::string>(*info).size() + 1);
}

} // namespace

MDLA_API void* ie_create(void) {
  return catch_errors<void*>(nullptr, nullptr, [] { return new Context; });
}

MDLA_API void ie_free(void* cmem) {
  delete context_of(cmem);
}

MDLA_API int ie_setflag(void* cmem, const char* name, const char* value) {
  return catch_errors(cmem, -1, [&] {
    checked(cmem).set_flag(text_of(name), text_of(value));
    return 0;
  });
}

MDLA_API int ie_getinfo(void* cmem, const char* name, void* value, size_t size) {
  return catch_errors(cmem, -1, [&] {
    if (!cmem && text_of(name) == "error") return write_info(lost_error, value, size);
    std::optional<Info> info = text_bytes(checked(cmem), text_of(name));
    if (!info) info = checked(cmem).info(text_of(name));
    require(info.has_value(), "unknown information '", text_of(name), "'");
    return write_info(*info, value, size);
  });
}

MDLA_API void* ie_compile(void* cmem, const char* modelpath, const char* outbin,
                          const char* inshapes, unsigned* noutputs, unsigned** noutdims,
                          uint64_t*** outshapes, void* cmemp) {
  return ie_compile_vfp(cmem, modelpath, outbin, inshapes, noutputs, noutdims, outshapes, nullptr,
                        nullptr, 0, cmemp);
}

MDLA_API void* ie_compile_vfp(void* cmem, const char* modelpath, const char* outbin,
                              const char* inshapes, unsigned* noutputs, unsigned** noutdims,
                              uint64_t*** outshapes, const float* const* inputs,
                              const uint64_t* input_elements, unsigned ninputs, void* cmemp) {
  return with_network(cmem, [&](Context& context) {
    require(ninputs == 0 || (inputs && input_elements), "the calibration inputs are null");
    context.compile(text_of(modelpath), text_of(outbin), text_of(inshapes),
                    {inputs, input_elements, ninputs}, context_of(cmemp));
    return_shapes(context, noutputs, noutdims, outshapes);
  });
}

MDLA_API void* ie_init(void* cmem, const char* inbin, unsigned* noutputs, unsigned** noutdims,
                       uint64_t*** outshapes, void* cmemp) {
  return with_network(cmem, [&](Context& context) {
    context.init(text_of(inbin), context_of(cmemp));
    return_shapes(context, noutputs, noutdims, outshapes);
  });
}

namespace {

int run_network(void* cmem, const mdla::InputArrays& inputs, const mdla::OutputArrays& outputs,
                bool software) {
  return catch_errors(cmem, -1, [&] {
    checked(cmem).run(inputs, outputs, software);
    return 0;
  });
}

} // namespace

MDLA_API int ie_run(void* cmem, const float* const* inputs, const uint64_t* input_elements,
                    unsigned ninputs, float** outputs, uint64_t* output_elements,
                    unsigned noutputs) {
  return run_network(cmem, {inputs, input_elements, ninputs}, {outputs, output_elements, noutputs},
                     false);
}

MDLA_API int ie_run_sw(void* cmem, const float* const* inputs, const uint64_t* input_elements,
                       unsigned ninputs, float** outputs, uint64_t* output_elements,
                       unsigned noutputs) {
  return run_network(cmem, {inputs, input_elements, ninputs}, {outputs, output_elements, noutputs},
                     true);
}

MDLA_API int ie_putinput(void* cmem, const float* const* inputs, const uint64_t* input_elements,
                         unsigned ninputs, void* userparam) {
  return catch_errors(cmem, -1, [&] {
    require(checked(cmem).put({inputs, input_elements, ninputs}, userparam),
            "all buffers are in use");
    return 0;
  });
}

MDLA_API int ie_getresult(void* cmem, float** outputs, uint64_t* output_elements, unsigned noutputs,
                          void** userparam) {
  return catch_errors(cmem, -1, [&] {
    require(checked(cmem).get({outputs, output_elements, noutputs}, userparam),
            "there is no result yet");
    return 0;
  });
}

MDLA_API void ie_read_data(void* cmem, uint64_t address, void* data, uint64_t bytes, int card) {
  catch_errors(cmem, 0, [&] {
    checked(cmem).read(address, data, bytes, card);
    return 0;
  });
}

MDLA_API void ie_write_data(void* cmem, uint64_t address, void* data, uint64_t bytes, int card) {
  catch_errors(cmem, 0, [&] {
    checked(cmem).write(address, data, bytes, card);
    return 0;
  });
}

MDLA_API void ie_write_weights(void* cmem, float* weight, float* bias, int wsize, int bsize,
                               int nid) {
  catch_errors(cmem, 0, [&] {
    checked(cmem).write_weights(weight, wsize, bias, bsize, nid);
    return 0;
  });
}
