// Fuzzes the reader of native models: whatever a file holds, it is refused with a reason, or its
// methods run and its tensors are laid out. Only the code is not run, which may do anything.
#include "fuzzing.h"
#include "sealing.h"

#include "base/byte_reader.h"
#include "base/open_file.h"
#include "native/error.h"
#include "native/machine.h"
#include "native/model.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <system_error>

#include <sys/mman.h>
#include <unistd.h>

namespace {

using namespace torchmdla;
using native::Arena;
using native::Dimensions;
using native::LoadedGroup;
using native::Opcode;
using native::Specialisation;
using native::TensorView;
using native::Type;
using native::Value;

// As src/native/model_file.cpp has it.
constexpr BlockFormat kModelFormat{"torchmdla-model", 3, "a model's file"};
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

int32_t entry_that_does_nothing(void* const*) {
  return 0;
}

// A result of the code may be of any size that fits into memory, so large ones are left out.
bool is_small(const Specialisation& code, const Dimensions& symbols) {
  LoadedGroup::Choice choice{nullptr, symbols};
  return code.workspace_bytes <= kPage &&
         std::ranges::all_of(code.outputs, [&](const native::Output& output) {
           const auto* const tensor = std::get_if<native::TensorOutput>(&output);
           return !tensor ||
                  native::element_count(LoadedGroup::sizes_of(*tensor, choice)) <= kMostElements;
         });
}

std::vector<LoadedGroup> groups_of(const native::Target& target, const native::ModelFile& file) {
  std::vector<LoadedGroup> groups;
  for (const auto& group : target.groups) {
    std::vector<native::Code> codes;
    for (const auto& specialisation : group.specialisations) {
      native::Code code{&specialisation, nullptr, entry_that_does_nothing, nullptr, {}, {}};
      code.packed.resize(specialisation.packs.size());
      for (const auto& argument : specialisation.arguments)
        code.weights.push_back(argument.source == native::Argument::Source::weight
                                   ? file.weight(argument.index)
                                   : nullptr);
      if (is_small(specialisation, Dimensions())) codes.push_back(std::move(code));
    }
    groups.emplace_back(group, std::move(codes));
  }
  return groups;
}

// Inputs for which a specialisation is, from its signature. Return false if it has other kinds.
bool add_inputs(const Specialisation& code, Arena& arena, std::vector<Value>& values) {
  constexpr int64_t tensor = 1, integer = 2, boolean = 3, floating = 4;
  const auto& numbers = code.signature;
  const auto number = [&](size_t place) {
    const auto symbol = code.places.empty() ? Specialisation::fixed : code.places[place];
    return symbol == Specialisation::fixed ? numbers[place] : 2 + 3 * symbol;
  };
  for (size_t i = 0; i < numbers.size();) {
    const auto kind = numbers[i] & 0xff;
    const auto rank = static_cast<size_t>(numbers[i] >> 16);
    if (kind == floating) {
      values.emplace_back(1.0);
      ++i;
    } else if (kind == 0) {
      values.emplace_back();
      ++i;
    } else if (i + 1 < numbers.size() && (kind == integer || kind == boolean)) {
      values.push_back(kind == integer ? Value(number(i + 1)) : Value(number(i + 1) != 0));
      i += 2;
    } else if (kind == tensor && rank <= native::most_dimensions &&
               rank + 2 <= numbers.size() - i) {
      Dimensions sizes;
      for (size_t k = i + 2; k < i + 2 + rank; ++k)
        sizes.push_back(number(k));
      const auto dtype = numbers[i] >> 8 & 0xff;
      if (native::element_bytes(dtype) == 0 || native::element_count(sizes) > kMostElements)
        return false;
      values.push_back(native::new_tensor(arena, dtype, sizes));
      i += 2 + rank;
    } else {
      return false;
    }
  }
  return true;
}

void call_groups(const native::Program& program, const std::vector<LoadedGroup>& groups) {
  Arena arena;
  for (const auto& group : groups)
    for (const auto& code : group.description().specialisations) {
      std::vector<Value> values, results(group.description().outputs);
      std::vector<const Value*> inputs;
      std::vector<Value*> outputs;
      if (!add_inputs(code, arena, values) || values.size() != group.description().inputs) continue;
      for (const auto& value : values)
        inputs.push_back(&value);
      for (auto& result : results)
        outputs.push_back(&result);
      try {
        const auto choice = group.choose(inputs);
        if (is_small(*choice.code->specialisation, choice.symbols))
          group.run(choice, inputs, outputs, program.constants, arena);
      } catch (const native::Error&) {
      }
    }
}

// An argument of a type, as far as there are small ones.
Value argument_of(const Type& type, Arena& arena) {
  static constexpr int64_t sizes[] = {1, 4};
  switch (type.kind) {
  case Type::Kind::boolean:
    return true;
  case Type::Kind::integer:
  case Type::Kind::number:
    return int64_t{2};
  case Type::Kind::real:
    return 0.5;
  case Type::Kind::string:
    return native::new_string(arena, "text");
  case Type::Kind::tensor:
    return native::new_tensor(arena, TMDLA_FLOAT32, sizes);
  case Type::Kind::list:
    return native::new_list(arena, 0);
  case Type::Kind::dict:
    return native::new_dict(arena, 0);
  case Type::Kind::alternatives:
    return type.arguments.empty() ? Value() : argument_of(type.arguments[0], arena);
  default:
    return {};
  }
}

// A method that jumps back may run forever, as in PyTorch.
bool ends(const native::Method& method) {
  for (size_t i = 0; i < method.instructions.size(); ++i) {
    const auto& [code, outputs, inputs, first, detail, source, op] = method.instructions[i];
    const bool jumps = code == Opcode::jump || code == Opcode::branch || code == Opcode::loop;
    if (jumps && detail <= i) return false;
  }
  return true;
}

// New tensors and ranges may be of any size, so that is left to other tests.
bool makes_tensors(const native::Method& method) {
  return std::ranges::any_of(method.instructions, [](const native::Instruction& instruction) {
    const auto is = [&](std::string_view name) { return instruction.op->name.starts_with(name); };
    return instruction.op && (is("aten::zeros") || is("aten::ones") || is("aten::empty") ||
                              is("aten::full") || is("aten::new_") || is("aten::arange") ||
                              is("aten::mul") || is("prim::rangelist") || is("aten::expand"));
  });
}

void call_methods(const native::Program& program, const std::vector<LoadedGroup>& groups) {
  for (const auto& method : program.methods) {
    if (!ends(method) || makes_tensors(method)) continue;
    Arena arena;
    std::vector<Value> arguments, initial, attributes(program.attributes.size());
    for (const auto& parameter : method.parameters)
      arguments.push_back(argument_of(parameter.type, arena));
    for (const auto& attribute : program.attributes)
      initial.push_back(program.constants[attribute.value]);
    native::copy_deep(arena, initial, attributes);
    try {
      native::run_method({program, groups}, method, arguments, attributes, arena);
    } catch (const native::Error&) { // the program's own errors, too
    } catch (const std::length_error&) {
    } catch (const BadBytes&) { // values of other kinds than the instructions need
    }
  }
}

void file_target(std::string_view bytes) {
  const auto path = file_of(bytes);
  const native::Model model(path, 1, /*any_owner=*/true);
  const native::ModelFile file(path, /*any_owner=*/true);
  try {
    file.verify();
  } catch (const BadBytes&) { // weights that are not those of the checksum are used, too
  }
  for (const auto& target : file.content().targets) {
    const auto groups = groups_of(target, file);
    call_groups(file.content().program, groups);
    call_methods(file.content().program, groups);
  }
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
