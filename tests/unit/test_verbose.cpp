// SPDX-License-Identifier: MIT OR Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include "api/verbose.h"
#include "base/environment.h"
#include "decimal_comma.h"

#ifdef _WIN32
#include <io.h>
#include <windows.h>
#define dup _dup
#define dup2 _dup2
#define close _close
#define fileno _fileno
#else
#include <unistd.h>
#endif

using namespace tandem;

TEST_CASE("verbose: words") {
  const auto bits_of = [](const char* words) {
    uint32_t bits = 77;
    const Status status = parse_verbose(words, &bits);
    REQUIRE_MESSAGE(status.ok(), status.message());
    return bits;
  };
  CHECK(bits_of(nullptr) == 0);
  CHECK(bits_of("") == 0);
  CHECK(bits_of(",") == 0);
  CHECK(bits_of("plan") == uint32_t(Verbose::plan));
  CHECK(bits_of("error,execute,error") == (uint32_t(Verbose::error) | uint32_t(Verbose::execute)));
  for (Verbose word : {Verbose::error, Verbose::device, Verbose::plan, Verbose::execute})
    CHECK((bits_of("all") & uint32_t(word)) != 0);

  for (const char* wrong : {"plans", "plan,pla", "PLAN", "plan execute", "1"}) {
    uint32_t bits = 77;
    const Status status = parse_verbose(wrong, &bits);
    CAPTURE(wrong);
    CHECK(status.code() == TANDEM_ERROR_INVALID_ARGUMENT);
    CHECK(bits == 0);
  }
  uint32_t bits = 0;
  CHECK(parse_verbose("plan,pla,device", &bits).message().find("'pla'") != std::string::npos);
}

TEST_CASE("the environment is the process's own, not the C library's copy") {
  const char* const name = "TANDEM_TEST_ENVIRONMENT";
  const std::string word(300, 'x');
#ifdef _WIN32
  const auto set = [&](const char* value) { REQUIRE(SetEnvironmentVariableA(name, value) != 0); };
#else
  const auto set = [&](const char* value) {
    REQUIRE((value ? setenv(name, value, 1) : unsetenv(name)) == 0);
  };
#endif
  String room;
  CHECK(environment_value(name, &room) == nullptr);
  for (const char* value : {"a", word.c_str(), "b"}) {
    set(value);
    CHECK(std::string(environment_value(name, &room)) == value);
  }
  set(nullptr);
  CHECK(environment_value(name, &room) == nullptr);
}

TEST_CASE("regression: times have a point under a decimal comma") {
  const DecimalComma comma;
  std::FILE* file = std::tmpfile();
  REQUIRE(file);
  std::fflush(stderr);
  const int error = fileno(stderr), stderr_before = dup(error);
  REQUIRE(dup2(fileno(file), error) >= 0);
  verbose_line(Verbose::plan, "cpu", 12.34, "a plan");
  verbose_line(Verbose::execute, "", -1, "none", ", more");
  verbose_line(Verbose::execute, "cpu", 1e60, "for ever");
  std::fflush(stderr);
  dup2(stderr_before, error);
  close(stderr_before);
  std::rewind(file);
  char lines[256] = {};
  CHECK(std::fread(lines, 1, sizeof lines - 1, file) > 0);
  std::fclose(file);
  CHECK(std::string(lines) ==
        "tandem,plan,cpu,12.3,a plan\ntandem,execute,-,-,none, more\ntandem,execute,cpu,-,for "
        "ever\n");
}
