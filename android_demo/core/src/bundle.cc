#include "bundle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "error.h"
#include "kept_file.h"
#include "sha256.h"

namespace paceline {
namespace {

constexpr char kManifest[] = "manifest.json", kTokenizer[] = "tokenizer.bin";

// An open descriptor that closes itself.
class Opened {
 public:
  Opened(const std::string &folder, const std::string &name) {
    // Without O_NONBLOCK, opening a pipe would wait for whoever writes into it.
    fd_ = open((folder + "/" + name).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) {
      throw Error(folder + "/" + name + " cannot be opened (" + std::strerror(errno) +
                  "); a bundle is a directory made by: paceline export");
    }
  }
  ~Opened() { close(fd_); }
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Bundle::Bundle(Mapping manifest) : manifest_(Manifest::parse(manifest.bytes())) {}

std::vector<std::string> Bundle::needed() const {
  std::vector<std::string> names = {kTokenizer};
  if (manifest_.files.count(kSamplingFile)) names.push_back(kSamplingFile);
  for (const auto &[part, file] : manifest_.parts) names.push_back(file);
  return names;
}

void Bundle::add(const std::string &name, int fd, int64_t offset, int64_t size) {
  const auto stored = manifest_.files.find(name);
  if (stored == manifest_.files.end()) {
    throw Error("the bundle has no " + name +
                ", which this program reads; export it again with this version of paceline.");
  }
  Mapping mapping(name, fd, offset, size);
  const auto found = static_cast<int64_t>(mapping.bytes().size());
  if (found != stored->second.bytes) {
    throw Error(name + " has " + std::to_string(found) + " bytes and should have " +
                std::to_string(stored->second.bytes) + "; copy or download it again.");
  }
  struct stat status;
  fstat(fd, &status);
  state_ += name + ' ' + stored->second.sha256 + ' ' + file_state(status) + '\n';
  files_.emplace(name, std::move(mapping));
}

Bundle Bundle::in(const std::string &folder) {
  Bundle made{Mapping(kManifest, Opened(folder, kManifest).fd(), 0, -1)};
  for (const std::string &name : made.needed()) made.add(name, Opened(folder, name).fd(), 0, -1);
  return made;
}

Bundle Bundle::of(const paceline_file *files, size_t count) {
  const auto given = [files, count](const std::string &name) -> const paceline_file & {
    const auto *found =
        std::find_if(files, files + count, [&name](const paceline_file &file) { return name == file.name; });
    if (found == files + count)
      throw Error(name + " was not chosen; choose all files of the bundle, or its directory.");
    return *found;
  };
  const paceline_file &manifest = given(kManifest);
  Bundle made{Mapping(kManifest, manifest.fd, manifest.offset, manifest.size)};
  for (const std::string &name : made.needed()) made.add(name, given(name).fd, given(name).offset, given(name).size);
  return made;
}

std::string_view Bundle::file(const std::string &name) const { return files_.at(name).bytes(); }

int64_t Bundle::weights_bytes() const { return static_cast<int64_t>(part("target").size() + part("drafter").size()); }

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
