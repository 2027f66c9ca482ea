// Tests of the sizes, fingerprints of parameters, packed buffers and inputs of calls.

#include "codeimage/polynomial.h"
#include "runtime/content_verifier.h"
#include "runtime/device_calls.h"
#include "runtime/executable.h"
#include "runtime/fingerprint.h"
#include "runtime/packed.h"
#include "testing.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

namespace torchmdla {

namespace {

using Bytes = std::vector<unsigned char>;

Bytes bytes(size_t count) {
  Bytes result(count);
  for (size_t i = 0; i < count; ++i)
    result[i] = static_cast<unsigned char>(i * 37 + i / 251);
  return result;
}

// Return the steps at which a fingerprint detects that a byte has changed.
std::vector<size_t> steps_that_find(const Fingerprint& fingerprint, Bytes& data, size_t changed) {
  data[changed] ^= 0x10;
  std::vector<size_t> found;
  for (size_t step = 0; step < fingerprint.steps(); ++step)
    if (!fingerprint.matches(data.data(), step, 1)) found.push_back(step);
  data[changed] ^= 0x10;
  return found;
}

// Return the step that checks each line.
std::vector<size_t> steps_of_lines(size_t lines) {
  auto data = bytes(lines * Fingerprint::line);
  const Fingerprint fingerprint(data.data(), data.size());
  std::vector<size_t> steps;
  for (size_t line = 0; line < lines; ++line)
    steps.push_back(steps_that_find(fingerprint, data, line * Fingerprint::line).at(0));
  return steps;
}

// Return the number of calls until a verifier detects a change in the last line of its only
// content.
size_t calls_until_seen(ContentVerifier& verifier, Bytes data) {
  data.back() ^= 0x10;
  size_t calls = 1;
  while (verifier.verify_next(0, data.data()))
    TORCH_CHECK(++calls < data.size(), "a watch never sees what has changed");
  return calls;
}

// Counters of a pack that copies its only parameter, of 64 bytes.
int packed = 0, released = 0;

int32_t copy(void* const* buffers) {
  ++packed;
  std::memcpy(buffers[1], buffers[2], 64);
  return 0;
}

void count_release(void*) {
  ++released;
}

const Pack copying{copy, "copy", {0}, 64};

at::Tensor parameter() {
  return at::rand({16});
}

std::shared_ptr<const PackedBuffer> pack(const at::Tensor& parameter, const Pack& pack = copying) {
  return packed_buffer(pack, {ParameterState::with_content(parameter)}, /*workspace_bytes=*/0);
}

std::shared_ptr<const PackedSet> set_of(const at::Tensor& parameter) {
  auto set = std::make_shared<PackedSet>(std::vector{ParameterState::with_content(parameter)});
  set->buffers.push_back(pack(parameter));
  return set;
}

// Whether the two inputs of a call live when each of three kernels begins.
struct Observed {
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> inputs;
  std::vector<std::vector<bool>> live;
} observed;

int32_t observe(void* const*) {
  for (int64_t kernel = 0; kernel < 3; ++kernel) {
    mdla_begin_kernel(kernel);
    observed.live.emplace_back();
    for (const auto& input : observed.inputs)
      observed.live.back().push_back(input.use_count() != 0);
  }
  return 0;
}

// Call an executable that reads the first input in its first kernel, and the second to the end.
// Return the inputs that lived in each kernel.
std::vector<std::vector<bool>> live_inputs(bool gives_up_inputs) {
  using Source = InputBinding::Source;
  const CompiledCode code{observe, {}, 0, nullptr, std::make_shared<CodeOwner>()};
  const Executable executable(code, {{Source::dense, 0}, {Source::dense, 1}}, {c10::IValue(7)},
                              /*in_place=*/{}, /*releases=*/{{0, 1}});
  torch::jit::Stack stack{at::ones(4), at::ones(4)};
  observed = {};
  for (const auto& value : stack)
    observed.inputs.emplace_back(value.toTensor().getIntrusivePtr());
  EXPECT(executable.run(stack, 2, {}, gives_up_inputs));
  EXPECT_EQUAL(stack.size(), size_t{1});
  return observed.live;
}

bool chooses_all(const ParameterState&) {
  return true;
}

} // namespace

TEST(polynomial_is_a_sum_of_products) {
  const Polynomial polynomial{{{{2, 1}, 2}, {{0, 1}, -1}, {{0, 0}, 7}}};
  const std::array<int64_t, 2> symbols{3, 5};
  EXPECT_EQUAL(polynomial.at(symbols), 2 * 3 * 3 * 5 - 5 + 7);
  EXPECT_EQUAL(Polynomial{}.at(symbols), 0);
}

TEST(fingerprint_looks_at_each_line_in_one_step) {
  for (size_t lines = 1; lines < 200; ++lines) {
    auto steps = steps_of_lines(lines);
    std::sort(steps.begin(), steps.end());
    std::vector<size_t> all(lines);
    std::iota(all.begin(), all.end(), size_t{0});
    EXPECT(steps == all);
  }
}

TEST(fingerprint_looks_at_the_bytes_behind_the_last_line) {
  for (size_t rest = 1; rest < Fingerprint::line; ++rest) {
    auto data = bytes(3 * Fingerprint::line + rest);
    const Fingerprint fingerprint(data.data(), data.size());
    EXPECT_EQUAL(fingerprint.steps(), size_t{4});
    EXPECT_EQUAL(steps_that_find(fingerprint, data, data.size() - 1).size(), size_t{1});
  }
}

TEST(content_hash_is_of_every_byte_and_its_place) {
  for (const size_t size : {size_t{1}, Fingerprint::line, 5 * Fingerprint::line + 3}) {
    auto data = bytes(size);
    const auto before = content_hash(data.data(), size);
    EXPECT_EQUAL(Fingerprint(data.data(), size).content_hash(), before);
    for (size_t place = 0; place < size; ++place) {
      data[place] ^= 0x20;
      EXPECT(content_hash(data.data(), size) != before);
      data[place] ^= 0x20;
    }
  }
  auto data = bytes(4 * Fingerprint::line);
  const auto before = content_hash(data.data(), data.size());
  std::swap_ranges(data.begin(), data.begin() + Fingerprint::line, data.end() - Fingerprint::line);
  EXPECT(content_hash(data.data(), data.size()) != before);
  EXPECT(content_hash(data.data(), data.size() - 1) != content_hash(data.data(), data.size()));
}

TEST(fingerprint_goes_on_at_the_first_step_behind_the_last) {
  auto data = bytes(100 * Fingerprint::line);
  const Fingerprint fingerprint(data.data(), data.size());
  const auto found = steps_that_find(fingerprint, data, 0).at(0);
  data[0] ^= 0x10;
  const auto before = (found + 99) % 100, after = (found + 1) % 100;
  EXPECT(!fingerprint.matches(data.data(), before, 2));
  EXPECT(fingerprint.matches(data.data(), after, 99));
  EXPECT(!fingerprint.matches(data.data(), after, 100));
}

// Any r adjacent lines of N are met within 5 N / r steps, as Fingerprint documents.
TEST(fingerprint_meets_rows_of_lines_soon) {
  for (const size_t lines : {100, 128, 144, 377, 640}) {
    const auto steps = steps_of_lines(lines);
    for (const size_t row : {8, 10, 16, 50})
      for (size_t first = 0; first + row <= lines; ++first) {
        const auto soonest = *std::min_element(steps.begin() + static_cast<ptrdiff_t>(first),
                                               steps.begin() + static_cast<ptrdiff_t>(first + row));
        EXPECT(soonest < 5 * lines / row);
      }
  }
}

TEST(fingerprint_of_nothing_holds) {
  const Fingerprint nothing(nullptr, 0);
  EXPECT_EQUAL(nothing.steps(), size_t{0});
  EXPECT(nothing.matches(nullptr, 0, 0));
  EXPECT(nothing == Fingerprint(nullptr, 0));
}

TEST(fingerprints_are_equal_where_content_and_length_are) {
  auto data = bytes(1000);
  const Fingerprint before(data.data(), 1000);
  EXPECT(before == Fingerprint(bytes(1000).data(), 1000));
  data[999] ^= 1;
  EXPECT(!(before == Fingerprint(data.data(), 1000)));
  EXPECT(!(before == Fingerprint(data.data(), 999)));
}

TEST(a_call_that_gives_up_its_inputs_drops_each_after_its_last_kernel) {
  using Live = std::vector<std::vector<bool>>;
  EXPECT(live_inputs(true) == (Live{{true, true}, {false, true}, {false, true}}));
  EXPECT(live_inputs(false) == (Live{{true, true}, {true, true}, {true, true}}));
}

TEST(watch_looks_at_small_content_whole) {
  const auto data = bytes(4 * Fingerprint::line);
  ContentVerifier verifier({Fingerprint(data.data(), data.size())});
  for (int call = 0; call < 5; ++call)
    EXPECT_EQUAL(calls_until_seen(verifier, data), size_t{1});
  EXPECT(!verifier.is_adaptive());
}

TEST(watch_looks_at_everything_in_time) {
  constexpr size_t lines = 64;
  auto data = bytes(lines * Fingerprint::line);
  for (size_t line = 0; line < lines; ++line) {
    ContentVerifier verifier({Fingerprint(data.data(), data.size())});
    EXPECT(!verifier.is_adaptive());
    data[line * Fingerprint::line] ^= 0x10;
    bool was_seen = false;
    for (size_t call = 0; call < lines / 2; ++call)
      was_seen |= !verifier.verify_next(0, data.data());
    data[line * Fingerprint::line] ^= 0x10;
    EXPECT(was_seen);
  }
}

TEST(watch_looks_at_as_much_as_is_affordable) {
  constexpr size_t lines = 1 << 14;
  const auto data = bytes(lines * Fingerprint::line);
  ContentVerifier verifier({Fingerprint(data.data(), data.size())});
  EXPECT(verifier.is_adaptive());
  for (int call = 0; call < 10; ++call)
    verifier.adapt_share(/*check_time=*/1, /*run_time=*/1 << 20);
  EXPECT_EQUAL(calls_until_seen(verifier, data), size_t{1});
  verifier.adapt_share(/*check_time=*/1 << 20, /*run_time=*/1);
  EXPECT(calls_until_seen(verifier, data) > 1);
}

// One interrupted call, which looks slow, must not make the next call check all lines.
TEST(watch_grows_step_by_step) {
  constexpr size_t lines = 1 << 14;
  const auto data = bytes(lines * Fingerprint::line);
  ContentVerifier verifier({Fingerprint(data.data(), data.size())});
  const auto step = lines >> 8; // initial number of lines per call
  verifier.adapt_share(/*check_time=*/1, /*run_time=*/uint64_t{1} << 40);
  EXPECT(calls_until_seen(verifier, data) <= lines / (4 * step) + 1);
  verifier.adapt_share(/*check_time=*/1, /*run_time=*/uint64_t{1} << 40);
  size_t calls = 0;
  for (int round = 0; round < 32; ++round)
    calls = std::max(calls, calls_until_seen(verifier, data));
  EXPECT(calls > 2);
}

TEST(parameter_is_described_until_it_is_written) {
  auto tensor = parameter();
  const auto state = ParameterState::with_content(tensor);
  EXPECT(state.describes(tensor, tensor.const_data_ptr()));
  const auto other = tensor.clone();
  EXPECT(!state.describes(other, other.const_data_ptr()));
  tensor.add_(1);
  EXPECT(!state.describes(tensor, tensor.const_data_ptr()));
}

TEST(unversioned_parameter_is_described_by_its_content) {
  auto tensor = parameter();
  const auto state = states_of({tensor}, {true}).at(0);
  auto other = tensor.clone();
  EXPECT(state.describes(other, other.const_data_ptr()));
  other.add_(1);
  EXPECT(!state.describes(other, other.const_data_ptr()));
}

TEST(inference_tensor_is_never_described) {
  const c10::InferenceMode mode;
  const auto tensor = parameter();
  EXPECT(!ParameterState::with_content(tensor).describes(tensor, tensor.const_data_ptr()));
}

TEST(equal_packs_share_a_buffer_while_it_lives) {
  auto tensor = parameter();
  packed = 0;
  auto first = pack(tensor);
  EXPECT(pack(tensor) == first);
  EXPECT_EQUAL(packed, 1);
  EXPECT(pack(tensor, {copy, "another copy", {0}, 64}) != first);
  EXPECT_EQUAL(packed, 2);
  first.reset();
  pack(tensor);
  EXPECT_EQUAL(packed, 3);
}

TEST(parameter_that_was_written_is_packed_anew) {
  auto tensor = parameter();
  const auto before = pack(tensor);
  tensor.add_(1);
  const auto after = pack(tensor);
  EXPECT(after != before);
  EXPECT(std::memcmp(after->memory.get(), tensor.const_data_ptr(), 64) == 0);
}

TEST(pack_is_released_with_its_last_user) {
  const auto tensor = parameter();
  released = 0;
  auto buffer = pack(tensor, {copy, "released", {0}, 64, count_release});
  auto user = buffer;
  buffer.reset();
  EXPECT_EQUAL(released, 0);
  user.reset();
  EXPECT_EQUAL(released, 1);
}

TEST(pack_that_fails_throws_and_keeps_nothing) {
  const auto tensor = parameter();
  const Pack failing{[](void* const*) -> int32_t { return -1; }, "failing", {0}, 64};
  EXPECT_THROW(pack(tensor, failing), PackingFailed);
  EXPECT(pack(tensor, {copy, "failing", {0}, 64}));
}

TEST(refreshed_pack_is_given_to_nobody_any_more) {
  const auto tensor = parameter();
  const auto slot = make_packed_slot();
  const auto set = store_packed(*slot, [&] { return set_of(tensor); });
  EXPECT(slot->load() == set);
  refresh_packs([](const ParameterState&) { return false; });
  EXPECT(slot->load() == set);
  refresh_packs(chooses_all);
  EXPECT(!slot->load());
  EXPECT(pack(tensor) != set->buffers.at(0));
}

TEST(what_is_packed_during_a_refresh_is_not_kept) {
  const auto tensor = parameter();
  const auto slot = make_packed_slot();
  const auto set = store_packed(*slot, [&] {
    auto made = set_of(tensor);
    refresh_packs(chooses_all);
    return made;
  });
  EXPECT(set);
  EXPECT(!slot->load());
}

TEST(packs_of_dead_parameters_are_dropped) {
  auto tensor = parameter();
  const auto living = parameter();
  const auto slot = make_packed_slot(), other = make_packed_slot();
  slot->store(set_of(tensor));
  other->store(set_of(living));
  const std::weak_ptr<const PackedBuffer> buffer = slot->load()->buffers.at(0);
  drop_dead_packs();
  EXPECT(!buffer.expired());
  tensor.reset();
  drop_dead_packs();
  EXPECT(buffer.expired() && !slot->load());
  EXPECT(other->load());
}

} // namespace torchmdla
