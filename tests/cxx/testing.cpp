#include "testing.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

namespace torchmdla::testing {

namespace {

// Number of seconds after which a child is considered to hang.
constexpr unsigned child_limit = 120;

} // namespace

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

bool in_child(void (*body)()) {
  const auto child = fork();
  TORCH_CHECK(child >= 0, "fork failed");
  if (child == 0) {
    alarm(child_limit);
    try {
      body();
    } catch (const std::exception&) {
      _exit(EXIT_FAILURE);
    }
    _exit(EXIT_SUCCESS);
  }
  int status = 0;
  TORCH_CHECK(waitpid(child, &status, 0) == child, "waitpid failed");
  return WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
}

// Run one test. Return the text of its failure, or null if it passes.
extern "C" __attribute__((visibility("default"))) const char* run_cxx_test(const char* name) {
  static std::string failure;
  const auto found = std::ranges::find(tests(), std::string_view(name), &Test::name);
  if (found == tests().end()) return "there is no such test";
  try {
    found->body();
    return nullptr;
  } catch (const c10::Error& error) {
    failure = error.what_without_backtrace();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  return failure.c_str();
}

} // namespace torchmdla::testing
