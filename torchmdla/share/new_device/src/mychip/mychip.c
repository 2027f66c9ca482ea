// Reference implementation of the device's instructions in portable C.

#include "mychip.h"

#include <math.h>
#include <stddef.h>

typedef struct mychip_operand operand;
typedef struct mychip_instruction instruction;

// --- elementwise functions -----------------------------------------------------------------------

// Each function has up to three operands x, y and z. A condition is 1 or 0. NaN comes through, as
// in PyTorch.
#define MAPS(F)                                                                                    \
  F(copy, x)                                                                                       \
  F(neg, -x)                                                                                       \
  F(abs, fabsf(x))                                                                                 \
  F(sign, (float)((x > 0) - (x < 0)))                                                              \
  F(exp, expf(x))                                                                                  \
  F(exp2, exp2f(x))                                                                                \
  F(expm1, expm1f(x))                                                                              \
  F(log, logf(x))                                                                                  \
  F(log2, log2f(x))                                                                                \
  F(log10, log10f(x))                                                                              \
  F(log1p, log1pf(x))                                                                              \
  F(sqrt, sqrtf(x))                                                                                \
  F(rsqrt, 1 / sqrtf(x))                                                                           \
  F(reciprocal, 1 / x)                                                                             \
  F(sin, sinf(x))                                                                                  \
  F(cos, cosf(x))                                                                                  \
  F(tan, tanf(x))                                                                                  \
  F(atan, atanf(x))                                                                                \
  F(sinh, sinhf(x))                                                                                \
  F(cosh, coshf(x))                                                                                \
  F(tanh, tanhf(x))                                                                                \
  F(erf, erff(x))                                                                                  \
  F(floor, floorf(x))                                                                              \
  F(ceil, ceilf(x))                                                                                \
  F(round, rintf(x))                                                                               \
  F(trunc, truncf(x))                                                                              \
  F(relu, x < 0 ? 0 : x)                                                                           \
  F(sigmoid, 1 / (1 + expf(-x)))                                                                   \
  F(silu, x / (1 + expf(-x)))                                                                      \
  F(gelu, x * (0.5f + 0.5f * erff(x * 0.70710678f)))                                               \
  F(hardsigmoid, clamp(x + 3, 0, 6) / 6)                                                           \
  F(hardswish, x* clamp(x + 3, 0, 6) / 6)                                                          \
  F(isnan, isnan(x) != 0)                                                                          \
  F(not, x == 0)                                                                                   \
  F(add, x + y)                                                                                    \
  F(sub, x - y)                                                                                    \
  F(mul, x* y)                                                                                     \
  F(div, x / y)                                                                                    \
  F(pow, powf(x, y))                                                                               \
  F(atan2, atan2f(x, y))                                                                           \
  F(maximum, maximum(x, y))                                                                        \
  F(minimum, minimum(x, y))                                                                        \
  F(eq, x == y)                                                                                    \
  F(ne, x != y)                                                                                    \
  F(lt, x < y)                                                                                     \
  F(le, x <= y)                                                                                    \
  F(gt, x > y)                                                                                     \
  F(ge, x >= y)                                                                                    \
  F(and, x != 0 && y != 0)                                                                         \
  F(or, x != 0 || y != 0)                                                                          \
  F(clamp, clamp(x, y, z))                                                                         \
  F(where, x != 0 ? y : z)

static float maximum(float x, float y) {
  return x > y || isnan(x) ? x : y;
}
static float minimum(float x, float y) {
  return x < y || isnan(x) ? x : y;
}
static float clamp(float x, float low, float high) {
  return isnan(x) ? x : fminf(fmaxf(x, low), high);
}

// A row of a map: n elements of the result and of three operands, which are `steps` apart.
typedef void (*row_function)(int64_t n, float* result, const float* const* operands,
                             const int64_t* steps);

