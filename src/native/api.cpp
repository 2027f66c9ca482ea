// The C interface of torchmdla/runtime.h. Its functions do not throw.

#include "base/byte_reader.h"
#include "base/device_library.h"
#include "base/open_file.h"
#include "codeimage/image.h"
#include "dlpack.h"
#include "error.h"
#include "model.h"
#include "operators/operators.h"
#include "runtime/device_calls.h"
#include "session.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

using torchmdla::native::Error;
using torchmdla::native::Model;
using torchmdla::native::Port;
using torchmdla::native::Session;
using torchmdla::native::TensorView;

struct tmdla_model : Model {
  using Model::Model;
};

struct tmdla_session : Session {
  using Session::Session;
};

namespace {

thread_local std::string last_error, last_exception;

tmdla_status failed(tmdla_status status, const char* text, const char* exception = "") noexcept {
  try {
    last_error = text;
    last_exception = exception;
  } catch (...) {
    last_error.clear();
    last_exception.clear();
  }
  return status;
}

// Run `body`. Convert an exception into a status and the thread's error text.
template <class Body> tmdla_status catch_errors(Body body) noexcept {
  try {
    body();
    return TMDLA_OK;
  } catch (const torchmdla::native::Raised& error) {
    return failed(error.status, error.what(), error.exception.c_str());
  } catch (const Error& error) {
    return failed(error.status, error.what());
  } catch (const torchmdla::FileProblem& error) {
    return failed(TMDLA_NOT_READABLE, error.what());
  } catch (const torchmdla::BadBytes& error) {
    return failed(TMDLA_BAD_FILE, error.what());
  } catch (const torchmdla::DeviceLibraryError& error) {
    return failed(TMDLA_BAD_FILE, error.what());
  } catch (const torchmdla::ImageError& error) {
    return failed(TMDLA_BAD_FILE, error.what());
  } catch (const std::length_error& error) {
    return failed(TMDLA_WRONG_TENSOR, error.what());
  } catch (const std::bad_alloc&) {
    return failed(TMDLA_NO_MEMORY, "there is not enough memory");
  } catch (const std::exception& error) {
    return failed(TMDLA_INTERNAL, error.what());
  } catch (...) {
    return failed(TMDLA_INTERNAL, "an unknown error");
  }
}

void check_argument(bool holds, const char* problem) {
  if (!holds) throw Error(TMDLA_INVALID_ARGUMENT, problem);
}

TensorView view_of(const tmdla_tensor& tensor) {
  check_argument(tensor.rank >= 0 && (tensor.rank == 0 || tensor.sizes), "a tensor has no sizes");
  const auto rank = static_cast<size_t>(tensor.rank);
  return {static_cast<std::byte*>(tensor.data),
          tensor.dtype,
          {tensor.sizes, rank},
          {tensor.strides, tensor.strides ? rank : 0}};
}

std::vector<TensorView> views_of(const tmdla_tensor* tensors, size_t count) {
  check_argument(tensors || count == 0, "the tensors are null");
  std::vector<TensorView> views;
  std::transform(tensors, tensors + count, std::back_inserter(views), view_of);
  return views;
}

std::vector<TensorView> views_of(DLManagedTensor* const* tensors, size_t count) {
  namespace dlpack = torchmdla::native::dlpack;
  check_argument(tensors || count == 0, "the tensors are null");
  std::vector<TensorView> views;
  for (size_t i = 0; i < count; ++i) {
    check_argument(tensors[i], "a tensor of DLPack is null");
    views.push_back(dlpack::view_of(*reinterpret_cast<const dlpack::ManagedTensor*>(tensors[i])));
  }
  return views;
}

void describe(std::span<const Port> ports, size_t index, tmdla_info* info) {
  check_argument(info, "the pointer to the result is null");
  check_argument(index < ports.size(), "the model has fewer inputs or outputs");
  const auto& port = ports[index];
  *info = {port.name.c_str(), static_cast<int32_t>(port.dtype),
           static_cast<int32_t>(port.sizes.size()), port.sizes.data()};
}

const torchmdla::native::Method& method_of(const tmdla_model* model, size_t number) {
  check_argument(model, "the model is null");
  const auto& methods = model->program().methods;
  check_argument(number < methods.size(), "the model has fewer methods");
  return methods[number];
}

} // namespace

uint32_t tmdla_api_version() {
  return TMDLA_API_VERSION;
}

const char* tmdla_last_error() {
  return last_error.c_str();
}

tmdla_status tmdla_load(const char* path, const tmdla_options* options, tmdla_model** model) {
  return catch_errors([&] {
    check_argument(path && model, "the path or the pointer to the model is null");
    *model = nullptr;
    check_argument(!options ||
                       (options->api_version >= 1 && options->api_version <= TMDLA_API_VERSION),
                   "the options are of a later version of the interface");
    const auto chosen = options ? *options : tmdla_options{TMDLA_API_VERSION, 0, 0};
    *model = std::make_unique<tmdla_model>(path, chosen.threads, chosen.any_owner != 0).release();
  });
}

tmdla_status tmdla_load_device(const char* path) {
  return catch_errors([&] {
    check_argument(path, "the path is null");
    torchmdla::add_device_library(
        path, [](const char* name) -> void* { return torchmdla::address_of_symbol(name); });
  });
}

void tmdla_free(tmdla_model* model) {
  const std::unique_ptr<tmdla_model> freed(model);
}

tmdla_status tmdla_verify(const tmdla_model* model) {
  return catch_errors([&] {
    check_argument(model, "the model is null");
    model->verify();
  });
}

tmdla_status tmdla_set_threads(tmdla_model* model, int32_t threads) {
  return catch_errors([&] {
    check_argument(model, "the model is null");
    model->set_threads(threads);
  });
}

