#include "model.h"

#include "base/byte_reader.h"
#include "base/host_features.h"
#include "call.h"
#include "error.h"
#include "runtime/device_calls.h"
#include "thread_pool.h"

#include <algorithm>
#include <map>

namespace torchmdla::native {

namespace {

void check_processor(const std::set<std::string>& features) {
  std::string missing;
  for (const auto& feature : features)
    if (!host_features().contains(feature)) missing += (missing.empty() ? "" : ", ") + feature;
  if (!missing.empty())
    throw Error(TMDLA_WRONG_PROCESSOR,
                "the model is for processors with instructions that this one lacks: " + missing);
}

template <class Function> Function* function(const Image& image, const std::string& name) {
  auto* const address = image.symbol(name);
  if (!address) throw BadBytes("a model's file: its code has no function " + name);
  return reinterpret_cast<Function*>(address);
}

int validate_threads(int threads) {
  if (threads < 0 || threads > most_threads)
    throw Error(TMDLA_INVALID_ARGUMENT, "no model runs on " + std::to_string(threads) + " threads");
  return threads == 0 ? default_threads() : threads;
}

std::string port_text(const char* kind, size_t number, const Port& port) {
  return std::string(kind) + " " + std::to_string(number) + " (" + port.name + ")";
}

void check_tensor(const char* kind, size_t number, const Port& port, const TensorView& tensor,
                  bool with_data) {
  const auto refuse = [&](const std::string& problem) {
    throw Error(TMDLA_WRONG_TENSOR, port_text(kind, number, port) + " " + problem);
  };
  if (tensor.dtype != port.dtype)
    refuse("is " + dtype_name(port.dtype) + ", and " + dtype_name(tensor.dtype) + " is given");
  if (tensor.sizes.size() != port.sizes.size())
    refuse("has " + std::to_string(port.sizes.size()) + " dimensions, and " +
           sizes_text(tensor.sizes) + " is given");
  const auto count = element_count(tensor.sizes);
  if (with_data && count > 0 && !tensor.data) refuse("has no data");
}

void check_count(const char* kind, size_t expected, size_t actual) {
  if (actual != expected)
    throw Error(TMDLA_WRONG_TENSOR, "the model has " + std::to_string(expected) + " " + kind +
                                        ", and " + std::to_string(actual) + " are given");
}

Numbers sizes_of(const TensorView& tensor) {
  return {tensor.sizes.begin(), tensor.sizes.end()};
}

// Return the sizes of `layout`, with -1 for each size that is a symbol.
Numbers sizes_of(const InputLayout& layout) {
  auto sizes = layout.sizes;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (layout.symbols[i] != InputLayout::fixed) sizes[i] = -1;
  return sizes;
}

template <class Tensors> std::string sizes_of_all(const Tensors& tensors) {
  std::string text;
  for (const auto& tensor : tensors)
    text += (text.empty() ? "" : ", ") + sizes_text(sizes_of(tensor));
  return text;
}

} // namespace

Model::Model(const std::string& path, int threads, bool any_owner)
    : file_(path, any_owner), threads_(validate_threads(threads)) {
  check_processor(file_.content().features);
  load_code();
  file_.drop_images();
}

void Model::load_code() {
  std::vector<std::shared_ptr<const Image>> images;
  for (const auto& image : file_.content().images)
    images.push_back(std::make_shared<const Image>(image, address_of_symbol));
  for (const auto& specialisation : file_.content().specialisations) {
    const auto& image = images[specialisation.image];
    Code code{&specialisation,
              image,
              function<int32_t(void* const*)>(*image, specialisation.entry),
              nullptr,
              {}};
    if (!specialisation.workspace.empty())
      code.workspace = function<int64_t(const int64_t*)>(*image, specialisation.workspace);
    for (const auto weight : specialisation.packs)
      code.packed.push_back(file_.weight(weight));
    codes_.push_back(std::move(code));
  }
}

void Model::set_threads(int threads) {
  threads_ = validate_threads(threads);
}

Numbers Model::output_sizes(std::span<const TensorView> inputs, size_t output) const {
  check_inputs(inputs, /*with_data=*/false);
  const auto [code, symbols] = choose(inputs);
  return code->specialisation->outputs[output].sizes_at(symbols);
}

void Model::run(std::span<const TensorView> inputs, std::span<const TensorView> outputs) const {
  check_inputs(inputs, /*with_data=*/true);
  const auto choice = choose(inputs);
  check_outputs(outputs, choice);
  const auto& [code, symbols] = choice;
  const auto workspace = code->workspace
                             ? code->workspace(symbols.data())
                             : static_cast<int64_t>(code->specialisation->workspace_bytes);
  const ThreadLimit limit(threads_);
  Call call(*code->specialisation, symbols, inputs, outputs);
  const auto status = call.run(code->entry, workspace, code->packed,
                               [&](size_t number) { return file_.weight(number); });
  if (status != 0)
    throw Error(TMDLA_FAILED, "the model reports an error: an index out of bounds, a division by "
                              "zero, or a check that does not hold");
}

void Model::check_inputs(std::span<const TensorView> tensors, bool with_data) const {
  check_count("inputs", inputs().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    check_tensor("input", i, inputs()[i], tensors[i], with_data);
}

void Model::check_outputs(std::span<const TensorView> tensors, const Choice& choice) const {
  check_count("outputs", outputs().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_tensor("output", i, outputs()[i], tensors[i], /*with_data=*/true);
    const auto sizes = choice.code->specialisation->outputs[i].sizes_at(choice.symbols);
    if (!std::ranges::equal(sizes, tensors[i].sizes))
      throw Error(TMDLA_WRONG_TENSOR, port_text("output", i, outputs()[i]) + " is " +
                                          sizes_text(sizes) + " for these inputs, and " +
                                          sizes_text(tensors[i].sizes) + " is given");
  }
}

Model::Choice Model::choose(std::span<const TensorView> tensors) const {
  // Dynamic specialisations come after static ones, so a static one is preferred.
  for (const auto& code : codes_)
    if (auto symbols = code.specialisation->symbols_at(tensors))
      return {&code, std::move(*symbols)};
  std::string known;
  for (const auto& code : codes_)
    known += (known.empty() ? "" : "; ") + sizes_of_all(code.specialisation->inputs);
  if (known.find('?') != std::string::npos)
    known += ", where ? is 2 or more, and as large as what the program computes of it needs";
  throw Error(TMDLA_WRONG_TENSOR, "the model has no code for inputs of sizes " +
                                      sizes_of_all(tensors) + ", but for " + known);
}

} // namespace torchmdla::native