#define DEFINE(name, expression)                                                                   \
  static void map_##name(int64_t n, float* result, const float* const* operands,                   \
                         const int64_t* steps) {                                                   \
    const float *a = operands[0], *b = operands[1], *c = operands[2];                              \
    for (int64_t i = 0; i < n; ++i) {                                                              \
      const float x = a[i * steps[1]], y = b[i * steps[2]], z = c[i * steps[3]];                   \
      (void)y, (void)z;                                                                            \
      result[i * steps[0]] = expression;                                                           \
    }                                                                                              \
  }
MAPS(DEFINE)

#define ROW(name, expression) map_##name,
static const row_function maps[] = {MAPS(ROW)};

#define NAME(name, expression) #name,
static const char* const map_names[] = {MAPS(NAME) NULL};

// --- reductions ----------------------------------------------------------------------------------

// Each reduction has a first value, and a step from the value so far and the next element x.
#define REDUCTIONS(F)                                                                              \
  F(sum, 0, value + x)                                                                             \
  F(prod, 1, value* x)                                                                             \
  F(max, -INFINITY, value > x || isnan(value) ? value : x)                                         \
  F(min, INFINITY, value < x || isnan(value) ? value : x)

typedef double (*reduction_step)(int64_t n, double value, const float* data, int64_t step);

#define STEP(name, first, expression)                                                              \
  static double reduce_##name(int64_t n, double value, const float* data, int64_t step) {          \
    for (int64_t i = 0; i < n; ++i) {                                                              \
      const float x = data[i * step];                                                              \
      value = expression;                                                                          \
    }                                                                                              \
    return value;                                                                                  \
  }
REDUCTIONS(STEP)

#define REDUCTION(name, first, expression) {reduce_##name, first, #name},
static const struct {
  reduction_step step;
  double first;
  const char* name;
} reductions[] = {REDUCTIONS(REDUCTION){NULL, 0, NULL}};

// --- loops ---------------------------------------------------------------------------------------

// Return the address of the operand's first element.
static float* address(const operand* tensor, void* const* buffers) {
  if (tensor->place == MYCHIP_NUMBER) return NULL;
  void* const base =
      tensor->place >= 0 ? buffers[tensor->place] : ((void* const*)buffers[1])[-1 - tensor->place];
  return (float*)base + tensor->offset;
}

// Advance an index over dimensions begin … end - 1, the last one fastest, and the pointers with it.
// Return whether there is a next element.
static int advance(int64_t* index, const int64_t* sizes, int begin, int end, int count,
                   float** pointers, const operand* const* tensors) {
  for (int k = end - 1; k >= begin; --k) {
    const int64_t back = ++index[k] < sizes[k] ? 0 : sizes[k];
    for (int t = 0; t < count; ++t)
      pointers[t] += tensors[t]->strides[k] * (1 - back);
    if (!back) return 1;
    index[k] = 0;
  }
  return 0;
}

static int is_empty(const int64_t* sizes, int begin, int end) {
  for (int k = begin; k < end; ++k)
    if (sizes[k] == 0) return 1;
  return 0;
}

static void run_map(const instruction* map, void* const* buffers) {
  if (is_empty(map->sizes, 0, MYCHIP_RANK)) return;
  const int last = MYCHIP_RANK - 1;
  const operand* const tensors[] = {&map->result, &map->operands[0], &map->operands[1],
                                    &map->operands[2]};
  float *pointers[4], numbers[4];
  int64_t steps[4], index[MYCHIP_RANK] = {0};
  for (int t = 0; t < 4; ++t) {
    numbers[t] = (float)tensors[t]->number;
    pointers[t] = tensors[t]->place == MYCHIP_NUMBER ? &numbers[t] : address(tensors[t], buffers);
    steps[t] = tensors[t]->strides[last];
  }
  do {
    const float* const operands[] = {pointers[1], pointers[2], pointers[3]};
    maps[map->function](map->sizes[last], pointers[0], operands, steps);
  } while (advance(index, map->sizes, 0, last, 4, pointers, tensors));
}

