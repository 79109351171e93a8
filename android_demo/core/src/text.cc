#include "text.h"

#include <algorithm>

namespace paceline {

std::string TextStream::push(int32_t token) {
  tokens_.push_back(token);
  // Special tokens are skipped, and so do not end a run.
  return tokenizer_.special(token) || tokenizer_.byte(token) ? "" : finish();
}

std::string TextStream::finish() {
  const std::string before = tokenizer_.decode(tokens_.data(), settled_);
  const std::string after = tokenizer_.decode(tokens_.data(), tokens_.size());
  if (tokens_.size() > 1) tokens_.erase(tokens_.begin(), tokens_.end() - 1);
  settled_ = tokens_.size();
  return after.substr(std::min(before.size(), after.size()));
}

std::pair<std::string, bool> StopTexts::push(const std::string &text) {
  held_ += text;
  size_t first = std::string::npos, most = 0;
  for (const std::string &stop : stops_) {
    first = std::min(first, held_.find(stop));
    most = std::max(most, stop.size() - 1);
  }
  if (first != std::string::npos) return {std::exchange(held_, {}).substr(0, first), true};
  size_t waiting = std::min(most, held_.size());
  const auto begins_stop = [this](size_t size) {
    return std::any_of(stops_.begin(), stops_.end(), [this, size](const std::string &stop) {
      return size < stop.size() && held_.compare(held_.size() - size, size, stop, 0, size) == 0;
    });
  };
  while (waiting && !begins_stop(waiting)) waiting--;
  const size_t shown = held_.size() - waiting;
  std::string rest = held_.substr(shown);
  held_.resize(shown);
  return {std::exchange(held_, std::move(rest)), false};
}

Thoughts::Thoughts(const Tokenizer &tokenizer)
    : opens_(tokenizer.find("<|channel>")), closes_(tokenizer.find("<channel|>")) {}

std::pair<std::string, bool> Thoughts::push(int32_t token, std::string text) {
  if (token == opens_) {
    inside_ = true;
    named_ = false;
  } else if (inside_ && !named_) {  // the channel's name is the first line
    const size_t newline = text.find('\n');
    named_ = newline != std::string::npos;
    text = named_ ? text.substr(newline + 1) : "";
  }
  const bool thought = inside_;
  if (token == closes_) inside_ = false;
  return {std::move(text), thought};
}

}  // namespace paceline
