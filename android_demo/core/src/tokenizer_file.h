// The sections of a tokenizer.bin where they lie (BUNDLE.md says what they are); nothing is copied.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace paceline {

// Unsigned 32-bit numbers at any alignment.
class Words {
 public:
  Words() = default;
  Words(const char *start, size_t count) : start_(start), count_(count) {}
  size_t size() const { return count_; }
  uint32_t operator[](size_t index) const {
    uint32_t word;
    std::memcpy(&word, start_ + index * sizeof word, sizeof word);
    return word;
  }

 private:
  const char *start_ = nullptr;
  size_t count_ = 0;
};

struct Token {
  std::string_view text;
  bool special, is_byte;
  unsigned char byte;
};

struct Merge {
  uint32_t rank;  // never kNoRank
  uint32_t result;
};
constexpr uint32_t kNoRank = UINT32_MAX;

// What an added token is found by in a text: those before normalization, and those after it.
struct Pattern {
  std::string_view text;
  uint32_t token;
};

class TokenizerFile {
 public:
  // Throws Error unless every number points into the file, so that nothing below has to look. What the texts and the
  // orders are is left to the hash of the file.
  explicit TokenizerFile(std::string_view file);

  uint32_t size() const { return size_; }
  Token token(uint32_t id) const;
  uint32_t byte_token(unsigned char byte) const { return bytes_[byte]; }
  std::optional<uint32_t> find(std::string_view text) const;
  // The token of one character, as find() gives it.
  std::optional<uint32_t> character(std::string_view character) const;
  std::optional<Merge> merge(uint32_t left, uint32_t right) const;
  uint32_t raw_patterns() const { return raw_; }
  uint32_t normalized_patterns() const { return normalized_; }
  // Those before normalization first; each kind sorted by its bytes.
  Pattern pattern(uint32_t index) const;

 private:
  std::string_view text(uint32_t place, uint32_t length) const { return texts_.substr(place, length); }
  void check() const;

  uint32_t size_ = 0, raw_ = 0, normalized_ = 0;
  Words bytes_, tokens_, sorted_, first_, merges_, patterns_;
  std::string_view texts_;
  std::array<std::optional<uint32_t>, 128> ascii_;  // what most characters are
};

}  // namespace paceline
