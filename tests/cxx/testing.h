// Registration and checks of C++ unit tests. test_cxx.py runs them in pytest.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <utility>
#include <vector>

namespace torchmdla::testing {

struct Test {
  const char* name;
  void (*body)();
};

// Return the list of all tests, to which they add themselves.
std::vector<Test>& tests();

struct Registration {
  Registration(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

template <class Got, class Wanted>
void expect_equal(const Got& got, const Wanted& wanted, const char* text, const char* place) {
  TORCH_CHECK(got == wanted, place, ": ", text, " is ", c10::str(got), ", not ", c10::str(wanted));
}

// Run `body` in a forked child and return whether it succeeds. A child that does not end is killed.
bool in_child(void (*body)());

} // namespace torchmdla::testing

#define PLACE_TEXT(line) #line
#define PLACE_LINE(line) PLACE_TEXT(line)
#define PLACE __FILE__ ":" PLACE_LINE(__LINE__)

// Define and register a test, whose body follows. The name describes the test like a sentence, and
// must be unique in all files.
#define TEST(name)                                                                                 \
  static void name();                                                                              \
  static const ::torchmdla::testing::Registration registration_of_##name(#name, name);             \
  static void name()

#define EXPECT(condition) TORCH_CHECK(condition, PLACE ": " #condition " does not hold")

#define EXPECT_EQUAL(got, wanted) ::torchmdla::testing::expect_equal((got), (wanted), #got, PLACE)

#define EXPECT_THROW(expression, Exception)                                                        \
  do {                                                                                             \
    bool thrown = false;                                                                           \
    try {                                                                                          \
      (void)(expression);                                                                          \
    } catch (const Exception&) {                                                                   \
      thrown = true;                                                                               \
    }                                                                                              \
    TORCH_CHECK(thrown, PLACE ": " #expression " throws no " #Exception);                          \
  } while (false)