static void run_reduction(const instruction* reduction, void* const* buffers) {
  const int last = MYCHIP_RANK - 1, outer = MYCHIP_RANK - (int)reduction->reduced;
  if (is_empty(reduction->sizes, 0, outer)) return;
  const operand* const tensors[] = {&reduction->result, &reduction->operands[0]};
  float* pointers[] = {address(tensors[0], buffers), address(tensors[1], buffers)};
  const reduction_step step = reductions[reduction->function].step;
  int64_t index[MYCHIP_RANK] = {0};
  do {
    double value = reductions[reduction->function].first;
    float* data = pointers[1];
    if (!is_empty(reduction->sizes, outer, MYCHIP_RANK)) do {
        value = step(reduction->sizes[last], value, data, tensors[1]->strides[last]);
      } while (advance(index, reduction->sizes, outer, last, 1, &data, &tensors[1]));
    *pointers[0] = (float)value;
  } while (advance(index, reduction->sizes, 0, outer, 2, pointers, tensors));
}

// --- products: matrices and convolutions ---------------------------------------------------------

// Columns that are summed at a time, in registers.
enum { COLUMNS = 64, COLUMN = 4 };

static void add_products(float* sums, int64_t columns, float x, const float* y, int64_t step) {
  if (step == 1)
    for (int64_t j = 0; j < columns; ++j)
      sums[j] += x * y[j];
  else
    for (int64_t j = 0; j < columns; ++j)
      sums[j] += x * y[j * step];
}

static void sum_products(const instruction* product, const operand* const* tensors, float* sums,
                         int64_t columns, float* x, float* y) {
  const int last = MYCHIP_RANK - 1;
  float* pointers[] = {x, y};
  int64_t index[MYCHIP_RANK] = {0};
  if (is_empty(product->sizes, COLUMN + 1, MYCHIP_RANK)) return;
  do {
    for (int64_t k = 0; k < product->sizes[last]; ++k)
      add_products(sums, columns, pointers[0][k * tensors[0]->strides[last]],
                   pointers[1] + k * tensors[1]->strides[last], tensors[1]->strides[COLUMN]);
  } while (advance(index, product->sizes, COLUMN + 1, last, 2, pointers, tensors));
}

static void run_product(const instruction* product, void* const* buffers) {
  if (is_empty(product->sizes, 0, COLUMN + 1)) return;
  const operand* const tensors[] = {&product->result, &product->operands[0], &product->operands[1]};
  float* pointers[3];
  for (int t = 0; t < 3; ++t)
    pointers[t] = address(tensors[t], buffers);
  const int64_t* steps[] = {&tensors[0]->strides[COLUMN], &tensors[2]->strides[COLUMN]};
  int64_t index[MYCHIP_RANK] = {0};
  do {
    for (int64_t begin = 0; begin < product->sizes[COLUMN]; begin += COLUMNS) {
      const int64_t left = product->sizes[COLUMN] - begin, n = left < COLUMNS ? left : COLUMNS;
      float sums[COLUMNS] = {0};
      sum_products(product, tensors + 1, sums, n, pointers[1], pointers[2] + begin * *steps[1]);
      for (int64_t j = 0; j < n; ++j)
        pointers[0][(begin + j) * *steps[0]] = sums[j];
    }
  } while (advance(index, product->sizes, 0, COLUMN, 3, pointers, tensors));
}

// --- programs ------------------------------------------------------------------------------------

int32_t mychip_run(const instruction* code, int64_t bytes, void* const* buffers) {
  static void (*const runners[])(const instruction*, void* const*) = {run_map, run_reduction,
                                                                      run_product};
  const int64_t count = bytes / (int64_t)sizeof(instruction);
  for (int64_t i = 0; i < count; ++i)
    runners[code[i].kind](&code[i], buffers);
  return 0;
}

int32_t mychip_entry(void* const* buffers) {
  const int64_t* program = *(void* const*)buffers[1];
  return mychip_run((const instruction*)(program + 1), *program, buffers);
}

const char* mychip_map_name(int32_t function) {
  return map_names[function];
}

const char* mychip_reduction_name(int32_t function) {
  return reductions[function].name;
}

int64_t mychip_instruction_bytes(void) {
  return sizeof(instruction);
}
