// Tests of byte keys, sizes in bytes, and forks.

#include "base/byte_key.h"
#include "base/byte_size.h"
#include "base/forks.h"
#include "testing.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace torchmdla {

using testing::in_child;

namespace {

template <class... Entries> std::string key_of(const Entries&... entries) {
  ByteKey key;
  (key.add(entries), ...);
  return key.take();
}

std::string key_of_lists(const std::vector<std::vector<int64_t>>& lists) {
  ByteKey key;
  for (const auto& list : lists)
    key.add_list(list);
  return key.take();
}

// Thread that stays in an unforked section until the destructor releases it.
class InSection {
public:
  InSection()
      : thread_([this] {
          const ForkGuard section;
          is_inside_ = true;
          is_inside_.notify_all();
          may_leave_.wait(false);
        }) {
    is_inside_.wait(false);
  }
  ~InSection() {
    may_leave_ = true;
    may_leave_.notify_all();
    thread_.join();
  }

private:
  std::atomic<bool> is_inside_{false}, may_leave_{false};
  std::thread thread_; // must be the last member, because it uses the others
};

// Variables that children of forks read.
ForkRobustMutex locked_by_parent;
uint64_t number_of_parent;
RcuCell<const int> published;

} // namespace

TEST(byte_key_tells_where_entries_end) {
  const std::string a = "a", ab = "ab", b = "b", bc = "bc";
  EXPECT(key_of(a, bc) != key_of(ab, std::string("c")));
  EXPECT(key_of(std::string(), b) != key_of(b, std::string()));
  EXPECT(key_of(int64_t{1}, a) == key_of(int64_t{1}, std::string("a")));
}

TEST(byte_key_tells_where_lists_end) {
  EXPECT(key_of_lists({{1, 2}, {3}}) != key_of_lists({{1}, {2, 3}}));
  EXPECT(key_of_lists({{}, {1}}) != key_of_lists({{1}, {}}));
  EXPECT(key_of_lists({{1, 2}}) == key_of_lists({{1, 2}}));
}

TEST(child_of_fork_has_another_process_number) {
  number_of_parent = process_number();
  EXPECT(in_child([] { EXPECT(process_number() != number_of_parent); }));
  EXPECT_EQUAL(process_number(), number_of_parent);
}

TEST(child_of_fork_finds_process_mutex_free) {
  const std::lock_guard<ForkRobustMutex> guard(locked_by_parent);
  EXPECT(in_child([] {
    locked_by_parent.lock();
    locked_by_parent.unlock();
  }));
}

TEST(process_mutex_excludes_threads) {
  ForkRobustMutex mutex;
  int64_t count = 0;
  constexpr int64_t times = 5000;
  const auto add = [&] {
    for (int64_t i = 0; i < times; ++i) {
      const std::lock_guard<ForkRobustMutex> guard(mutex);
      const auto before = count;
      std::this_thread::yield(); // the other thread would count meanwhile
      count = before + 1;
    }
  };
  std::thread other(add);
  add();
  other.join();
  EXPECT_EQUAL(count, 2 * times);
}

TEST(child_of_fork_has_what_was_published) {
  published.store(std::make_shared<const int>(1));
  EXPECT(in_child([] {
    EXPECT_EQUAL(*published.load(), 1);
    published.store(std::make_shared<const int>(2));
    EXPECT_EQUAL(*published.load(), 2);
    published.drop(published.load());
    EXPECT(!published.load());
  }));
  EXPECT_EQUAL(*published.load(), 1);
}

TEST(child_of_fork_frees_what_was_published_before) {
  static std::atomic<int> freed{0};
  static RcuCell<const int> before{
      std::shared_ptr<const int>(new int(1), [](const int* value) { ++freed, delete value; })};
  EXPECT(in_child([] {
    before.store(std::make_shared<const int>(2));
    EXPECT_EQUAL(freed.load(), 1);
  }));
  EXPECT_EQUAL(freed.load(), 0);
}

TEST(published_is_read_while_it_is_replaced) {
  RcuCell<const int64_t> published{std::make_shared<const int64_t>(0)};
  constexpr int64_t last = 20000;
  bool went_back = false;
  std::thread reader([&] {
    for (int64_t seen = 0; seen < last;) {
      const auto found = *published.load();
      went_back = went_back || found < seen;
      seen = found;
    }
  });
  for (int64_t i = 1; i <= last; ++i)
    published.store(std::make_shared<const int64_t>(i));
  reader.join();
  EXPECT(!went_back);
}

