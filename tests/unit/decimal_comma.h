// SPDX-License-Identifier: MIT OR Apache-2.0
// The process under a locale with a decimal comma, as an application in most of Europe sets it.
#ifndef TANDEM_TESTS_UNIT_DECIMAL_COMMA_H
#define TANDEM_TESTS_UNIT_DECIMAL_COMMA_H
#include <clocale>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#ifdef __GLIBC__
#include <sys/stat.h>
#include <unistd.h>
#endif

// Ends the test where there is no way to a locale with a decimal comma: an installed one, else one
// that is written here, as glibc reads it.
class DecimalComma {
 public:
  DecimalComma() {
    for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8",
                             "pl_PL.UTF-8", "German_Germany.1252"})
      if (std::setlocale(LC_NUMERIC, name) && has_comma()) return;
#ifdef __GLIBC__
    write_locale();
#endif
    REQUIRE_MESSAGE(std::setlocale(LC_NUMERIC, "comma") != nullptr, directory_);
    REQUIRE(has_comma());
  }
  ~DecimalComma() {
    std::setlocale(LC_NUMERIC, "C");
    if (directory_.empty()) return;
#ifdef __GLIBC__
    unsetenv("LOCPATH");
    std::remove((directory_ + "/comma/LC_NUMERIC").c_str());
    rmdir((directory_ + "/comma").c_str());
    rmdir(directory_.c_str());
#endif
  }
  DecimalComma(const DecimalComma&) = delete;
  DecimalComma& operator=(const DecimalComma&) = delete;

 private:
  static bool has_comma() {
    char text[8];
    std::snprintf(text, sizeof text, "%.1f", 0.5);
    return std::string(text) == "0,5" && std::strtod("0,5", nullptr) == 0.5;
  }

#ifdef __GLIBC__
  // What localedef makes of LC_NUMERIC for glibc: a magic number, how many items, where each
  // begins, and these: decimal point, thousands separator, grouping, both as wide characters, and
  // the character set.
  void write_locale() {
    char name[] = "/tmp/tandem-locale-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    directory_ = name;
    REQUIRE(mkdir((directory_ + "/comma").c_str(), 0700) == 0);
    const uint32_t words[] = {0x20031115 ^ 1, 6, 32, 34, 35, 36, 40, 44};
    const char strings[] = {',', 0, 0, 0};
    const uint32_t wide[] = {',', 0};
    const char codeset[] = "UTF-8";
    std::ofstream file(directory_ + "/comma/LC_NUMERIC", std::ios::binary);
    file.write(reinterpret_cast<const char*>(words), sizeof words);
    file.write(strings, sizeof strings);
    file.write(reinterpret_cast<const char*>(wide), sizeof wide);
    file.write(codeset, sizeof codeset);
    file.close();
    REQUIRE(file.good());
    REQUIRE(setenv("LOCPATH", directory_.c_str(), 1) == 0);
  }
#endif

  std::string directory_;
};

#endif
