#include "bundle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "error.h"
#include "kept_file.h"
#include "sha256.h"

namespace paceline {
namespace {

constexpr char kManifest[] = "manifest.json";

}  // namespace

struct Bundle::Opened {
  std::shared_ptr<const int> fd;
  int64_t offset, size;
};

Bundle::Bundle(Source source) : source_(std::move(source)) {
  const Opened opened = source_(kManifest);
  manifest_ = Manifest::parse(Mapping(kManifest, *opened.fd, opened.offset, opened.size).bytes());
}

Bundle Bundle::in(const std::string &folder) {
  return Bundle([folder](const std::string &name) -> Opened {
    // Without O_NONBLOCK, opening a pipe would wait for whoever writes into it.
    const int fd = ::open((folder + "/" + name).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
      throw Error(folder + "/" + name + " cannot be opened (" + std::strerror(errno) +
                  "); a bundle is a directory made by: paceline export");
    }
    const auto close_it = [](const int *held) {
      close(*held);
      delete held;
    };
    return {{new int(fd), close_it}, 0, -1};
  });
}

Bundle Bundle::of(const paceline_file *files, size_t count) {
  return Bundle([files, count](const std::string &name) -> Opened {
    const auto *found =
        std::find_if(files, files + count, [&name](const paceline_file &file) { return name == file.name; });
    if (found == files + count)
      throw Error(name + " was not chosen; choose all files of the bundle, or its directory.");
    return {std::make_shared<const int>(found->fd), found->offset, found->size};
  });
}

void Bundle::open(const std::string &name) {
  if (has(name)) return;
  const auto stored = manifest_.files.find(name);
  if (stored == manifest_.files.end()) {
    throw Error("the bundle has no " + name +
                ", which this program reads; export it again with this version of paceline.");
  }
  const Opened opened = source_(name);
  Mapping mapping(name, *opened.fd, opened.offset, opened.size);
  const auto found = static_cast<int64_t>(mapping.bytes().size());
  if (found != stored->second.bytes) {
    throw Error(name + " has " + std::to_string(found) + " bytes and should have " +
                std::to_string(stored->second.bytes) + "; copy or download it again.");
  }
  struct stat status;
  fstat(*opened.fd, &status);
  state_ += name + ' ' + stored->second.sha256 + ' ' + file_state(status) + '\n';
  files_.emplace(name, std::move(mapping));
}

std::string_view Bundle::file(const std::string &name) const { return files_.at(name).bytes(); }

void Bundle::check_hashes(const std::string &cache_dir, const Progress &progress) const {
  const KeptFile seen(cache_dir, "checked-" + sha256(state_).substr(0, 24), ".txt");
  if (seen.read() == state_) return;
  size_t all = 0, done = 0;
  for (const auto &[name, mapping] : files_) all += mapping.bytes().size();
  for (const auto &[name, mapping] : files_) {
    const auto tell = [&, before = done](size_t hashed) {
      progress("checking", static_cast<double>(before + hashed) / all);
    };
    if (sha256(mapping.bytes(), tell) != manifest_.files.at(name).sha256) {
      throw Error(name + " is not what the manifest says (its hash differs); copy or download it again.");
    }
    done += mapping.bytes().size();
  }
  seen.write(state_);
}

}  // namespace paceline
