#include "json.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "error.h"

namespace paceline {
namespace {

constexpr int kMostDepth = 32;            // a manifest has 6 levels
constexpr size_t kMostBytes = 16u << 20;  // that of E2B has 30 KB

}  // namespace

class JsonReader {
 public:
  JsonReader(const std::string &name, std::string_view text) : name_(name), text_(text) {
    if (text.size() > kMostBytes) throw Error(name + " has more than 16 MB, which no such file has.");
  }

  Json document() {
    Json value = read(name_ + ": ", 0);
    space();
    if (at_ != text_.size()) broken("the end");
    return value;
  }

 private:
  Json read(const std::string &place, int depth) {
    if (depth > kMostDepth) throw Error(name_ + " is nested more than " + std::to_string(kMostDepth) + " levels deep.");
    space();
    Json value;
    value.place_ = place;
    switch (peek()) {
      case '{': read_object(value, place, depth); break;
      case '[': read_list(value, place, depth); break;
      case '"':
        value.kind_ = Json::Kind::kText;
        value.text_ = string();
        break;
      case 't':
        word("true");
        value.kind_ = Json::Kind::kBool;
        value.flag_ = true;
        break;
      case 'f':
        word("false");
        value.kind_ = Json::Kind::kBool;
        break;
      case 'n': word("null"); break;
      default: read_number(value);
    }
    return value;
  }

  void read_object(Json &value, const std::string &place, int depth) {
    value.kind_ = Json::Kind::kObject;
    const std::string prefix = depth ? place + "." : place;
    for (bool more = open('{', '}'); more; more = goes_on('}')) {
      space();
      if (peek() != '"') broken("a name in quotes");
      const std::string key = string();
      space();
      expect(':');
      if (!value.object_.emplace(key, read(prefix + key, depth + 1)).second)
        throw Error(prefix + key + " stands there twice.");
    }
  }

  void read_list(Json &value, const std::string &place, int depth) {
    value.kind_ = Json::Kind::kList;
    for (bool more = open('[', ']'); more; more = goes_on(']')) {
      value.list_.push_back(read(place + "[" + std::to_string(value.list_.size()) + "]", depth + 1));
    }
  }

  // Whether a list or object that opens here has anything in it.
  bool open(char opens, char closes) {
    expect(opens);
    space();
    if (peek() != closes) return true;
    at_++;
    return false;
  }

  bool goes_on(char closes) {
    space();
    if (peek() == closes) {
      at_++;
      return false;
    }
    expect(',');
    return true;
  }

  void read_number(Json &value) {
    const size_t start = at_;
    while (at_ < text_.size() && (std::isdigit(static_cast<unsigned char>(text_[at_])) ||
                                  std::string_view("+-.eE").find(text_[at_]) != std::string_view::npos))
      at_++;
    const std::string digits(text_.substr(start, at_ - start));
    char *end = nullptr;
    value.kind_ = Json::Kind::kNumber;
    value.number_ = std::strtod(digits.c_str(), &end);
    if (digits.empty() || *end || !std::isfinite(value.number_)) broken("a value");
    errno = 0;
    value.integer_ = std::strtoll(digits.c_str(), &end, 10);
    value.whole_ = !*end && errno == 0;
    value.fraction_ = digits.find_first_of(".eE") != std::string::npos;
  }

  std::string string() {
    std::string found;
    expect('"');
    while (true) {
      const char next = take();
      if (next == '"') return found;
      if (static_cast<unsigned char>(next) < 0x20) broken("text without control characters");
      if (next != '\\') {
        found += next;
        continue;
      }
      const char escape = take();
      const std::string_view known = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
      if (const size_t which = known.find(escape); which != std::string_view::npos) {
        found += meant[which];
      } else if (escape == 'u') {
        append_code_point(found);
      } else {
        broken("an escape of JSON");
      }
    }
  }

  void append_code_point(std::string &found) {
    uint32_t point = hex4();
    if (point >= 0xD800 && point < 0xDC00) {  // the first half of a surrogate pair
      if (take() != '\\' || take() != 'u') broken("the second half of a surrogate pair");
      const uint32_t low = hex4();
      if (low < 0xDC00 || low > 0xDFFF) broken("the second half of a surrogate pair");
      point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
    } else if (point >= 0xDC00 && point < 0xE000) {
      broken("the first half of a surrogate pair");
    }
    if (point < 0x80) {
      found += static_cast<char>(point);
      return;
    }
    const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    found += static_cast<char>((0xFF00 >> (more + 1) & 0xFF) | (point >> 6 * more));
    for (int left = more - 1; left >= 0; left--) found += static_cast<char>(0x80 | (point >> 6 * left & 0x3F));
  }

  uint32_t hex4() {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
      const size_t digit = std::string_view("0123456789abcdef")
                               .find(static_cast<char>(std::tolower(static_cast<unsigned char>(take()))));
      if (digit == std::string_view::npos) broken("four hexadecimal digits");
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    return value;
  }

  void word(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted) broken("a value");
    at_ += wanted.size();
  }

  void space() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) at_++;
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  char take() {
    if (at_ == text_.size()) broken("more");
    return text_[at_++];
  }

  void expect(char wanted) {
    if (peek() != wanted) broken(std::string("'") + wanted + "'");
    at_++;
  }

  [[noreturn]] void broken(const std::string &wanted) const {
    throw Error(name_ + " is no JSON: at byte " + std::to_string(at_) + " there should be " + wanted +
                "; copy the bundle again.");
  }

  const std::string name_;
  const std::string_view text_;
  size_t at_ = 0;
};

Json Json::parse(const std::string &name, std::string_view text) { return JsonReader(name, text).document(); }

void Json::refuse(const std::string &allowed) const {
  throw Error(place_ + " should be " + allowed + "; export the bundle again.");
}

bool Json::flag() const {
  if (kind_ != Kind::kBool) refuse("true or false");
  return flag_;
}

int64_t Json::integer(int64_t low, int64_t high) const {
  if (kind_ != Kind::kNumber || !whole_ || integer_ < low || integer_ > high) {
    refuse("a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return integer_;
}

double Json::number() const {
  if (kind_ != Kind::kNumber || !(whole_ || fraction_)) refuse("a number of at most 64 bits");
  return number_;
}

double Json::fraction() const {
  if (kind_ != Kind::kNumber || !fraction_) refuse("a number with a point");
  return number_;
}

const std::string &Json::text() const {
  if (kind_ != Kind::kText) refuse("a text");
  return text_;
}

const std::vector<Json> &Json::list() const {
  if (kind_ != Kind::kList) refuse("a list");
  return list_;
}

const std::map<std::string, Json> &Json::object() const {
  if (kind_ != Kind::kObject) refuse("an object");
  return object_;
}

const Json &Json::at(const std::string &key) const {
  const auto found = object().find(key);
  if (found == object().end())
    throw Error(place_ + (place_.size() >= 2 && place_.substr(place_.size() - 2) == ": " ? "" : ".") + key +
                " is missing; export the bundle again.");
  return found->second;
}

const Json *Json::find(const std::string &key) const {
  const auto found = object().find(key);
  return found == object().end() || found->second.kind_ == Kind::kNull ? nullptr : &found->second;
}

}  // namespace paceline
