// Memory that tensors lie in, and mapped files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace paceline {

// Zeros at an address that LiteRT takes as a tensor's (a multiple of 64); pages take memory once they are written.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t size);
  Memory(Memory &&other) noexcept;
  Memory &operator=(Memory &&other) noexcept;
  ~Memory();
  size_t size() const { return size_; }
  template <typename T>
  T *as() const {
    return reinterpret_cast<T *>(start_);
  }

 private:
  void *raw_ = nullptr;
  char *start_ = nullptr;
  size_t size_ = 0;
};

// A file's bytes, in memory only while they are used.
class Mapping {
 public:
  Mapping() = default;
  // Maps `size` bytes (-1: up to the end) of a descriptor, which may be closed afterwards. Throws Error, naming `name`.
  Mapping(const std::string &name, int fd, int64_t offset, int64_t size);
  Mapping(Mapping &&other) noexcept;
  Mapping &operator=(Mapping &&other) noexcept;
  ~Mapping();
  std::string_view bytes() const { return {start_, size_}; }

 private:
  void *mapped_ = nullptr;
  size_t mapped_size_ = 0;
  const char *start_ = nullptr;
  size_t size_ = 0;
};

}  // namespace paceline
