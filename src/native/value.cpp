#include "value.h"

#include "base/byte_reader.h"
#include "error.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <unordered_map>

namespace torchmdla::native {

namespace {

constexpr size_t least_capacity = 4;

template <class Object> Object* create(Arena& arena, size_t bytes) {
  auto* const object = new (arena.allocate(bytes)) Object;
  object->arena = &arena;
  object->references = 1;
  return object;
}

size_t bytes_of(const String& string) {
  return sizeof(String) + string.size + 1;
}

size_t bytes_of(const Tensor& tensor) {
  return sizeof(Tensor) + 2 * tensor.rank * sizeof(int64_t);
}

size_t bytes_of(const Tuple& tuple) {
  return sizeof(Tuple) + tuple.size * sizeof(Value);
}

void release_storage(Storage* storage) noexcept {
  if (!storage->arena || --storage->references != 0) return;
  auto& arena = *storage->arena;
  if (storage->owner == Storage::Owner::arena) arena.release(storage->data, storage->bytes);
  arena.release(storage, sizeof(Storage));
}

void destroy_items(Value* items, size_t count) noexcept {
  std::destroy_n(items, count);
}

void grow(List& list) {
  const auto capacity = std::max(least_capacity, 2 * list.capacity);
  auto* const items = static_cast<Value*>(list.arena->allocate(capacity * sizeof(Value)));
  std::uninitialized_move_n(list.items, list.size, items);
  if (list.items) list.arena->release(list.items, list.capacity * sizeof(Value));
  list.items = items;
  list.capacity = capacity;
}

Value new_items(Arena& arena, size_t capacity, Kind kind) {
  auto* const list = create<List>(arena, sizeof(List));
  list->size = list->capacity = 0;
  list->items = nullptr;
  Value value(kind, list);
  if (capacity > 0) {
    list->items = static_cast<Value*>(arena.allocate(capacity * sizeof(Value)));
    list->capacity = capacity;
  }
  return value;
}

Tensor* create_tensor(Arena& arena, Storage* storage, int64_t dtype, std::span<const int64_t> sizes,
                      std::span<const int64_t> strides) {
  if (sizes.size() > most_dimensions)
    throw Error(TMDLA_FAILED, "a tensor has more than 16 dimensions");
  auto* const tensor = create<Tensor>(arena, sizeof(Tensor) + 2 * sizes.size() * sizeof(int64_t));
  tensor->storage = storage;
  tensor->offset = 0;
  tensor->dtype = static_cast<int32_t>(dtype);
  tensor->rank = static_cast<uint32_t>(sizes.size());
  std::ranges::copy(sizes, tensor->sizes().begin());
  std::ranges::copy(strides, tensor->strides().begin());
  return tensor;
}

// Deep copies of values, in which shared objects remain shared.
class DeepCopy {
public:
  explicit DeepCopy(Arena& arena) : arena_(arena) {}

  Value copy(const Value& value) {
    if (!value.heap()) return value;
    if (const auto known = copies_.find(value.heap()); known != copies_.end()) return known->second;
    return copies_.emplace(value.heap(), copy_object(value)).first->second;
  }

private:
  Value copy_object(const Value& value) {
    switch (value.kind()) {
    case Kind::string:
      return new_string(arena_, value.text());
    case Kind::tensor:
      return copy_tensor_object(value.tensor());
    case Kind::list:
    case Kind::dict: {
      const auto& list = *static_cast<const List*>(value.heap());
      auto result = new_items(arena_, list.size, value.kind());
      for (size_t i = 0; i < list.size; ++i)
        append(*static_cast<List*>(result.heap()), copy(list.items[i]));
      return result;
    }
    default: {
      const auto& tuple = *static_cast<const Tuple*>(value.heap());
      auto result = new_tuple(arena_, tuple.size, value.kind());
      for (size_t i = 0; i < tuple.size; ++i)
        static_cast<Tuple*>(result.heap())->items()[i] = copy(tuple.items()[i]);
      return result;
    }
    }
  }

