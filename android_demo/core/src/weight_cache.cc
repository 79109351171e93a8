#include "weight_cache.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>

#include "error.h"

namespace paceline {
namespace {

constexpr double kPackedShare = 1.02;  // of the source's size

// Empty where there is no file.
std::string state_of(const std::string &path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 ? file_state(status) : "";
}

}  // namespace

WeightCache::WeightCache(const std::string &cache_dir, const std::string &source_sha256, size_t source_bytes)
    : path_(cache_dir + "/" + source_sha256.substr(0, 24) + ".xnnpack"),
      seal_(cache_dir, source_sha256.substr(0, 24), ".seal") {
  const std::string state = state_of(path_);
  if (!state.empty() && seal_.read() == state) return;
  std::remove(path_.c_str());
  partial_ = path_ + "." + std::to_string(getpid()) + ".partial";
  std::remove(partial_.c_str());  // XNNPACK starts a new file only where there is none
  struct statvfs disk;
  if (access(cache_dir.c_str(), W_OK) != 0 || statvfs(cache_dir.c_str(), &disk) != 0) {
    throw Error("the cache directory " + cache_dir + " cannot be written; choose another one.");
  }
  const double free_bytes = static_cast<double>(disk.f_bavail) * disk.f_frsize, needed = kPackedShare * source_bytes;
  if (free_bytes < needed) {
    throw Error("packed weights need " + std::to_string(static_cast<int64_t>(needed / 1e6)) + " MB in " + cache_dir +
                ", which has " + std::to_string(static_cast<int64_t>(free_bytes / 1e6)) +
                " MB left; delete something first.");
  }
}

WeightCache::~WeightCache() {
  if (!partial_.empty()) std::remove(partial_.c_str());
}

void WeightCache::complete() {
  if (partial_.empty() || std::rename(partial_.c_str(), path_.c_str()) != 0) return;
  partial_.clear();
  seal_.write(state_of(path_));
}

}  // namespace paceline
