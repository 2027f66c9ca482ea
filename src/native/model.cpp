#include "model.h"

#include "base/byte_reader.h"
#include "base/device_library.h"
#include "base/host_features.h"
#include "codeimage/image.h"
#include "error.h"
#include "runtime/device_calls.h"
#include "thread_pool.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace torchmdla::native {

namespace {

void* find_device_call(const char* name) {
  return address_of_symbol(name);
}

// Return the features that this machine and the devices' libraries lack, as text.
std::string missing_features(const Target& target) {
  auto usable = host_features();
  for (const auto& device : target.devices)
    if (const auto library = find_device_library(device, find_device_call))
      usable.merge(qualified(device, library->features()));
  std::string missing;
  for (const auto& feature : target.features)
    if (!usable.contains(feature)) missing += (missing.empty() ? "" : ", ") + feature;
  return missing;
}

const Target& choose_target(const std::vector<Target>& targets) {
  for (const auto& target : targets)
    if (missing_features(target).empty()) return target;
  const auto& last = targets.back();
  const auto missing = missing_features(last);
  for (const auto& device : last.devices)
    if (!find_device_library(device, find_device_call))
      throw Error(TMDLA_WRONG_PROCESSOR, "the model is for device " + device +
                                             ", whose library is not loaded (tmdla_load_device, or "
                                             "TORCHMDLA_DEVICE_LIBRARIES)");
  throw Error(TMDLA_WRONG_PROCESSOR,
              last.devices.empty()
                  ? "the model is for processors with instructions that this one lacks: " + missing
                  : "the model is for device " + last.devices.front() + " with " + missing +
                        ", which this one lacks");
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

// Code of an image, by the names of its functions.
Code load_image(const Specialisation& specialisation, const std::shared_ptr<const Image>& image) {
  Code code{&specialisation, image,   function<int32_t(void* const*)>(*image, specialisation.entry),
            nullptr,         nullptr, nullptr,
            nullptr,         {},      {}};
  if (!specialisation.workspace.empty())
    code.workspace = function<int64_t(const int64_t*)>(*image, specialisation.workspace);
  return code;
}

// Code that a device's library loads. Its packs have run when the file was written.
Code load_by_library(const Specialisation& specialisation, const DeviceBlock& block) {
  auto library = find_device_library(block.device, find_device_call);
  if (!library) throw BadBytes("a model's file: it has code of device " + block.device);
  const auto loaded =
      std::make_shared<const LibraryCode>(std::move(library), block.object_code, block.names);
  const auto& functions = loaded->code();
  return {&specialisation,
          loaded,
          functions.entry,
          functions.workspace,
          functions.context,
          functions.wait,
          functions.fault,
          {},
          {}};
}

// Images of a target that several specialisations share.
class Images {
public:
  explicit Images(const Target& target) : target_(target), images_(target.images.size()) {}

  Code load(const Specialisation& specialisation) {
    const auto bytes = target_.images[specialisation.image];
    if (const auto block = read_device_block(bytes)) return load_by_library(specialisation, *block);
    auto& image = images_[specialisation.image];
    if (!image) image = std::make_shared<const Image>(bytes, address_of_symbol);
    return load_image(specialisation, image);
  }

private:
  const Target& target_;
  std::vector<std::shared_ptr<const Image>> images_;
};

void bind_weights(Code& code, const ModelFile& file) {
  const auto& specialisation = *code.specialisation;
  for (const auto weight : specialisation.packs)
    code.packed.push_back(file.weight(weight));
  for (const auto& argument : specialisation.arguments)
    code.weights.push_back(argument.source == Argument::Source::weight ? file.weight(argument.index)
                                                                       : nullptr);
}

} // namespace

Model::Model(const std::string& path, int threads, bool any_owner)
    : file_(path, any_owner), target_(&choose_target(file_.content().targets)),
      threads_(validate_threads(threads)) {
  load_code();
  file_.drop_images();
}

void Model::load_code() {
  Images images(*target_);
  for (const auto& group : target_->groups) {
    std::vector<Code> codes;
    for (const auto& specialisation : group.specialisations)
      bind_weights(codes.emplace_back(images.load(specialisation)), file_);
    groups_.emplace_back(group, std::move(codes));
  }
}

void Model::set_threads(int threads) {
  threads_ = validate_threads(threads);
}

} // namespace torchmdla::native
