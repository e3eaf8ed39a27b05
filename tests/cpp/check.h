// SPDX-License-Identifier: Apache-2.0
// A test program's whole framework: TEST defines a test, the checks count failures, main runs all.
#pragma once

#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline int failures = 0;

struct Registration {
  Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

inline void fail(const char* file, int line, const std::string& what) {
  ++failures;
  std::cerr << file << ":" << line << ": " << what << "\n";
}

template <class A, class B>
void equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::cerr << "  found " << +a << ", expected " << +b << "\n";
  fail(file, line, text);
}

inline void near(double a, double b, double tolerance, const char* text, const char* file, int line) {
  if (std::fabs(a - b) <= tolerance) return;
  std::cerr << "  found " << a << ", expected " << b << " within " << tolerance << "\n";
  fail(file, line, text);
}

}  // namespace check

#define TEST(name)                                                   \
  static void name();                                                \
  static const check::Registration registration_##name(#name, name); \
  static void name()
#define CHECK(condition) ((condition) ? void() : check::fail(__FILE__, __LINE__, #condition))
#define CHECK_EQ(a, b) check::equal(a, b, #a " == " #b, __FILE__, __LINE__)
#define CHECK_NEAR(a, b, tolerance) check::near(a, b, tolerance, #a " near " #b, __FILE__, __LINE__)

int main() {
  for (const check::Test& test : check::tests()) {
    const int before = check::failures;
    test.run();
    std::printf("%s %s\n", check::failures == before ? "ok    " : "FAILED", test.name);
  }
  return check::failures == 0 && !check::tests().empty() ? 0 : 1;
}