  Value copy_tensor_object(const Tensor& tensor) {
    auto& storage = storages_[tensor.storage];
    if (storage.is_none()) {
      const int64_t bytes[] = {static_cast<int64_t>(tensor.storage->bytes)}, steps[] = {1};
      storage = new_tensor(arena_, TMDLA_UINT8, bytes, steps);
      if (bytes[0] > 0)
        std::memcpy(storage.tensor().data(), tensor.storage->data, tensor.storage->bytes);
    }
    return native::view_of(arena_, storage.tensor(), tensor.dtype, tensor.sizes(), tensor.strides(),
                           tensor.offset);
  }

  Arena& arena_;
  std::unordered_map<const Heap*, Value> copies_;
  std::unordered_map<const Storage*, Value> storages_;
};

} // namespace

std::string_view kind_name(Kind kind) {
  static constexpr std::string_view names[] = {"None",   "bool", "int",   "float", "device", "str",
                                               "Tensor", "list", "tuple", "dict",  "object"};
  return names[static_cast<size_t>(kind)];
}

bool Tensor::is_contiguous() const {
  if (std::ranges::find(sizes(), 0) != sizes().end()) return true;
  int64_t step = 1;
  for (size_t i = rank; i-- > 0;) {
    if (sizes()[i] != 1 && strides()[i] != step) return false;
    step *= sizes()[i];
  }
  return true;
}

std::span<const Value> Value::items() const {
  if (kind_ == Kind::list) return {list().items, list().size};
  return {tuple().items(), tuple().size};
}

void Value::refuse(Kind expected) const {
  throw BadBytes("the program has a value of type " + std::string(kind_name(kind_)) +
                 " where it needs one of type " + std::string(kind_name(expected)));
}

void Value::destroy() noexcept {
  auto* const heap = as_.heap;
  auto& arena = *heap->arena;
  switch (kind_) {
  case Kind::string:
    arena.release(heap, bytes_of(*static_cast<String*>(heap)));
    break;
  case Kind::tensor: {
    auto* const tensor = static_cast<Tensor*>(heap);
    release_storage(tensor->storage);
    arena.release(tensor, bytes_of(*tensor));
    break;
  }
  case Kind::list:
  case Kind::dict: {
    auto* const list = static_cast<List*>(heap);
    destroy_items(list->items, list->size);
    if (list->items) arena.release(list->items, list->capacity * sizeof(Value));
    arena.release(list, sizeof(List));
    break;
  }
  default: {
    auto* const tuple = static_cast<Tuple*>(heap);
    destroy_items(tuple->items(), tuple->size);
    arena.release(tuple, bytes_of(*tuple));
  }
  }
}

bool equal(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    if (left.kind() == Kind::integer && right.kind() == Kind::integer)
      return left.integer() == right.integer();
    return left.number() == right.number();
  }
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
  case Kind::none:
  case Kind::device:
    return true;
  case Kind::boolean:
    return left.boolean() == right.boolean();
  case Kind::string:
    return left.text() == right.text();
  case Kind::list:
  case Kind::tuple:
    return std::ranges::equal(left.items(), right.items(), equal);
  case Kind::dict: {
    const auto &one = left.dict(), &other = right.dict();
    if (one.size != other.size) return false;
    for (size_t i = 0; i < one.size; i += 2) {
      const auto* const value = find(other, one.items[i]);
      if (!value || !equal(*value, one.items[i + 1])) return false;
    }
    return true;
  }
  default:
    return left.heap() == right.heap();
  }
}

Value new_string(Arena& arena, std::string_view text) {
  auto* const string = create<String>(arena, sizeof(String) + text.size() + 1);
  string->size = text.size();
  auto* const characters = reinterpret_cast<char*>(string + 1);
  text.copy(characters, text.size());
  characters[text.size()] = 0;
  return {Kind::string, string};
}

Value wrap_tensor(Arena& arena, Storage::Owner owner, std::byte* data, size_t bytes, int64_t dtype,
                  std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  auto* const storage = create<Storage>(arena, sizeof(Storage));
  storage->owner = owner;
  storage->data = data;
  storage->bytes = bytes;
  return {Kind::tensor, create_tensor(arena, storage, dtype, sizes, strides)};
}

Value new_tensor(Arena& arena, int64_t dtype, std::span<const int64_t> sizes,
                 std::span<const int64_t> strides) {
  const auto bytes = element_count(sizes) * element_bytes(dtype);
  auto* const data = static_cast<std::byte*>(arena.allocate(bytes));
  return wrap_tensor(arena, Storage::Owner::arena, data, bytes, dtype, sizes, strides);
}