TEST(process_mutex_is_tried_without_waiting) {
  ForkRobustMutex mutex;
  EXPECT(mutex.try_lock());
  EXPECT(!mutex.try_lock());
  mutex.unlock();
  EXPECT(mutex.try_lock());
  mutex.unlock();
}

TEST(sizes_are_read_as_people_write_them) {
  EXPECT_EQUAL(byte_size("1234"), 1234);
  EXPECT_EQUAL(byte_size("512M"), int64_t{512} << 20);
  EXPECT_EQUAL(byte_size("4g"), int64_t{4} << 30);
  EXPECT_EQUAL(byte_size("1 GiB"), int64_t{1} << 30);
  EXPECT_EQUAL(byte_size("3kb"), 3 << 10);
  EXPECT_EQUAL(byte_size("7b"), 7);
  for (const auto* none : {"", "G", "-1", "1.5G", "4GG", "4Gi", "4 i", "99999999999T", "1 2"})
    EXPECT(!byte_size(none));
}

TEST(published_drops_only_what_it_still_has) {
  RcuCell<const int> slot;
  const auto first = std::make_shared<const int>(1), second = std::make_shared<const int>(2);
  slot.store(first);
  slot.store(second);
  slot.drop(first);
  EXPECT(slot.load() == second);
  slot.drop(second);
  EXPECT(!slot.load());
  EXPECT_EQUAL(second.use_count(), 1);
}

TEST(threads_have_stripes_in_cache_lines_of_their_own) {
  constexpr uintptr_t line = 64;
  Striped<int> striped;
  auto* const mine = &striped.local();
  int *first = nullptr, *second = nullptr;
  std::thread([&] { first = &striped.local(); }).join();
  std::thread([&] { second = &striped.local(); }).join();
  EXPECT(first != mine);
  EXPECT_EQUAL(first, second); // the number of a finished thread is reused
  EXPECT(reinterpret_cast<uintptr_t>(first) / line != reinterpret_cast<uintptr_t>(mine) / line);
  EXPECT_EQUAL(mine, &striped.local());
  ++*mine, ++*first;
  int sum = 0;
  striped.for_each([&](int value) { sum += value; });
  EXPECT_EQUAL(sum, 2);
}

TEST(published_tells_whether_a_reader_has_what_it_drops) {
  RcuCell<const int> slot(std::make_shared<const int>(1));
  auto read = slot.load();
  std::shared_ptr<const int> elsewhere;
  std::thread([&] { elsewhere = slot.load(); }).join();
  EXPECT_EQUAL(read.use_count(), 2); // the other thread has another reference count
  const auto dropped = slot.drop(read);
  read.reset();
  EXPECT(!dropped.expired());
  elsewhere.reset();
  EXPECT(dropped.expired());
}

TEST(no_fork_while_another_thread_is_in_a_section) {
  {
    const InSection other;
    EXPECT(!enter_alone());
    EXPECT(!enter_alone()); // the first call has no lasting effect
  }
  EXPECT(enter_alone());
  leave_alone();
}

TEST(thread_that_forks_may_be_in_a_section_itself) {
  const ForkGuard outer;
  const ForkGuard inner;
  EXPECT(enter_alone());
  EXPECT(in_child([] {
    leave_alone();
    EXPECT(enter_alone());
    leave_alone();
  }));
  leave_alone();
  EXPECT(enter_alone());
  leave_alone();
}

TEST(only_one_thread_is_alone) {
  EXPECT(enter_alone());
  bool was_let_in = true;
  std::thread([&] { was_let_in = enter_alone(); }).join();
  leave_alone();
  EXPECT(!was_let_in);
}

TEST(section_waits_for_the_end_of_a_fork) {
  EXPECT(enter_alone());
  std::atomic<bool> is_there{false}, has_left{false};
  bool came_after = false;
  std::thread other([&] {
    is_there = true;
    is_there.notify_all();
    const ForkGuard section;
    came_after = has_left;
  });
  is_there.wait(false);
  std::this_thread::sleep_for(std::chrono::milliseconds(20)); // `other` must not enter in this time
  has_left = true;
  leave_alone();
  other.join();
  EXPECT(came_after);
}

} // namespace torchmdla
