// Operators on numbers: 64-bit integers that wrap around, and C's functions of doubles. Results are
// those of torchmdla/script/numbers.py.

#include "operators.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace torchmdla::native {

namespace {

constexpr int64_t least = std::numeric_limits<int64_t>::min();
constexpr double beyond = 0x1p63;

uint64_t bits(int64_t number) {
  return static_cast<uint64_t>(number);
}

int64_t to_int(double number) {
  return number >= -beyond && number < beyond ? static_cast<int64_t>(number) : least;
}

// A bool counts as an integer in operators on any numbers.
Value as_number(const Value& value) {
  return value.kind() == Kind::boolean ? Value(int64_t{value.boolean()}) : value;
}

// Integers

int64_t add(int64_t a, int64_t b) {
  return static_cast<int64_t>(bits(a) + bits(b));
}
int64_t subtract(int64_t a, int64_t b) {
  return static_cast<int64_t>(bits(a) - bits(b));
}
int64_t multiply(int64_t a, int64_t b) {
  return static_cast<int64_t>(bits(a) * bits(b));
}

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) fail("division by 0");
  if (b == -1) return subtract(0, a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t modulo(int64_t a, int64_t b) {
  if (b == 0) fail("division by 0");
  if (b == -1) return 0;
  const auto remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

int64_t divide_to_zero(int64_t a, int64_t b) {
  if (b == 0) fail("division by 0");
  return b == -1 ? subtract(0, a) : a / b;
}

int64_t minimum(int64_t a, int64_t b) {
  return a < b ? a : b;
}
int64_t maximum(int64_t a, int64_t b) {
  return a > b ? a : b;
}
int64_t conjunction(int64_t a, int64_t b) {
  return a & b;
}
int64_t disjunction(int64_t a, int64_t b) {
  return a | b;
}
int64_t difference(int64_t a, int64_t b) {
  return a ^ b;
}
int64_t shift_left(int64_t a, int64_t b) {
  return static_cast<int64_t>(bits(a) << (b & 63));
}
int64_t shift_right(int64_t a, int64_t b) {
  return a >> (b & 63);
}
int64_t common_divisor(int64_t a, int64_t b) {
  return a == least || b == least ? std::gcd(a / 2, b / 2) : std::gcd(a, b);
}

// Doubles

double add(double a, double b) {
  return a + b;
}
double subtract(double a, double b) {
  return a - b;
}
double multiply(double a, double b) {
  return a * b;
}
double divide(double a, double b) {
  return a / b;
}
double floor_divide(double a, double b) {
  return std::floor(a / b);
}
double modulo(double a, double b) {
  return std::fmod(b + std::fmod(a, b), b);
}
double minimum(double a, double b) {
  return a < b ? a : b;
}
double maximum(double a, double b) {
  return a > b ? a : b;
}
double power(double a, double b) {
  if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
  return std::pow(a, b);
}
double logarithm(double a, double b) {
  return std::log(a) / std::log(b);
}
double to_degrees(double a) {
  return a * (180.0 / M_PI);
}
double to_radians(double a) {
  return a * (M_PI / 180.0);
}
double round_to_even(double a) {
  return std::nearbyint(a);
}

bool less(double a, double b) {
  return a < b;
}
bool greater(double a, double b) {
  return a > b;
}
bool less_equal(double a, double b) {
  return a <= b;
}
bool greater_equal(double a, double b) {
  return a >= b;
}
bool less(int64_t a, int64_t b) {
  return a < b;
}
bool greater(int64_t a, int64_t b) {
  return a > b;
}
bool less_equal(int64_t a, int64_t b) {
  return a <= b;
}
bool greater_equal(int64_t a, int64_t b) {
  return a >= b;
}

// Calls

using OfIntegers = int64_t(int64_t, int64_t);
using OfReals = double(double, double);

template <auto function> void on_integers(const OperatorCall& call) {
  call.set(function(call[0].integer(), call[1].integer()));
}

template <auto function> void on_reals(const OperatorCall& call) {
  call.set(function(as_number(call[0]).number(), as_number(call[1]).number()));
}

// Integers if both operands are, else doubles.
template <auto integers, auto reals> void on_numbers(const OperatorCall& call) {
  const auto a = as_number(call[0]), b = as_number(call[1]);
  if (a.kind() == Kind::integer && b.kind() == Kind::integer)
    call.set(integers(a.integer(), b.integer()));
  else
    call.set(reals(a.number(), b.number()));
}

template <double function(double)> void on_real(const OperatorCall& call) {
  call.set(function(as_number(call[0]).number()));
}

template <bool expected> void compare_equal(const OperatorCall& call) {
  call.set(equal(as_number(call[0]), as_number(call[1])) == expected);
}

template <double function(double)> void to_integer(const OperatorCall& call) {
  const auto number = as_number(call[0]);
  if (number.kind() == Kind::integer) {
    call.set(number);
    return;
  }
  const auto real = number.real();
  if (!(real >= -beyond && real <= beyond))
    fail("Cannot convert float " + std::to_string(real) + " to integer");
  call.set(to_int(function(real)));
}

void negate_number(const OperatorCall& call) {
  const auto number = as_number(call[0]);
  call.set(number.kind() == Kind::integer ? Value(subtract(int64_t{0}, number.integer()))
                                          : Value(-number.real()));
}

void absolute(const OperatorCall& call) {
  const auto number = as_number(call[0]);
  if (number.kind() == Kind::real)
    call.set(std::fabs(number.real()));
  else
    call.set(number.integer() < 0 ? subtract(int64_t{0}, number.integer()) : number.integer());
}

void integer_power(const OperatorCall& call) {
  call.set(to_int(power(call[0].number(), call[1].number())));
}

void to_bool(const OperatorCall& call) {
  call.set(as_number(call[0]).number() != 0);
}

void integer_of_real(const OperatorCall& call) {
  const auto number = as_number(call[0]);
  call.set(number.kind() == Kind::integer ? number.integer() : to_int(number.real()));
}

// libtorch converts an int to a float of 32 bits here.
void real_of_integer(const OperatorCall& call) {
  call.set(double{static_cast<float>(call[0].integer())});
}

void real_of_number(const OperatorCall& call) {
  call.set(as_number(call[0]).number());
}

template <bool function(double)> void classify(const OperatorCall& call) {
  call.set(function(call[0].number()));
}

bool is_nan(double number) {
  return std::isnan(number);
}
bool is_infinite(double number) {
  return std::isinf(number);
}
bool is_finite(double number) {
  return std::isfinite(number);
}

void logical_not(const OperatorCall& call) {
  call.set(!call[0].boolean());
}

template <bool function(bool, bool)> void on_bools(const OperatorCall& call) {
  call.set(function(call[0].boolean(), call[1].boolean()));
}

bool both(bool a, bool b) {
  return a && b;
}
bool either(bool a, bool b) {
  return a || b;
}
bool one_of(bool a, bool b) {
  return a != b;
}

void divide_with_remainder(const OperatorCall& call) {
  const auto a = call[0].integer(), b = call[1].integer();
  if (b == 0) fail("ZeroDivisionError: integer division or modulo by zero");
  call.set(floor_divide(a, b), 0);
  call.set(modulo(a, b), 1);
}

void range_length(const OperatorCall& call) {
  const auto low = call[0].integer(), high = call[1].integer(), step = call[2].integer();
  if (step == 0) fail("range() arg 3 must not be zero");
  if (step > 0 && low < high)
    call.set(add(1, divide_to_zero(subtract(subtract(high, 1), low), step)));
  else if (step < 0 && low > high)
    call.set(add(1, divide_to_zero(subtract(subtract(low, 1), high), subtract(0, step))));
  else
    call.set(int64_t{0});
}

void derive_index(const OperatorCall& call) {
  call.set(add(call[1].integer(), multiply(call[0].integer(), call[2].integer())));
}

void choose(const OperatorCall& call) {
  call.set(call[call[0].boolean() ? 1 : 2]);
}

using Run = void (*)(const OperatorCall&);

class Table {
public:
  void add(const std::string& name, Run run, size_t inputs, size_t outputs = 1) {
    rows_.push_back({name, inputs, inputs, outputs, run});
  }

  // The overloads of a binary operator by the kinds of its operands.
  void add_binary(const std::string& name, Run run) {
    for (const auto* const kinds :
         {".int", ".float", ".int_float", ".float_int", "", ".Scalar_Scalar"})
      add(name + kinds, run, 2);
  }

  // An int, a float, or any number. libtorch rounds the results of the latter to 32 bits, so it is
  // left out.
  void add_unary(const std::string& name, Run run) {
    for (const auto* const kinds : {".int", ".float"})
      add(name + kinds, run, 1);
  }

  std::vector<Operator> rows() && { return std::move(rows_); }

private:
  std::vector<Operator> rows_;
};

constexpr OfIntegers *add_i = add, *sub_i = subtract, *mul_i = multiply, *floor_i = floor_divide,
                     *mod_i = modulo, *min_i = minimum, *max_i = maximum;
constexpr OfReals *add_r = add, *sub_r = subtract, *mul_r = multiply, *floor_r = floor_divide,
                  *mod_r = modulo, *min_r = minimum, *max_r = maximum;
using CompareIntegers = bool(int64_t, int64_t);
using CompareReals = bool(double, double);
constexpr CompareIntegers *lt_i = less, *gt_i = greater, *le_i = less_equal, *ge_i = greater_equal;
constexpr CompareReals *lt_r = less, *gt_r = greater, *le_r = less_equal, *ge_r = greater_equal;

void add_arithmetic(Table& table) {
  table.add_binary("aten::add", on_numbers<add_i, add_r>);
  table.add_binary("aten::sub", on_numbers<sub_i, sub_r>);
  table.add_binary("aten::mul", on_numbers<mul_i, mul_r>);
  table.add_binary("aten::div", on_reals<divide>);
  table.add_binary("aten::floordiv", on_numbers<floor_i, floor_r>);
  table.add_binary("aten::remainder", on_numbers<mod_i, mod_r>);
  table.add_binary("aten::pow", on_reals<power>);
  table.add_binary("prim::min", on_numbers<min_i, min_r>);
  table.add_binary("prim::max", on_numbers<max_i, max_r>);
  table.add_binary("aten::log", on_reals<logarithm>);
  table.add_binary("aten::fmod", on_reals<static_cast<OfReals*>(std::fmod)>);
  table.add_binary("aten::mathremainder", on_reals<static_cast<OfReals*>(std::remainder)>);
  table.add_binary("aten::atan2", on_reals<static_cast<OfReals*>(std::atan2)>);
  table.add_binary("aten::copysign", on_reals<static_cast<OfReals*>(std::copysign)>);
  table.add("aten::pow.int_to_int", integer_power, 2);
  table.add("aten::__round_to_zero_floordiv.int", on_integers<divide_to_zero>, 2);
  table.add("aten::gcd.int", on_integers<common_divisor>, 2);
  table.add("aten::divmod.int", divide_with_remainder, 2, 2);
  table.add_unary("aten::neg", negate_number);
  table.add_unary("prim::abs", absolute);
}

void add_comparisons(Table& table) {
  table.add_binary("aten::lt", on_numbers<lt_i, lt_r>);
  table.add_binary("aten::gt", on_numbers<gt_i, gt_r>);
  table.add_binary("aten::le", on_numbers<le_i, le_r>);
  table.add_binary("aten::ge", on_numbers<ge_i, ge_r>);
  table.add_binary("aten::eq", compare_equal<true>);
  table.add_binary("aten::ne", compare_equal<false>);
  table.add("aten::eq.bool", compare_equal<true>, 2);
  table.add("aten::ne.bool", compare_equal<false>, 2);
  table.add("aten::eq.device", compare_equal<true>, 2);
  table.add("aten::ne.device", compare_equal<false>, 2);
}

void add_functions(Table& table) {
  using OfReal = double(double);
  const auto add_function = [&]<OfReal function>() {
    return [&table](const char* name) { table.add_unary(name, on_real<function>); };
  };
#define ADD(name)                                                                                  \
  add_function.template operator()<static_cast<OfReal*>(std::name)>()("aten::" #name)
  ADD(acos), ADD(acosh), ADD(asin), ADD(asinh), ADD(atan), ADD(atanh), ADD(cos), ADD(cosh),
      ADD(exp), ADD(sin), ADD(sinh), ADD(sqrt), ADD(tan), ADD(tanh), ADD(erf), ADD(erfc),
      ADD(expm1), ADD(log1p), ADD(log10), ADD(log), ADD(fabs), ADD(lgamma);
#undef ADD
  table.add_unary("aten::gamma", on_real<static_cast<OfReal*>(std::tgamma)>);
  table.add_unary("aten::degrees", on_real<to_degrees>);
  table.add_unary("aten::radians", on_real<to_radians>);
  table.add_unary("aten::round", on_real<round_to_even>);
  table.add_unary("aten::floor", to_integer<static_cast<OfReal*>(std::floor)>);
  table.add_unary("aten::ceil", to_integer<static_cast<OfReal*>(std::ceil)>);
  table.add("aten::isnan.float", classify<is_nan>, 1);
  table.add("aten::isinf.float", classify<is_infinite>, 1);
  table.add("aten::isfinite.float", classify<is_finite>, 1);
}

void add_conversions(Table& table) {
  table.add("aten::Bool.int", to_bool, 1);
  table.add("aten::Bool.float", to_bool, 1);
  table.add("aten::Int.bool", integer_of_real, 1);
  table.add("aten::Int.float", integer_of_real, 1);
  table.add("aten::Int.Scalar", integer_of_real, 1);
  table.add("aten::Float.int", real_of_integer, 1);
  table.add("aten::Float.bool", real_of_number, 1);
  table.add("aten::Float.Scalar", real_of_number, 1);
}

void add_bitwise(Table& table) {
  table.add("aten::__and__.int", on_integers<conjunction>, 2);
  table.add("aten::__or__.int", on_integers<disjunction>, 2);
  table.add("aten::__xor__.int", on_integers<difference>, 2);
  table.add("aten::__lshift__.int", on_integers<shift_left>, 2);
  table.add("aten::__rshift__.int", on_integers<shift_right>, 2);
  table.add("aten::__and__.bool", on_bools<both>, 2);
  table.add("aten::__or__.bool", on_bools<either>, 2);
  table.add("aten::__xor__.bool", on_bools<one_of>, 2);
  table.add("aten::__not__", logical_not, 1);
}

std::vector<Operator> make_table() {
  Table table;
  add_arithmetic(table);
  add_comparisons(table);
  add_functions(table);
  add_conversions(table);
  add_bitwise(table);
  table.add("aten::__range_length", range_length, 3);
  table.add("aten::__derive_index", derive_index, 3);
  table.add("prim::IfThenElse", choose, 3);
  return std::move(table).rows();
}

} // namespace

std::span<const Operator> number_operators() {
  static const auto table = make_table();
  return table;
}

} // namespace torchmdla::native
