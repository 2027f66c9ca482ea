#include "session.h"

#include "error.h"
#include "machine.h"
#include "thread_pool.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace torchmdla::native {

namespace {

constexpr int most_nesting = 64;

void check_argument(bool holds, const char* problem) {
  if (!holds) throw Error(TMDLA_INVALID_ARGUMENT, problem);
}

// Conversion of values of the C interface to those of the machine.
class Arguments {
public:
  Arguments(Arena& arena, std::vector<Value>& borrowed) : arena_(arena), borrowed_(borrowed) {}

  Value convert(const tmdla_value& value, int depth = 0) {
    check_argument(depth < most_nesting, "a value is nested too deeply");
    switch (value.kind) {
    case TMDLA_NONE:
      return {};
    case TMDLA_BOOLEAN:
      return value.as.integer != 0;
    case TMDLA_INTEGER:
      return value.as.integer;
    case TMDLA_REAL:
      return value.as.real;
    case TMDLA_STRING:
      check_argument(value.as.text || value.count == 0, "a string is null");
      return new_string(arena_, {value.as.text, value.count});
    case TMDLA_TENSOR:
      check_argument(value.as.tensor, "a tensor is null");
      return convert_tensor(*value.as.tensor);
    case TMDLA_LIST:
      return convert_items(new_list(arena_, value.count), value, depth);
    case TMDLA_DICT:
      check_argument(value.count % 2 == 0, "a dictionary has a key without a value");
      return convert_items(new_dict(arena_, value.count / 2), value, depth);
    case TMDLA_TUPLE: {
      auto tuple = new_tuple(arena_, value.count);
      for (size_t i = 0; i < value.count; ++i)
        tuple.tuple().items()[i] = convert(item(value, i), depth + 1);
      return tuple;
    }
    default:
      throw Error(TMDLA_INVALID_ARGUMENT, "a value is of an unknown kind");
    }
  }

private:
  static const tmdla_value& item(const tmdla_value& value, size_t place) {
    check_argument(value.as.items, "the items of a value are null");
    return value.as.items[place];
  }

  Value convert_items(Value list, const tmdla_value& value, int depth) {
    auto& items = *static_cast<List*>(list.heap());
    for (size_t i = 0; i < value.count; ++i)
      append(items, convert(item(value, i), depth + 1));
    return list;
  }

  Value convert_tensor(const tmdla_tensor& tensor) {
    check_argument(tensor.rank >= 0 && (tensor.rank == 0 || tensor.sizes), "a tensor has no sizes");
    const std::span sizes(tensor.sizes, static_cast<size_t>(tensor.rank));
    const auto width = element_bytes(tensor.dtype);
    if (width == 0 || sizes.size() > most_dimensions)
      throw Error(TMDLA_WRONG_TENSOR, width == 0 ? "no model takes " + dtype_name(tensor.dtype)
                                                 : "a tensor has more than 16 dimensions");
    const auto count = element_count(sizes);
    check_argument(tensor.data || count == 0, "a tensor has no data");
    const auto strides =
        tensor.strides ? Dimensions({tensor.strides, sizes.size()}) : contiguous(sizes);
    size_t extent = count > 0;
    for (size_t i = 0; i < sizes.size() && count > 0; ++i) {
      check_argument(strides[i] >= 0, "a tensor has a negative stride");
      extent += static_cast<size_t>((sizes[i] - 1) * strides[i]);
    }
    auto value = wrap_tensor(arena_, Storage::Owner::caller, static_cast<std::byte*>(tensor.data),
                             extent * width, tensor.dtype, sizes, strides);
    borrowed_.push_back(value);
    return value;
  }

  Arena& arena_;
  std::vector<Value>& borrowed_;
};

// Copy the caller's memory that values still refer to.
void adopt(std::vector<Value>& borrowed, Arena& arena) {
  for (const auto& value : borrowed) {
    const auto& tensor = value.tensor();
    auto& storage = *tensor.storage;
    if (tensor.references == 1 && storage.references == 1) continue;
    if (storage.owner != Storage::Owner::caller) continue;
    auto* const copy = static_cast<std::byte*>(arena.allocate(storage.bytes));
    if (storage.bytes > 0) std::memcpy(copy, storage.data, storage.bytes);
    storage.data = copy;
    storage.owner = Storage::Owner::arena;
  }
  borrowed.clear();
}

struct Counts {
  size_t values = 0, tensors = 0;

  void add(const Value& value) {
    ++values;
    if (value.is_tensor()) ++tensors;
    for (const auto& item : items_of(value))
      add(item);
  }

  static std::span<const Value> items_of(const Value& value) {
    if (value.kind() == Kind::dict) return {value.dict().items, value.dict().size};
    if (value.kind() == Kind::list || value.kind() == Kind::tuple) return value.items();
    return {};
  }
};

} // namespace

// Scope that takes values from the caller's memory at its end, also if a call fails.
class Session::Borrowed {
public:
  explicit Borrowed(Session& session) : session_(session) {}
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed() {
    for (auto& argument : session_.arguments_)
      argument = Value();
    try {
      adopt(session_.borrowed_, session_.arena_);
    } catch (const std::bad_alloc&) {
      // The values that lie in the caller's memory may be in any attribute.
      for (auto& attribute : session_.attributes_)
        attribute = Value();
      session_.borrowed_.clear();
    }
  }

private:
  Session& session_;
};

