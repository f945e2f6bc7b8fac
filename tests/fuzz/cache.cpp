// SPDX-License-Identifier: MIT OR Apache-2.0
// Cache blobs: the backend gets what a device of this kind gave, and nothing else. An input is a
// list of changes of a good blob, with or without a header that is made right again.
#include <algorithm>

#include "api/device.h"
#include "api/handles.h"
#include "fuzz.h"

using namespace tandem;

namespace {

std::vector<uint8_t> body;      // of the device's cache
std::vector<uint8_t> received;  // what set_cache() gave the backend
bool got = false;

class CachingDevice final : public Device {
 public:
  CachingDevice() { caps_.backend = Backend::vulkan, caps_.name = "a GPU"; }
  Status build(const Plan&, std::unique_ptr<Program>*) override { return Status(); }
  Status cache_get(Vec<uint8_t>* out) override {
    out->assign(body.begin(), body.end());
    return Status();
  }
  Status cache_set(const uint8_t* data, size_t size) override {
    received.assign(data, data + size);
    got = true;
    return Status();
  }
};

tandem_device* open() {
  tandem_device* device = nullptr;
  const auto make = [](const DeviceOptions&, const void*, std::unique_ptr<Device>* d) {
    *d = std::make_unique<CachingDevice>();
    return Status();
  };
  FUZZ_CHECK(create_device(nullptr, &device, make, nullptr) == TANDEM_OK);
  return device;
}

// The header's sum: FNV-1a of its first 32 bytes and the body.
void sign(std::vector<uint8_t>* blob) {
  if (blob->size() < 40) return;
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](uint8_t byte) { hash = (hash ^ byte) * 0x100000001b3u; };
  std::for_each(blob->begin(), blob->begin() + 32, add);
  std::for_each(blob->begin() + 40, blob->end(), add);
  std::memcpy(blob->data() + 32, &hash, 8);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes bytes(data, size);
  static tandem_device* device = open();
  body.assign(bytes.byte(), bytes.byte());
  size_t room = 0;
  FUZZ_CHECK(tandem_device_get_cache(device, &room, nullptr) == TANDEM_OK);
  FUZZ_CHECK(room == 40 + body.size());
  std::vector<uint8_t> good(room);
  size_t small = room - 1;
  FUZZ_CHECK(tandem_device_get_cache(device, &small, good.data()) == TANDEM_ERROR_INVALID_ARGUMENT);
  FUZZ_CHECK(tandem_device_get_cache(device, &room, good.data()) == TANDEM_OK);
  std::vector<uint8_t> blob = good;
  bool again = false;
  for (int n = bytes.byte() % 6; n > 0; --n) {
    const size_t at = blob.empty() ? 0 : size_t(bytes.value<uint16_t>()) % blob.size();
    switch (bytes.byte() % 6) {
      case 0:
        if (!blob.empty()) blob[at] = bytes.byte();
        break;
      case 1:
        blob.resize(bytes.value<uint16_t>() % 400);
        break;
      case 2: {  // a number of the header
        const int64_t number = bytes.awkward();
        const size_t word = size_t(bytes.byte() % 5) * 8;
        if (blob.size() >= 40) std::memcpy(blob.data() + word, &number, 8);
        break;
      }
      case 3: {  // the size is right again
        const uint64_t rest = blob.size() >= 40 ? blob.size() - 40 : 0;
        if (blob.size() >= 40) std::memcpy(blob.data() + 24, &rest, 8);
        break;
      }
      case 4:
        blob.insert(blob.begin() + std::ptrdiff_t(at), bytes.byte());
        break;
      default:  // and so is the sum
        sign(&blob), again = true;
    }
  }
  got = false;
  const std::vector<uint8_t> exact = blob;  // of just this size on the heap
  const tandem_status status = tandem_device_set_cache(device, exact.size(), exact.data());
  if (status == TANDEM_OK) {
    FUZZ_CHECK(got && exact.size() == 40 + received.size());
    FUZZ_CHECK(std::equal(received.begin(), received.end(), exact.begin() + 40));
    FUZZ_CHECK_OF(again || exact == good, "the device took a changed blob");
    // Magic, version, reserved and key are the device's in every blob that it takes.
    FUZZ_CHECK(std::equal(good.begin(), good.begin() + 24, exact.begin()));
  } else {
    FUZZ_CHECK_OF(!got, "the backend got a blob that was refused");
    FUZZ_CHECK(status == TANDEM_ERROR_CACHE ||
               (exact.empty() && status == TANDEM_ERROR_INVALID_ARGUMENT));
    FUZZ_CHECK(std::strlen(tandem_last_message()) > 10);
  }
  return 0;
}
