#include "model.h"

#include "base/byte_reader.h"
#include "base/host_features.h"
#include "error.h"
#include "runtime/device_calls.h"
#include "thread_pool.h"

#include <algorithm>

namespace torchmdla::native {

namespace {

std::string missing_features(const Target& target) {
  std::string missing;
  for (const auto& feature : target.features)
    if (!host_features().contains(feature)) missing += (missing.empty() ? "" : ", ") + feature;
  return missing;
}

const Target& choose_target(const std::vector<Target>& targets) {
  for (const auto& target : targets)
    if (missing_features(target).empty()) return target;
  throw Error(TMDLA_WRONG_PROCESSOR,
              "the model is for processors with instructions that this one lacks: " +
                  missing_features(targets.back()));
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

Code load(const Specialisation& specialisation, const std::shared_ptr<const Image>& image,
          const ModelFile& file) {
  Code code{&specialisation, image, function<int32_t(void* const*)>(*image, specialisation.entry),
            nullptr,         {},    {}};
  if (!specialisation.workspace.empty())
    code.workspace = function<int64_t(const int64_t*)>(*image, specialisation.workspace);
  for (const auto weight : specialisation.packs)
    code.packed.push_back(file.weight(weight));
  for (const auto& argument : specialisation.arguments)
    code.weights.push_back(argument.source == Argument::Source::weight ? file.weight(argument.index)
                                                                       : nullptr);
  return code;
}

} // namespace

Model::Model(const std::string& path, int threads, bool any_owner)
    : file_(path, any_owner), target_(&choose_target(file_.content().targets)),
      threads_(validate_threads(threads)) {
  load_code();
  file_.drop_images();
}

void Model::load_code() {
  std::vector<std::shared_ptr<const Image>> images;
  for (const auto& image : target_->images)
    images.push_back(std::make_shared<const Image>(image, address_of_symbol));
  for (const auto& group : target_->groups) {
    std::vector<Code> codes;
    for (const auto& specialisation : group.specialisations)
      codes.push_back(load(specialisation, images[specialisation.image], file_));
    groups_.emplace_back(group, std::move(codes));
  }
}

void Model::set_threads(int threads) {
  threads_ = validate_threads(threads);
}

} // namespace torchmdla::native
