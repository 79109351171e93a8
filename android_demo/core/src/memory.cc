#include "memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "error.h"

namespace paceline {
namespace {

constexpr size_t kAlignment = 64;  // LITERT_HOST_MEMORY_BUFFER_ALIGNMENT

}  // namespace

Memory::Memory(size_t size) : raw_(std::calloc(size + kAlignment, 1)), size_(size) {
  if (!raw_)
    throw Error("there is no memory for " + std::to_string(size >> 20) + " MB more; choose a smaller context.");
  const auto address = reinterpret_cast<uintptr_t>(raw_);
  start_ = static_cast<char *>(raw_) + (kAlignment - address % kAlignment) % kAlignment;
}

Memory::Memory(Memory &&other) noexcept { *this = std::move(other); }

Memory &Memory::operator=(Memory &&other) noexcept {
  std::swap(raw_, other.raw_);
  std::swap(start_, other.start_);
  std::swap(size_, other.size_);
  return *this;
}

Memory::~Memory() { std::free(raw_); }

Mapping::Mapping(const std::string &name, int fd, int64_t offset, int64_t size) {
  struct stat status;
  if (fstat(fd, &status) != 0) throw Error(name + " cannot be read (" + std::strerror(errno) + ").");
  if (!S_ISREG(status.st_mode)) {
    throw Error(name + " is not a file that can be mapped, as those of a cloud drive; copy it to this device first.");
  }
  const int64_t whole = status.st_size;
  if (size < 0) size = whole - offset;
  if (offset < 0 || size <= 0 || offset > whole - size) {
    throw Error(name + " is empty or cut off (" + std::to_string(whole) + " bytes); copy it again.");
  }
  const int64_t before = offset % sysconf(_SC_PAGESIZE);  // a mapping starts at a page
  mapped_size_ = static_cast<size_t>(size + before);
  mapped_ = mmap(nullptr, mapped_size_, PROT_READ, MAP_PRIVATE, fd, offset - before);
  if (mapped_ == MAP_FAILED) {
    mapped_ = nullptr;
    throw Error(name + " cannot be mapped (" + std::strerror(errno) + ").");
  }
  start_ = static_cast<char *>(mapped_) + before;
  size_ = static_cast<size_t>(size);
}

Mapping::Mapping(Mapping &&other) noexcept { *this = std::move(other); }

Mapping &Mapping::operator=(Mapping &&other) noexcept {
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_size_, other.mapped_size_);
  std::swap(start_, other.start_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (mapped_) munmap(mapped_, mapped_size_);
}

}  // namespace paceline