int32_t tmdla_threads(const tmdla_model* model) {
  return model ? model->threads() : 0;
}

size_t tmdla_input_count(const tmdla_model* model) {
  return model ? model->inputs().size() : 0;
}

size_t tmdla_output_count(const tmdla_model* model) {
  return model ? model->outputs().size() : 0;
}

tmdla_status tmdla_input(const tmdla_model* model, size_t index, tmdla_info* info) {
  return catch_errors([&] {
    check_argument(model, "the model is null");
    describe(model->inputs(), index, info);
  });
}

tmdla_status tmdla_output(const tmdla_model* model, size_t index, tmdla_info* info) {
  return catch_errors([&] {
    check_argument(model, "the model is null");
    describe(model->outputs(), index, info);
  });
}

tmdla_status tmdla_output_sizes(const tmdla_model* model, const tmdla_tensor* inputs,
                                size_t input_count, size_t index, int64_t* sizes) {
  return catch_errors([&] {
    check_argument(model, "the model is null");
    check_argument(index < model->outputs().size(), "the model has fewer outputs");
    const auto output_sizes = model->output_sizes(views_of(inputs, input_count), index);
    check_argument(sizes || output_sizes.size() == 0, "the pointer to the result is null");
    std::ranges::copy(output_sizes, sizes);
  });
}

tmdla_status tmdla_run(const tmdla_model* model, const tmdla_tensor* inputs, size_t input_count,
                       const tmdla_tensor* outputs, size_t output_count) {
  return catch_errors([&] {
    check_argument(model, "the model is null");
    model->run(views_of(inputs, input_count), views_of(outputs, output_count));
  });
}

tmdla_status tmdla_run_dlpack(const tmdla_model* model, DLManagedTensor* const* inputs,
                              size_t input_count, DLManagedTensor* const* outputs,
                              size_t output_count) {
  return catch_errors([&] {
    check_argument(model, "the model is null");
    model->run(views_of(inputs, input_count), views_of(outputs, output_count));
  });
}

int tmdla_provides(const char* function) {
  return function && (torchmdla::address_of_symbol(function) != nullptr ||
                      torchmdla::native::find_operator(function) != nullptr);
}

size_t tmdla_method_count(const tmdla_model* model) {
  return model ? model->program().methods.size() : 0;
}

tmdla_status tmdla_method(const tmdla_model* model, size_t method, tmdla_method_info* info) {
  return catch_errors([&] {
    const auto& found = method_of(model, method);
    check_argument(info, "the pointer to the result is null");
    *info = {found.name.c_str(), found.schema.c_str(), found.parameters.size()};
  });
}

tmdla_status tmdla_parameter(const tmdla_model* model, size_t method, size_t index,
                             tmdla_parameter_info* info) {
  return catch_errors([&] {
    const auto& found = method_of(model, method);
    check_argument(info, "the pointer to the result is null");
    check_argument(index < found.parameters.size(), "the method has fewer parameters");
    const auto& parameter = found.parameters[index];
    *info = {parameter.name.c_str(), parameter.text.c_str(), parameter.fallback.has_value()};
  });
}

tmdla_status tmdla_find_method(const tmdla_model* model, const char* name, size_t* method) {
  return catch_errors([&] {
    check_argument(model && name && method, "the model, the name or the result is null");
    const auto& methods = model->program().methods;
    const auto found = std::ranges::find(methods, name, &torchmdla::native::Method::name);
    if (found == methods.end()) {
      std::string known;
      for (const auto& other : methods)
        known += (known.empty() ? "" : ", ") + other.name;
      throw Error(TMDLA_INVALID_ARGUMENT,
                  "the model has no method " + std::string(name) + ", but " + known);
    }
    *method = static_cast<size_t>(found - methods.begin());
  });
}

tmdla_status tmdla_session_create(const tmdla_model* model, tmdla_session** session) {
  return catch_errors([&] {
    check_argument(model && session, "the model or the pointer to the session is null");
    *session = nullptr;
    *session = std::make_unique<tmdla_session>(*model).release();
  });
}

void tmdla_session_free(tmdla_session* session) {
  const std::unique_ptr<tmdla_session> freed(session);
}

tmdla_status tmdla_session_reset(tmdla_session* session) {
  return catch_errors([&] {
    check_argument(session, "the session is null");
    session->reset();
  });
}

tmdla_status tmdla_call(tmdla_session* session, size_t method, const tmdla_value* arguments,
                        size_t argument_count, const tmdla_value** result) {
  return catch_errors([&] {
    check_argument(session && result, "the session or the pointer to the result is null");
    check_argument(arguments || argument_count == 0, "the arguments are null");
    *result = nullptr;
    *result = session->call(method, {arguments, argument_count});
  });
}

const char* tmdla_last_exception() {
  return last_exception.c_str();
}

size_t tmdla_session_memory(const tmdla_session* session) {
  return session ? session->memory() : 0;
}

size_t tmdla_attribute_count(const tmdla_model* model) {
  return model ? model->program().attributes.size() : 0;
}

const char* tmdla_attribute_name(const tmdla_model* model, size_t index) {
  if (index >= tmdla_attribute_count(model)) return nullptr;
  return model->program().attributes[index].name.c_str();
}

tmdla_status tmdla_get_attribute(tmdla_session* session, size_t index, const tmdla_value** value) {
  return catch_errors([&] {
    check_argument(session && value, "the session or the pointer to the result is null");
    *value = nullptr;
    *value = session->attribute(index);
  });
}

tmdla_status tmdla_set_attribute(tmdla_session* session, size_t index, const tmdla_value* value) {
  return catch_errors([&] {
    check_argument(session && value, "the session or the value is null");
    session->set_attribute(index, *value);
  });
}
