// Operators on lists, dictionaries, tuples and optional values. Results are those of
// torchmdla/script/operators.py.

#include "operators.h"
#include "sequences.h"
#include "texts.h"

#include <algorithm>
#include <vector>

namespace torchmdla::native {

namespace {

size_t element(const Value& index, size_t size) {
  const auto place = place_of(index.integer(), size);
  if (!place) fail("list index out of range");
  return *place;
}

List& writable(const Value& list) {
  check_writable(list.list());
  return list.list();
}

List& writable_dict(const Value& dict) {
  check_writable(dict.dict());
  return dict.dict();
}

// Remove items and release their values.
Value remove(List& list, size_t place, size_t count = 1) {
  Value removed = std::move(list.items[place + count - 1]);
  std::move(list.items + place + count, list.items + list.size, list.items + place);
  for (size_t i = list.size - count; i < list.size; ++i)
    list.items[i] = Value();
  list.size -= count;
  return removed;
}

// Lists

void construct_list(const OperatorCall& call) {
  auto list = new_list(call.arena, call.count());
  for (const auto* const item : call.inputs())
    append(list.list(), *item);
  call.set(std::move(list));
}

void unpack(const OperatorCall& call) {
  // The list may be in a register that an output replaces.
  const Value list = call[0];
  const auto items = list.items();
  if (items.size() != call.outputs())
    fail("Expected " + std::to_string(call.outputs()) + " elements in a list but found " +
         std::to_string(items.size()));
  for (size_t i = 0; i < items.size(); ++i)
    call.set(items[i], i);
}

void list_length(const OperatorCall& call) {
  call.set(static_cast<int64_t>(call[0].items().size()));
}

void get_item(const OperatorCall& call) {
  const auto items = call[0].items();
  call.set(Value(items[element(call[1], items.size())]));
}

void set_element(const OperatorCall& call) {
  auto& list = writable(call[0]);
  list.items[element(call[1], list.size)] = call[2];
  call.set(Value(call[0]));
}

void append_element(const OperatorCall& call) {
  append(call[0].list(), call[1]);
  call.set(Value(call[0]));
}

void extend(const OperatorCall& call) {
  auto& list = writable(call[0]);
  const auto count = call[1].list().size;
  for (size_t i = 0; i < count; ++i)
    append(list, Value(call[1].list().items[i]));
  if (call.outputs() > 0) call.set(Value(call[0]));
}

Value copy_of(Arena& arena, std::span<const Value> items, size_t more = 0) {
  auto list = new_list(arena, items.size() + more);
  for (const auto& item : items)
    append(list.list(), item);
  return list;
}

void copy_list(const OperatorCall& call) {
  call.set(copy_of(call.arena, call[0].items()));
}

void concatenate(const OperatorCall& call) {
  const auto right = call[1].items();
  auto list = copy_of(call.arena, call[0].items(), right.size());
  for (const auto& item : right)
    append(list.list(), item);
  call.set(std::move(list));
}

template <size_t list_place> void repeat(const OperatorCall& call) {
  const auto items = call[list_place].items();
  const auto times = std::max<int64_t>(call[1 - list_place].integer(), 0);
  auto list = new_list(call.arena, 0);
  for (int64_t i = 0; i < times; ++i)
    for (const auto& item : items)
      append(list.list(), item);
  call.set(std::move(list));
}

void slice(const OperatorCall& call) {
  const auto items = call[0].items();
  const Slice slice(call, items.size());
  auto list = new_list(call.arena, slice.count);
  for (size_t i = 0; i < slice.count; ++i)
    append(list.list(), items[slice.at(i)]);
  call.set(std::move(list));
}

void reverse(const OperatorCall& call) {
  auto& list = writable(call[0]);
  std::reverse(list.items, list.items + list.size);
}

void clear(const OperatorCall& call) {
  auto& list = writable(call[0]);
  if (list.size > 0) remove(list, 0, list.size);
}

void insert(const OperatorCall& call) {
  auto& list = writable(call[0]);
  const auto size = static_cast<int64_t>(list.size);
  const auto index = call[1].integer();
  const auto place = std::clamp<int64_t>(index < 0 ? index + size : index, 0, size);
  append(list, call[2]);
  std::rotate(list.items + place, list.items + list.size - 1, list.items + list.size);
}

void pop(const OperatorCall& call) {
  auto& list = writable(call[0]);
  if (list.size == 0) fail("pop from empty list");
  call.set(remove(list, element(call[1], list.size)));
}

void delete_element(const OperatorCall& call) {
  auto& list = writable(call[0]);
  if (list.size == 0) fail("pop index out of range");
  remove(list, element(call[1], list.size));
}

const Value* find_item(std::span<const Value> items, const Value& wanted) {
  const auto place =
      std::ranges::find_if(items, [&](const Value& item) { return equal(item, wanted); });
  return place == items.end() ? nullptr : &*place;
}

void contains(const OperatorCall& call) {
  call.set(find_item(call[0].items(), call[1]) != nullptr);
}

void index_of(const OperatorCall& call) {
  const auto items = call[0].items();
  const auto* const place = find_item(items, call[1]);
  if (!place) {
    Text text(call.arena);
    append_text(text, call[1]);
    fail("'" + std::string(text.view()) + "' is not in list");
  }
  call.set(static_cast<int64_t>(place - items.data()));
}

void count_of(const OperatorCall& call) {
  call.set(static_cast<int64_t>(std::ranges::count_if(
      call[0].items(), [&](const Value& item) { return equal(item, call[1]); })));
}

template <bool expected> void compare_equal(const OperatorCall& call) {
  call.set(equal(call[0], call[1]) == expected);
}

bool is_less(const Value& left, const Value& right) {
  if (left.kind() == Kind::string) return left.text() < right.text();
  if (left.kind() == Kind::boolean) return left.boolean() < right.boolean();
  if (left.kind() == Kind::integer && right.kind() == Kind::integer)
    return left.integer() < right.integer();
  return left.number() < right.number();
}

template <bool largest> void extreme(const OperatorCall& call) {
  const auto items = call[0].items();
  if (items.empty())
    fail(largest ? "max() arg is an empty sequence" : "min() arg is an empty sequence");
  call.set(Value(largest ? *std::ranges::max_element(items, is_less)
                         : *std::ranges::min_element(items, is_less)));
}

// Sort without std::stable_sort, which allocates. Lists are short.
void sort_items(List& list, bool descending) {
  for (size_t i = 1; i < list.size; ++i)
    for (size_t k = i; k > 0; --k) {
      auto &left = list.items[k - 1], &right = list.items[k];
      if (descending ? !is_less(left, right) : !is_less(right, left)) break;
      left.swap(right);
    }
}

void sort(const OperatorCall& call) {
  sort_items(writable(call[0]), call[1].boolean());
}

void sorted(const OperatorCall& call) {
  auto list = copy_of(call.arena, call[0].items());
  sort_items(list.list(), false);
  call.set(std::move(list));
}

void sum(const OperatorCall& call) {
  const auto items = call[0].items();
  if (!items.empty() && items[0].kind() == Kind::real) {
    double total = 0;
    for (const auto& item : items)
      total += item.real();
    call.set(total);
    return;
  }
  uint64_t total = 0;
  for (const auto& item : items)
    total += static_cast<uint64_t>(item.kind() == Kind::boolean ? item.boolean() : item.integer());
  call.set(static_cast<int64_t>(total));
}

bool is_true(const Value& value) {
  return value.kind() == Kind::boolean ? value.boolean() : value.number() != 0;
}

void any_of(const OperatorCall& call) {
  call.set(std::ranges::any_of(call[0].items(), is_true));
}

void all_of(const OperatorCall& call) {
  call.set(std::ranges::all_of(call[0].items(), is_true));
}

void range_list(const OperatorCall& call) {
  const auto count = call[0].integer();
  if (count < 0) fail("vector::reserve");
  auto list = new_list(call.arena, static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    append(list.list(), i);
  call.set(std::move(list));
}

// Tuples

void construct_tuple(const OperatorCall& call) {
  auto tuple = new_tuple(call.arena, call.count());
  for (size_t i = 0; i < call.count(); ++i)
    tuple.tuple().items()[i] = call[i];
  call.set(std::move(tuple));
}

void slice_tuple(const OperatorCall& call) {
  const auto items = call[0].items();
  const auto begin = std::clamp<int64_t>(call[1].integer(), 0, static_cast<int64_t>(items.size()));
  const auto end =
      std::clamp<int64_t>(call[2].integer(), begin, static_cast<int64_t>(items.size()));
  auto tuple = new_tuple(call.arena, static_cast<size_t>(end - begin));
  std::copy(items.begin() + begin, items.begin() + end, tuple.tuple().items());
  call.set(std::move(tuple));
}

// Dictionaries

void construct_dict(const OperatorCall& call) {
  if (call.count() % 2 != 0) fail("a dictionary has a key without a value");
  auto dict = new_dict(call.arena, call.count() / 2);
  for (size_t i = 0; i < call.count(); i += 2)
    set_item(dict.dict(), call[i], call[i + 1]);
  call.set(std::move(dict));
}

[[noreturn]] void refuse_key(const OperatorCall& call) {
  Text text(call.arena);
  text += "KeyError: ";
  append_text(text, call[1]);
  fail(std::string(text.view()));
}

void dict_length(const OperatorCall& call) {
  call.set(static_cast<int64_t>(call[0].dict().size / 2));
}

template <size_t first> void every_second(const OperatorCall& call) {
  const auto& dict = call[0].dict();
  auto list = new_list(call.arena, dict.size / 2);
  for (size_t i = first; i < dict.size; i += 2)
    append(list.list(), dict.items[i]);
  call.set(std::move(list));
}

void dict_items(const OperatorCall& call) {
  const auto& dict = call[0].dict();
  auto list = new_list(call.arena, dict.size / 2);
  for (size_t i = 0; i < dict.size; i += 2) {
    auto pair = new_tuple(call.arena, 2);
    std::copy_n(dict.items + i, 2, pair.tuple().items());
    append(list.list(), std::move(pair));
  }
  call.set(std::move(list));
}

void look_up(const OperatorCall& call) {
  const auto* const value = find(call[0].dict(), call[1]);
  if (!value) refuse_key(call);
  call.set(Value(*value));
}

void get(const OperatorCall& call) {
  const auto* const value = find(call[0].dict(), call[1]);
  call.set(value ? Value(*value) : call.count() > 2 ? Value(call[2]) : Value());
}

void set_default(const OperatorCall& call) {
  auto& dict = writable_dict(call[0]);
  if (!find(dict, call[1])) set_item(dict, call[1], call[2]);
  call.set(Value(*find(dict, call[1])));
}

void set_entry(const OperatorCall& call) {
  set_item(call[0].dict(), call[1], call[2]);
}

// Remove an entry and return its value.
Value remove_entry(List& dict, const Value* value) {
  return remove(dict, static_cast<size_t>(value - dict.items) - 1, 2);
}

void pop_entry(const OperatorCall& call) {
  auto& dict = writable_dict(call[0]);
  const auto* const value = find(dict, call[1]);
  if (!value && call.count() < 3) refuse_key(call);
  call.set(value ? remove_entry(dict, value) : Value(call[2]));
}

void delete_entry(const OperatorCall& call) {
  auto& dict = writable_dict(call[0]);
  const auto* const value = find(dict, call[1]);
  if (!value) refuse_key(call);
  remove_entry(dict, value);
}

void clear_dict(const OperatorCall& call) {
  auto& dict = writable_dict(call[0]);
  if (dict.size > 0) remove(dict, 0, dict.size);
}

void update(const OperatorCall& call) {
  auto& dict = writable_dict(call[0]);
  const auto& other = call[1].dict();
  for (size_t i = 0; i < other.size; i += 2)
    set_item(dict, other.items[i], other.items[i + 1]);
}

void copy_dict(const OperatorCall& call) {
  const auto& dict = call[0].dict();
  auto copy = new_dict(call.arena, dict.size / 2);
  for (size_t i = 0; i < dict.size; ++i)
    append(copy.dict(), dict.items[i]);
  call.set(std::move(copy));
}

void contains_key(const OperatorCall& call) {
  call.set(find(call[0].dict(), call[1]) != nullptr);
}

// Others

bool is_same(const Value& left, const Value& right) {
  if (left.kind() != right.kind()) return false;
  return left.heap() && left.kind() != Kind::string ? left.heap() == right.heap()
                                                    : equal(left, right);
}

template <bool expected> void compare_identity(const OperatorCall& call) {
  call.set(is_same(call[0], call[1]) == expected);
}

void pass(const OperatorCall& call) {
  call.set(Value(call[0]));
}

void unwrap(const OperatorCall& call) {
  if (call[0].is_none()) fail("Unwrapping null optional");
  pass(call);
}

void uninitialized(const OperatorCall& call) {
  call.set(Value());
}

void raise(const OperatorCall& call) {
  throw Raised(call.count() > 1 && !call[1].is_none() ? std::string(call[1].text()) : "",
               std::string(call[0].text()));
}

using Run = void (*)(const OperatorCall&);

std::vector<Operator> make_table() {
  constexpr auto any = Operator::any;
  std::vector<Operator> table{
      {"prim::ListConstruct", 0, any, 1, construct_list},
      {"prim::ListUnpack", 1, 1, any, unpack},
      {"aten::len.t", 1, 1, 1, list_length},
      {"aten::len.any", 1, 1, 1, list_length},
      {"aten::__getitem__.t", 2, 2, 1, get_item},
      {"aten::select.t", 2, 2, 1, get_item},
      {"aten::_set_item.t", 3, 3, 1, set_element},
      {"aten::append.t", 2, 2, 1, append_element},
      {"aten::extend.t", 2, 2, 0, extend},
      {"aten::add_.t", 2, 2, 1, extend},
      {"aten::copy.t", 1, 1, 1, copy_list},
      {"aten::list.t", 1, 1, 1, copy_list},
      {"aten::add.t", 2, 2, 1, concatenate},
      {"aten::mul.left_t", 2, 2, 1, repeat<0>},
      {"aten::mul.right_", 2, 2, 1, repeat<1>},
      {"aten::slice.t", 4, 4, 1, slice},
      {"aten::reverse.t", 1, 1, 0, reverse},
      {"aten::clear.t", 1, 1, 0, clear},
      {"aten::insert.t", 3, 3, 0, insert},
      {"aten::pop.t", 2, 2, 1, pop},
      {"aten::Delete.t", 2, 2, 0, delete_element},
      {"prim::rangelist", 1, 1, 1, range_list},
      {"prim::TupleConstruct", 0, any, 1, construct_tuple},
      {"prim::TupleUnpack", 1, 1, any, unpack},
      {"prim::TupleIndex", 2, 2, 1, get_item},
      {"prim::TupleSlice", 3, 3, 1, slice_tuple},
      {"prim::DictConstruct", 0, any, 1, construct_dict},
      {"aten::__is__", 2, 2, 1, compare_identity<true>},
      {"aten::__isnot__", 2, 2, 1, compare_identity<false>},
      {"prim::unchecked_cast", 1, 1, 1, pass},
      {"prim::unchecked_unwrap_optional", 1, 1, 1, pass},
      {"aten::_unwrap_optional", 1, 1, 1, unwrap},
      {"prim::Uninitialized", 0, 0, 1, uninitialized},
      {"prim::RaiseException", 1, 2, 0, raise},
  };
  const auto add = [&](const std::string& name, Run run, size_t inputs, size_t outputs = 1) {
    table.push_back({name, inputs, inputs, outputs, run});
  };
  for (const std::string kind : {"int", "float", "bool", "str"}) {
    add("aten::__contains__." + kind + "_list", contains, 2);
    add("aten::index.list_" + kind, index_of, 2);
    add("aten::count." + kind, count_of, 2);
    add("aten::eq." + kind + "_list", compare_equal<true>, 2);
    add("aten::ne." + kind + "_list", compare_equal<false>, 2);
    add("aten::sort." + kind, sort, 2, 0);
    add("aten::sorted." + kind, sorted, 1);
    add("prim::min.self_" + kind, extreme<false>, 1);
    add("prim::max.self_" + kind, extreme<true>, 1);
    add("aten::any." + kind, any_of, 1);
    add("aten::all." + kind, all_of, 1);
  }
  for (const std::string kind : {"int", "bool", "float"})
    add("aten::sum." + kind, sum, 1);
  for (const std::string key : {"str", "int", "bool", "float"}) {
    add("aten::len.Dict_" + key, dict_length, 1);
    add("aten::keys." + key, every_second<0>, 1);
    add("aten::values." + key, every_second<1>, 1);
    add("aten::items." + key, dict_items, 1);
    add("aten::__getitem__.Dict_" + key, look_up, 2);
    add("aten::get." + key, get, 2);
    add("aten::get.default_" + key, get, 3);
    add("aten::setdefault." + key, set_default, 3);
    add("aten::_set_item." + key, set_entry, 3, 0);
    add("aten::pop.Dict_" + key, pop_entry, 2);
    add("aten::pop.Dict_default_" + key, pop_entry, 3);
    add("aten::Delete.Dict_" + key, delete_entry, 2, 0);
    add("aten::clear." + key, clear_dict, 1, 0);
    add("aten::update." + key, update, 2, 0);
    add("aten::copy.Dict_" + key, copy_dict, 1);
    add("aten::dict.Dict_" + key, copy_dict, 1);
    add("aten::__contains__." + key, contains_key, 2);
  }
  return table;
}

} // namespace

std::span<const Operator> container_operators() {
  static const auto table = make_table();
  return table;
}

} // namespace torchmdla::native
