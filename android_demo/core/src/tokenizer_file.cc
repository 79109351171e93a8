#include "tokenizer_file.h"

#include <string>

#include "error.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a tokenizer.bin is read as it lies");

namespace paceline {
namespace {

constexpr std::string_view kMagic = "PLTK";
constexpr uint32_t kTokenizerVersion = 1;
constexpr size_t kHeaderWords = 6, kTokenWords = 2, kMergeWords = 3, kPatternWords = 3, kByteCount = 256;
constexpr uint32_t kMostPattern = 255;  // bounds the work at each place of a text
constexpr uint32_t kSpecial = 1, kByte = 2;

[[noreturn]] void refuse(const std::string &found) {
  throw Error("tokenizer.bin " + found + "; copy the bundle again, or export it anew.");
}

void require(bool holds) {
  if (!holds) refuse("is damaged");
}

// Takes sections from the front of a file.
class Cursor {
 public:
  explicit Cursor(std::string_view rest) : rest_(rest) {}

  Words words(uint64_t count) {
    if (count > rest_.size() / sizeof(uint32_t)) refuse("is cut off");
    const Words words(rest_.data(), static_cast<size_t>(count));
    rest_.remove_prefix(static_cast<size_t>(count) * sizeof(uint32_t));
    return words;
  }

  std::string_view bytes(uint32_t count) {
    if (count != rest_.size()) refuse("has another size than it says");
    return rest_;
  }

 private:
  std::string_view rest_;
};

}  // namespace

TokenizerFile::TokenizerFile(std::string_view file) {
  if (file.substr(0, kMagic.size()) != kMagic) refuse("is no tokenizer");
  Cursor cursor(file.substr(kMagic.size()));
  const Words header = cursor.words(kHeaderWords);
  if (header[0] != kTokenizerVersion)
    refuse("has version " + std::to_string(header[0]) + ", and this app reads version 1");
  size_ = header[1];
  raw_ = header[3];
  normalized_ = header[4];
  require(size_ <= INT32_MAX);
  bytes_ = cursor.words(kByteCount);
  tokens_ = cursor.words(uint64_t{kTokenWords} * size_);
  sorted_ = cursor.words(size_);
  first_ = cursor.words(uint64_t{size_} + 1);
  merges_ = cursor.words(uint64_t{kMergeWords} * header[2]);
  patterns_ = cursor.words(kPatternWords * (uint64_t{raw_} + normalized_));
  texts_ = cursor.bytes(header[5]);
  check();
  for (size_t i = 0; i < ascii_.size(); i++) {
    const char character = static_cast<char>(i);
    ascii_[i] = find({&character, 1});
  }
}

void TokenizerFile::check() const {
  const auto inside = [&](uint32_t place, uint32_t length) { return uint64_t{place} + length <= texts_.size(); };
  for (size_t i = 0; i < bytes_.size(); i++) require(bytes_[i] < size_);
  for (uint32_t id = 0; id < size_; id++) {
    require(inside(tokens_[kTokenWords * id], tokens_[kTokenWords * id + 1] & 0xFFFF));
    require(sorted_[id] < size_);
    require(first_[id] <= first_[id + 1]);
  }
  require(first_[0] == 0 && first_[size_] == merges_.size() / kMergeWords);
  for (size_t i = 0; i < merges_.size(); i += kMergeWords) require(merges_[i + 1] != kNoRank && merges_[i + 2] < size_);
  for (size_t i = 0; i < patterns_.size(); i += kPatternWords) {
    const uint32_t length = patterns_[i + 1];
    require(length > 0 && length <= kMostPattern && inside(patterns_[i], length) && patterns_[i + 2] < size_);
  }
}

Token TokenizerFile::token(uint32_t id) const {
  const uint32_t packed = tokens_[kTokenWords * size_t{id} + 1], flags = packed >> 16;
  return {text(tokens_[kTokenWords * size_t{id}], packed & 0xFFFF), (flags & kSpecial) != 0, (flags & kByte) != 0,
          static_cast<unsigned char>(packed >> 24)};
}

std::optional<uint32_t> TokenizerFile::find(std::string_view wanted) const {
  size_t low = 0, high = size_;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const int order = token(sorted_[middle]).text.compare(wanted);
    if (order == 0) return sorted_[middle];
    (order < 0 ? low : high) = order < 0 ? middle + 1 : middle;
  }
  return std::nullopt;
}

std::optional<uint32_t> TokenizerFile::character(std::string_view character) const {
  const auto first = static_cast<unsigned char>(character[0]);
  return first < ascii_.size() ? ascii_[first] : find(character);
}

std::optional<Merge> TokenizerFile::merge(uint32_t left, uint32_t right) const {
  size_t low = first_[left], high = first_[size_t{left} + 1];
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const uint32_t found = merges_[kMergeWords * middle];
    if (found == right) return Merge{merges_[kMergeWords * middle + 1], merges_[kMergeWords * middle + 2]};
    (found < right ? low : high) = found < right ? middle + 1 : middle;
  }
  return std::nullopt;
}

Pattern TokenizerFile::pattern(uint32_t index) const {
  const size_t at = kPatternWords * size_t{index};
  return {text(patterns_[at], patterns_[at + 1]), patterns_[at + 2]};
}

}  // namespace paceline
