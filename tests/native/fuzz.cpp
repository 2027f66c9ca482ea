// Fuzzes the reader of native models: whatever a file holds, it is refused with a reason, or its
// tensors are laid out. Only the code is not run, which may do anything.
#include "fuzzing.h"
#include "sealing.h"

#include "base/byte_reader.h"
#include "base/open_file.h"
#include "native/call.h"
#include "native/error.h"
#include "native/model.h"

#include <optional>
#include <stdexcept>
#include <system_error>

#include <sys/mman.h>
#include <unistd.h>

namespace {

using namespace torchmdla;
using native::Numbers;
using native::Specialisation;
using native::TensorView;

// As src/native/model_file.cpp has it.
constexpr BlockFormat kModelFormat{"torchmdla-model", 2, "a model's file"};
constexpr size_t kPage = 4096;
// So small that no call is long.
constexpr size_t kMostElements = 1 << 12;

// A file in memory; the name is that of the last one.
std::string file_of(std::string_view bytes) {
  static const int descriptor = memfd_create("model", 0);
  if (ftruncate(descriptor, 0) != 0 ||
      pwrite(descriptor, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw std::system_error(errno, std::generic_category());
  return "/proc/self/fd/" + std::to_string(descriptor);
}

// Tensors of a call, and their memory.
struct Tensors {
  std::vector<Numbers> sizes;
  std::vector<std::vector<std::byte>> memory;
  std::vector<TensorView> views;

  // False where they are too large.
  bool add(Numbers new_sizes, int64_t dtype) {
    const auto count = native::element_count(new_sizes);
    if (count > kMostElements) return false;
    memory.emplace_back(count * native::element_bytes(dtype));
    sizes.push_back(std::move(new_sizes));
    views.push_back({memory.back().data(), dtype, sizes.back(), {}});
    return true;
  }
};

Numbers sizes_of(const native::InputLayout& layout) {
  auto sizes = layout.sizes;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (layout.symbols[i] >= 0) sizes[i] = 2 + 3 * layout.symbols[i];
  return sizes;
}

int32_t entry_that_does_nothing(void* const*) {
  return 0;
}

void call(const native::Model& model, const native::ModelFile& file, const Specialisation& code) {
  Tensors inputs, outputs;
  for (size_t i = 0; i < code.inputs.size(); ++i)
    if (!inputs.add(sizes_of(code.inputs[i]), model.inputs()[i].dtype)) return;
  const auto symbols = code.symbols_at(inputs.views);
  if (!symbols) return;
  for (size_t i = 0; i < code.outputs.size(); ++i) {
    model.output_sizes(inputs.views, i);
    if (!outputs.add(code.outputs[i].sizes_at(*symbols), model.outputs()[i].dtype)) return;
  }
  native::Call made(code, *symbols, inputs.views, outputs.views);
  const std::vector<const void*> packed(code.packs.size());
  made.run(entry_that_does_nothing, kPage, packed,
           [&](size_t number) { return file.weight(number); });
}

void file_target(std::string_view bytes) {
  const auto path = file_of(bytes);
  const native::Model model(path, 1, /*any_owner=*/true);
  const native::ModelFile file(path, /*any_owner=*/true);
  try {
    file.verify();
  } catch (const BadBytes&) { // weights that are not those of the checksum are used, too
  }
  for (const auto& code : file.content().specialisations)
    call(model, file, code);
}

void content_target(std::string_view bytes) {
  auto file = fuzzing::sealed(kModelFormat, bytes);
  file.resize((file.size() + kPage - 1) / kPage * kPage + 2 * kPage);
  file_target(file);
}

void image_target(std::string_view bytes) {
  // No code runs that would call it.
  static std::byte anything;
  const Image image(std::as_bytes(std::span(bytes)), [](const std::string&) { return &anything; });
  image.symbol("main");
}

// As src/native/api.cpp tells them apart: what else is thrown is a finding.
template <void (*test)(std::string_view)> bool accepts(std::string_view bytes) {
  try {
    test(bytes);
    return true;
  } catch (const native::Error&) {
  } catch (const FileProblem&) {
  } catch (const BadBytes&) {
  } catch (const ImageError&) {
  } catch (const std::length_error&) {
  }
  return false;
}

} // namespace

const std::vector<fuzzing::Target> fuzzing::kTargets = {
    {'f', accepts<file_target>}, {'c', accepts<content_target>}, {'i', accepts<image_target>}};
