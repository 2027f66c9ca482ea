// Tests of C++ units: what a test is, and what it checks by. test_cxx.py runs them in pytest.
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

// All of them, as they register themselves.
std::vector<Test>& tests();

struct Registration {
  Registration(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

template <class Got, class Wanted>
void expect_equal(const Got& got, const Wanted& wanted, const char* text, const char* place) {
  TORCH_CHECK(got == wanted, place, ": ", text, " is ", c10::str(got), ", not ", c10::str(wanted));
}

// Whether `body` ends well in a child of a fork. One that never ends is killed.
bool in_child(void (*body)());

} // namespace torchmdla::testing

#define PLACE_TEXT(line) #line
#define PLACE_LINE(line) PLACE_TEXT(line)
#define PLACE __FILE__ ":" PLACE_LINE(__LINE__)

// What follows is the test's body. Its name is a whole sentence's worth, and one of all files.
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
