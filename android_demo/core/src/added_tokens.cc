#include "added_tokens.h"

namespace paceline {
namespace {

int byte_at(std::string_view text, size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : -1; }

}  // namespace

AddedTokens::AddedTokens(const TokenizerFile &file, uint32_t begin, uint32_t end)
    : file_(&file), begin_(begin), end_(end) {
  for (uint32_t i = begin; i < end; i++) starts_.set(static_cast<size_t>(byte_at(file.pattern(i).text, 0)));
}

std::optional<Pattern> AddedTokens::longest(std::string_view text) const {
  if (!starts_[static_cast<size_t>(byte_at(text, 0))]) return std::nullopt;
  std::optional<Pattern> found;
  uint32_t low = begin_, high = end_;
  for (size_t at = 0; at < text.size(); at++) {
    // Those that share `at` + 1 bytes with the text; a pattern that ends there is the first of them.
    low = lower_bound(low, high, at, byte_at(text, at));
    high = lower_bound(low, high, at, byte_at(text, at) + 1);
    if (low == high) break;
    const Pattern first = file_->pattern(low);
    if (first.text.size() == at + 1) found = first;
  }
  return found;
}

uint32_t AddedTokens::lower_bound(uint32_t low, uint32_t high, size_t at, int least) const {
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (byte_at(file_->pattern(middle).text, at) < least) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace paceline
