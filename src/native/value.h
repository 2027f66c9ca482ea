// Values of programs: numbers, strings, tensors and containers.
#pragma once

#include "arena.h"
#include "tensor.h"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace torchmdla::native {

enum class Kind : uint8_t {
  none,
  boolean,
  integer,
  real,
  device, // the CPU
  string,
  tensor,
  list,
  tuple,
  dict,
  object,
};

// Return a name for messages, such as "int".
std::string_view kind_name(Kind kind);

// Header of an object with references. An object without an arena belongs to the model: it lives as
// long as the model, and sessions only read it.
struct Heap {
  Arena* arena;
  uint32_t references;
};

struct String : Heap {
  size_t size;

  std::string_view text() const { return {reinterpret_cast<const char*>(this + 1), size}; }
};

// Memory of tensors.
struct Storage : Heap {
  enum class Owner : uint8_t { arena, caller, file };
  std::byte* data;
  size_t bytes;
  Owner owner;
};

constexpr size_t most_dimensions = 16;

// A tensor: a view of a storage. Sizes and strides follow the object. Strides are in elements.
struct Tensor : Heap {
  Storage* storage;
  int64_t offset; // of the first element, in bytes
  int32_t dtype;
  uint32_t rank;

  std::span<int64_t> sizes() { return {reinterpret_cast<int64_t*>(this + 1), rank}; }
  std::span<int64_t> strides() { return {reinterpret_cast<int64_t*>(this + 1) + rank, rank}; }
  std::span<const int64_t> sizes() const {
    return {reinterpret_cast<const int64_t*>(this + 1), rank};
  }
  std::span<const int64_t> strides() const {
    return {reinterpret_cast<const int64_t*>(this + 1) + rank, rank};
  }
  std::byte* data() const { return storage->data + offset; }
  size_t count() const { return element_count(sizes()); }
  size_t width() const { return element_bytes(dtype); }
  bool is_contiguous() const;
};

class Value;

// Items of a list or a dictionary, whose keys and values alternate.
struct List : Heap {
  size_t size, capacity;
  Value* items;
};

// Items of a tuple, or attributes of an object. They follow the object.
struct Tuple : Heap {
  size_t size;

  Value* items() { return reinterpret_cast<Value*>(this + 1); }
  const Value* items() const { return reinterpret_cast<const Value*>(this + 1); }
};

// Value with a reference to its object.
class Value {
public:
  Value() = default;
  Value(bool boolean) : kind_(Kind::boolean) { as_.integer = boolean; }
  Value(int64_t integer) : kind_(Kind::integer) { as_.integer = integer; }
  Value(double real) : kind_(Kind::real) { as_.real = real; }
  // Take over a reference that the caller has.
  Value(Kind kind, Heap* heap) : kind_(kind) { as_.heap = heap; }
  Value(const Value& other) : kind_(other.kind_), as_(other.as_) { retain(); }
  Value(Value&& other) noexcept : kind_(std::exchange(other.kind_, Kind::none)), as_(other.as_) {}
  Value& operator=(const Value& other) {
    Value copy(other);
    swap(copy);
    return *this;
  }
  Value& operator=(Value&& other) noexcept {
    Value moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~Value() { release(); }

  static Value device() {
    Value value;
    value.kind_ = Kind::device;
    return value;
  }

  Kind kind() const { return kind_; }
  bool is_none() const { return kind_ == Kind::none; }
  bool is_tensor() const { return kind_ == Kind::tensor; }
  bool is_number() const { return kind_ == Kind::integer || kind_ == Kind::real; }

  // The value of this kind. These functions throw BadBytes if it has another kind, because then the
  // program in the file is wrong.
  bool boolean() const { return checked(Kind::boolean).as_.integer != 0; }
  int64_t integer() const { return checked(Kind::integer).as_.integer; }
  double real() const { return checked(Kind::real).as_.real; }
  double number() const { return kind_ == Kind::integer ? double(as_.integer) : real(); }
  std::string_view text() const { return object<String>(Kind::string).text(); }
  Tensor& tensor() const { return object<Tensor>(Kind::tensor); }
  List& list() const { return object<List>(Kind::list); }
  List& dict() const { return object<List>(Kind::dict); }
  Tuple& tuple() const { return object<Tuple>(Kind::tuple); }
  Tuple& instance() const { return object<Tuple>(Kind::object); }
  std::span<const Value> items() const; // of a list or tuple
  const double* real_address() const { return &checked(Kind::real).as_.real; }

  Heap* heap() const { return kind_ >= Kind::string ? as_.heap : nullptr; }

  void swap(Value& other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(as_, other.as_);
  }

private:
  const Value& checked(Kind kind) const {
    if (kind_ != kind) refuse(kind);
    return *this;
  }
  template <class Object> Object& object(Kind kind) const {
    return static_cast<Object&>(*checked(kind).as_.heap);
  }
  [[noreturn]] void refuse(Kind expected) const;

  void retain() const {
    if (kind_ >= Kind::string && as_.heap->arena) ++as_.heap->references;
  }
  void release() {
    if (kind_ >= Kind::string && as_.heap->arena && --as_.heap->references == 0) destroy();
  }
  void destroy() noexcept;

  Kind kind_ = Kind::none;
  union {
    int64_t integer;
    double real;
    Heap* heap;
  } as_{};
};

// Return whether two values are equal as dictionary keys and list elements are.
bool equal(const Value& left, const Value& right);

// Constructors in an arena

Value new_string(Arena& arena, std::string_view text);

// A tensor with memory of its own.
Value new_tensor(Arena& arena, int64_t dtype, std::span<const int64_t> sizes,
                 std::span<const int64_t> strides);
Value new_tensor(Arena& arena, int64_t dtype, std::span<const int64_t> sizes);

// A tensor in memory that something else owns.
Value wrap_tensor(Arena& arena, Storage::Owner owner, std::byte* data, size_t bytes, int64_t dtype,
                  std::span<const int64_t> sizes, std::span<const int64_t> strides);

// A view of the memory of `base`, with an offset in bytes from its first element.
Value view_of(Arena& arena, const Tensor& base, int64_t dtype, std::span<const int64_t> sizes,
              std::span<const int64_t> strides, int64_t offset);

Value new_list(Arena& arena, size_t capacity);
Value new_integers(Arena& arena, std::span<const int64_t> numbers);
Value new_dict(Arena& arena, size_t capacity);
Value new_tuple(Arena& arena, size_t size, Kind kind = Kind::tuple);

// Append to a list or dictionary. Throw Error if it belongs to the model.
void append(List& list, Value value);
void check_writable(const Heap& heap);

// Return the value of a key, or null.
Value* find(const List& dict, const Value& key);
void set_item(List& dict, Value key, Value value);

// Return a copy that shares nothing with the value. Objects that occur several times, or tensors
// that share memory, do so in the copy of all `values`.
void copy_deep(Arena& arena, std::span<const Value> values, std::span<Value> copies);

// Take the value's objects out of their arena, so that any thread may read them.
void make_immortal(const Value& value);

// Return strides without gaps that keep the order of the tensor's dimensions in memory if its
// elements have no gaps, else contiguous ones.
Dimensions dense_strides_like(const Tensor& tensor);

// Return a contiguous tensor with the elements of `tensor`, in memory of its own.
Value clone(Arena& arena, const Tensor& tensor);

// Write the elements of `from` to `to`, which has the same sizes and dtype.
void copy_tensor(const Tensor& to, const Tensor& from);

} // namespace torchmdla::native