Value new_tensor(Arena& arena, int64_t dtype, std::span<const int64_t> sizes) {
  return new_tensor(arena, dtype, sizes, contiguous(sizes));
}

Value view_of(Arena& arena, const Tensor& base, int64_t dtype, std::span<const int64_t> sizes,
              std::span<const int64_t> strides, int64_t offset) {
  auto* const storage = base.storage;
  auto* const tensor = create_tensor(arena, storage, dtype, sizes, strides);
  if (storage->arena) ++storage->references;
  tensor->offset = base.offset + offset;
  return {Kind::tensor, tensor};
}

Value new_list(Arena& arena, size_t capacity) {
  return new_items(arena, capacity, Kind::list);
}

Value new_integers(Arena& arena, std::span<const int64_t> numbers) {
  auto result = new_list(arena, numbers.size());
  for (const auto number : numbers)
    append(result.list(), number);
  return result;
}

Value new_dict(Arena& arena, size_t capacity) {
  return new_items(arena, 2 * capacity, Kind::dict);
}

Value new_tuple(Arena& arena, size_t size, Kind kind) {
  auto* const tuple = create<Tuple>(arena, sizeof(Tuple) + size * sizeof(Value));
  tuple->size = size;
  std::uninitialized_default_construct_n(tuple->items(), size);
  return {kind, tuple};
}

void check_writable(const Heap& heap) {
  if (!heap.arena) throw Error(TMDLA_FAILED, "the program writes to a constant");
}

void append(List& list, Value value) {
  check_writable(list);
  if (list.size == list.capacity) grow(list);
  new (list.items + list.size++) Value(std::move(value));
}

Value* find(const List& dict, const Value& key) {
  for (size_t i = 0; i < dict.size; i += 2)
    if (equal(dict.items[i], key)) return &dict.items[i + 1];
  return nullptr;
}

void set_item(List& dict, Value key, Value value) {
  check_writable(dict);
  if (auto* const known = find(dict, key)) {
    *known = std::move(value);
    return;
  }
  append(dict, std::move(key));
  append(dict, std::move(value));
}

void copy_deep(Arena& arena, std::span<const Value> values, std::span<Value> copies) {
  DeepCopy copy(arena);
  std::ranges::transform(values, copies.begin(),
                         [&](const Value& value) { return copy.copy(value); });
}

void make_immortal(const Value& value) {
  auto* const heap = value.heap();
  if (!heap || !heap->arena) return;
  heap->arena = nullptr;
  if (value.is_tensor()) {
    value.tensor().storage->arena = nullptr;
  } else if (value.kind() == Kind::list || value.kind() == Kind::dict) {
    const auto& list = *static_cast<List*>(heap);
    std::for_each_n(list.items, list.size, make_immortal);
  } else if (value.kind() != Kind::string) {
    const auto& tuple = *static_cast<Tuple*>(heap);
    std::for_each_n(tuple.items(), tuple.size, make_immortal);
  }
}

// PyTorch copies a tensor whose elements are dense in some order of its dimensions in that order.
Dimensions dense_strides_like(const Tensor& tensor) {
  Dimensions order;
  for (size_t i = 0; i < tensor.rank; ++i) {
    size_t place = order.size();
    while (place > 0 &&
           tensor.strides()[static_cast<size_t>(order[place - 1])] < tensor.strides()[i])
      --place;
    order.insert(place, static_cast<int64_t>(i));
  }
  const auto strides = dense_strides(tensor.sizes(), order);
  for (size_t i = 0; i < tensor.rank; ++i)
    if (tensor.sizes()[i] != 1 && tensor.strides()[i] != strides[i])
      return contiguous(tensor.sizes());
  return strides;
}

Value clone(Arena& arena, const Tensor& tensor) {
  auto result = new_tensor(arena, tensor.dtype, tensor.sizes());
  copy_tensor(result.tensor(), tensor);
  return result;
}

void copy_tensor(const Tensor& to, const Tensor& from) {
  copy_elements(to.data(), to.strides(), from.data(), from.strides(), to.sizes(), to.width());
}

} // namespace torchmdla::native