void Results::clear() {
  value_ = Value();
  if (memory_) arena_.release(memory_, bytes_);
  memory_ = nullptr;
}

const tmdla_value* Results::hold(Value value) {
  clear();
  Counts counts;
  counts.add(value);
  bytes_ = counts.values * sizeof(tmdla_value) + counts.tensors * sizeof(tmdla_tensor);
  memory_ = arena_.allocate(bytes_);
  value_ = std::move(value);
  auto* const first = static_cast<tmdla_value*>(memory_);
  next_tensor_ = reinterpret_cast<tmdla_tensor*>(first + counts.values);
  next_value_ = first + 1;
  return new (first) tmdla_value(convert(value_));
}

tmdla_value Results::convert(const Value& value) {
  tmdla_value result{};
  switch (value.kind()) {
  case Kind::none:
    result.kind = TMDLA_NONE;
    break;
  case Kind::boolean:
    result.kind = TMDLA_BOOLEAN;
    result.as.integer = value.boolean();
    break;
  case Kind::integer:
    result.kind = TMDLA_INTEGER;
    result.as.integer = value.integer();
    break;
  case Kind::real:
    result.kind = TMDLA_REAL;
    result.as.real = value.real();
    break;
  case Kind::device:
    result.kind = TMDLA_STRING;
    result.as.text = "cpu";
    result.count = 3;
    break;
  case Kind::string:
    result.kind = TMDLA_STRING;
    result.as.text = value.text().data();
    result.count = value.text().size();
    break;
  case Kind::tensor: {
    const auto& tensor = value.tensor();
    result.kind = TMDLA_TENSOR;
    result.as.tensor = new (next_tensor_++)
        tmdla_tensor{tensor.data(), tensor.dtype, static_cast<int32_t>(tensor.rank),
                     tensor.sizes().data(), tensor.strides().data()};
    break;
  }
  case Kind::list:
  case Kind::tuple:
  case Kind::dict: {
    const auto items = Counts::items_of(value);
    auto* const first = next_value_;
    next_value_ += items.size();
    for (size_t i = 0; i < items.size(); ++i)
      new (first + i) tmdla_value(convert(items[i]));
    result.kind = value.kind() == Kind::list    ? TMDLA_LIST
                  : value.kind() == Kind::tuple ? TMDLA_TUPLE
                                                : TMDLA_DICT;
    result.as.items = first;
    result.count = items.size();
    break;
  }
  case Kind::object:
    throw Error(TMDLA_WRONG_VALUE, "a result is an object of a class: return its attributes");
  }
  return result;
}

Session::Session(const Model& model)
    : model_(model), attributes_(model.program().attributes.size()), results_(arena_) {
  size_t most_parameters = 0;
  for (const auto& method : model.program().methods)
    most_parameters = std::max(most_parameters, method.parameters.size());
  arguments_.resize(most_parameters);
  reset();
}

Session::~Session() = default;

void Session::reset() {
  results_.clear();
  std::vector<Value> values;
  for (const auto& attribute : model_.program().attributes)
    values.push_back(model_.program().constants[attribute.value]);
  copy_deep(arena_, values, attributes_);
}

const tmdla_value* Session::call(size_t number, std::span<const tmdla_value> given) {
  const auto& program = model_.program();
  check_argument(number < program.methods.size(), "the model has fewer methods");
  const auto& method = program.methods[number];
  results_.clear();
  Value result;
  {
    const Borrowed scope(*this);
    const auto parameters = method.parameters.size();
    if (given.size() > parameters)
      throw Error(TMDLA_WRONG_VALUE, method.schema + " takes fewer arguments than the " +
                                         std::to_string(given.size()) + " of this call");
    Arguments arguments(arena_, borrowed_);
    for (size_t i = 0; i < parameters; ++i) {
      const auto& parameter = method.parameters[i];
      if (i >= given.size() && !parameter.fallback)
        throw Error(TMDLA_WRONG_VALUE, method.schema + " needs the argument " + parameter.name);
      arguments_[i] =
          i < given.size() ? arguments.convert(given[i]) : program.constants[*parameter.fallback];
      if (!parameter.type.accepts(arguments_[i]))
        throw Error(TMDLA_WRONG_VALUE, method.schema + ": the argument " + parameter.name +
                                           " is of type " +
                                           std::string(kind_name(arguments_[i].kind())));
    }
    const ThreadLimit limit(model_.threads());
    result = run_method({program, model_.groups()}, method, {arguments_.data(), parameters},
                        attributes_, arena_);
  }
  return results_.hold(std::move(result));
}

const tmdla_value* Session::attribute(size_t index) {
  check_argument(index < attributes_.size(), "the model has fewer attributes");
  return results_.hold(attributes_[index]);
}

void Session::set_attribute(size_t index, const tmdla_value& value) {
  check_argument(index < attributes_.size(), "the model has fewer attributes");
  results_.clear();
  const Borrowed scope(*this);
  attributes_[index] = Arguments(arena_, borrowed_).convert(value);
}

} // namespace torchmdla::native
