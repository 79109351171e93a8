// A JSON document (RFC 8259), read from bytes that nobody has checked.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// A value and where it stands in the document, so that an error can name it.
class Json {
 public:
  enum class Kind { kNull, kBool, kNumber, kText, kList, kObject };

  // Throws Error: `name` is what the document is called there.
  static Json parse(const std::string &name, std::string_view text);

  Kind kind() const { return kind_; }
  // Throw Error where the value is of another kind, or out of range.
  bool flag() const;
  int64_t integer(int64_t low, int64_t high) const;
  double number() const;
  double fraction() const;  // a number that is written with a point or an exponent
  const std::string &text() const;
  const std::vector<Json> &list() const;
  const std::map<std::string, Json> &object() const;
  // A member of an object; throws Error where it lacks.
  const Json &at(const std::string &key) const;
  // Null where the object has no such member, or it is null.
  const Json *find(const std::string &key) const;
  // "manifest.json: model.window"
  const std::string &place() const { return place_; }

 private:
  friend class JsonReader;
  [[noreturn]] void refuse(const std::string &allowed) const;

  Kind kind_ = Kind::kNull;
  bool flag_ = false, whole_ = false, fraction_ = false;
  double number_ = 0;
  int64_t integer_ = 0;
  std::string text_, place_;
  std::vector<Json> list_;
  std::map<std::string, Json> object_;
};

}  // namespace paceline
